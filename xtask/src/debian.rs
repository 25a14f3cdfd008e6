//! Packages of a Debian mirror, unpacked into folders without changing the system.
//!
//! apt resolves packages with all their libraries, including libc, against an empty package database. The packages
//! are unpacked and not installed, so that it needs no root. The mirror comes from the system's apt configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{self, XtaskError};
use crate::process;

/// Packages of one Debian release for one processor.
pub(crate) struct DebianSelection<'a> {
    pub(crate) suite: &'a str,
    /// The processor as Debian names it, such as `arm64`.
    pub(crate) architecture: &'a str,
    pub(crate) packages: &'a [&'a str],
}

/// Downloads packages with their dependencies, and unpacks them into a folder.
///
/// # Errors
///
/// [`XtaskError::NoMirror`] without an apt that has a Debian mirror; errors of apt and dpkg.
pub(crate) fn unpack(selection: &DebianSelection<'_>, to: &Path) -> Result<(), XtaskError> {
    let dir = to.join("apt");
    for archive in download(&mirror()?, selection, &dir)? {
        process::run(Command::new("dpkg-deb").arg("-x").arg(archive).arg(to))?;
    }
    fs::remove_dir_all(&dir).map_err(error::file("remove", &dir))
}

/// The Debian mirror of apt, and the keyring for it if the configuration names one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AptMirror {
    pub(crate) uri: String,
    keyring: Option<String>,
}

/// Reads the mirror from apt's configuration; an error without apt.
pub(crate) fn mirror() -> Result<AptMirror, XtaskError> {
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(REPO_URI)|$(SIGNED_BY)"]);
    apt.args(["Created-By: Packages", "Origin: Debian", "Label: Debian"]);
    let listing = process::output(&mut apt)?;
    first_mirror(&String::from_utf8_lossy(&listing)).ok_or(XtaskError::NoMirror)
}

fn first_mirror(listing: &str) -> Option<AptMirror> {
    let (uri, keyring) = listing.lines().next()?.split_once('|')?;
    Some(AptMirror {
        uri: uri.to_owned(),
        // apt prints the format string itself for a missing field.
        keyring: (keyring.starts_with('/')).then(|| keyring.to_owned()),
    })
}

impl AptMirror {
    fn source_line(&self, suite: &str) -> String {
        let Self { uri, keyring } = self;
        match keyring {
            Some(keyring) => format!("deb [signed-by={keyring}] {uri} {suite} main\n"),
            None => format!("deb {uri} {suite} main\n"),
        }
    }
}

/// Downloads the packages and their dependencies as archives into a folder under `dir`.
fn download(
    mirror: &AptMirror,
    selection: &DebianSelection<'_>,
    dir: &Path,
) -> Result<Vec<PathBuf>, XtaskError> {
    let architecture = selection.architecture;
    for sub in ["lists/partial", "archives/partial"] {
        let path = dir.join(sub);
        fs::create_dir_all(&path).map_err(error::file("create", &path))?;
    }
    for (name, text) in [
        ("status", ""),
        ("sources.list", &mirror.source_line(selection.suite)),
    ] {
        let path = dir.join(name);
        fs::write(&path, text).map_err(error::file("write", &path))?;
    }
    process::run(apt(dir, architecture).arg("update"))?;
    let mut install = apt(dir, architecture);
    install.args([
        "install",
        "--yes",
        "--download-only",
        "--no-install-recommends",
    ]);
    process::run(install.args(selection.packages))?;
    let archives = dir.join("archives");
    let entries = fs::read_dir(&archives).map_err(error::file("list", &archives))?;
    Ok(entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == "deb"))
        .collect())
}

/// `apt-get` with its state, cache and sources in `dir`.
fn apt(dir: &Path, architecture: &str) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("-qq");
    for (option, value) in [
        ("Dir::State", dir.to_owned()),
        ("Dir::State::lists", dir.join("lists")),
        ("Dir::State::status", dir.join("status")),
        ("Dir::Cache", dir.to_owned()),
        ("Dir::Etc::sourcelist", dir.join("sources.list")),
        ("Dir::Etc::sourceparts", PathBuf::from("-")),
        // apt's sandbox user has no write access to this folder.
        ("APT::Architecture", PathBuf::from(architecture)),
        ("APT::Architectures", PathBuf::from(architecture)),
        ("APT::Sandbox::User", PathBuf::from("root")),
        ("Acquire::Languages", PathBuf::from("none")),
    ] {
        let mut setting = std::ffi::OsString::from(option);
        setting.push("=");
        setting.push(value);
        command.arg("-o").arg(setting);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_first_that_apt_names() {
        let check = |listing: &str, expected: Option<&str>| {
            let line = first_mirror(listing).map(|mirror| mirror.source_line("unstable"));
            assert_eq!(line.as_deref(), expected);
        };
        check(
            "http://a/debian/|/k.gpg\nhttp://b/|\n",
            Some("deb [signed-by=/k.gpg] http://a/debian/ unstable main\n"),
        );
        check(
            "http://a/debian/|$(SIGNED_BY)\n",
            Some("deb http://a/debian/ unstable main\n"),
        );
        check(
            "http://a/debian/|\n",
            Some("deb http://a/debian/ unstable main\n"),
        );
        check("", None);
    }
}
