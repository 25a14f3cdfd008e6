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

use crate::debian::{self, DebianSelection};
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
/// [`XtaskError::Lavapipe`] on machines other than x86-64 Linux. Errors of [`debian::unpack`], for example if the
/// mirror is unreachable.
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
    eprintln!("fetching lavapipe of Debian {SUITE} (80 MB, once)");
    let partial = cache.join(format!("{NAME}.partial-{}", std::process::id()));
    debian::unpack(
        &DebianSelection {
            suite: SUITE,
            architecture: "amd64",
            packages: &PACKAGES,
        },
        &partial,
    )?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_script_is_there() {
        assert!(process::root().join("xtask/newer-lavapipe").is_file());
    }
}
