//! Tests of `packaging/install.sh` against a server on this machine.

#![cfg(unix)]
#![cfg(all(test, unix))]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::fetch::{remove_dir, sha256};
use crate::process;
use crate::web::server::PageServer;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A folder that is served, and a folder to install into.
struct InstallTrial {
    dir: PathBuf,
    url: String,
    archive: String,
}

impl Drop for InstallTrial {
    fn drop(&mut self) {
        // A folder that is left is only a temporary one.
        let _ = remove_dir(&self.dir);
    }
}

impl InstallTrial {
    /// Serves an archive with a program that prints `version`, with correct checksums.
    fn new(name: &str, version: &str) -> InstallTrial {
        let dir = std::env::temp_dir().join(format!("xtask-install-{name}-{}", std::process::id()));
        remove_dir(&dir).unwrap();
        let stem = format!("tercet-{version}-{TARGET}");
        let archive = format!("{stem}.tar.gz");
        let served = dir.join("served");
        let inner = dir.join(&stem);
        fs::create_dir_all(&served).unwrap();
        fs::create_dir_all(&inner).unwrap();
        let program = format!("#!/bin/sh\n[ \"$1\" = --version ] && echo tercet {version}\n");
        fs::write(inner.join("tercet"), program).unwrap();
        fs::write(inner.join("LICENSE-MIT"), "license").unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-czf")
            .arg(served.join(&archive))
            .arg("-C")
            .arg(&dir);
        process::run(tar.arg(&stem)).unwrap();
        let server = PageServer::start(&served, 0).unwrap();
        let trial = InstallTrial {
            url: format!("http://127.0.0.1:{}", server.port()),
            dir,
            archive,
        };
        trial.write_sums();
        trial
    }

    fn served(&self, name: &str) -> PathBuf {
        self.dir.join("served").join(name)
    }

    fn write_sums(&self) {
        let digest = sha256(&self.served(&self.archive)).unwrap();
        let other = "0".repeat(64);
        let text = format!(
            "{other}  tercet-9.9.9-riscv64gc-unknown-linux-gnu.tar.gz\n{digest}  {}\n{other}  tercet.deb\n",
            self.archive
        );
        fs::write(self.served("SHA256SUMS"), text).unwrap();
    }

    fn prefix(&self) -> PathBuf {
        self.dir.join("prefix")
    }

    fn script(&self) -> Command {
        let mut command = Command::new("sh");
        command.arg(process::root().join("packaging/install.sh"));
        command.args(["--target", TARGET]);
        command
            .env("TERCET_BASE_URL", &self.url)
            .env("TERCET_PREFIX", self.prefix())
            .env_remove("http_proxy")
            .env_remove("HTTP_PROXY");
        command
    }

    /// Runs the script; it must fail with a message that has all `parts`, and leave no file.
    fn fails(&self, command: &mut Command, parts: &[&str]) {
        let before = files(&self.prefix());
        let (succeeds, text) = shown(&command.output().unwrap());
        assert!(!succeeds, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        assert!(text.contains("error: "), "{text}");
        assert_eq!(files(&self.prefix()), before, "{text}");
    }
}

fn shown(output: &Output) -> (bool, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.success(), text)
}

/// All files below a folder with their sizes.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.clone(), fs::metadata(&path).unwrap().len())),
        }
    }
    found.sort();
    found
}

#[test]
fn a_good_archive_is_installed_and_replaced_by_a_newer_one() {
    for (name, version) in [("good", "1.2.3"), ("newer", "1.3.0-rc.1")] {
        let trial = InstallTrial::new(name, version);
        for _ in 0..2 {
            let (succeeds, text) = shown(&trial.script().output().unwrap());
            assert!(succeeds, "{text}");
            let program = trial.prefix().join("bin/tercet");
            assert!(
                text.contains(&format!("installed tercet {version}")),
                "{text}"
            );
            assert!(text.contains(&program.display().to_string()), "{text}");
            assert!(text.contains("is not on the PATH"), "{text}");
            let only: Vec<_> = files(&trial.prefix())
                .into_iter()
                .map(|(path, _)| path)
                .collect();
            assert_eq!(only, std::slice::from_ref(&program));
            let output = Command::new(program).arg("--version").output().unwrap();
            assert_eq!(output.stdout, format!("tercet {version}\n").as_bytes());
        }
    }
}

