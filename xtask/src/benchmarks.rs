//! `docs/benchmarks.md` and its plots, generated from the measurements in `docs/benchmarks/*.json`.
//!
//! A data file holds one table: what was measured, on which machine, when, by which command, and the figures of
//! a peer in the same run. The page holds current figures only; replace a file when you measure again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{self, XtaskError};
use crate::process;

/// One table of the page.
#[derive(Debug, Deserialize)]
struct Measurements {
    title: String,
    /// What a row measures, in one or two sentences.
    note: String,
    machine: String,
    date: String,
    commit: String,
    command: String,
    unit: String,
    better: Better,
    /// Names of our columns.
    columns: Vec<String>,
    /// The peer with its version.
    peer: String,
    rows: Vec<Measurement>,
}

/// Whether a larger or a smaller figure is faster.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Better {
    Higher,
    Lower,
}

/// One row of a table: Tercet's figures, one per column, and the peer's figure.
#[derive(Debug, Deserialize)]
struct Measurement {
    name: String,
    values: Vec<Option<f64>>,
    peer: f64,
}

impl Measurements {
    /// The speedup over the peer of the first column that has a figure.
    fn speedup(&self, row: &Measurement) -> Option<f64> {
        let ours = row.values.iter().flatten().next()?;
        Some(match self.better {
            Better::Higher => ours / row.peer,
            Better::Lower => row.peer / ours,
        })
    }
}

/// Writes the page and its plots.
pub(crate) fn write() -> Result<(), XtaskError> {
    for (path, text) in generate(&docs())? {
        fs::write(&path, text).map_err(error::file("write", &path))?;
    }
    Ok(())
}

fn docs() -> PathBuf {
    process::root().join("docs")
}

/// The generated files with their contents.
fn generate(docs: &Path) -> Result<BTreeMap<PathBuf, String>, XtaskError> {
    let mut files = BTreeMap::new();
    let mut page = String::from(
        "# Benchmarks\n\n\
         `cargo xtask docs` generates this page from `docs/benchmarks/*.json`.\n\
         Absolute figures depend on the machine; compare ratios within one table.\n\
         A speedup above 1 means that Tercet is faster.\n",
    );
    for path in data_files(&docs.join("benchmarks"))? {
        let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
        let table: Measurements =
            serde_json::from_str(&text).map_err(|source| XtaskError::Json {
                path: path.clone(),
                source,
            })?;
        let plot = path.with_extension("svg");
        let name = plot.file_name().unwrap_or_default().to_string_lossy();
        add_table(&mut page, &table, &name);
        files.insert(plot, to_svg(&table));
    }
    files.insert(docs.join("benchmarks.md"), page);
    Ok(files)
}

fn data_files(folder: &Path) -> Result<Vec<PathBuf>, XtaskError> {
    let entries = fs::read_dir(folder).map_err(error::file("read", folder))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    paths.sort();
    Ok(paths)
}

fn add_table(page: &mut String, table: &Measurements, plot: &str) {
    let _ = write!(page, "\n## {}\n\n", table.title);
    for sentence in table.note.split_inclusive(". ") {
        let _ = writeln!(page, "{}", sentence.trim());
    }
    let _ = write!(page, "\n| {} |", table.unit);
    for column in table.columns.iter().chain([&table.peer]) {
        let _ = write!(page, " {column} |");
    }
    *page += " speedup |\n|---|";
    *page += &"---:|".repeat(table.columns.len() + 2);
    *page += "\n";
    for row in &table.rows {
        let _ = write!(page, "| {} |", row.name);
        for value in row.values.iter().copied().chain([Some(row.peer)]) {
            let _ = write!(page, " {} |", value.map_or("-".to_string(), shown));
        }
        let speedup = table.speedup(row);
        let _ = writeln!(
            page,
            " {} |",
            speedup.map_or("-".to_string(), |s| format!("{s:.2}"))
        );
    }
    let _ = write!(
        page,
        "\n![Speedup over {}](benchmarks/{plot})\n\n\
         - Machine: {}\n- Date and commit: {}, `{}`\n- Command: `{}`\n",
        table.peer, table.machine, table.date, table.commit, table.command
    );
}

