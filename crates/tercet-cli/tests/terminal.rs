//! Output on a terminal.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    reason = "test helpers panic on errors, but clippy does not see them as test functions"
)]

mod common;
// `setsid` gives a program its own terminal.
#[cfg(target_os = "linux")]
#[path = "terminal/chat.rs"]
mod chat;

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use common::{GRAPH, Scratch, bad, demo, good, json, tercet};
use nix::pty::{Winsize, openpty};

/// Runs a command on a separate pseudo-terminal, 100 columns wide.
fn on_terminal(args: &[&str]) -> (Child, File) {
    let size = Winsize {
        ws_row: 24,
        ws_col: 100,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(&size, None).unwrap();
    let mut command = tercet(args);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    command.stdout(pty.slave.try_clone().unwrap());
    let child = command.stderr(pty.slave).spawn().unwrap();
    (child, File::from(pty.master))
}

/// Everything that the terminal shows until the other side is closed.
fn shown(mut terminal: File) -> String {
    let (mut shown, mut bytes) = (Vec::new(), [0; 4096]);
    // Reading a pseudo-terminal fails after the last writer has closed it.
    while let Ok(n @ 1..) = terminal.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..n]);
    }
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn loading_is_a_spinner_and_not_a_bar() {
    let (mut child, terminal) = on_terminal(&["generate", "-n", "2", "--device", "cpu"]);
    let shown = shown(terminal);
    assert!(child.wait().unwrap().success(), "{shown:?}");
    assert!(shown.contains("loading"), "{shown:?}");
    assert!(!shown.contains("0/0"), "{shown:?}");
    // The progress line is cleared before the text.
    let (before, after) = shown.split_once("Ownership is").unwrap();
    assert!(before.ends_with(['K', '\r', 'A']), "{before:?}");
    assert!(!after.contains("loading"), "{after:?}");
}

#[test]
fn tuning_is_a_spinner() {
    // A device without kernel variants ends it with an error, which comes after the spinner.
    let (mut child, terminal) = on_terminal(&["tune", "--device", "cpu", "--shape", "64x64x64"]);
    let shown = shown(terminal);
    child.wait().unwrap();
    let at = shown.find("tuning").unwrap_or_else(|| panic!("{shown:?}"));
    let error = shown.find("error:").unwrap_or(shown.len());
    assert!(at < error, "{shown:?}");
}

#[test]
fn ctrl_c_while_loading_ends_at_once() {
    // On a busy machine the signal may arrive after loading, so the run is repeated.
    let (code, seen) = std::iter::repeat_with(interrupted_loading)
        .take(5)
        .find(|(_, seen)| !seen.contains("prefill"))
        .expect("a signal that comes while a model is loaded");
    assert_eq!(code, Some(130), "{seen:?}");
    // Nothing follows the loading message.
    for later in ["Ownership", "stopped", "note:"] {
        assert!(!seen.contains(later), "{seen:?}");
    }
}

#[test]
fn ctrl_c_is_seen_where_the_tests_started_with_it_ignored() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$@\"", "sh"]);
    shell.arg(std::env::current_exe().unwrap());
    let run = shell.args(["--exact", "ctrl_c_while_loading_ends_at_once"]);
    let run = run.output().unwrap();
    let out = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && out.contains("1 passed"), "{out}");
}

/// Exit code and output of a command that is interrupted as soon as it loads a model.
fn interrupted_loading() -> (Option<i32>, String) {
    // The position tables of a million tokens take long enough to interrupt.
    let args = ["generate", "-n", "0", "-c", "1048576", "--device", "cpu"];
    let (mut child, mut terminal) = on_terminal(&args);
    let (mut seen, mut bytes) = (String::new(), [0; 4096]);
    while !seen.contains("loading") {
        let n = terminal.read(&mut bytes).unwrap();
        seen += &String::from_utf8_lossy(&bytes[..n]);
    }
    let mut kill = Command::new("kill");
    // The process may already have ended.
    let kill = kill.args(["-INT", &child.id().to_string()]).output();
    kill.unwrap();
    seen += &shown(terminal);
    // A shell reports a process that this signal ends as 128 + 2.
    let status = child.wait().unwrap();
    let code = status.code().or(status.signal().map(|s| 128 + s));
    (code, seen)
}

