//! The peers: ONNX Runtime on MiniLM and convolutions, measured by scripts of `xtask/peers` in a
//! virtual environment, and torch and Burn on a GPU.
//!
//! ONNX Runtime's scripts build ONNX graphs of Tercet's benches from the same weights or shapes.
//! The scripts report no times for a graph with wrong results.

use std::ffi::OsStr;
use std::path::Path;

use serde::Deserialize;

use crate::error::XtaskError;
use crate::fetch::PythonInterpreter;
use crate::process;

/// Python packages from PyPI, pinned so that repeated runs compare the same peers.
const REQUIREMENTS: [&str; 3] = ["numpy==2.4.6", "onnx==1.23.2", "onnxruntime==1.31.1"];

const PURPOSE: &str = "measure ONNX Runtime";

/// A peer's time for a benchmark.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerTime {
    /// Name and version of the peer.
    pub(super) peer: String,
    /// The benchmark: `group/name`.
    pub(super) work: String,
    pub(super) median_ns: f64,
}

/// Runs torch and Burn on the work of the GPU bench; they print their own times.
pub(super) fn on_gpu() -> Result<(), XtaskError> {
    let peers = process::root().join("xtask/peers");
    for script in ["gpu_torch.py", "steps_torch.py"] {
        let mut torch = PythonInterpreter::find("measure torch")?.command();
        process::run(torch.arg(peers.join(script)))?;
    }
    let mut burn = process::cargo();
    burn.args(["run", "--release", "--quiet", "--manifest-path"]);
    process::run(burn.arg(peers.join("burn/Cargo.toml")))
}

/// An interpreter with ONNX Runtime, which is installed into the cache folder if needed.
pub(super) fn python(cache: &Path) -> Result<PythonInterpreter, XtaskError> {
    let python = PythonInterpreter::find(PURPOSE)?.venv(&cache.join("peers"), PURPOSE)?;
    let mut pip = python.command();
    pip.args([
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]);
    process::run(pip.args(REQUIREMENTS))?;
    Ok(python)
}

/// Measures ONNX Runtime.
pub(super) fn onnx_runtime(
    cache: &Path,
    minilm: &Path,
    threads: u16,
) -> Result<Vec<PeerTime>, XtaskError> {
    let python = python(cache)?;
    let root = process::root();
    let measure = |script: &'static str, args: [&OsStr; 4]| {
        let mut command = python.command();
        command.arg(root.join("xtask/peers").join(script));
        command.args(args).args(["--threads", &threads.to_string()]);
        parse(script, &process::output(&mut command)?)
    };
    let reference = root.join("tests/data/minilm");
    let models = [
        "--model".as_ref(),
        minilm.as_ref(),
        "--reference".as_ref(),
        reference.as_ref(),
    ];
    let mut times = measure("minilm_ort.py", models)?;
    let cases = root.join("tests/benches/conv.json");
    let cases = [
        "--cases".as_ref(),
        cases.as_ref(),
        "--group".as_ref(),
        "conv".as_ref(),
    ];
    times.extend(measure("conv_ort.py", cases)?);
    Ok(times)
}

fn parse(script: &str, text: &[u8]) -> Result<Vec<PeerTime>, XtaskError> {
    serde_json::from_slice(text).map_err(|source| XtaskError::Json {
        path: format!("the output of {script}").into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_output_is_read_strictly() {
        let line =
            br#"[{"peer": "onnxruntime 1.31.1", "work": "minilm/1x128", "median_ns": 8.0e6}]"#;
        let expected = PeerTime {
            peer: "onnxruntime 1.31.1".into(),
            work: "minilm/1x128".into(),
            median_ns: 8e6,
        };
        assert_eq!(parse("it", line).unwrap(), [expected]);
        assert!(parse("it", b"[{}]").is_err());
        assert!(parse("it", b"").is_err());
    }
}
