//! Runs a packed program as its users would: directly, in an empty root, under QEMU or under Wine.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::debian::{self, DebianSelection};
use crate::dist::VERSION;
use crate::error::{self, XtaskError};
use crate::{cache, fetch, process};

/// Maximum run time of a command, and of the start of a server. Emulation is slow.
const LIMIT: Duration = Duration::from_secs(240);
/// A prompt for the embedded model, and the greedy answer.
pub(super) const PROMPT: &str = "Once";
pub(super) const ANSWER: &str = "\n# Targets\n\n`rustc` is the";
/// The similarity of two sentences in the table that `tercet embed` prints.
pub(super) const SIMILARITY: &str = "0.932";
/// The release of Debian whose C library runs programs for other processors.
const SUITE: &str = "bookworm";

/// The release of Debian whose Wine has the system calls of Windows 10, which Rust's library needs.
const WINE_SUITE: &str = "trixie";
const WINE_FOLDER: &str = "/usr/lib/wine";
const WINE: &str = "/usr/lib/wine/wine64";
const WINE_LIBRARIES: &str = "Z:\\usr\\x86_64-w64-mingw32\\lib";
/// Starts a program in a root folder `$0`. It sees the system's folders, and the folders of the arguments before `--`.
/// Other processes do not see the mounts, which end with the program.
const IN_ROOT: &str = r#"
set -e
bind=
while [ "$1" != -- ]; do bind="$bind $1"; shift; done
shift
for folder in /dev /proc /sys $bind; do mkdir -p "$0$folder"; mount --rbind "$folder" "$0$folder"; done
exec /usr/sbin/chroot "$0" "$@"
"#;

/// How programs of a target start on this machine.
pub(super) enum ProgramRunner {
    /// As programs of this machine.
    Own,
    /// In a root folder that has only the program.
    Bare { root: PathBuf },
    /// Under QEMU's user-mode emulation, with the libraries of a folder.
    Qemu { program: PathBuf, root: PathBuf },
    /// Under Wine in a root folder, with its own folder of drives and settings.
    Wine { root: PathBuf, prefix: PathBuf },
}

impl ProgramRunner {
    /// The runner of a target, or the reason why there is none.
    pub(super) fn find(target: &str, dir: &Path) -> Result<Result<Self, String>, XtaskError> {
        if target == crate::dist::host()? {
            return Ok(Ok(ProgramRunner::Own));
        }
        let is_linux = cfg!(all(target_os = "linux", target_arch = "x86_64"));
        match target {
            "x86_64-unknown-linux-musl" if is_linux => match process::can_install() {
                true => {
                    let root = dir.join("bare");
                    fs::create_dir_all(&root).map_err(error::file("create", &root))?;
                    Ok(Ok(ProgramRunner::Bare { root }))
                }
                false => Ok(Err("`chroot` needs root".to_string())),
            },
            "aarch64-unknown-linux-gnu" if is_linux => {
                let names = ["/usr/bin/qemu-aarch64", "/usr/bin/qemu-aarch64-static"];
                let Some(program) = installed(&names, "qemu-user-static")? else {
                    return Ok(Err("it needs `qemu-aarch64`".to_string()));
                };
                let root = foreign_root("arm64")?;
                Ok(Ok(ProgramRunner::Qemu { program, root }))
            }
            "x86_64-pc-windows-gnu" if is_linux => {
                if !process::can_install() {
                    return Ok(Err("Wine in a root folder needs root".to_string()));
                }
                let root = wine_root()?;
                let prefix = dir.join("wine");
                Ok(Ok(ProgramRunner::Wine { root, prefix }))
            }
            _ => Ok(Err("it needs a machine of its platform".to_string())),
        }
    }