/// A figure with separators of thousands.
fn shown(value: f64) -> String {
    if value.fract() != 0.0 {
        return format!("{value}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Colours of a plot, for light and for dark systems. The plot fills its background, so that it is legible on a page
/// whose theme differs from the system's.
const STYLE: &str = "<style>\n\
    .back{fill:#fff}.text{fill:#222}.faster{fill:#3a7d44}.slower{fill:#b5651d}.line{stroke:#333}\n\
    @media (prefers-color-scheme:dark){\n\
    .back{fill:#1b1f24}.text{fill:#ddd}.faster{fill:#5fae6b}.slower{fill:#d98a3d}.line{stroke:#bbb}}\n\
    </style>\n";

/// A horizontal bar per row whose length is the speedup; a line marks the peer.
fn to_svg(table: &Measurements) -> String {
    const LABEL: f64 = 250.0;
    const BARS: f64 = 400.0;
    const ROW: f64 = 24.0;
    let speedups = table.rows.iter().map(|row| table.speedup(row));
    let max = speedups.flatten().fold(1.5_f64, f64::max);
    let height = ROW * (table.rows.len() as f64 + 1.5);
    let peer = xml(&table.peer);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"{height}\" viewBox=\"0 0 720 {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <title>{}: speedup over {peer}</title>\n{STYLE}\
         <rect class=\"back\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n",
        xml(&table.title)
    );
    for (index, row) in table.rows.iter().enumerate() {
        let Some(speedup) = table.speedup(row) else {
            continue;
        };
        let y = ROW * (index as f64 + 0.5);
        let length = BARS * speedup / max;
        let class = if speedup >= 1.0 { "faster" } else { "slower" };
        let _ = write!(
            svg,
            "<text class=\"text\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\n\
             <rect class=\"{class}\" x=\"{LABEL:.0}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"16\"/>\n\
             <text class=\"text\" x=\"{:.1}\" y=\"{:.0}\">{speedup:.2}</text>\n",
            LABEL - 8.0,
            y + 13.0,
            xml(&row.name),
            LABEL + length + 5.0,
            y + 13.0,
        );
    }
    let line = LABEL + BARS / max;
    let _ = write!(
        svg,
        "<line class=\"line\" x1=\"{line:.1}\" y1=\"4\" x2=\"{line:.1}\" y2=\"{:.0}\" stroke-dasharray=\"4\"/>\n\
         <text class=\"text\" x=\"{line:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{peer}</text>\n</svg>\n",
        height - ROW,
        height - 6.0,
    );
    svg
}

/// A text in an XML document.
fn xml(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_its_plots_follow_from_the_data() {
        for (path, expected) in generate(&docs()).unwrap() {
            let found = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                found == expected,
                "{} is stale; run `cargo xtask docs`",
                path.display()
            );
        }
    }

    #[test]
    fn plots_have_colours_for_dark_pages_and_escape_names() {
        let text = r#"{"title":"A & B","note":"n","machine":"m","date":"d","commit":"c","command":"x",
            "unit":"ms","better":"lower","columns":["a"],"peer":"p <1>",
            "rows":[{"name":"x < y","values":[2.0],"peer":3.0}]}"#;
        let svg = to_svg(&serde_json::from_str(text).unwrap());
        assert!(svg.contains("prefers-color-scheme:dark"), "{svg}");
        for escaped in ["A &amp; B", "p &lt;1&gt;", "x &lt; y"] {
            assert!(svg.contains(escaped), "{escaped}: {svg}");
        }
        for class in ["back", "text", "faster", "line"] {
            let rules = svg.matches(&format!(".{class}{{")).count();
            assert_eq!(rules, 2, "{class}, light and dark");
            assert!(svg.contains(&format!("class=\"{class}\"")), "{class}");
        }
    }

    #[test]
    fn a_speedup_is_above_one_if_we_are_faster() {
        let text = r#"{"title":"t","note":"n","machine":"m","date":"d","commit":"c","command":"x",
            "unit":"ms","better":"lower","columns":["a","b"],"peer":"p",
            "rows":[{"name":"r","values":[null,2.0],"peer":3.0}]}"#;
        let table: Measurements = serde_json::from_str(text).unwrap();
        assert_eq!(table.speedup(&table.rows[0]), Some(1.5));
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(["57,785", "999", "46.4"], [57785.0, 999.0, 46.4].map(shown));
    }
}
