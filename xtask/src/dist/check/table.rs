//! The table of a check: each artifact with its size, the checks that ran on it, and the result.

use std::fs;
use std::path::Path;

use crate::error::XtaskError;

/// The result of the checks of an artifact.
enum CheckResult {
    Passed,
    /// The reason.
    NotRun(String),
    /// The problem.
    Failed(String),
}

struct CheckRow {
    artifact: String,
    /// Absent for files that are no artifacts, such as a platform that needs another machine.
    bytes: Option<u64>,
    checks: String,
    result: CheckResult,
}

/// The rows of all artifacts.
#[derive(Default)]
pub(in crate::dist) struct CheckTable(Vec<CheckRow>);

impl CheckTable {
    /// Records the checks of an artifact.
    pub(super) fn record(&mut self, path: &Path, checks: &str, result: Result<(), XtaskError>) {
        let result = match result {
            Ok(()) => CheckResult::Passed,
            Err(error) => CheckResult::Failed(chain(&error)),
        };
        self.push(path, checks, result);
    }

    /// Records that an artifact cannot run here.
    pub(super) fn not_run(&mut self, path: &Path, reason: impl Into<String>) {
        self.push(path, "", CheckResult::NotRun(reason.into()));
    }

    fn push(&mut self, path: &Path, checks: &str, result: CheckResult) {
        let name = path.file_name().unwrap_or_default();
        let row = CheckRow {
            artifact: name.to_string_lossy().into_owned(),
            bytes: fs::metadata(path).ok().map(|metadata| metadata.len()),
            checks: checks.to_string(),
            result,
        };
        println!("{}", row.line(0));
        self.0.push(row);
    }

    /// Prints the table; fails if a check failed.
    pub(in crate::dist) fn finish(self) -> Result<(), XtaskError> {
        let width = self.0.iter().map(|row| row.artifact.len()).max();
        println!();
        for row in &self.0 {
            println!("{}", row.line(width.unwrap_or(0)));
        }
        let failed = self.0.into_iter().filter_map(|row| match row.result {
            CheckResult::Failed(problem) => Some(format!("{}: {problem}", row.artifact)),
            CheckResult::Passed | CheckResult::NotRun(_) => None,
        });
        let problems: Vec<String> = failed.collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(XtaskError::Artifacts { problems }),
        }
    }
}

impl CheckRow {
    fn line(&self, width: usize) -> String {
        let size = self.bytes.map_or(String::new(), |bytes| {
            format!("{:.1} MB", bytes as f64 / 1e6)
        });
        let checks = &self.checks;
        let result = match &self.result {
            CheckResult::Passed => format!("ok       {checks}"),
            CheckResult::NotRun(reason) => format!("NOT RUN  {reason}"),
            CheckResult::Failed(problem) => format!("FAILED   {checks}: {problem}"),
        };
        format!("{:width$}  {size:>8}  {result}", self.artifact)
    }
}

/// The message of an error with its causes.
fn chain(error: &XtaskError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_fails_the_table_and_one_that_did_not_run_does_not() {
        let mut table = CheckTable::default();
        table.record(Path::new("a"), "version", Ok(()));
        table.not_run(Path::new("b"), "it needs a Mac");
        let lines: Vec<String> = table.0.iter().map(|row| row.line(3)).collect();
        assert_eq!(lines[0], "a              ok       version");
        assert_eq!(lines[1], "b              NOT RUN  it needs a Mac");
        table.record(Path::new("c"), "serve", Err(XtaskError::NoMirror));
        let error = table.finish().unwrap_err().to_string();
        assert!(error.contains("c: apt has no Debian mirror"), "{error}");
        assert!(CheckTable::default().finish().is_ok());
    }
}
