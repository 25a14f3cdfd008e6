//! Starts the program of an image as its user, asks its health check, and stops it: by an OCI runtime, or in the root
//! folder of the image alone.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::programs::{expect_printed_version, installed};
use crate::dist::image;
use crate::error::{self, XtaskError};
use crate::process;

/// Maximum time until the server of the image is healthy, and until it has stopped.
const LIMIT: Duration = Duration::from_secs(60);
/// The runtime, which is also the name of its Debian package.
const RUNTIME: &str = "runc";

/// How the processes of an image start.
pub(super) enum ImageRunner {
    /// By a runtime, as containers with their own processes, mounts and host name, and with read-only files.
    Runtime(PathBuf),
    /// By `chroot`, without `/proc`.
    Root,
}

impl ImageRunner {
    /// The runner of this machine: a runtime is looked for, and installed if that is possible, in a whole check.
    pub(super) fn find(is_whole: bool) -> Result<Option<ImageRunner>, XtaskError> {
        if !process::can_install() {
            return Ok(None);
        }
        let names = ["/usr/sbin/runc", "/usr/bin/runc"];
        let found = match is_whole {
            true => installed(&names, RUNTIME)?,
            false => None,
        };
        Ok(Some(found.map_or(ImageRunner::Root, ImageRunner::Runtime)))
    }

    /// The words for the table.
    pub(super) fn place(&self) -> &'static str {
        match self {
            ImageRunner::Runtime(_) => "by runc",
            ImageRunner::Root => "in its root folder",
        }
    }
}

/// Runs the entry point of an image as its user, then its health check, and stops the server by its signal.
pub(super) fn check(runner: &ImageRunner, path: &Path, dir: &Path) -> Result<(), XtaskError> {
    let root = dir.join("rootfs");
    fs::create_dir_all(dir).map_err(error::file("create", dir))?;
    let config = image::unpack(path, &root)?;
    let container = ImageContainer {
        runner,
        dir,
        settings: &config["config"],
    };
    let entry = words(&container.settings["Entrypoint"]);
    let version = container.start("version", &entry[..1], &["--version"])?;
    expect_printed_version(version, path)?;
    let port = free_port()?;
    let port = port.as_str();
    let mut server = container.start("server", &entry, &["--port", port, "--device", "cpu"])?;
    let log = dir.join("server.log");
    let file = fs::File::create(&log).map_err(error::file("create", &log))?;
    server
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file);
    let mut server = ImageServer(server.spawn().map_err(error::file("start", path))?);
    let mut test = words(&container.settings["Healthcheck"]["Test"]);
    test.remove(0);
    test.push(port.to_string());
    let start = Instant::now();
    while let Err(unhealthy) = try_health(&mut container.inside("server", &test)) {
        let ended = server.0.try_wait().ok().flatten();
        if ended.is_none() && start.elapsed() <= LIMIT {
            thread::sleep(Duration::from_millis(50));
            continue;
        }
        let state = match ended {
            Some(status) => format!("ended with {status}"),
            None => format!("was not healthy within {} s", LIMIT.as_secs()),
        };
        let printed = fs::read_to_string(&log).unwrap_or_default();
        let problem = format!("the server {state}; last check: {unhealthy}; it printed: {printed}");
        return Err(super::refused(path, problem));
    }
    let signal = container.settings["StopSignal"].as_str();
    let signal = signal.unwrap_or("SIGTERM");
    process::run(&mut container.stop("server", signal, &server))?;
    let start = Instant::now();
    loop {
        match server.0.try_wait().map_err(error::file("stop", path))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                let problem = format!("the server ended with {status} after {signal}");
                return Err(super::refused(path, problem));
            }
            None if start.elapsed() > LIMIT => {
                return Err(XtaskError::TimeOut {
                    command: signal.to_string(),
                    limit: LIMIT,
                });
            }
            None => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Runs a health check; the error is its status and what it printed.
fn try_health(check: &mut Command) -> Result<(), String> {
    let output = check.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let printed = String::from_utf8_lossy(&output.stderr);
            Err(format!("{} ({})", output.status, printed.trim()))
        }
    }
}

fn free_port() -> Result<String, XtaskError> {
    let listen = |source| XtaskError::Listen { port: 0, source };
    let free = TcpListener::bind(("127.0.0.1", 0)).map_err(listen)?;
    Ok(free.local_addr().map_err(listen)?.port().to_string())
}

/// The texts of a list.
fn words(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts
        .map(|value| value.as_str().unwrap_or_default().to_string())
        .collect()
}

/// An unpacked image with the way to run it. A container that is left ends when this is dropped.
struct ImageContainer<'a> {
    runner: &'a ImageRunner,
    /// Has the root folder, and the files of the runtime.
    dir: &'a Path,
    settings: &'a Value,
}

