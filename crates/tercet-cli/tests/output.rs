//! Closed and full standard output, and the memory use of printing.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "test helpers panic on errors, but clippy does not see them as test functions"
)]

mod common;

use std::fs::File;
use std::io::Read;
use std::process::{Child, Stdio};

use common::{GRAPH, Scratch, demo, f32s, npy, tercet, text};

/// Every command that prints a result to standard output.
fn printing(scratch: &Scratch) -> Vec<Vec<String>> {
    let graph = scratch.file("g.tercet", GRAPH);
    let x = format!(
        "x={}",
        scratch.file("x.npy", npy("<f4", "(1, 3)", &f32s(&[0.0; 3])))
    );
    let model = demo("tiny-rust-llama-q8_0.gguf");
    let commands: [&[&str]; 14] = [
        &["generate", "-n", "4", "--device", "cpu"],
        &["generate", "-n", "0", "--device", "cpu", "--json"],
        &["inspect", &model],
        &["inspect", &model, "--json"],
        &["run", &graph, "-i", &x, "--device", "cpu"],
        &["run", &graph, "-i", &x, "--device", "cpu", "--json"],
        &["explain", &graph, "--bound", "n=2", "--device", "cpu"],
        &["verify", &graph, "--device", "cpu"],
        &["verify", &graph, "--device", "cpu", "--json"],
        &["ops"],
        &["ops", "tile"],
        &["devices"],
        &["--help"],
        &["--version"],
    ];
    let owned = |args: &&[&str]| args.iter().map(ToString::to_string).collect();
    commands.iter().map(owned).collect()
}

#[test]
fn a_closed_pipe_ends_quietly_with_the_status_of_its_signal() {
    let scratch = Scratch::new("closed");
    for args in printing(&scratch) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = tercet(&args);
        let command = command.stdout(writer).stderr(Stdio::piped());
        let ended = text(command.output().unwrap());
        assert_eq!(
            (ended.code, ended.err.as_str()),
            (Some(141), ""),
            "{args:?}"
        );
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let scratch = Scratch::new("full");
    for args in printing(&scratch) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = text(tercet(&args).stdout(full).output().unwrap());
        assert_eq!(ended.code, Some(1), "{args:?}: {}", ended.err);
        assert!(
            ended.err.starts_with("error: cannot write the output\n"),
            "{args:?}: {}",
            ended.err
        );
    }
}

/// Peak memory of a running process in MiB.
fn peak(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}

/// Runs a graph whose result has `n` elements. Returns the number of printed bytes and the peak
/// memory in MiB.
fn run_of(n: usize, more: &[&str]) -> (usize, u64) {
    let scratch = Scratch::new(&format!("large-{n}"));
    let graph = format!(
        "graph {{
  %x = input{{name=\"x\", ty=f32[1]}}()
  %y = expand{{shape=[{n}]}}(%x)
  return %y as \"y\"
}}"
    );
    let graph = scratch.file("g.tercet", graph);
    let x = scratch.file("x.npy", npy("<f4", "(1,)", &f32s(&[0.5])));
    let input = format!("x={x}");
    let args = [&["run", &graph, "-i", &input, "--device", "cpu"], more].concat();
    let mut child = tercet(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let printed = std::thread::spawn(move || {
        let (mut printed, mut bytes) = (0, [0; 1 << 16]);
        loop {
            match out.read(&mut bytes).unwrap() {
                0 => return printed,
                n => printed += n,
            }
        }
    });
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(peak(&child).unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(child.wait().unwrap().success());
    (printed.join().unwrap(), most)
}

#[test]
fn printing_takes_no_memory_for_values_that_are_not_shown() {
    let (_, small) = run_of(8, &[]);
    let (n, mib) = (1 << 25, 128);
    let (_, large) = run_of(n, &[]);
    // The result itself, and the executor's copy of it.
    assert!(
        large < small + 3 * mib,
        "{large} MiB, and {small} for eight values"
    );
}

#[test]
fn json_is_written_as_it_is_converted() {
    let (_, small) = run_of(8, &["--json"]);
    let (n, mib) = (1 << 22, 16);
    let (printed, large) = run_of(n, &["--json"]);
    assert!(printed > 4 * n, "{printed} bytes");
    assert!(
        large < small + 3 * mib,
        "{large} MiB, and {small} for eight values"
    );
}
