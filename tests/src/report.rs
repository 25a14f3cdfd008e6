//! The report of a test run: a verdict in one line, and the details as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::harness::{TestOutcome, TestRecord};
use crate::suites::variants::{VariantSummary, run_by_none};

/// The report of a run on a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ParityReport {
    /// `passed` or `failed`.
    pub verdict: String,
    /// The build: version, compiler, profile, target.
    pub build: String,
    /// The operating system, the architecture and the number of processors.
    pub machine: String,
    /// The report of each executor.
    pub executors: Vec<ExecutorReport>,
}

/// The report of a run on one executor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecutorReport {
    /// `cpu`, `vulkan` or `wgpu`.
    pub name: String,
    /// The device name and driver, or the reason why there is no device.
    pub device: String,
    /// The number of passed tests.
    pub passed: usize,
    /// The number of failed tests.
    pub failed: usize,
    /// The number of tests that did not run; `ignored_tests` has the reasons.
    pub ignored: usize,
    /// The wall-clock time in seconds.
    pub seconds: f64,
    /// The name and message of each failure.
    pub failures: Vec<TestNote>,
    /// The name of each test that did not run, with the reason.
    pub ignored_tests: Vec<TestNote>,
    /// The messages of the device's validation.
    pub complaints: Vec<String>,
    /// If the process crashed: its exit status and the unfinished tests.
    pub died: Option<String>,
    /// The outcome of the kernel variants, if they were forced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variants: Option<VariantSummary>,
}

/// A test with a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestNote {
    /// The name of the test.
    pub name: String,
    /// The message.
    pub text: String,
}

impl ExecutorReport {
    /// The report of a process that did not crash.
    pub fn new(
        name: &str,
        device: String,
        seconds: f64,
        records: Vec<TestRecord>,
    ) -> ExecutorReport {
        let mut all = ExecutorReport::empty(name, device, seconds);
        for TestRecord { name, outcome, .. } in records {
            match outcome {
                TestOutcome::Passed => all.passed += 1,
                TestOutcome::Failed(text) => all.failures.push(TestNote { name, text }),
                TestOutcome::Ignored(text) => all.ignored_tests.push(TestNote { name, text }),
            }
        }
        all.failed = all.failures.len();
        all.ignored = all.ignored_tests.len();
        all
    }

    /// A report without tests.
    pub fn empty(name: &str, device: String, seconds: f64) -> ExecutorReport {
        ExecutorReport {
            name: name.to_string(),
            device,
            passed: 0,
            failed: 0,
            ignored: 0,
            seconds,
            failures: Vec::new(),
            ignored_tests: Vec::new(),
            complaints: Vec::new(),
            died: None,
            variants: None,
        }
    }

    /// True if no test failed, no validation message was reported, and at least one test ran.
    pub fn is_right(&self) -> bool {
        self.failed == 0 && self.passed > 0 && self.complaints.is_empty() && self.died.is_none()
    }
}

impl ParityReport {
    /// Combines the reports of the executors.
    pub fn new(executors: Vec<ExecutorReport>) -> ParityReport {
        let right = !executors.is_empty() && executors.iter().all(ExecutorReport::is_right);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        ParityReport {
            verdict: if right { "passed" } else { "failed" }.to_string(),
            build: tercet::BUILD.to_string(),
            machine: format!("{os} {arch}, {processors} processors"),
            executors,
        }
    }

    /// True if the tests of every executor passed.
    pub fn passed(&self) -> bool {
        self.verdict == "passed"
    }
}

/// Formats the verdict in one line.
impl fmt::Display for ParityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.verdict)?;
        for (at, on) in self.executors.iter().enumerate() {
            let separator = if at == 0 { "" } else { ";" };
            write!(
                f,
                "{separator} {} ({}) {} passed, {} failed, {} not run in {:.0} s",
                on.name, on.device, on.passed, on.failed, on.ignored, on.seconds
            )?;
            if !on.complaints.is_empty() {
                write!(f, ", {} validation messages", on.complaints.len())?;
            }
            if let Some(died) = &on.died {
                write!(f, ", {died}")?;
            }
        }
        write!(f, "; {}", self.build)?;
        for on in &self.executors {
            if let Some(variants) = &on.variants {
                write!(f, "\n{}: {variants}", on.name)?;
                for name in &variants.wrong {
                    write!(f, "\nwrong on {}: {name}", on.name)?;
                }
            }
        }
        let summaries = self.executors.iter().filter_map(|on| on.variants.as_ref());
        for TestNote { name, text } in run_by_none(summaries) {
            write!(f, "\nno device here runs {name}: {text}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(outcomes: &[TestOutcome]) -> ExecutorReport {
        let record = |(at, outcome): (usize, &TestOutcome)| TestRecord {
            suite: "s".into(),
            name: format!("t{at}"),
            outcome: outcome.clone(),
            took: std::time::Duration::ZERO,
        };
        let records = outcomes.iter().enumerate().map(record).collect();
        ExecutorReport::new("cpu", "a processor".into(), 1.0, records)
    }

    #[test]
    fn what_fails_dies_complains_or_runs_nothing_does_not_pass() {
        let good = on(&[
            TestOutcome::Passed,
            TestOutcome::Ignored("no device".into()),
        ]);
        let complains = ExecutorReport {
            complaints: vec!["a hazard".into()],
            ..good.clone()
        };
        let died = ExecutorReport {
            died: Some("ended by signal 11".into()),
            ..good.clone()
        };
        let wrong = on(&[
            TestOutcome::Passed,
            TestOutcome::Failed("1 is not 2".into()),
        ]);
        let idle = on(&[TestOutcome::Ignored("no device".into())]);
        assert!(ParityReport::new(vec![good.clone()]).passed());
        for bad in [complains, died, wrong, idle] {
            let report = ParityReport::new(vec![good.clone(), bad]);
            assert!(!report.passed(), "{report}");
            assert!(report.to_string().starts_with("failed: "), "{report}");
        }
        assert!(!ParityReport::new(Vec::new()).passed());
    }
}