impl ImageContainer<'_> {
    /// The command that starts a container, whose process has these words and arguments.
    fn start(
        &self,
        name: &str,
        words: &[String],
        arguments: &[&str],
    ) -> Result<Command, XtaskError> {
        let words = words
            .iter()
            .map(String::as_str)
            .chain(arguments.iter().copied());
        let words: Vec<&str> = words.collect();
        match self.runner {
            ImageRunner::Runtime(runtime) => {
                let path = self.dir.join("config.json");
                let config = bundle(self.settings, &words).to_string();
                fs::write(&path, config).map_err(error::file("write", &path))?;
                let mut command = self.runtime(runtime);
                command.arg("run").arg("--bundle").arg(self.dir);
                command.arg(self.name(name)).stdin(Stdio::null());
                Ok(command)
            }
            ImageRunner::Root => {
                let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
                Ok(self.inside(name, &words))
            }
        }
    }

    /// The command that starts another process in a container.
    fn inside(&self, name: &str, words: &[String]) -> Command {
        match self.runner {
            ImageRunner::Runtime(runtime) => {
                let mut command = self.runtime(runtime);
                command.arg("exec").arg(self.name(name)).args(words);
                command
            }
            ImageRunner::Root => {
                let user = self.settings["User"].as_str().unwrap_or_default();
                let mut command = Command::new("/usr/sbin/chroot");
                command.arg(format!("--userspec={user}"));
                command.arg(self.dir.join("rootfs")).args(words);
                command.env_clear();
                for variable in self::words(&self.settings["Env"]) {
                    if let Some((name, value)) = variable.split_once('=') {
                        command.env(name, value);
                    }
                }
                command
            }
        }
    }

    /// The command that sends a signal to the first process of a container.
    fn stop(&self, name: &str, signal: &str, server: &ImageServer) -> Command {
        match self.runner {
            ImageRunner::Runtime(runtime) => {
                let mut command = self.runtime(runtime);
                command.arg("kill").arg(self.name(name)).arg(signal);
                command
            }
            ImageRunner::Root => {
                let mut command = Command::new("kill");
                command.args(["-s", signal.trim_start_matches("SIG")]);
                command.arg(server.0.id().to_string());
                command
            }
        }
    }

    fn runtime(&self, runtime: &Path) -> Command {
        let mut command = Command::new(runtime);
        command.arg("--root").arg(self.dir.join("state"));
        command
    }

    /// A name that no other container of this machine has.
    fn name(&self, name: &str) -> String {
        format!("tercet-check-{}-{name}", std::process::id())
    }
}

impl Drop for ImageContainer<'_> {
    fn drop(&mut self) {
        if let ImageRunner::Runtime(runtime) = self.runner {
            // It fails if the container has ended, as it should.
            let mut delete = self.runtime(runtime);
            process::works(delete.args(["delete", "--force"]).arg(self.name("server")));
        }
    }
}

/// The configuration of a runtime for a process of an image. The container has the network of this machine.
fn bundle(settings: &Value, arguments: &[&str]) -> Value {
    let user = settings["User"].as_str().unwrap_or_default();
    let (user, group) = user.split_once(':').unwrap_or((user, user));
    let number = |text: &str| text.parse::<u32>().unwrap_or_default();
    let namespaces = ["pid", "mount", "ipc", "uts"].map(|kind| json!({ "type": kind }));
    let mount = |to: &str, kind: &str, options: &[&str]| json!({ "destination": to, "type": kind, "source": kind, "options": options });
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": "rootfs", "readonly": true },
        "process": {
            "terminal": false,
            "user": { "uid": number(user), "gid": number(group) },
            "args": arguments,
            "env": settings["Env"],
            "cwd": settings["WorkingDir"],
            "noNewPrivileges": true,
        },
        "mounts": [
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", &["nosuid", "mode=755"]),
            mount("/tmp", "tmpfs", &["nosuid", "mode=1777"]),
        ],
        "linux": { "namespaces": namespaces },
    })
}

/// A server that ends when it is dropped.
struct ImageServer(Child);

impl Drop for ImageServer {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_the_user_and_the_variables_of_the_image() {
        let settings = json!({
            "User": "65532:65533", "Env": ["PATH=/usr/bin"], "WorkingDir": "/models",
        });
        let config = bundle(&settings, &["/usr/bin/tercet", "serve"]);
        let process = &config["process"];
        assert_eq!(process["user"], json!({ "uid": 65532, "gid": 65533 }));
        assert_eq!(process["args"][1], "serve");
        assert_eq!(process["env"], settings["Env"]);
        assert_eq!(process["cwd"], "/models");
        assert_eq!(config["root"]["readonly"], true);
    }
}
