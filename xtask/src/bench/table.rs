//! Renders the rows as a Markdown table that is also aligned in a terminal.

use std::fmt::Write;

use super::BenchRow;

const HEADER: [&str; 6] = ["work", "time", "rate", "peer", "peer's time", "ratio"];

/// One line per row, plus one for each further peer. A ratio above 1 means that Tercet is faster.
pub(super) fn render(rows: &[BenchRow]) -> String {
    let lines: Vec<[String; 6]> = rows.iter().flat_map(cells).collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells
            .chain([HEADER[column].len()])
            .max()
            .unwrap_or_default()
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    push_line(&mut text, &HEADER.map(str::to_owned), &widths);
    text.push('|');
    for (column, width) in widths.iter().enumerate() {
        let rule = "-".repeat(width + 1);
        text.push_str(&if is_text(column) {
            format!("-{rule}|")
        } else {
            format!("{rule}:|")
        });
    }
    text.push('\n');
    for line in &lines {
        push_line(&mut text, line, &widths);
    }
    text
}

/// Whether a column is text: text is left-aligned, numbers are right-aligned.
fn is_text(column: usize) -> bool {
    matches!(HEADER[column], "work" | "peer")
}

fn push_line(text: &mut String, cells: &[String; 6], widths: &[usize; 6]) {
    text.push('|');
    for (column, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        // Writing to a string cannot fail.
        let _ = if is_text(column) {
            write!(text, " {cell:<width$} |")
        } else {
            write!(text, " {cell:>width$} |")
        };
    }
    text.push('\n');
}

fn cells(row: &BenchRow) -> Vec<[String; 6]> {
    let BenchRow {
        work,
        time_ns,
        rate,
        peers,
    } = row;
    let rate = rate.map_or(String::new(), |rate| {
        format!("{} {}", short(rate.value), rate.unit)
    });
    let ours = [work.clone(), time(*time_ns), rate];
    let none = || [const { String::new() }; 3];
    let mut lines: Vec<_> = peers
        .iter()
        .map(|peer| {
            [
                peer.peer.clone(),
                time(peer.time_ns),
                format!("{:.2}", peer.ratio),
            ]
        })
        .enumerate()
        .map(|(index, theirs)| join(if index == 0 { ours.clone() } else { none() }, theirs))
        .collect();
    if lines.is_empty() {
        lines.push(join(ours, none()));
    }
    lines
}

fn join([a, b, c]: [String; 3], [d, e, f]: [String; 3]) -> [String; 6] {
    [a, b, c, d, e, f]
}

fn time(ns: f64) -> String {
    let (scale, unit) = match ns {
        ns if ns < 1e3 => (1.0, "ns"),
        ns if ns < 1e6 => (1e3, "us"),
        ns if ns < 1e9 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{} {unit}", short(ns / scale))
}

/// Formats with three digits, or the complete integer part above 1000.
fn short(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PeerComparison, WorkRate};
    use super::*;

    #[test]
    fn times_and_rates_keep_three_digits() {
        assert_eq!(time(0.5), "0.50 ns");
        assert_eq!(time(999.0), "999 ns");
        assert_eq!(time(12_345.0), "12.3 us");
        assert_eq!(time(8_012_345.0), "8.01 ms");
        assert_eq!(time(2.5e9), "2.50 s");
        assert_eq!(short(48_211.4), "48211");
    }

    #[test]
    fn the_table_is_markdown_and_aligned() {
        let peer = |peer: &str, time_ns, ratio| PeerComparison {
            peer: peer.into(),
            time_ns,
            ratio,
        };
        let rows = [
            BenchRow {
                work: "gemm/1024".into(),
                time_ns: 4.4e6,
                rate: Some(WorkRate {
                    value: 488.0,
                    unit: "GFLOP/s",
                }),
                peers: vec![peer("faer", 4.38e6, 0.995), peer("b", 8.8e6, 2.0)],
            },
            BenchRow {
                work: "x".into(),
                time_ns: 10.0,
                rate: None,
                peers: vec![],
            },
        ];
        let expected = "\
| work      |    time |        rate | peer | peer's time | ratio |
|-----------|--------:|------------:|------|------------:|------:|
| gemm/1024 | 4.40 ms | 488 GFLOP/s | faer |     4.38 ms |  0.99 |
|           |         |             | b    |     8.80 ms |  2.00 |
| x         | 10.0 ns |             |      |             |       |
";
        assert_eq!(render(&rows), expected);
    }
}
