//! Builds for other platforms and older C libraries, by compilers from package registries.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{self, XtaskError};
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

    /// Gives a command the tools, and for a target of Zig also the compiler and linker.
    ///
    /// The commands of cargo and maturin get the same variables. maturin's own option for Zig would name another
    /// path of the linker, and cargo would compile all crates again.
    pub(super) fn enable(
        &self,
        command: &mut Command,
        zig: Option<&str>,
    ) -> Result<(), XtaskError> {
        command.env("PATH", first_on_path(&self.folder()));
        match zig {
            Some(triple) => {
                command.envs(self.variables(triple)?);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The variables by which cargo-zigbuild gives cargo and build scripts the compiler and linker of a target. It
    /// has no command that prints them, so a script in place of cargo does.
    fn variables(&self, triple: &str) -> Result<Vec<(String, String)>, XtaskError> {
        let script = cache::dir()?.join("cross").join("print-environment");
        fs::write(&script, PRINT_ENVIRONMENT).map_err(error::file("write", &script))?;
        make_executable(&script)?;
        let mut zigbuild = self.0.tool("cargo-zigbuild");
        zigbuild.args(["zigbuild", "--target", triple]);
        zigbuild.env("PATH", first_on_path(&self.folder()));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        zigbuild.env("REAL_CARGO", cargo).env("CARGO", &script);
        let printed = process::output(&mut zigbuild)?;
        let mut variables = added(&printed, |name| std::env::var_os(name));
        for (name, linker) in &mut variables {
            if name.starts_with("CARGO_TARGET_") && name.ends_with("_LINKER") {
                *linker = self.merging_linker(triple, linker)?;
            }
        }
        Ok(variables)
    }

    /// Writes a linker that merges equal functions, and returns its path. Its name is the same in each run: cargo
    /// compiles all crates again if it changes.
    fn merging_linker(&self, triple: &str, linker: &str) -> Result<String, XtaskError> {
        let script = cache::dir()?.join("cross").join(format!("link-{triple}"));
        let python = self.0.command();
        let text = merging_script(linker, &python.get_program().to_string_lossy());
        fs::write(&script, text).map_err(error::file("write", &script))?;
        make_executable(&script)?;
        Ok(script.to_string_lossy().into_owned())
    }

    pub(super) fn maturin(&self) -> Command {
        self.0.tool("maturin")
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

/// Prints the environment in place of a build; other commands go to cargo.
const PRINT_ENVIRONMENT: &str = r#"#!/bin/sh
case "$1" in
build) exec env -0 ;;
*) exec "$REAL_CARGO" "$@" ;;
esac
"#;

/// Links by the compiler, which refuses `--icf`, and then again by the command that it printed, with that option. A
/// program has 1 MB less. Rust does not promise different addresses for different functions.
const MERGING_LINKER: &str = r#"#!/bin/sh
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
ZIG_VERBOSE_LINK=1 'LINKER' "$@" 2>"$printed" || { cat "$printed" >&2; exit 1; }
again=$(grep '^ld\.lld .* -o ' "$printed" | tail -n 1)
test -n "$again" || exit 0
'PYTHON' -m ziglang $again --icf=all
"#;

fn merging_script(linker: &str, python: &str) -> String {
    let script = MERGING_LINKER.replace("LINKER", linker);
    script.replace("PYTHON", python)
}

/// Variables of this machine's shell and of the script, which do not belong to a target.
const OTHER_VARIABLES: [&str; 5] = ["CARGO", "REAL_CARGO", "PATH", "PWD", "_"];

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<(), XtaskError> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode).map_err(error::file("write", path))
}

/// Zig is used on Linux only.
#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<(), XtaskError> {
    Ok(())
}

/// The variables in an environment, separated by NUL, that are not the same in this one.
fn added(printed: &[u8], own: impl Fn(&str) -> Option<OsString>) -> Vec<(String, String)> {
    let printed = String::from_utf8_lossy(printed);
    let pairs = printed.split('\0').filter_map(|line| line.split_once('='));
    let added = pairs.filter(|(name, value)| {
        !OTHER_VARIABLES.contains(name) && own(name).is_none_or(|own| own != *value)
    });
    added
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_the_target_are_taken() {
        let printed = b"HOME=/a\0CC_x=/zig cc\0PATH=/b\0_=/c\0LANG=de\0";
        let own = |name: &str| match name {
            "HOME" => Some("/a".into()),
            "LANG" => Some("en".into()),
            _ => None,
        };
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let expected = [pair("CC_x", "/zig cc"), pair("LANG", "de")];
        assert_eq!(added(printed, own), expected);
    }

    /// In place of the compiler and of Python, functions of the shell.
    #[cfg(unix)]
    #[test]
    fn a_program_is_linked_again_to_merge_functions() {
        let linked = |linker: &str| {
            let script = merging_script("linker", "python");
            let functions =
                format!("linker() {{ {linker}; }}; python() {{ echo \"$*\"; }}\n{script}");
            let output = Command::new("sh")
                .args(["-c", &functions, "sh", "-o", "b"])
                .output();
            let output = output.unwrap();
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            (
                output.status.success(),
                text(&output.stdout),
                text(&output.stderr),
            )
        };
        let both = "echo 'ld.lld x -o c' >&2; echo \"ld.lld a $*\" >&2; echo ar >&2";
        let again = "-m ziglang ld.lld a -o b --icf=all\n".to_string();
        assert_eq!(linked(both), (true, again, String::new()));
        assert_eq!(linked("true"), (true, String::new(), String::new()));
        let failed = (false, String::new(), "undefined\n".to_string());
        assert_eq!(linked("echo undefined >&2; false"), failed);
    }
}
