//! `cargo xtask fetch lavapipe`: installs a newer Mesa than the system's into a cache folder.
//!
//! The lavapipe of Debian unstable has cooperative matrices, which the lavapipe of Debian stable
//! lacks. The validation layers of Debian unstable and `spirv-val` support cooperative matrices
//! too. apt resolves the packages with all their libraries, including libc, against an empty
//! package database in the folder. The packages are unpacked and not installed, so the command
//! needs no root and does not change the system. The mirror comes from the system's apt
//! configuration.
//!
//! Programs run in the folder through its dynamic loader ([`LavapipeRoot::program`]). Test binaries
//! use the cargo runner `xtask/newer-lavapipe`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{self, XtaskError};
use crate::process;

const NAME: &str = "lavapipe";
const SUITE: &str = "unstable";
const PACKAGES: [&str; 5] = [
    "mesa-vulkan-drivers",
    "libvulkan1",
    "vulkan-validationlayers",
    "vulkan-tools",
    "spirv-tools",
];

/// The folder with the unpacked packages.
pub(crate) struct LavapipeRoot(PathBuf);

impl LavapipeRoot {
    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    fn lib(&self) -> PathBuf {
        self.0.join("usr/lib/x86_64-linux-gnu")
    }

    /// A program of the folder, run with the folder's libc and libraries.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.lib().join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(self.lib());
        command.arg(self.0.join("usr/bin").join(name));
        command
    }

    fn is_complete(&self) -> bool {
        process::works(self.program("spirv-val").arg("--version"))
            && self.lib().join("libvulkan_lvp.so").is_file()
    }
}

/// The folder with the unpacked packages, if an earlier run fetched it.
pub(crate) fn present() -> Result<Option<LavapipeRoot>, XtaskError> {
    let root = LavapipeRoot(crate::cache::dir()?.join(NAME));
    Ok(root.is_complete().then_some(root))
}

/// Downloads the packages into `cache` unless they are present.
///
/// # Errors
///
/// [`XtaskError::Lavapipe`] on machines other than x86-64 Linux, and without an apt that has a
/// Debian mirror. Errors of apt, for example if the mirror is unreachable.
pub(crate) fn fetch(cache: &Path) -> Result<LavapipeRoot, XtaskError> {
    let root = LavapipeRoot(cache.join(NAME));
    if root.is_complete() {
        return Ok(root);
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(XtaskError::Lavapipe {
            reason: "only x86-64 Linux is supported",
        });
    }
    let mirror = mirror()?;
    eprintln!("fetching lavapipe of Debian {SUITE} (80 MB, once)");
    let partial = cache.join(format!("{NAME}.partial-{}", std::process::id()));
    let apt_dir = partial.join("apt");
    let archives = download(&mirror, &apt_dir)?;
    for archive in &archives {
        process::run(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(archive)
                .arg(&partial),
        )?;
    }
    fs::remove_dir_all(&apt_dir).map_err(error::file("remove", &apt_dir))?;
    if root.dir().exists() {
        fs::remove_dir_all(root.dir()).map_err(error::file("remove", root.dir()))?;
    }
    match fs::rename(&partial, root.dir()) {
        Ok(()) => Ok(root),
        // Another process installed the folder first.
        Err(_) if root.is_complete() => {
            fs::remove_dir_all(&partial).map_err(error::file("remove", &partial))?;
            Ok(root)
        }
        Err(source) => Err(error::file("create", root.dir())(source)),
    }
}

/// The Debian mirror of apt, and the keyring for it if the configuration names one.
#[derive(Debug, PartialEq, Eq)]
struct AptMirror {
    uri: String,
    keyring: Option<String>,
}

/// Reads the mirror from apt's configuration; an error without apt.
fn mirror() -> Result<AptMirror, XtaskError> {
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(REPO_URI)|$(SIGNED_BY)"]);
    apt.args(["Created-By: Packages", "Origin: Debian", "Label: Debian"]);
    let listing = process::output(&mut apt)?;
    first_mirror(&String::from_utf8_lossy(&listing)).ok_or(XtaskError::Lavapipe {
        reason: "apt has no Debian mirror among its sources (or `apt-get update` never ran)",
    })
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
    fn source_line(&self) -> String {
        let Self { uri, keyring } = self;
        match keyring {
            Some(keyring) => format!("deb [signed-by={keyring}] {uri} {SUITE} main\n"),
            None => format!("deb {uri} {SUITE} main\n"),
        }
    }
}

/// Downloads the packages and their dependencies as archives into a folder under `dir`.
fn download(mirror: &AptMirror, dir: &Path) -> Result<Vec<PathBuf>, XtaskError> {
    for sub in ["lists/partial", "archives/partial"] {
        let path = dir.join(sub);
        fs::create_dir_all(&path).map_err(error::file("create", &path))?;
    }
    for (name, text) in [("status", ""), ("sources.list", &mirror.source_line())] {
        let path = dir.join(name);
        fs::write(&path, text).map_err(error::file("write", &path))?;
    }
    process::run(apt(dir).arg("update"))?;
    let mut install = apt(dir);
    install.args([
        "install",
        "--yes",
        "--download-only",
        "--no-install-recommends",
    ]);
    process::run(install.args(PACKAGES))?;
    let archives = dir.join("archives");
    let entries = fs::read_dir(&archives).map_err(error::file("list", &archives))?;
    Ok(entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == "deb"))
        .collect())
}

/// `apt-get` with its state, cache and sources in `dir`.
fn apt(dir: &Path) -> Command {
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
            let line = first_mirror(listing).map(|mirror| mirror.source_line());
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

    #[test]
    fn the_runner_script_is_there() {
        assert!(process::root().join("xtask/newer-lavapipe").is_file());
    }
}