#[test]
fn a_changed_archive_is_refused_and_the_old_program_stays() {
    let trial = InstallTrial::new("changed", "1.0.0");
    assert!(trial.script().status().unwrap().success());
    let archive = trial.served(&trial.archive);
    let good = fs::read(&archive).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for bytes in [
        &flipped[..],
        &good[..good.len() / 2],
        &[],
        b"<html>not found</html>",
    ] {
        fs::write(&archive, bytes).unwrap();
        let digest = sha256(&archive).unwrap();
        trial.fails(
            &mut trial.script(),
            &[&digest, "expected", "nothing was installed", "remedy"],
        );
    }
    // With matching checksums, a file that is no archive is refused by tar.
    trial.write_sums();
    trial.fails(&mut trial.script(), &["cannot unpack"]);
}

#[test]
fn missing_files_and_targets_are_named() {
    let trial = InstallTrial::new("missing", "1.0.0");
    let mut other = trial.script();
    other.args(["--target", "sparc-unknown-none"]);
    trial.fails(
        &mut other,
        &["no archive for sparc-unknown-none", &trial.url],
    );
    // The dots of a name are no pattern.
    let mut pattern = trial.script();
    pattern.args(["--target", "x86_64.unknown.linux.gnu"]);
    trial.fails(&mut pattern, &["no archive for x86_64.unknown.linux.gnu"]);
    fs::remove_file(trial.served(&trial.archive)).unwrap();
    trial.fails(&mut trial.script(), &["cannot download", &trial.archive]);
    fs::remove_file(trial.served("SHA256SUMS")).unwrap();
    trial.fails(&mut trial.script(), &["cannot download", "SHA256SUMS"]);
    trial.fails(
        trial.script().env("TERCET_BASE_URL", "http://127.0.0.1:9"),
        &["cannot download"],
    );
    trial.fails(
        trial.script().env_remove("TERCET_BASE_URL"),
        &["TERCET_BASE_URL"],
    );
    trial.fails(
        trial.script().arg("--colour"),
        &["--colour is not an option"],
    );
    trial.fails(trial.script().arg("--prefix"), &["--prefix needs a value"]);
    let mut homeless = trial.script();
    homeless.env_remove("TERCET_PREFIX").env_remove("HOME");
    trial.fails(&mut homeless, &["HOME is not set"]);
}

#[test]
fn a_program_that_does_not_start_is_not_installed() {
    let trial = InstallTrial::new("broken", "1.0.0");
    let stem = trial.archive.trim_end_matches(".tar.gz").to_string();
    fs::write(
        trial.dir.join(&stem).join("tercet"),
        "#!/bin/sh\necho version GLIBC_9 not found >&2; exit 1\n",
    )
    .unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-czf")
        .arg(trial.served(&trial.archive))
        .arg("-C")
        .arg(&trial.dir);
    process::run(tar.arg(&stem)).unwrap();
    trial.write_sums();
    trial.fails(
        &mut trial.script(),
        &["does not start here", "GLIBC_9", "musl"],
    );
}

