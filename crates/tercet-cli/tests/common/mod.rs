//! Runs the binary in tests.

#![allow(dead_code, reason = "each test file uses only some of the helpers")]

mod encoder;
#[cfg(feature = "serve")]
mod serving;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

#[allow(
    unused_imports,
    reason = "each test file uses only some of the helpers"
)]
pub(crate) use encoder::encoder;
#[cfg(feature = "serve")]
#[allow(
    unused_imports,
    reason = "each test file uses only some of the helpers"
)]
pub(crate) use serving::{Serving, serving, serving_by};

pub(crate) const GRAPH: &str = "graph {
  %x = input{name=\"x\", ty=f32[n, 3]}()
  %y = softmax{axis=1}(%x)
  return %y as \"y\"
}
";

pub(crate) fn data(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    data.join(name).display().to_string()
}

pub(crate) fn demo(name: &str) -> String {
    data(&format!("tiny-rust-llama/{name}"))
}

/// A temporary folder of one test, removed at its end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(test: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("tercet-cli-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn tercet(args: &[&str]) -> Command {
    receive_interrupts();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercet"));
    command.args(args).stdin(Stdio::null());
    // Without this variable Mesa prints a message about Wayland. The message must not look like an
    // error of `tercet`.
    command.env_remove("XDG_RUNTIME_DIR");
    command
}

/// Makes programs that this process starts receive Ctrl-C. `nohup` and some CI runners start tests
/// with the signal ignored, which programs inherit. A signal with a handler has its default action
/// in a started program instead.
fn receive_interrupts() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| ctrlc::set_handler(|| std::process::exit(130)).unwrap());
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn text(output: Output) -> Run {
    let run = Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(!run.err.contains("panicked"), "{}", run.err);
    // Progress bars are only for terminals.
    assert!(!run.err.contains(['\u{1b}', '\r']), "{:?}", run.err);
    run
}

pub(crate) fn run(args: &[&str]) -> Run {
    text(tercet(args).output().unwrap())
}

/// Runs a command that must succeed.
#[track_caller]
pub(crate) fn good(args: &[&str]) -> Run {
    let run = run(args);
    assert_eq!(run.code, Some(0), "{args:?}: {}", run.err);
    run
}

#[track_caller]
pub(crate) fn json(args: &[&str]) -> Value {
    serde_json::from_str(&good(args).out).unwrap()
}

/// Runs a command that must fail with `code`. The error message must contain each of `parts`, and
/// standard output must be empty.
#[track_caller]
pub(crate) fn bad(args: &[&str], code: i32, parts: &[&str]) {
    let Run {
        code: found,
        out,
        err,
    } = run(args);
    assert_eq!(found, Some(code), "{args:?}: {err}");
    assert_eq!(out, "", "{args:?}");
    assert!(err.starts_with("error: "), "{args:?}: {err}");
    for part in parts {
        assert!(err.contains(part), "{args:?}: no {part:?} in: {err}");
    }
    let lines: Vec<&str> = err.lines().filter(|l| !l.is_empty()).collect();
    assert!(lines.windows(2).all(|w| w[0] != w[1]), "repeats: {err}");
}

/// A version 1.0 `.npy` file.
pub(crate) fn npy(descr: &str, shape: &str, payload: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(payload);
    bytes
}

pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The devices of this machine except the reference, which is slow. `generate` has a separate test
/// on each; the other commands must work on the same devices.
pub(crate) fn usable_devices() -> Vec<String> {
    let devices = json(&["devices", "--json"]);
    let devices = devices.as_array().unwrap().iter();
    let usable = devices.filter(|d| d["usable"] == true && d["name"] != "reference");
    usable
        .map(|d| d["name"].as_str().unwrap().to_string())
        .collect()
}
