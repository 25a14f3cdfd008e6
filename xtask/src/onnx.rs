//! `cargo xtask onnx`: runs ONNX's own test cases on every executor and writes the table in
//! `docs/reference/onnx-operators.md`.
//!
//! The cases come from all `onnx` wheels from 1.5 on; a case that several of them have is run once.
//! The example `node_suite` of `tercet-onnx` runs the cases and prints a line per case. The lines
//! of each executor are saved in the cache folder, so a run on one executor still writes the table
//! for all.
//!
//! `cargo xtask onnx packages` compares models of Python packages with ONNX Runtime instead.

mod packages;
mod replaced;
mod table;
mod wheels;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{self, XtaskError};
use crate::{cache, process};

/// The executors in the column order of the table.
const EXECUTORS: [&str; 3] = ["cpu", "vulkan", "wgpu"];

const BEGIN: &str = "<!-- written by `cargo xtask onnx` -->";
const END: &str = "<!-- up to here -->";

/// The options of `cargo xtask onnx`.
#[derive(clap::Args)]
pub(crate) struct OnnxRunArgs {
    /// Run on one executor: cpu, vulkan or wgpu; the table keeps the last results of the others
    #[arg(long, value_parser = EXECUTORS)]
    device: Option<String>,
    /// The cargo profile of the runner
    #[arg(long, default_value = "release")]
    profile: String,
    /// Run only cases with this text in their names, print their outcomes, and write no table;
    /// `packages` compares models of Python packages with ONNX Runtime
    filter: Option<String>,
}

/// The outcome of one case on one executor.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OnnxCaseLine {
    outcome: OnnxCaseOutcome,
    case: String,
    operator: String,
    reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnnxCaseOutcome {
    Passed,
    Provided,
    Rounded,
    Refused,
    /// Wrong, but the package replaced the case in a later version, where it passes.
    Replaced,
    Wrong,
    Panicked,
}

impl OnnxCaseOutcome {
    fn parse(word: &str) -> Option<OnnxCaseOutcome> {
        match word {
            "passed" => Some(OnnxCaseOutcome::Passed),
            "given" => Some(OnnxCaseOutcome::Provided),
            "rounded" => Some(OnnxCaseOutcome::Rounded),
            "refused" => Some(OnnxCaseOutcome::Refused),
            "wrong" => Some(OnnxCaseOutcome::Wrong),
            "panicked" => Some(OnnxCaseOutcome::Panicked),
            _ => None,
        }
    }
}

fn parse(text: &str) -> Vec<OnnxCaseLine> {
    let line = |line: &str| {
        let mut parts = line.splitn(4, '\t');
        let mut next = || parts.next().map(str::to_string);
        Some(OnnxCaseLine {
            outcome: OnnxCaseOutcome::parse(&next()?)?,
            case: next()?,
            operator: next()?,
            reason: next().unwrap_or_default(),
        })
    };
    text.lines().filter_map(line).collect()
}

/// Runs the cases and writes the table.
pub(crate) fn run(options: &OnnxRunArgs) -> Result<(), XtaskError> {
    let cache = cache::dir()?;
    if options.filter.as_deref() == Some("packages") {
        return packages::run(&cache, &options.profile);
    }
    let cases = wheels::all(&cache)?;
    let kept = cache.join("onnx-results");
    fs::create_dir_all(&kept).map_err(error::file("create", &kept))?;
    for device in EXECUTORS {
        if options.device.as_deref().is_some_and(|d| d != device) {
            continue;
        }
        let mut command = process::cargo();
        command.args(["run", "--quiet", "--profile", &options.profile]);
        command.args(["--package", "tercet-onnx", "--example", "node_suite"]);
        if device != "cpu" {
            command.args(["--features", "tercet/vulkan,tercet/wgpu"]);
        }
        command.arg("--").arg(device);
        command.arg(options.filter.as_deref().unwrap_or_default());
        for own in &cases {
            let mut versioned = OsString::from(own.version);
            versioned.push("=");
            versioned.push(&own.folder);
            command.arg(versioned);
        }
        if options.filter.is_some() {
            process::run(&mut command)?;
            continue;
        }
        let path = results(&kept, device);
        let lines = process::output(&mut command)?;
        fs::write(&path, lines).map_err(error::file("write", &path))?;
    }
    match options.filter {
        Some(_) => Ok(()),
        None => write(&kept),
    }
}

fn results(kept: &Path, device: &str) -> PathBuf {
    kept.join(format!("{device}.tsv"))
}

/// Writes the table from the saved lines.
fn write(kept: &Path) -> Result<(), XtaskError> {
    let mut columns = Vec::new();
    for device in EXECUTORS {
        let path = results(kept, device);
        if path.exists() {
            let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
            let mut lines = parse(&text);
            replaced::mark(&mut lines);
            columns.push((device, lines));
        }
    }
    let path = process::root().join("docs/reference/onnx-operators.md");
    let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
    let text = with_lines(&text, &table::render(&columns)).ok_or(XtaskError::NoMarks {
        path: path.clone(),
        marks: [BEGIN, END],
    })?;
    fs::write(&path, text).map_err(error::file("write", &path))
}

/// Replaces the lines between the two marks in a text.
fn with_lines(text: &str, lines: &str) -> Option<String> {
    replaced_between(text, [BEGIN, END], lines)
}

fn replaced_between(text: &str, [begin, end]: [&str; 2], lines: &str) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n\n{lines}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_between_the_marks_are_replaced() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let new = with_lines(&text, "new").expect("it has marks");
        assert_eq!(new, format!("a\n{BEGIN}\n\nnew\n{END}\nb\n"));
        assert_eq!(with_lines("a\n", "new"), None);
    }

    #[test]
    fn lines_are_read() {
        let lines =
            parse("passed\tnode/test_abs\tAbs\t\nnonsense\nrefused\tnode/test_x\tX\ta, b\n");
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].outcome, OnnxCaseOutcome::Passed);
        assert_eq!(lines[1].reason, "a, b");
    }
}