    /// A command that starts a program.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = match self {
            ProgramRunner::Own => Command::new(program),
            ProgramRunner::Bare { root } => {
                let mut command = Command::new("/usr/sbin/chroot");
                command.arg(root);
                let name = program.file_name().unwrap_or_default();
                command.arg(Path::new("/").join(name)).env_clear();
                command
            }
            ProgramRunner::Qemu {
                program: qemu,
                root,
            } => {
                let mut command = Command::new(qemu);
                command.arg("-L").arg(root).arg(program);
                command
            }
            ProgramRunner::Wine { root, prefix } => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "private", "sh", "-c", IN_ROOT]);
                command
                    .arg(root)
                    .arg(std::env::temp_dir())
                    .arg(process::root());
                command.args(["--", WINE]).arg(self.seen(program));
                command.env("WINEPREFIX", prefix).env("WINEDEBUG", "-all");
                command.env("WINESERVER", format!("{WINE_FOLDER}/wineserver64"));
                // Wine's own libraries need `zlib1.dll`, which Debian has in another package.
                command.env("WINEPATH", WINE_LIBRARIES);
                // The encoding of arguments.
                command.env("LC_ALL", "C.UTF-8");
                command
            }
        };
        command.stderr(Stdio::inherit());
        command
    }

    /// The words for the table.
    fn place(&self) -> &'static str {
        match self {
            ProgramRunner::Own => "here",
            ProgramRunner::Bare { .. } => "in a root with nothing else",
            ProgramRunner::Qemu { .. } => "under qemu-aarch64",
            ProgramRunner::Wine { .. } => "under Wine",
        }
    }

    /// The name that the program sees for a file of this machine.
    pub(super) fn seen(&self, path: &Path) -> String {
        let path = path.display().to_string();
        match self {
            ProgramRunner::Wine { .. } => format!("Z:{}", path.replace('/', "\\")),
            ProgramRunner::Own | ProgramRunner::Bare { .. } | ProgramRunner::Qemu { .. } => path,
        }
    }
}

/// The first program that exists; if there is none, its Debian package is installed if that is possible.
pub(super) fn installed(names: &[&str], package: &str) -> Result<Option<PathBuf>, XtaskError> {
    let find = || names.iter().map(PathBuf::from).find(|path| path.exists());
    if find().is_none() && process::can_install() {
        process::apt_install(&[package])?;
    }
    Ok(find())
}

/// A folder with the C library of another processor.
fn foreign_root(architecture: &str) -> Result<PathBuf, XtaskError> {
    let selection = DebianSelection {
        suite: SUITE,
        architecture,
        packages: &["libc6", "libgcc-s1"],
    };
    unpacked_root(&format!("root-{SUITE}-{architecture}"), &selection, |_| {
        Ok(())
    })
}

/// A folder with Python for another processor: Debian 12 has version 3.11.
pub(super) fn foreign_python(architecture: &str) -> Result<PathBuf, XtaskError> {
    let selection = DebianSelection {
        suite: SUITE,
        architecture,
        // NumPy's modules need the library of C++.
        packages: &["python3", "libgcc-s1", "libstdc++6"],
    };
    let name = format!("root-{SUITE}-{architecture}-numpy");
    unpacked_root(&name, &selection, |_| Ok(()))
}

/// A folder with Wine and its libraries (1 GB).
fn wine_root() -> Result<PathBuf, XtaskError> {
    let selection = DebianSelection {
        suite: WINE_SUITE,
        architecture: "amd64",
        packages: &["libc-bin", "wine64"],
    };
    // `libc-bin` has the locale of UTF-8.
    let name = format!("root-{WINE_SUITE}-wine");
    unpacked_root(&name, &selection, |_| Ok(()))
}

