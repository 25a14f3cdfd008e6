//! `cargo xtask doors`: runs the examples of `docs/guide/four-doors.md` from the command line, in Python, in Rust and
//! over HTTP, and compares each output with the one that the page shows.

use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::error::{self, XtaskError};
use crate::python::target_dir;
use crate::{cache, fetch, process};

const PAGE: &str = "docs/guide/four-doors.md";
/// The programs in Rust, one per file.
const PROGRAMS: &str = "examples/ten-tasks/src/bin";
/// The names of the models on the page, with their files in `tests/data`.
const MODELS: [(&str, &str); 2] = [
    ("model.gguf", "tiny-rust-llama/tiny-rust-llama-q8_0.gguf"),
    ("encoder", "encoders/sentence-a"),
];
/// The port on the page; the check uses a free one.
const PORT: &str = "8080";
/// Maximum run time of a command, and of the start of a server.
const LIMIT: Duration = Duration::from_secs(120);

/// The options of `doors`.
#[derive(Args)]
pub(crate) struct DoorArgs {
    /// The `tercet` binary; default: that of the release profile
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// A Python with the module `tercet`; default: the environment of `cargo xtask python`
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// One example of the page.
#[derive(Debug, Default, PartialEq, Eq)]
struct DoorExample {
    title: String,
    expected: String,
    cli: String,
    python: String,
    rust: String,
    server: String,
    http: String,
}

/// Runs all examples.
pub(crate) fn run(options: &DoorArgs) -> Result<(), XtaskError> {
    let release = target_dir().join("release");
    let binary = match &options.binary {
        Some(path) => path.clone(),
        None => release.join(format!("tercet{EXE_SUFFIX}")),
    };
    let binary = fs::canonicalize(&binary).map_err(error::file("find", &binary))?;
    let python = match &options.python {
        Some(path) => path.clone(),
        None => cache::dir()?.join("python-tests/bin/python"),
    };
    let room = DoorRoom::new(&binary)?;
    let mut problems = Vec::new();
    for example in examples(&read_page()?) {
        let started = Instant::now();
        let server = room.serve(&example.server)?;
        let program = rust_program(&example.rust)?;
        let doors = [
            ("command line", room.shell(&example.cli)),
            ("Python", room.command(&python, &["-c", &example.python])),
            ("Rust", rust_command(&program, &room.dir)),
            (
                "HTTP",
                room.shell(&example.http.replace(PORT, &server.port.to_string())),
            ),
        ];
        for (door, command) in doors {
            let output = process::limited_output(command, LIMIT)?;
            if !agrees(&output, &example.expected) {
                problems.push(format!(
                    "{}, {door}: expected {:?}, found {output:?}",
                    example.title, example.expected
                ));
            }
        }
        println!(
            "{:5.1} s  {}",
            started.elapsed().as_secs_f64(),
            example.title
        );
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(XtaskError::Doors {
            page: PAGE,
            problems,
        }),
    }
}

fn read_page() -> Result<String, XtaskError> {
    let path = process::root().join(PAGE);
    fs::read_to_string(&path).map_err(error::file("read", &path))
}

/// The examples of the page: the code blocks of each section, told apart by language and first word.
fn examples(page: &str) -> Vec<DoorExample> {
    let mut examples: Vec<DoorExample> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            examples.push(DoorExample {
                title: title.to_string(),
                ..DoorExample::default()
            });
        }
        let (Some(language), Some(example)) = (line.strip_prefix("```"), examples.last_mut())
        else {
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let block = block.join("\n");
        let place = match language {
            "text" => &mut example.expected,
            "python" => &mut example.python,
            "rust" => &mut example.rust,
            _ if block.starts_with("tercet serve ") => &mut example.server,
            _ if block.starts_with("curl ") => &mut example.http,
            _ => &mut example.cli,
        };
        *place = block;
    }
    examples
}

/// Whether an output contains the expected text, or a number that rounds to the expected one.
fn agrees(output: &str, expected: &str) -> bool {
    let digits = expected
        .split_once('.')
        .map_or(0, |(_, digits)| digits.len());
    if expected.parse::<f64>().is_err() {
        return output.contains(expected);
    }
    let numbers = output
        .split_whitespace()
        .filter_map(|word| word.parse::<f64>().ok());
    numbers
        .map(|number| format!("{number:.digits$}"))
        .any(|number| number == expected)
}

/// The name of the program whose text, without its first comment, is on the page.
fn rust_program(block: &str) -> Result<String, XtaskError> {
    let folder = process::root().join(PROGRAMS);
    for entry in fs::read_dir(&folder).map_err(error::file("read", &folder))? {
        let path = entry.map_err(error::file("read", &folder))?.path();
        let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
        let code = text.split_once("\n\n").map_or("", |(_, code)| code);
        if code.trim_end() == block {
            let name = path.file_stem().unwrap_or_default();
            return Ok(name.to_string_lossy().into_owned());
        }
    }
    let first = block
        .lines()
        .find(|line| line.contains("main"))
        .unwrap_or(block);
    Err(XtaskError::Doors {
        page: PAGE,
        problems: vec![format!(
            "no file in {PROGRAMS} has the Rust block with `{first}`"
        )],
    })
}

