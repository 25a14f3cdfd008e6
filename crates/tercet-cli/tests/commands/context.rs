//! The default context of language models on devices with little memory.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{Scratch, demo, tercet};

/// The tiny model with a trained context of 1 Mi tokens in its metadata.
fn long_context(files: &Scratch) -> String {
    let mut bytes = std::fs::read(demo("tiny-rust-llama-q8_0.gguf")).unwrap();
    let key = b"llama.context_length";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    // Four bytes of the value's type, then the value.
    bytes[at + 4..at + 8].copy_from_slice(&(1u32 << 20).to_le_bytes());
    files.file("long.gguf", bytes)
}

/// Runs a command on a CPU with this memory and returns its exit code and standard error.
fn limited(memory: &str, args: &[&str]) -> (Option<i32>, String) {
    let mut command = tercet(args);
    command
        .env("TERCET_DEVICE_MEMORY", memory)
        .args(["--device", "cpu"]);
    let output = command.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), err)
}

/// The context that a note reports.
fn reported(err: &str) -> usize {
    let after = err
        .split_once("context of ")
        .unwrap_or_else(|| panic!("no context in: {err}"))
        .1;
    after.split_once(' ').unwrap().0.parse().unwrap()
}

#[test]
fn a_model_opens_with_the_context_that_fits_the_memory() {
    let files = Scratch::new("context-fits");
    let model = long_context(&files);
    let generate = ["generate", "-m", &model, "-p", "Ownership is", "-n", "2"];
    let (code, err) = limited("150MiB", &generate);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        err.contains("what fits the memory (trained: 1048576"),
        "{err}"
    );
    let one = reported(&err);
    assert!((512..8192).contains(&one), "{err}");
    let (code, err) = limited("150MiB", &["explain", "-m", &model]);
    assert_eq!((code, reported(&err)), (Some(0), one), "{err}");
    let (code, err) = limited("130MiB", &generate);
    assert_ne!(code, Some(0));
    for part in ["`-c`", "`--cache-dtype f16`", "GiB are missing"] {
        assert!(err.contains(part), "{part} is not in: {err}");
    }
    let (code, err) = limited("150MiB", &[&generate[..], &["-c", "0"]].concat());
    assert_ne!(code, Some(0));
    assert!(err.contains("1 sequence of 1048576 tokens"), "{err}");
    let (code, err) = limited("soon", &generate);
    assert_eq!(code, Some(2));
    assert!(err.contains("TERCET_DEVICE_MEMORY is `soon`"), "{err}");
}

#[test]
#[cfg(feature = "serve")]
fn a_server_divides_the_memory_between_its_slots() {
    let files = Scratch::new("context-slots");
    let model = long_context(&files);
    let context = |slots: &str| {
        let args = [
            "serve",
            "-m",
            &model,
            "--port",
            "0",
            "--device",
            "cpu",
            "--parallel",
            slots,
        ];
        let mut command = tercet(&args);
        command
            .env("TERCET_DEVICE_MEMORY", "192MiB")
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let note = lines
            .map(Result::unwrap)
            .find(|line| line.contains("context of "));
        let _ = child.kill();
        let _ = child.wait();
        reported(&note.expect("a note about the context"))
    };
    let (one, four) = (context("1"), context("4"));
    assert!(four < one && four >= 512, "{one} and {four}");
}
