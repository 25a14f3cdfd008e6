//! `cargo xtask bench ops`: every ONNX operator on typical and odd shapes on the CPU, beside ONNX
//! Runtime with `--peers`, the slowest first.
//!
//! The rows are in `xtask/peers/op_rows.py`. `xtask/peers/ops_ort.py` measures the two programs by
//! turns; it runs Tercet through the example `model_times` of `tercet-onnx`.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::peers;
use crate::error::{self, XtaskError};
use crate::{cache, process};

/// The ratio that at most [`MAX_SLOW_SHARE`] of the rows may exceed.
const SLOW: f64 = 1.5;
const MAX_SLOW_SHARE: f64 = 0.05;
/// The ratio that no row may exceed.
const TOO_SLOW: f64 = 3.0;
/// Difference of results, relative to the largest of the peer's, from which a row is marked.
const FAR: f64 = 1e-2;

/// The options of `bench ops`.
#[derive(clap::Args)]
pub(crate) struct OpsBenchArgs {
    /// Measure ONNX Runtime on the same models by turns
    #[arg(long)]
    peers: bool,
    /// The number of threads, for Tercet and the peer
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Also write the rows as JSON lines
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Only rows with one of these texts, separated by commas, in their names, such as `Pow/,Conv`
    #[arg(default_value = "")]
    only: String,
}

/// A line of `ops_ort.py`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct OpTimes {
    /// `operator/shape`.
    work: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tercet_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_us: Option<f64>,
    /// The largest difference of the results, divided by the peer's largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<f64>,
    /// Why Tercet has no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Why the peer has no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_refused: Option<String>,
}

impl OpTimes {
    /// Tercet's time divided by the peer's: above 1 Tercet is slower.
    fn ratio(&self) -> Option<f64> {
        Some(self.tercet_us? / self.peer_us?)
    }
}

/// Measures the rows and prints them.
///
/// # Errors
/// [`XtaskError`] if a program cannot be built or run, or prints something else.
pub(crate) fn ops(options: &OpsBenchArgs) -> Result<(), XtaskError> {
    let mut build = process::cargo();
    build.args(["build", "--quiet", "--release"]);
    build.args(["--package", "tercet-onnx", "--example", "model_times"]);
    process::run(&mut build)?;
    let runner = super::target_dir()?.join("release/examples/model_times");
    let mut command = peers::python(&cache::dir()?)?.command();
    command.arg(process::root().join("xtask/peers/ops_ort.py"));
    command.arg("--binary").arg(runner);
    command.args(["--threads", &options.threads.to_string()]);
    command.args(["--only", &options.only]);
    if !options.peers {
        command.arg("--tercet-only");
    }
    let lines = process::output(&mut command)?;
    let lines = String::from_utf8_lossy(&lines);
    let rows = parse(&lines)?;
    println!("{}, {} threads\n", super::processor(), options.threads);
    print!("{}", render(rows));
    match &options.json {
        Some(path) => fs::write(path, lines.as_bytes()).map_err(error::file("write", path)),
        None => Ok(()),
    }
}

fn parse(lines: &str) -> Result<Vec<OpTimes>, XtaskError> {
    let parsed = lines.lines().map(serde_json::from_str);
    parsed
        .collect::<Result<_, _>>()
        .map_err(|source| XtaskError::Json {
            path: "the output of ops_ort.py".into(),
            source,
        })
}

/// The rows as a Markdown table, the slowest beside the peer first, and the counts against the bounds.
fn render(mut rows: Vec<OpTimes>) -> String {
    let key = |row: &OpTimes| row.ratio().unwrap_or(0.0);
    rows.sort_by(|a, b| key(b).total_cmp(&key(a)));
    let mut text =
        String::from("| operator | us | peer, us | ratio | note |\n|---|---:|---:|---:|---|\n");
    let shown =
        |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
    for row in &rows {
        let far = row.difference.filter(|d| d.is_nan() || *d > FAR);
        let note = [
            row.refused.as_ref().map(|r| format!("refused: {r}")),
            row.peer_refused.as_ref().map(|r| format!("peer: {r}")),
            far.map(|d| format!("results differ by {d:.1e}")),
        ];
        let note: Vec<String> = note.into_iter().flatten().collect();
        let note = note.join("; ").replace('|', "/");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {note} |",
            row.work,
            shown(row.tercet_us, 1),
            shown(row.peer_us, 1),
            shown(row.ratio(), 2),
        );
    }
    let ratios: Vec<f64> = rows.iter().filter_map(OpTimes::ratio).collect();
    if ratios.is_empty() {
        return text;
    }
    let above = |bound: f64| ratios.iter().filter(|r| **r > bound).count();
    let mean = (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let share = above(SLOW) as f64 / ratios.len() as f64;
    let _ = writeln!(
        text,
        "\n{} rows beside the peer: geometric mean {mean:.2}, {} above {SLOW} ({:.0} %, bound {:.0} %), {} above \
         {TOO_SLOW} (bound 0)",
        ratios.len(),
        above(SLOW),
        100.0 * share,
        100.0 * MAX_SLOW_SHARE,
        above(TOO_SLOW),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = concat!(
        r#"{"work": "Add/rows", "difference": 0.0, "tercet_us": 10.0, "peer_us": 20.0}"#,
        "\n",
        r#"{"work": "Pow/2.0", "difference": 0.5, "tercet_us": 80.0, "peer_us": 20.0}"#,
        "\n",
        r#"{"work": "Det/small", "refused": "no | kernel"}"#,
        "\n",
        r#"{"work": "Swish/odd", "peer_refused": "unknown", "tercet_us": 7.0}"#,
        "\n",
    );

    #[test]
    fn rows_are_sorted_by_ratio_and_counted() {
        let text = render(parse(LINES).unwrap());
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(
            rows[2],
            "| Pow/2.0 | 80.0 | 20.0 | 4.00 | results differ by 5.0e-1 |"
        );
        assert_eq!(rows[3], "| Add/rows | 10.0 | 20.0 | 0.50 |  |");
        assert_eq!(rows[4], "| Det/small | - | - | - | refused: no / kernel |");
        assert_eq!(rows[5], "| Swish/odd | 7.0 | - | - | peer: unknown |");
        let counts = rows.last().unwrap();
        assert!(
            counts.starts_with("2 rows beside the peer: geometric mean 1.41, 1 above 1.5 (50 %")
        );
        assert!(counts.ends_with("1 above 3 (bound 0)"), "{counts}");
    }

    #[test]
    fn lines_are_read_strictly() {
        assert!(parse(r#"{"work": "Add/rows", "other": 1}"#).is_err());
        assert!(parse("nonsense").is_err());
    }
}
