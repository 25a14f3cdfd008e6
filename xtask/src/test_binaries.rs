//! The test programs of the workspace: cargo builds and lists them, and xtask runs each one with
//! cargo's environment.
//!
//! `cargo test` runs one program after another, and most of them use a single processor. Running
//! the programs in parallel takes half the time.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::error::XtaskError;
use crate::process;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// The package that the tests belong to.
    pub(crate) package: String,
    /// The cargo target: a file in the folder `tests`, or a library or binary with unit tests.
    pub(crate) target: String,
    executable: PathBuf,
    /// The package's folder, which is the working folder of its tests.
    folder: PathBuf,
}

/// A line of cargo's JSON output.
#[derive(Deserialize)]
struct CargoMessage {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    target: CargoTarget,
    #[serde(default)]
    profile: CargoProfile,
    executable: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
struct CargoTarget {
    name: String,
}

#[derive(Default, Deserialize)]
struct CargoProfile {
    test: bool,
}

impl TestBinary {
    /// The command that runs the program, with the environment that cargo sets for tests.
    pub(crate) fn command(&self) -> Command {
        self.set(Command::new(&self.executable))
    }

    /// The command that runs the program through a runner.
    pub(crate) fn through(&self, runner: &Path) -> Command {
        let mut command = Command::new(runner);
        command.arg(&self.executable);
        self.set(command)
    }

    /// The folder of the program, with the libraries that cargo builds for tests.
    pub(crate) fn libraries(&self) -> &Path {
        self.executable.parent().unwrap_or(Path::new(""))
    }

    /// The name of the program in the output.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    fn set(&self, mut command: Command) -> Command {
        command.current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO_PKG_NAME", &self.package);
        command
    }
}

/// Builds the test programs of a package selection, and the binaries that they start. Compiler
/// messages are printed.
///
/// # Errors
/// A failed build, or an unreadable line of cargo's output.
pub(crate) fn build(selection: &[&str]) -> Result<Vec<TestBinary>, XtaskError> {
    let mut cargo = process::cargo();
    // Without `--tests`, cargo also links the examples, which clippy checks.
    cargo.args(["test", "--no-run", "--tests"]);
    cargo.arg("--message-format=json-render-diagnostics");
    let lines = process::output(cargo.args(selection))?;
    read(&String::from_utf8_lossy(&lines))
}

/// The test programs in cargo's output.
fn read(lines: &str) -> Result<Vec<TestBinary>, XtaskError> {
    let mut programs = Vec::new();
    for line in lines.lines() {
        let message: CargoMessage = serde_json::from_str(line).map_err(XtaskError::CargoMessage)?;
        let Some(executable) = message.executable else {
            continue;
        };
        if message.reason != "compiler-artifact" || !message.profile.test {
            continue;
        }
        let folder = message.manifest_path.parent().unwrap_or(Path::new("."));
        let package = folder.file_name().unwrap_or_default().to_string_lossy();
        programs.push(TestBinary {
            package: package.into_owned(),
            target: message.target.name,
            executable,
            folder: folder.to_owned(),
        });
    }
    Ok(programs)
}

#[cfg(test)]
pub(crate) fn example(package: &str, target: &str) -> TestBinary {
    TestBinary {
        package: package.to_string(),
        target: target.to_string(),
        executable: PathBuf::from("/target").join(target),
        folder: PathBuf::from("/workspace").join(package),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_the_lines_of_a_build() {
        let lines = [
            r#"{"reason":"compiler-artifact","package_id":"a","manifest_path":"/w/a/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":null}"#,
            r#"{"reason":"compiler-artifact","package_id":"a","manifest_path":"/w/a/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":"/t/a"}"#,
            r#"{"reason":"build-script-executed","package_id":"a","linked_libs":[]}"#,
            r#"{"reason":"compiler-artifact","package_id":"a","manifest_path":"/w/a/Cargo.toml","target":{"name":"rows"},"profile":{"test":true},"executable":"/t/rows-1"}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let programs = read(&lines.join("\n")).unwrap();
        let rows = TestBinary {
            package: "a".to_string(),
            target: "rows".to_string(),
            executable: PathBuf::from("/t/rows-1"),
            folder: PathBuf::from("/w/a"),
        };
        assert_eq!(programs, [rows]);
        assert!(matches!(read("no JSON"), Err(XtaskError::CargoMessage(_))));
    }

    #[test]
    fn a_program_runs_in_the_folder_of_its_package() {
        let program = example("tercet-ir", "agreement");
        let command = program.through(Path::new("/runner"));
        assert_eq!(command.get_program(), "/runner");
        assert_eq!(
            command.get_args().collect::<Vec<_>>(),
            ["/target/agreement"]
        );
        let folder = Path::new("/workspace/tercet-ir");
        assert_eq!(command.get_current_dir(), Some(folder));
        assert_eq!(program.name(), "tercet-ir agreement");
        assert_eq!(program.command().get_program(), "/target/agreement");
    }
}
