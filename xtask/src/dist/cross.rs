//! Builds for other platforms and older C libraries, by compilers from package registries.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::XtaskError;
use crate::fetch::{self, PythonInterpreter};
use crate::{cache, process};

const PURPOSE: &str = "build for other platforms";
/// The list of Python packages.
const REQUIREMENTS: &str = "xtask/cross/requirements.txt";
/// The linker for Windows, with the Debian package that has it.
pub(super) const MINGW: (&str, &str) = ("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64");

/// The installed compilers.
pub(super) struct CrossTools(PythonInterpreter);

impl CrossTools {
    /// Installs the tools into the cache folder.
    pub(super) fn fetch() -> Result<CrossTools, XtaskError> {
        let list = process::root().join(REQUIREMENTS);
        let folder = cache::dir()?.join("cross");
        Ok(CrossTools(fetch::environment(&folder, PURPOSE, &list)?))
    }

    /// The environment that gives a command cargo-zigbuild and Zig.
    pub(super) fn enable(&self, command: &mut Command) {
        command.env("PATH", first_on_path(&self.folder()));
    }

    pub(super) fn maturin(&self) -> Command {
        let mut command = self.0.tool("maturin");
        self.enable(&mut command);
        command
    }

    /// The C compiler, which has the libraries of all targets.
    pub(super) fn c_compiler(&self) -> Command {
        let mut command = self.0.command();
        command.args(["-m", "ziglang", "cc"]);
        command
    }

    fn folder(&self) -> PathBuf {
        let program = self.0.tool("maturin");
        let folder = Path::new(program.get_program()).parent();
        folder.map(Path::to_path_buf).unwrap_or_default()
    }
}

fn first_on_path(folder: &Path) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(folder.to_path_buf()).chain(std::env::split_paths(&path));
    std::env::join_paths(all).unwrap_or(path)
}

/// Adds the standard library of a target, if rustup can.
pub(super) fn add_target(target: &str) -> Result<(), XtaskError> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]);
    let folder = process::output(&mut rustc)?;
    let folder = PathBuf::from(String::from_utf8_lossy(&folder).trim());
    if folder.is_dir() {
        return Ok(());
    }
    process::run(Command::new("rustup").args(["target", "add", target]))
}

/// Installs the linker for Windows if it is missing and that is possible.
pub(super) fn require_mingw() -> Result<(), XtaskError> {
    let (program, package) = MINGW;
    let works = || process::works(Command::new(program).arg("--version"));
    if !works() && process::can_install() {
        process::apt_install(&[package])?;
    }
    match works() {
        true => Ok(()),
        false => Err(XtaskError::NoTool {
            program,
            packages: package.to_string(),
        }),
    }
}
