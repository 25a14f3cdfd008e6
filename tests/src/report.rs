//! What a run of the suites on a machine came to: one verdict, and the rest as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::harness::{Outcome, Record};

/// A run on a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// `passed` or `failed`.
    pub verdict: String,
    /// The build: version, compiler, profile, target.
    pub build: String,
    /// Operating system, architecture and number of processors.
    pub machine: String,
    /// One for each executor.
    pub executors: Vec<OnExecutor>,
}

/// What a run came to on one executor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OnExecutor {
    /// `cpu`, `vulkan`, `wgpu`.
    pub name: String,
    /// What the device calls itself, its driver, or why there is none.
    pub device: String,
    /// Tests that were right.
    pub passed: usize,
    /// Tests that were wrong.
    pub failed: usize,
    /// Tests that were not run, with reasons in `ignored_tests`.
    pub ignored: usize,
    /// Wall-clock time.
    pub seconds: f64,
    /// Name and text of each failure.
    pub failures: Vec<Entry>,
    /// Name and reason of each test that was not run.
    pub ignored_tests: Vec<Entry>,
    /// What the validation of the device found wrong.
    pub complaints: Vec<String>,
    /// How the process ended if it did not end by itself, and which tests were under way.
    pub died: Option<String>,
}

/// A test and a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The test.
    pub name: String,
    /// What is said of it.
    pub text: String,
}

impl OnExecutor {
    /// Of the records of a process that ended by itself.
    pub fn of(name: &str, device: String, seconds: f64, records: Vec<Record>) -> OnExecutor {
        let mut all = OnExecutor::empty(name, device, seconds);
        for Record { name, outcome, .. } in records {
            match outcome {
                Outcome::Passed => all.passed += 1,
                Outcome::Failed(text) => all.failures.push(Entry { name, text }),
                Outcome::Ignored(text) => all.ignored_tests.push(Entry { name, text }),
            }
        }
        all.failed = all.failures.len();
        all.ignored = all.ignored_tests.len();
        all
    }

    /// Of nothing.
    pub fn empty(name: &str, device: String, seconds: f64) -> OnExecutor {
        OnExecutor {
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
        }
    }

    /// Nothing was wrong, and something was run.
    pub fn is_right(&self) -> bool {
        self.failed == 0 && self.passed > 0 && self.complaints.is_empty() && self.died.is_none()
    }
}

impl Report {
    /// Of these executors.
    pub fn new(executors: Vec<OnExecutor>) -> Report {
        let right = !executors.is_empty() && executors.iter().all(OnExecutor::is_right);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        Report {
            verdict: if right { "passed" } else { "failed" }.to_string(),
            build: tercet::BUILD.to_string(),
            machine: format!("{os} {arch}, {processors} processors"),
            executors,
        }
    }

    /// Whether all was right.
    pub fn passed(&self) -> bool {
        self.verdict == "passed"
    }
}

/// The verdict in one line.
impl fmt::Display for Report {
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
                write!(f, ", {} complaints of its validation", on.complaints.len())?;
            }
            if let Some(died) = &on.died {
                write!(f, ", {died}")?;
            }
        }
        write!(f, "; {}", self.build)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(outcomes: &[Outcome]) -> OnExecutor {
        let record = |(at, outcome): (usize, &Outcome)| Record {
            suite: "s".into(),
            name: format!("t{at}"),
            outcome: outcome.clone(),
            took: std::time::Duration::ZERO,
        };
        let records = outcomes.iter().enumerate().map(record).collect();
        OnExecutor::of("cpu", "a processor".into(), 1.0, records)
    }

    #[test]
    fn what_fails_dies_complains_or_runs_nothing_does_not_pass() {
        let good = on(&[Outcome::Passed, Outcome::Ignored("no device".into())]);
        let complains = OnExecutor {
            complaints: vec!["a hazard".into()],
            ..good.clone()
        };
        let died = OnExecutor {
            died: Some("ended by signal 11".into()),
            ..good.clone()
        };
        let wrong = on(&[Outcome::Passed, Outcome::Failed("1 is not 2".into())]);
        let idle = on(&[Outcome::Ignored("no device".into())]);
        assert!(Report::new(vec![good.clone()]).passed());
        for bad in [complains, died, wrong, idle] {
            let report = Report::new(vec![good.clone(), bad]);
            assert!(!report.passed(), "{report}");
            assert!(report.to_string().starts_with("failed: "), "{report}");
        }
        assert!(!Report::new(Vec::new()).passed());
    }
}
