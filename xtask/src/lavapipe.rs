//! `cargo xtask fetch lavapipe`: a newer Mesa than the machine's, in a folder of the cache.
//!
//! Debian unstable's lavapipe has cooperative matrices, which a stable release's lacks; its
//! validation layers and `spirv-val` know them too. apt resolves the packages with their libraries
//! down to libc against an empty package database in the folder itself, and they are unpacked, not
//! installed: neither root nor a change to the machine is needed. The mirror is the one that the
//! machine's own apt uses for Debian.
//!
//! Programs run in the folder through its dynamic loader ([`LavapipeRoot::program`]); binaries of ours do
//! through the cargo runner `xtask/newer-lavapipe`.

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

/// Where the unpacked packages are.
pub(crate) struct LavapipeRoot(PathBuf);

impl LavapipeRoot {
    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    fn lib(&self) -> PathBuf {
        self.0.join("usr/lib/x86_64-linux-gnu")
    }

    /// A program of the folder, with the folder's own libc and libraries.
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

/// The folder, if an earlier run fetched it.
pub(crate) fn present() -> Result<Option<LavapipeRoot>, XtaskError> {
    let root = LavapipeRoot(crate::cache::dir()?.join(NAME));
    Ok(root.is_complete().then_some(root))
}

/// Makes sure that the folder is in `cache`.
///
/// # Errors
///
/// [`XtaskError::Lavapipe`] on other machines than x86-64 Linux, and without an apt that has a Debian
/// mirror; what apt fails with when the mirror cannot be reached.
pub(crate) fn fetch(cache: &Path) -> Result<LavapipeRoot, XtaskError> {
    let root = LavapipeRoot(cache.join(NAME));
    if root.is_complete() {
        return Ok(root);
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(XtaskError::Lavapipe {
            reason: "it is fetched for x86-64 Linux only",
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
        // Another process was faster.
        Err(_) if root.is_complete() => {
            fs::remove_dir_all(&partial).map_err(error::file("remove", &partial))?;
            Ok(root)
        }
        Err(source) => Err(error::file("create", root.dir())(source)),
    }
}

/// Where apt gets Debian's packages, and the keyring for them if its configuration names one.
#[derive(Debug, PartialEq, Eq)]
struct AptMirror {
    uri: String,
    keyring: Option<String>,
}

/// Asks apt; a machine without apt has none.
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
        // apt prints the format back for a field that the source does not have.
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

/// The packages and all that they depend on, as archives in a folder under `dir`.
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

/// `apt-get` whose state, cache and sources are all in `dir`.
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
        // The sandbox's user cannot write here.
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
