//! Unpacks artifacts of this machine's target, and runs the program of each one away from the checkout.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{DistInput, VERSION, image};
use crate::error::{self, XtaskError};
use crate::{fetch, process};

/// Maximum time until the server of the image is healthy.
const LIMIT: Duration = Duration::from_secs(60);

/// Checks the artifacts that can run here, and names the others.
pub(super) fn run(input: &DistInput, artifacts: &[PathBuf]) -> Result<(), XtaskError> {
    let dir = std::env::temp_dir().join(format!("xtask-dist-check-{}", std::process::id()));
    fetch::remove_dir(&dir)?;
    fs::create_dir_all(&dir).map_err(error::file("create", &dir))?;
    let is_own = super::host()? == input.target;
    for path in artifacts {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let to = dir.join(name.as_ref());
        let result = match () {
            () if name.ends_with(".json") || name.ends_with(".txt") => continue,
            () if !is_own => Some("it is for another platform"),
            () if name.ends_with(".tar.gz") => check_archive(input, path, &to)?,
            () if name.ends_with(".deb") => check_deb(path, &to)?,
            () if name.ends_with(".oci.tar") => check_image(path, &to)?,
            () => Some("no check for this kind of artifact"),
        };
        match result {
            None => println!("ok: {name}"),
            Some(reason) => println!("NOT RUN: {name}; {reason}"),
        }
    }
    fetch::remove_dir(&dir)
}

/// Runs a program; it must print the version.
fn expect_version(mut command: Command, path: &Path) -> Result<(), XtaskError> {
    let printed = process::output(command.arg("--version"))?;
    let printed = String::from_utf8_lossy(&printed);
    match printed.starts_with(&format!("tercet {VERSION}")) {
        true => Ok(()),
        false => Err(XtaskError::DistInput {
            path: path.to_owned(),
            problem: format!("expected version {VERSION}, found {}", printed.trim()),
        }),
    }
}

/// Installs the archive by the install script, from a server on this machine.
fn check_archive(
    input: &DistInput,
    path: &Path,
    to: &Path,
) -> Result<Option<&'static str>, XtaskError> {
    if cfg!(windows) {
        return Ok(Some("it needs a POSIX shell"));
    }
    let served = to.join("served");
    fs::create_dir_all(&served).map_err(error::file("create", &served))?;
    let copy = served.join(path.file_name().unwrap_or_default());
    fs::copy(path, &copy).map_err(error::file("copy", path))?;
    let server = crate::web::server::PageServer::start(&served, 0)?;
    super::describe::run(&served, &format!("http://127.0.0.1:{}", server.port()))?;
    let prefix = to.join("prefix");
    let mut install = Command::new("sh");
    install
        .arg(served.join("install.sh"))
        .args(["--target", &input.target]);
    process::run(
        install
            .arg("--prefix")
            .arg(&prefix)
            .env_remove("TERCET_BASE_URL"),
    )?;
    expect_version(Command::new(prefix.join("bin/tercet")), path)?;
    Ok(None)
}

fn check_deb(path: &Path, to: &Path) -> Result<Option<&'static str>, XtaskError> {
    if !process::works(Command::new("dpkg-deb").arg("--version")) {
        return Ok(Some("it needs `dpkg-deb`"));
    }
    process::run(Command::new("dpkg-deb").arg("-x").arg(path).arg(to))?;
    expect_version(Command::new(to.join("usr/bin/tercet")), path)?;
    Ok(None)
}

/// Runs the entry point of the image in its root folder as its user, and then its health check.
fn check_image(path: &Path, to: &Path) -> Result<Option<&'static str>, XtaskError> {
    let config = image::unpack(path, to)?;
    if !process::can_install() {
        return Ok(Some("unpacked; `chroot` needs root"));
    }
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    let words = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(text).collect()
    };
    // Runtimes mount `/proc`. The program must also run without it.
    let inside = |words: &[String]| {
        let mut command = Command::new("/usr/sbin/chroot");
        command.arg(format!("--userspec={}", text(&config["config"]["User"])));
        command.arg(to).args(words);
        command.env_clear();
        for (name, value) in variables(&config["config"]["Env"]) {
            command.env(name, value);
        }
        command
    };
    let entry = words(&config["config"]["Entrypoint"]);
    expect_version(inside(&entry[..1]), path)?;
    let listen = |source| XtaskError::Listen { port: 0, source };
    let free = TcpListener::bind(("127.0.0.1", 0)).map_err(listen)?;
    let port = free.local_addr().map_err(listen)?.port().to_string();
    drop(free);
    let mut server = inside(&entry);
    server.args(["--port", &port, "--device", "cpu"]);
    server.stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = ImageServer(server.spawn().map_err(error::file("start", path))?);
    let mut test = words(&config["config"]["Healthcheck"]["Test"]);
    test.remove(0);
    test.push(port);
    let start = Instant::now();
    while !process::works(&mut inside(&test)) {
        let has_ended = server.0.try_wait().is_ok_and(|status| status.is_some());
        if has_ended || start.elapsed() > LIMIT {
            return Err(XtaskError::TimeOut {
                command: entry.join(" "),
                limit: LIMIT,
            });
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(None)
}

/// The names and values of a list of variables.
fn variables(list: &serde_json::Value) -> Vec<(String, String)> {
    let texts = list.as_array().into_iter().flatten();
    let texts = texts.filter_map(|value| value.as_str());
    let pairs = texts.filter_map(|text| text.split_once('='));
    pairs
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
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