/// The archive by xz is preferred; a machine without xz gets the one by gzip.
#[test]
fn the_smaller_archive_is_chosen_if_it_can_be_unpacked() {
    let trial = InstallTrial::new("xz", "2.0.0");
    let stem = trial.archive.trim_end_matches(".tar.gz").to_string();
    let by_xz = format!("{stem}.tar.xz");
    let mut tar = Command::new("tar");
    tar.arg("-cf")
        .arg(trial.dir.join("tar"))
        .arg("-C")
        .arg(&trial.dir);
    process::run(tar.arg(&stem)).unwrap();
    let bytes = fs::read(trial.dir.join("tar")).unwrap();
    let packed = crate::dist::xz(&bytes).unwrap();
    fs::write(trial.served(&by_xz), packed).unwrap();
    let sums = fs::read_to_string(trial.served("SHA256SUMS")).unwrap();
    let digest = sha256(&trial.served(&by_xz)).unwrap();
    let sums = format!("{sums}{digest}  {by_xz}\n");
    fs::write(trial.served("SHA256SUMS"), sums).unwrap();
    // A folder with all programs of the script, with and without xz.
    let tools = trial.dir.join("tools");
    fs::create_dir_all(&tools).unwrap();
    let link = |name: &str| {
        let found = process::output(Command::new("sh").args(["-c", &format!("command -v {name}")]));
        let found = String::from_utf8(found.unwrap()).unwrap();
        std::os::unix::fs::symlink(found.trim(), tools.join(name)).unwrap();
    };
    for name in [
        "sh",
        "tar",
        "gzip",
        "curl",
        "sha256sum",
        "cut",
        "mktemp",
        "mkdir",
        "rm",
        "rmdir",
        "mv",
        "cat",
        "chmod",
        "uname",
    ] {
        link(name);
    }
    for (has_xz, ending) in [(false, ".tar.gz"), (true, ".tar.xz")] {
        if has_xz {
            link("xz");
        }
        let output = trial.script().env("PATH", &tools).output().unwrap();
        let (succeeds, text) = shown(&output);
        assert!(succeeds, "{text}");
        assert!(text.contains(&format!("{stem}{ending}")), "{text}");
        assert!(text.contains("installed tercet 2.0.0"), "{text}");
    }
    // A damaged archive by xz is not replaced by the other one.
    fs::write(trial.served(&by_xz), "damaged").unwrap();
    trial.fails(&mut trial.script(), &["expected", "nothing was installed"]);
}

/// The user `nobody`, if the tests run as root, which may write anywhere.
fn unprivileged(script: &Command) -> Command {
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let mut command = Command::new(if is_root { "setpriv" } else { "env" });
    if is_root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    command.arg(script.get_program()).args(script.get_args());
    for (name, value) in script.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn a_read_only_home_is_named() {
    let trial = InstallTrial::new("home", "1.0.0");
    let home = trial.dir.join("home");
    fs::create_dir_all(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o555)).unwrap();
    // The script must be readable for the other user too.
    let script = trial.dir.join("install.sh");
    fs::copy(process::root().join("packaging/install.sh"), &script).unwrap();
    let at_home = || {
        let mut command = Command::new("sh");
        command.arg(&script).args(["--target", TARGET]);
        command
            .env("TERCET_BASE_URL", &trial.url)
            .env("HOME", &home);
        command.env_remove("TERCET_PREFIX").current_dir("/");
        command
    };
    let place = home.join(".local/bin").display().to_string();
    let parts = ["cannot create", &place, "--prefix"];
    trial.fails(unprivileged(&at_home()).current_dir("/"), &parts);
    // A folder that exists and is not writable.
    fs::create_dir_all(home.join(".local/bin")).unwrap();
    fs::set_permissions(home.join(".local/bin"), fs::Permissions::from_mode(0o555)).unwrap();
    let parts = ["cannot write to", &place, "--prefix"];
    trial.fails(unprivileged(&at_home()).current_dir("/"), &parts);
    // A file in place of the folder stops every user.
    let file = trial.dir.join("file");
    fs::write(&file, "").unwrap();
    let mut command = trial.script();
    command.env("TERCET_PREFIX", &file);
    trial.fails(&mut command, &["cannot create"]);
}

/// A script that was cut off anywhere does nothing, because its last line calls it.
#[test]
fn a_script_that_was_cut_off_does_nothing() {
    let trial = InstallTrial::new("cut", "1.0.0");
    let text = fs::read_to_string(process::root().join("packaging/install.sh")).unwrap();
    let part = trial.dir.join("part.sh");
    for eighths in 1..8 {
        fs::write(&part, &text[..text.len() * eighths / 8]).unwrap();
        let mut command = Command::new("sh");
        command.arg(&part).env("TERCET_BASE_URL", &trial.url);
        command
            .env("TERCET_PREFIX", trial.prefix())
            .output()
            .unwrap();
        assert_eq!(files(&trial.prefix()), []);
    }
}