/// A folder of the cache with unpacked packages, which `finish` completes.
fn unpacked_root(
    name: &str,
    selection: &DebianSelection<'_>,
    finish: impl FnOnce(&Path) -> Result<(), XtaskError>,
) -> Result<PathBuf, XtaskError> {
    let root = cache::dir()?.join(name);
    if root.is_dir() {
        return Ok(root);
    }
    let partial = root.with_extension("partial");
    fetch::remove_dir(&partial)?;
    debian::unpack(selection, &partial)?;
    // Loaders are in `/lib` and `/lib64`, which systems link to folders of `/usr`.
    for name in ["lib", "lib64"] {
        let link = partial.join(name);
        if !link.exists() {
            #[cfg(unix)]
            std::os::unix::fs::symlink(format!("usr/{name}"), &link)
                .map_err(error::file("create", &link))?;
        }
    }
    finish(&partial)?;
    fs::rename(&partial, &root).map_err(error::file("create", &root))?;
    Ok(root)
}

/// Runs a program; it must print the version.
pub(super) fn expect_version(mut command: Command, path: &Path) -> Result<(), XtaskError> {
    command.arg("--version");
    expect_printed_version(command, path)
}

/// Runs a command whose arguments ask for the version.
pub(super) fn expect_printed_version(mut command: Command, path: &Path) -> Result<(), XtaskError> {
    let printed = process::output(&mut command)?;
    let printed = String::from_utf8_lossy(&printed);
    match printed.starts_with(&format!("tercet {VERSION}")) {
        true => Ok(()),
        false => Err(refused(
            path,
            format!("expected version {VERSION}, found {}", printed.trim()),
        )),
    }
}

pub(super) fn refused(path: &Path, problem: String) -> XtaskError {
    XtaskError::DistInput {
        path: path.to_owned(),
        problem,
    }
}

/// A program with the way to run it, and a folder for its files.
pub(super) struct ProgramTrial<'a> {
    pub(super) runner: &'a ProgramRunner,
    pub(super) program: &'a Path,
    pub(super) dir: &'a Path,
}

impl ProgramTrial<'_> {
    /// Runs all checks; returns their names.
    pub(super) fn run(&self) -> (String, Result<(), XtaskError>) {
        type ProgramCheck<'a> = fn(&ProgramTrial<'a>) -> Result<(), XtaskError>;
        let mut checks: Vec<(&str, ProgramCheck<'_>)> = vec![
            ("version", |trial| {
                expect_version(trial.command(), trial.program)
            }),
            ("generate", |trial| trial.generate(None)),
        ];
        // The root of a bare program has no models.
        if !matches!(self.runner, ProgramRunner::Bare { .. }) {
            checks.push(("paths", ProgramTrial::paths));
            checks.push(("embed", ProgramTrial::embed));
        }
        checks.push(("serve and Ctrl-C", ProgramTrial::serve));
        let mut names = Vec::new();
        let mut result = Ok(());
        for (name, check) in checks {
            names.push(name);
            let start = Instant::now();
            result = check(self);
            println!(
                "{:6.1} s  {name} {}",
                start.elapsed().as_secs_f64(),
                self.runner.place()
            );
            if result.is_err() {
                break;
            }
        }
        (
            format!("{} {}", names.join(", "), self.runner.place()),
            result,
        )
    }

    fn command(&self) -> Command {
        self.runner.command(self.program)
    }

    fn expect(&self, command: Command, expected: &str) -> Result<(), XtaskError> {
        let shown = format!("{command:?}");
        let printed = process::limited_output(command, LIMIT)?;
        let printed = printed.replace("\r\n", "\n");
        match printed.contains(expected) {
            true => Ok(()),
            false => Err(refused(
                self.program,
                format!("{shown}: expected {expected:?}, found {printed:?}"),
            )),
        }
    }

    /// Generates greedily on the CPU, by the embedded model or by a file.
    fn generate(&self, model: Option<&str>) -> Result<(), XtaskError> {
        let mut command = self.command();
        command.args(["generate", "--device", "cpu", "--prompt", PROMPT]);
        command.args(["--temperature", "0", "--max-tokens", "12"]);
        if let Some(model) = model {
            command.args(["--model", model]).current_dir(self.dir);
        }
        self.expect(command, ANSWER)
    }

    /// Models at an absolute and at a relative path with a space and a letter outside of ASCII.
    fn paths(&self) -> Result<(), XtaskError> {
        let folder = self.dir.join("a folder");
        fs::create_dir_all(&folder).map_err(error::file("create", &folder))?;
        let from = process::root().join("tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
        let to = folder.join("mödel.gguf");
        fs::copy(&from, &to).map_err(error::file("copy", &from))?;
        self.generate(Some(&self.runner.seen(&to)))?;
        let relative = match self.runner {
            // Its working folder is the root of the drive.
            ProgramRunner::Wine { .. } => self.runner.seen(&to).replacen("Z:\\", "", 1),
            _ => "a folder/mödel.gguf".to_string(),
        };
        self.generate(Some(&relative))
    }

    fn embed(&self) -> Result<(), XtaskError> {
        let encoder = process::root().join("tests/data/encoders/sentence-a");
        let mut command = self.command();
        command.args(["embed", "--device", "cpu", "--model"]);
        command.arg(self.runner.seen(&encoder)).args(["one", "two"]);
        self.expect(command, SIMILARITY)
    }

    /// A server that answers a completion, and stops when it is interrupted.
    fn serve(&self) -> Result<(), XtaskError> {
        let mut command = self.command();
        command.args(["serve", "--device", "cpu", "--port", "0"]);
        let mut server = TrialServer::start(command, self.program)?;
        let body = serde_json::json!({"prompt": PROMPT, "max_tokens": 12, "temperature": 0});
        let answer = server.post("/v1/completions", &body.to_string());
        let answer = answer.map_err(error::file("ask the server of", self.program))?;
        let json: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
        let text = json["choices"][0]["text"].as_str().unwrap_or_default();
        if text != ANSWER {
            let problem = format!("the server answered {answer:?}, expected {ANSWER:?}");
            return Err(refused(self.program, problem));
        }
        server.interrupt(self.program)
    }
}

