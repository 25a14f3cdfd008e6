//! A newcomer's session: the commands of the README, as they are written, in a folder without the
//! checkout.
//!
//! The test reads every code block of the README. Commands of `tercet` and requests by `curl` run in
//! a shell with the built program; other commands must have a row in [`ELSEWHERE`], with the reason.
//! A command that the README gains or changes is therefore tested without a change here, or fails.
#![cfg(all(unix, feature = "serve"))]
#![allow(
    clippy::unwrap_used,
    reason = "test helpers panic on errors, but clippy does not see them as test functions"
)]

#[path = "common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use common::{Scratch, data, demo, usable_devices};

const README: &str = include_str!("../../../README.md");

/// Commands and code blocks that run elsewhere, by their beginnings, and the reasons.
const ELSEWHERE: [(&str, &str); 4] = [
    (
        "cargo xtask test",
        "it is the test run that this test belongs to",
    ),
    (
        "cargo install --path ",
        "it builds the program that this test runs",
    ),
    (
        "rust",
        "the documentation tests of `tercet` compile and run it",
    ),
    ("python", "the tests of the Python module run it"),
];

/// Commands that run the program from the checkout: the rest of the line are its arguments.
const FROM_CHECKOUT: &str = "cargo run --release -- ";

/// Time limit of one command.
const LIMIT: Duration = Duration::from_secs(240);

/// The code blocks of a page: their languages and texts.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            continue;
        };
        let inside = lines.by_ref().take_while(|line| *line != "```");
        blocks.push((language, inside.map(|line| format!("{line}\n")).collect()));
    }
    blocks
}

/// The commands of a shell block. A line that ends in a backslash continues.
fn commands(block: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut command = String::new();
    for line in block.lines() {
        command += line;
        if command.ends_with('\\') {
            command.push('\n');
            continue;
        }
        let done = std::mem::take(&mut command);
        if !done.trim().is_empty() && !done.starts_with('#') {
            commands.push(done);
        }
    }
    assert_eq!(command, "", "a command of the README ends in a backslash");
    commands
}

/// A newcomer's folder: a program on the path, a language model and an encoder by the names of the
/// README.
struct Newcomer {
    scratch: Scratch,
    port: u16,
    server: Option<Child>,
}

impl Newcomer {
    fn new() -> Newcomer {
        let scratch = Scratch::new("readme");
        std::fs::create_dir_all(scratch.path("bin")).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_tercet"), scratch.path("bin/tercet")).unwrap();
        std::fs::copy(
            demo("tiny-rust-llama-q8_0.gguf"),
            scratch.path("model.gguf"),
        )
        .unwrap();
        copy(
            Path::new(&data("encoders/sentence-a")),
            Path::new(&scratch.path("all-MiniLM-L6-v2")),
        );
        // A free port instead of the README's, which another program may use.
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = port.local_addr().unwrap().port();
        Newcomer {
            scratch,
            port,
            server: None,
        }
    }