/// The built program, or a cargo call that builds and runs it.
fn rust_command(program: &str, dir: &Path) -> Command {
    let built = target_dir()
        .join("release")
        .join(format!("{program}{EXE_SUFFIX}"));
    let mut command = match built.is_file() {
        true => Command::new(built),
        false => {
            let mut cargo = process::cargo();
            let manifest = process::root().join("Cargo.toml");
            cargo.args(["run", "--quiet", "--release", "--package", "ten-tasks"]);
            cargo
                .args(["--bin", program, "--manifest-path"])
                .arg(manifest);
            cargo
        }
    };
    command.current_dir(dir);
    command
}

/// A temporary folder with the models under the names of the page.
struct DoorRoom {
    dir: PathBuf,
    binary: PathBuf,
}

impl Drop for DoorRoom {
    fn drop(&mut self) {
        // A folder that is left is only a temporary one.
        let _ = fetch::remove_dir(&self.dir);
    }
}

impl DoorRoom {
    fn new(binary: &Path) -> Result<DoorRoom, XtaskError> {
        let dir = std::env::temp_dir().join(format!("xtask-doors-{}", std::process::id()));
        fetch::remove_dir(&dir)?;
        let data = process::root().join("tests/data");
        for (name, from) in MODELS {
            copy(&data.join(from), &dir.join(name))?;
        }
        Ok(DoorRoom {
            dir,
            binary: binary.to_owned(),
        })
    }

    fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.dir);
        command.stderr(Stdio::null());
        command
    }

    /// A shell line that finds `tercet` on the PATH.
    fn shell(&self, line: &str) -> Command {
        let mut command = self.command(Path::new("sh"), &["-c", line]);
        let own = self.binary.parent().unwrap_or(&self.dir).to_path_buf();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(own).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(paths) {
            command.env("PATH", path);
        }
        command
    }

    /// Starts a server of the page on a free port, and waits until it answers.
    fn serve(&self, line: &str) -> Result<DoorServer, XtaskError> {
        let listen = |source| XtaskError::Listen { port: 0, source };
        let free = TcpListener::bind(("127.0.0.1", 0)).map_err(listen)?;
        let port = free.local_addr().map_err(listen)?.port();
        drop(free);
        let words = line.split_whitespace().skip(1);
        let words = words.map(|word| {
            if word == PORT {
                port.to_string()
            } else {
                word.to_string()
            }
        });
        let mut command = Command::new(&self.binary);
        command.args(words).current_dir(&self.dir);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(error::file("start", &self.binary))?;
        let server = DoorServer { child, port };
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if start.elapsed() > LIMIT {
                return Err(XtaskError::TimeOut {
                    command: line.to_string(),
                    limit: LIMIT,
                });
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

/// A server that ends when it is dropped.
struct DoorServer {
    child: Child,
    port: u16,
}

impl Drop for DoorServer {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Copies a file or a folder.
fn copy(from: &Path, to: &Path) -> Result<(), XtaskError> {
    if !from.is_dir() {
        let parent = to.parent().unwrap_or(to);
        fs::create_dir_all(parent).map_err(error::file("create", parent))?;
        return fs::copy(from, to)
            .map(drop)
            .map_err(error::file("copy", from));
    }
    for entry in fs::read_dir(from).map_err(error::file("read", from))? {
        let name = entry.map_err(error::file("read", from))?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_example_has_four_doors() {
        let examples = examples(&read_page().unwrap());
        assert!(examples.len() >= 2);
        for example in examples {
            assert!(!example.expected.is_empty(), "{}", example.title);
            assert!(example.cli.starts_with("tercet "), "{}", example.title);
            assert!(example.python.contains("tercet.load"), "{}", example.title);
            assert!(example.server.contains(PORT), "{}", example.title);
            assert!(example.http.contains(PORT), "{}", example.title);
            rust_program(&example.rust).unwrap();
        }
    }

    #[test]
    fn outputs_are_compared_as_text_or_rounded_numbers() {
        assert!(agrees("Ownership is not\n", " is not"));
        assert!(!agrees("Ownership is\n", " is not"));
        assert!(agrees("[1] a  1.000  0.93794\n", "0.938"));
        assert!(agrees("0.9379\n", "0.938"));
        assert!(!agrees("0.9369 0.9386 0.938x\n", "0.938"));
    }

    #[test]
    fn a_changed_program_is_not_found() {
        assert!(rust_program("fn main() {}").is_err());
    }
}
