//! The binary as tests run it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder of its own for each test, removed at its end.
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercet"));
    command.args(args).stdin(Stdio::null());
    // Without it Mesa complains of a missing Wayland to standard error, in our place.
    command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    command
}

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
    // Progress bars are for terminals.
    assert!(!run.err.contains(['\u{1b}', '\r']), "{:?}", run.err);
    run
}

pub(crate) fn run(args: &[&str]) -> Run {
    text(tercet(args).output().unwrap())
}

/// Runs what must succeed.
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

/// Runs what must fail with `code`, saying each of `parts`, and printing no result.
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