#[test]
fn lines_of_drivers_are_not_ours() {
    // `tercet` unsets the variable, so Mesa complains.
    for args in [&["devices"][..], &["devices", "--json"]] {
        let run = good(args);
        assert!(!run.err.contains("XDG_RUNTIME_DIR"), "{}", run.err);
        assert!(!run.err.contains("error:"), "{}", run.err);
    }
    let args = ["generate", "-n", "1"];
    let run = good(&args);
    assert!(!run.err.contains("error:"), "{}", run.err);
}

/// Clears the screen, reverses the text direction, starts a new line.
const HOSTILE: &str = "a\u{1b}[2J\u{202e}b\nerror: c";

#[test]
fn names_of_values_are_shown_escaped() {
    let scratch = Scratch::new("names");
    let graph = format!(
        "graph {{
  %x = rng_uniform{{shape=[2], dtype=f32, lo=0, hi=1, seed=1, stream=0}}()
  return %x as \"{}\"
}}",
        HOSTILE.replace('\n', "\\n")
    );
    let graph = scratch.file("g.tercet", graph);
    let out = good(&["run", &graph, "--device", "cpu"]).out;
    assert!(
        out.starts_with("a\\u{1b}[2J\\u{202e}b\\nerror: c: f32[2]\n"),
        "{out:?}"
    );
    let raw = good(&["run", &graph, "--device", "cpu", "--json"]).out;
    assert!(raw.contains("a\\u001b[2J\\u202eb\\nerror: c"), "{raw:?}");
    let v = json(&["run", &graph, "--device", "cpu", "--json"]);
    assert_eq!(v[0]["name"], HOSTILE);
}

#[test]
fn names_of_tensors_and_metadata_are_shown_escaped() {
    let scratch = Scratch::new("tensors");
    let header = serde_json::json!({
        HOSTILE: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    });
    let header = header.to_string();
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend(header.as_bytes());
    weights.extend([0; 4]);
    scratch.file("model.safetensors", weights);
    let config = serde_json::json!({"model_type": "llama", "\u{1b}]0;x\u{7}": "\u{9b}31m\u{2066}"});
    scratch.file("config.json", config.to_string());
    let out = good(&["inspect", &scratch.path("")]).out;
    let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}' || c == '\u{2066}';
    assert!(!out.contains(acts), "{out:?}");
    assert!(out.contains("a\\u{1b}[2J\\u{202e}b error: c"), "{out}");
    assert!(out.contains("\\u{9b}31m\\u{2066}"), "{out}");
}

#[test]
fn errors_show_names_escaped() {
    let scratch = Scratch::new("errors");
    let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    let says = |args: &[&str], code: i32| {
        let run = common::run(args);
        assert_eq!(run.code, Some(code), "{args:?}: {}", run.err);
        assert!(!run.err.contains(acts), "{:?}", run.err);
        assert!(run.err.contains("\\u{1b}[2J\\u{202e}"), "{:?}", run.err);
        // Only the first line is an error message of `tercet`.
        let ours = run.err.lines().filter(|l| l.starts_with("error:"));
        assert_eq!(ours.count(), 1, "{}", run.err);
    };
    says(&["run", HOSTILE], 1);
    says(&["inspect", HOSTILE], 1);
    says(&["generate", "--device", HOSTILE, "-n", "1"], 2);
    says(&["generate", "-m", HOSTILE], 1);
    let hostile = GRAPH.replace("\"x\"", &format!("\"{}\"", HOSTILE.replace('\n', "\\n")));
    says(&["run", &scratch.file("g.tercet", hostile)], 2);
    // The argument parser repeats arguments too.
    let run = common::run(&["generate", "--temp", HOSTILE]);
    assert_eq!(run.code, Some(2));
    assert!(!run.err.contains(acts), "{:?}", run.err);
}

#[test]
fn a_terminal_sees_the_same_refusals() {
    let model = demo("none.gguf");
    let (mut child, terminal) = on_terminal(&["generate", "-m", &model, "--device", "cpu"]);
    let shown = shown(terminal);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(shown.contains("error: cannot load the model"), "{shown:?}");
    bad(&["generate", "-m", &model], 1, &["error: cannot load"]);
}