    /// A command in a shell, with the README's port replaced.
    fn shell(&self, command: &str) -> Command {
        let command = command.replace("8080", &self.port.to_string());
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]);
        shell.current_dir(self.scratch.path("."));
        shell.env("PATH", format!("{}:{path}", self.scratch.path("bin")));
        shell.env("HOME", self.scratch.path("."));
        for name in [
            "TERCET_CACHE_DIR",
            "TERCET_API_KEY",
            "XDG_RUNTIME_DIR",
            "CARGO_MANIFEST_DIR",
        ] {
            shell.env_remove(name);
        }
        shell.stdin(Stdio::null());
        shell
    }

    /// Runs a command to its end. Returns its exit code, standard output and standard error.
    fn run(&self, command: &str) -> (Option<i32>, String, String) {
        let mut shell = self.shell(command);
        let mut child = shell
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let err = std::thread::spawn(move || {
            let mut text = String::new();
            pipes.1.read_to_string(&mut text).unwrap();
            text
        });
        let out = std::thread::spawn(move || {
            let mut text = String::new();
            pipes.0.read_to_string(&mut text).unwrap();
            text
        });
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > LIMIT {
                child.kill().unwrap();
                panic!("`{command}` takes more than {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        (status.code(), out.join().unwrap(), err.join().unwrap())
    }

    /// Starts a server and waits for its address.
    fn serve(&mut self, command: &str) {
        let mut shell = self.shell(&format!("exec {command}"));
        let mut child = shell.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let wanted = format!("http://127.0.0.1:{}", self.port);
        let mut said = Vec::new();
        let found = lines.map_while(Result::ok).any(|line| {
            said.push(line.clone());
            line.contains(&wanted)
        });
        self.server = Some(child);
        assert!(found, "`{command}` does not serve on {wanted}: {said:?}");
    }

    /// Runs a command of the README and checks its result.
    fn follow(&mut self, command: &str) {
        if command.starts_with("tercet serve ") {
            return self.serve(command);
        }
        let (code, out, err) = self.run(command);
        let said = format!("`{command}`: {out}\n{err}");
        assert!(!err.contains("panicked"), "{said}");
        let words: Vec<&str> = command.split_whitespace().collect();
        let device = words.iter().position(|word| *word == "--device");
        if let Some(device) = device.map(|at| words[at + 1])
            && !usable_devices().iter().any(|own| own == device)
        {
            // The machine has no such device; the error says so.
            assert_eq!(code, Some(2), "{said}");
            assert!(err.starts_with("error: ") && err.contains(device), "{said}");
            return;
        }
        assert_eq!(code, Some(0), "{said}");
        match words[..] {
            ["tercet", "generate", ..] => {
                assert!(out.starts_with("Ownership is ") && out.len() > 40, "{said}");
            }
            ["tercet", "chat", ..] => assert!(!err.contains("error"), "{said}"),
            ["tercet", "embed", ..] => {
                assert!(out.contains("[1] a sentence"), "{said}");
                assert!(out.contains("1.000"), "{said}");
            }
            ["curl", ..] => {
                let answer: Value = serde_json::from_str(&out).expect(&said);
                let text = answer["choices"][0]["text"].as_str();
                assert!(text.is_some_and(|text| !text.is_empty()), "{said}");
            }
            // A new command must at least end well.
            _ => {}
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target: PathBuf = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(std::fs::copy(&path, &target).unwrap()),
        }
    }
}

#[test]
fn every_command_of_the_readme_runs_without_the_checkout() {
    let mut newcomer = Newcomer::new();
    let (mut run, mut elsewhere) = (Vec::new(), Vec::new());
    let has_row = |text: &str| ELSEWHERE.iter().any(|(begin, _)| text.starts_with(begin));
    for (language, block) in blocks(README) {
        if language != "sh" {
            assert!(has_row(language), "a block of the README in {language:?}");
            elsewhere.push(language.to_string());
            continue;
        }
        for command in commands(&block) {
            match command.strip_prefix(FROM_CHECKOUT) {
                Some(arguments) => {
                    newcomer.follow(&format!("tercet {arguments}"));
                    run.push(command);
                }
                None if has_row(&command) => elsewhere.push(command),
                None => {
                    let program = command.split_whitespace().next();
                    let known = program.is_some_and(|name| ["tercet", "curl"].contains(&name));
                    assert!(known, "the README has a command without a test: {command}");
                    newcomer.follow(&command);
                    run.push(command);
                }
            }
        }
    }
    // The README still has each kind of command, and each row its use.
    for wanted in [
        "cargo run",
        "tercet generate",
        "tercet chat",
        "tercet embed",
        "tercet serve",
        "curl",
    ] {
        assert!(
            run.iter().any(|own| own.starts_with(wanted)),
            "no `{wanted}`"
        );
    }
    for (begin, reason) in ELSEWHERE {
        let used = elsewhere.iter().any(|own| own.starts_with(begin));
        assert!(used, "the README has no `{begin}` any more ({reason})");
    }
}

#[test]
fn what_the_readme_installs_is_in_the_checkout() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all = blocks(README).into_iter();
    let all = all.filter(|(language, _)| *language == "sh");
    let all: Vec<String> = all.flat_map(|(_, block)| commands(&block)).collect();
    let mut installs = all.iter().filter_map(|command| {
        let rest = command.strip_prefix("cargo install --path ")?;
        rest.split_whitespace().next()
    });
    let installed = installs.next().expect("a line with `cargo install`");
    let manifest = std::fs::read_to_string(root.join(installed).join("Cargo.toml")).unwrap();
    assert!(manifest.contains("name = \"tercet\""), "{installed}");
    assert_eq!(installs.next(), None);
}

#[test]
fn blocks_and_commands_are_found() {
    let page = "a\n```sh\nx y \\\n  z\n\n# note\nw\n```\n```rust\nlet x;\n```\n";
    let found = blocks(page);
    assert_eq!(found[1], ("rust", "let x;\n".to_string()));
    assert_eq!(commands(&found[0].1), ["x y \\\n  z", "w"]);
}
