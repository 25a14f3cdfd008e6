//! ONNX Runtime on MiniLM, measured by `xtask/peers/minilm_ort.py` in a virtual environment.
//!
//! The script builds the ONNX graph from the same `model.safetensors` that our executor reads, and
//! refuses to report times of a model whose answers differ from the reference embeddings.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::error::Error;
use crate::fetch::Python;
use crate::process;

/// From PyPI; pinned so that two runs of the table compare the same peers.
const REQUIREMENTS: [&str; 3] = ["numpy==2.4.6", "onnx==1.23.2", "onnxruntime==1.31.1"];

const PURPOSE: &str = "measure ONNX Runtime";

/// A peer's time for MiniLM on one input shape.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerTime {
    /// Name and version.
    pub(super) peer: String,
    pub(super) batch: u32,
    pub(super) seq: u32,
    pub(super) median_ns: f64,
}

/// Installs ONNX Runtime into the cache folder if needed and measures it.
pub(super) fn onnx_runtime(
    cache: &Path,
    minilm: &Path,
    threads: u16,
) -> Result<Vec<PeerTime>, Error> {
    let python = Python::find(PURPOSE)?.venv(&cache.join("peers"), PURPOSE)?;
    let mut pip = python.command();
    pip.args([
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]);
    process::run(pip.args(REQUIREMENTS))?;
    let root = process::root();
    let mut script: Command = python.command();
    script
        .arg(root.join("xtask/peers/minilm_ort.py"))
        .arg("--model")
        .arg(minilm)
        .arg("--reference")
        .arg(root.join("tests/data/minilm"))
        .args(["--threads", &threads.to_string()]);
    parse(&process::output(&mut script)?)
}

fn parse(text: &[u8]) -> Result<Vec<PeerTime>, Error> {
    serde_json::from_slice(text).map_err(|source| Error::Json {
        path: "the output of minilm_ort.py".into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_output_is_read_strictly() {
        let line =
            br#"[{"peer": "onnxruntime 1.31.1", "batch": 1, "seq": 128, "median_ns": 8.0e6}]"#;
        let expected = PeerTime {
            peer: "onnxruntime 1.31.1".into(),
            batch: 1,
            seq: 128,
            median_ns: 8e6,
        };
        assert_eq!(parse(line).unwrap(), [expected]);
        assert!(parse(b"[{}]").is_err());
        assert!(parse(b"").is_err());
    }
}