/// A server on a free port. It ends when it is dropped.
struct TrialServer {
    child: Child,
    port: u16,
}

impl TrialServer {
    /// Starts a server, and waits until it prints its address.
    fn start(mut command: Command, path: &Path) -> Result<TrialServer, XtaskError> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        let shown = format!("{command:?}");
        let child = command.spawn().map_err(error::file("start", path))?;
        let mut server = TrialServer { child, port: 0 };
        let (sender, ports) = mpsc::channel();
        if let Some(pipe) = server.child.stderr.take() {
            // The thread reads until the server ends, so that the server never waits for the pipe.
            thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    let port = line.split_once("http://127.0.0.1:");
                    let port = port.and_then(|(_, port)| port.trim().parse::<u16>().ok());
                    match port {
                        // Ignore errors: the receiver may be gone.
                        Some(port) => drop(sender.send(port)),
                        None => println!("        {line}"),
                    }
                }
            });
        }
        server.port = ports.recv_timeout(LIMIT).map_err(|_| XtaskError::TimeOut {
            command: shown,
            limit: LIMIT,
        })?;
        Ok(server)
    }

    fn post(&self, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok(body.to_string())
    }

    /// Interrupts the server as Ctrl-C does; it must end with success.
    fn interrupt(&mut self, path: &Path) -> Result<(), XtaskError> {
        let pid = self.child.id().to_string();
        process::run(Command::new("kill").args(["-INT", &pid]))?;
        let start = Instant::now();
        loop {
            match self.child.try_wait().map_err(error::file("stop", path))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let problem = format!("the interrupted server ended with {status}");
                    return Err(refused(path, problem));
                }
                None if start.elapsed() > LIMIT => {
                    return Err(XtaskError::TimeOut {
                        command: format!("kill -INT {pid}"),
                        limit: LIMIT,
                    });
                }
                None => thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for TrialServer {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
