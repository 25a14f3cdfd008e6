//! The test programs of the workspace: cargo builds them and says where they are, and each is run as cargo would run it.
//!
//! `cargo test` runs one program after another, and most of ours keep one processor busy: side by side they take half the time.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::error::XtaskError;
use crate::process;

/// A program of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// The package whose tests these are.
    pub(crate) package: String,
    /// The target of it: a file of its folder `tests`, a library or a binary whose unit tests these are.
    pub(crate) target: String,
    executable: PathBuf,
    /// The package's folder, which its tests are run in.
    folder: PathBuf,
}

/// A line of cargo's, of those that it writes in JSON.
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
    /// The program, with what cargo sets for a test.
    pub(crate) fn command(&self) -> Command {
        self.set(Command::new(&self.executable))
    }

    /// The program, run by another one.
    pub(crate) fn through(&self, runner: &Path) -> Command {
        let mut command = Command::new(runner);
        command.arg(&self.executable);
        self.set(command)
    }

    /// What it is called in what is printed.
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

/// Builds the test programs of a selection of packages, and the binaries that they start; what the compiler says is shown.
///
/// # Errors
/// A build that fails; a line of cargo's that cannot be read.
pub(crate) fn build(selection: &[&str]) -> Result<Vec<TestBinary>, XtaskError> {
    let mut cargo = process::cargo();
    cargo.args(["test", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics");
    let lines = process::output(cargo.args(selection))?;
    read(&String::from_utf8_lossy(&lines))
}

/// The programs that cargo's lines name.
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
