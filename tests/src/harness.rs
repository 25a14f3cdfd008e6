//! Runs tests and records their outcomes.

use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use serde::{Deserialize, Serialize};

use crate::test::TestFn;
use crate::{SuiteTest, TestExecutor, complaints, executors};

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TestOutcome {
    /// The test passed.
    Passed,
    /// The test failed, with the message.
    Failed(String),
    /// The test was not run, with the reason.
    Ignored(String),
}

/// A test with its outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TestRecord {
    /// The name of the suite.
    pub suite: String,
    /// The name of the test.
    pub name: String,
    /// The outcome of the test.
    pub outcome: TestOutcome,
    /// The run time.
    pub took: Duration,
}

/// A log file of started and finished tests, which remains readable if the process crashes.
#[derive(Debug)]
pub struct TestJournal(Mutex<File>);

impl TestJournal {
    /// Creates a journal that writes to `file`.
    pub fn new(file: File) -> TestJournal {
        TestJournal(Mutex::new(file))
    }

    fn line(&self, what: &str, name: &str) {
        let mut file = lock(&self.0);
        // Ignore errors: a full disk must not abort the tests.
        let _ = writeln!(file, "{what} {name}");
    }

    /// The tests in a journal's text that started but did not finish.
    pub fn unfinished(text: &str) -> Vec<&str> {
        let mut open: Vec<&str> = Vec::new();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("begin", name)) => open.push(name),
                Some(("end", name)) => open.retain(|n| *n != name),
                Some(_) | None => {}
            }
        }
        open
    }
}

/// A test that records its outcome and writes to the journal when it runs.
struct PreparedTest {
    name: String,
    ignored: Option<String>,
    run: TestFn,
}

/// The outcomes of the tests so far.
type TestRecords = Arc<Mutex<Vec<TestRecord>>>;

fn prepare(
    tests: Vec<(&'static str, SuiteTest)>,
    journal: Option<TestJournal>,
) -> (Vec<PreparedTest>, TestRecords) {
    let records: TestRecords = Arc::new(Mutex::new(Vec::with_capacity(tests.len())));
    let journal = Arc::new(journal);
    let prepared = tests.into_iter().map(|(suite, test)| {
        let (name, ignored, run) = test.into_parts();
        let record = {
            let (records, name) = (records.clone(), name.clone());
            move |outcome, took: Duration| {
                let suite = suite.to_string();
                lock(&records).push(TestRecord {
                    suite,
                    name,
                    outcome,
                    took,
                });
            }
        };
        if let Some(why) = &ignored {
            record.clone()(TestOutcome::Ignored(why.clone()), Duration::ZERO);
        }
        let journal = journal.clone();
        let in_journal = name.clone();
        let run: TestFn = Box::new(move || {
            if let Some(journal) = &*journal {
                journal.line("begin", &in_journal);
            }
            let start = Instant::now();
            let done = caught(run);
            let outcome = match &done {
                Ok(()) => TestOutcome::Passed,
                Err(e) => TestOutcome::Failed(e.message().unwrap_or("failed").to_string()),
            };
            record(outcome, start.elapsed());
            if let Some(journal) = &*journal {
                journal.line("end", &in_journal);
            }
            done
        });
        PreparedTest { name, ignored, run }
    });
    (prepared.collect(), records)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the tests that the arguments select, with the output format of `cargo test`.
pub fn run(arguments: &Arguments, tests: Vec<(&'static str, SuiteTest)>) -> Vec<TestRecord> {
    let (tests, records) = prepare(tests, None);
    let trials = tests.into_iter().map(|test| match test.ignored {
        Some(why) => {
            let name = format!("{} ({why})", test.name);
            Trial::test(name, || Ok(())).with_ignored_flag(true)
        }
        None => Trial::test(test.name, test.run),
    });
    drop(libtest_mimic::run(arguments, trials.collect()));
    std::mem::take(&mut *lock(&records))
}

/// Runs tests on several threads. Prints the progress and each failure to standard error
/// immediately.
pub fn run_in_short(
    threads: usize,
    tests: Vec<(&'static str, SuiteTest)>,
    journal: TestJournal,
) -> Vec<TestRecord> {
    const EVERY: Duration = Duration::from_secs(10);
    let (tests, records) = prepare(tests, Some(journal));
    let all = tests.len();
    let waiting = Mutex::new(tests.into_iter());
    let said = Mutex::new(Instant::now());
    let next = || lock(&waiting).next();
    let worker = || {
        for test in std::iter::from_fn(next).filter(|test| test.ignored.is_none()) {
            if let Err(e) = (test.run)() {
                eprintln!("FAILED {}: {}", test.name, e.message().unwrap_or(""));
            }
            let mut said = lock(&said);
            if said.elapsed() > EVERY {
                *said = Instant::now();
                eprintln!("{} of {all}", lock(&records).len());
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(worker);
        }
    });
    std::mem::take(&mut *lock(&records))
}

/// Runs a test and converts a panic to a failure with the panic message.
fn caught(run: TestFn) -> Result<(), Failed> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| Err(said(&*payload).into()))
}

fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or(payload.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a text"))
}

/// One test per executor. The test fails if `TERCET_REQUIRE` names the executor and the executor is
/// missing.
pub fn presence() -> Vec<(&'static str, SuiteTest)> {
    let present = |executor: &'static TestExecutor| {
        let missing = executor.device().err();
        let test = SuiteTest::new(format!("executor/{}", executor.name), || {
            executor.device().map(|_| ()).map_err(Failed::from)
        });
        match missing.filter(|_| !executor.is_required()) {
            Some(why) => ("executor", test.ignored(&why)),
            None => ("executor", test),
        }
    };
    executors().iter().map(present).collect()
}

/// The entry point of `cargo test`: runs all suites with the arguments of the process. Exits with
/// an error if a test fails or a device reports a validation message.
pub fn main() {
    let arguments = Arguments::from_args();
    if !arguments.list {
        eprintln!("{}", tercet::BUILD);
    }
    let mut tests = presence();
    match crate::suites::tests(&[]) {
        Ok(all) => tests.extend(all),
        Err(e) => panic!("all suites: {e}"),
    }
    let patterns = |variable| std::env::var(variable).ok();
    let tests = chosen(tests, patterns(ONLY_TESTS), patterns(SKIP));
    let tests = match std::env::var(SAMPLE) {
        Ok(part) => sampled(tests, &part).unwrap_or_else(|e| panic!("{SAMPLE}: {e}")),
        Err(_) => tests,
    };
    let tests = match std::env::var(SAMPLE_OF_SUITES) {
        Ok(part) => {
            sampled_of_suites(tests, &part).unwrap_or_else(|e| panic!("{SAMPLE_OF_SUITES}: {e}"))
        }
        Err(_) => tests,
    };
    let tests = match std::env::var(SLICE) {
        Ok(slice) => sliced(tests, &slice).unwrap_or_else(|e| panic!("{SLICE}: {e}")),
        Err(_) => tests,
    };
    let records = run(&arguments, tests);
    eprintln!("{}", slowest(&records));
    let mut failed = records
        .iter()
        .any(|r| matches!(r.outcome, TestOutcome::Failed(_)));
    for complaint in complaints() {
        eprintln!("{complaint}");
        failed = true;
    }
    if failed {
        std::process::exit(101);
    }
}

/// The groups of tests (suite and operator) that took the longest, with their seconds.
fn slowest(records: &[TestRecord]) -> String {
    const SHOWN: usize = 12;
    let mut groups: HashMap<String, Duration> = HashMap::new();
    for record in records {
        let parts: Vec<&str> = record.name.splitn(3, '/').take(2).collect();
        *groups.entry(parts.join("/")).or_default() += record.took;
    }
    let all: Duration = groups.values().sum();
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let shown = groups.iter().take(SHOWN);
    let shown: Vec<String> = shown
        .map(|(name, took)| format!("{name} {:.0}", took.as_secs_f64()))
        .collect();
    format!("{:.0} s of tests: {}", all.as_secs_f64(), shown.join(", "))
}

/// Comma-separated name patterns: only tests that match one of them run. In a pattern, `*` matches
/// any text.
const ONLY_TESTS: &str = "TERCET_TESTS";

/// Comma-separated name patterns of tests to skip.
const SKIP: &str = "TERCET_SKIP";

/// The tests that match a pattern in `only`, or all if it is empty, and no pattern in `skip`.
fn chosen<T>(
    tests: Vec<(T, SuiteTest)>,
    only: Option<String>,
    skip: Option<String>,
) -> Vec<(T, SuiteTest)> {
    let any = |patterns: &str, name: &str| patterns.split(',').any(|p| matches(p, name));
    let is_chosen = |(_, test): &(T, SuiteTest)| {
        only.as_ref().is_none_or(|p| any(p, test.name()))
            && !skip.as_ref().is_some_and(|p| any(p, test.name()))
    };
    tests.into_iter().filter(is_chosen).collect()
}

fn matches(pattern: &str, name: &str) -> bool {
    let mut rest = Some(name);
    for part in pattern.split('*') {
        rest = rest
            .and_then(|name| name.split_once(part))
            .map(|(_, rest)| rest);
    }
    rest.is_some()
}

/// `AT/N`: run every `N`-th parity test of each operator, starting with index `AT`.
const SAMPLE: &str = "TERCET_SAMPLE";

/// Selects the parity tests of each operator that `TERCET_SAMPLE` names. Tests of other suites
/// stay.
fn sampled<T>(tests: Vec<(T, SuiteTest)>, part: &str) -> Result<Vec<(T, SuiteTest)>, String> {
    let (first, n) = at_of(part)?;
    let mut seen: HashMap<_, usize> = HashMap::new();
    let mut is_chosen = |(_, test): &(T, SuiteTest)| {
        let count = seen.entry(group(test)).or_default();
        *count += 1;
        !test.name().starts_with("parity/") || (*count - 1) % n == first
    };
    Ok(tests.into_iter().filter(|t| is_chosen(t)).collect())
}

/// `AT/N`: run the first and every `N`-th test of each suite besides `parity`, starting with index
/// `AT`.
const SAMPLE_OF_SUITES: &str = "TERCET_SAMPLE_OF_SUITES";

/// Selects the tests of each suite that `TERCET_SAMPLE_OF_SUITES` names. The first test stays, so
/// that no suite is left out. Parity tests stay.
fn sampled_of_suites<T>(
    tests: Vec<(T, SuiteTest)>,
    part: &str,
) -> Result<Vec<(T, SuiteTest)>, String> {
    let (first, n) = at_of(part)?;
    let mut seen: HashMap<_, usize> = HashMap::new();
    let mut is_chosen = |(_, test): &(T, SuiteTest)| {
        let (suite, _) = group(test);
        if suite.as_deref() == Some("parity") {
            return true;
        }
        let count = seen.entry(suite).or_default();
        *count += 1;
        *count == 1 || (*count - 1) % n == first
    };
    Ok(tests.into_iter().filter(|t| is_chosen(t)).collect())
}

/// Parses `AT/N`, which requires AT < N.
fn at_of(part: &str) -> Result<(usize, usize), String> {
    let numbers = part.split_once('/');
    let numbers = numbers.and_then(|(at, n)| Some((at.parse().ok()?, n.parse().ok()?)));
    let numbers = numbers.filter(|(at, n)| at < n);
    numbers.ok_or_else(|| format!("`{part}` is not of the form AT/N"))
}

/// The suite and the operator of a test.
fn group(test: &SuiteTest) -> (Option<String>, Option<String>) {
    let mut parts = test.name().splitn(3, '/').map(str::to_string);
    (parts.next(), parts.next())
}

/// `AT/N`: split the tests into `N` parts, and run part `AT` in this process.
const SLICE: &str = "TERCET_SLICE";

/// The tests of one part of `TERCET_SLICE`. Tests of one operator share kernels, so they stay in
/// the same part.
fn sliced<T>(tests: Vec<(T, SuiteTest)>, slice: &str) -> Result<Vec<(T, SuiteTest)>, String> {
    let (at, n) = at_of(slice)?;
    let mut groups = HashMap::new();
    let mine = |(_, test): &(T, SuiteTest)| {
        let next = groups.len();
        *groups.entry(group(test)).or_insert(next) % n == at
    };
    Ok(tests.into_iter().filter(mine).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_parts_in_their_order() {
        let name = "parity/conv/written/f16/vulkan";
        for (pattern, expected) in [
            ("/conv/", true),
            ("/conv/*/f16/", true),
            ("/f16/*/conv/", false),
            ("/conv/*/bf16/", false),
            ("", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern}");
        }
    }

    #[test]
    fn a_journal_says_what_did_not_end() {
        let text = "begin a\nbegin b\nend a\nbegin c/d e\nend b\n";
        assert_eq!(TestJournal::unfinished(text), ["c/d e"]);
    }

    #[test]
    fn samples_of_suites_keep_each_suite() {
        let names = [
            "parity/a/1",
            "a/1",
            "parity/a/2",
            "b/1/x",
            "a/2",
            "a/3",
            "b/2",
        ];
        let sample = |part| {
            let tests = names.map(|n| ((), SuiteTest::new(n.to_string(), || Ok(()))));
            let left = sampled_of_suites(tests.into(), part).unwrap();
            let names = left.iter().map(|(_, t)| t.name().to_string());
            names.collect::<Vec<_>>()
        };
        let first = ["parity/a/1", "a/1", "parity/a/2", "b/1/x", "a/3"];
        assert_eq!(sample("0/2"), first);
        let second = ["parity/a/1", "a/1", "parity/a/2", "b/1/x", "a/2", "b/2"];
        assert_eq!(sample("1/2"), second);
    }

    #[test]
    fn samples_share_the_cases_of_each_operator() {
        let names = [
            "parity/a/1",
            "parity/a/2",
            "parity/b/1",
            "rows/a/1",
            "parity/a/3",
        ];
        let sample = |part| {
            let tests = names.map(|n| ((), SuiteTest::new(n.to_string(), || Ok(()))));
            let left = sampled(tests.into(), part).unwrap();
            let names = left.iter().map(|(_, t)| t.name().to_string());
            names.collect::<Vec<_>>()
        };
        let first = ["parity/a/1", "parity/b/1", "rows/a/1", "parity/a/3"];
        assert_eq!(sample("0/2"), first);
        assert_eq!(sample("1/2"), ["parity/a/2", "rows/a/1"]);
        assert!(
            sampled(
                vec![((), SuiteTest::new("p".to_string(), || Ok(())))],
                "2/2"
            )
            .is_err()
        );
    }

    #[test]
    fn slices_have_every_test_once() {
        let named = || -> Vec<((), SuiteTest)> {
            let names = ["p/a/1", "p/a/2", "p/b/1", "r/1", "r/2", "p/c/1"];
            names
                .map(|name| ((), SuiteTest::asserting(name, || {})))
                .into()
        };
        let names = |slice| -> Vec<String> {
            let tests = sliced(named(), slice).expect("a slice");
            tests.iter().map(|(_, t)| t.name().to_string()).collect()
        };
        assert_eq!(names("0/2"), ["p/a/1", "p/a/2", "r/1", "p/c/1"]);
        assert_eq!(names("1/2"), ["p/b/1", "r/2"]);
        for bad in ["2/2", "0/0", "x", "1/", ""] {
            assert!(sliced(named(), bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn panics_and_errors_are_kept_with_their_texts() {
        // Write the report of failures to a file, because tools count the test results on standard
        // output.
        let path = |what: &str| {
            let name = format!("tercet-{what}-{}", std::process::id());
            std::env::temp_dir().join(name)
        };
        let (printed, path) = (path("printed"), path("journal"));
        let arguments = Arguments {
            quiet: true,
            logfile: Some(printed.to_string_lossy().into_owned()),
            ..Arguments::default()
        };
        let given = || {
            vec![
                ("s", SuiteTest::asserting("good", || {})),
                (
                    "s",
                    SuiteTest::asserting("bad", || assert_eq!(1, 2, "one is two")),
                ),
                ("s", SuiteTest::new("worse", || Err("no".into()))),
                (
                    "s",
                    SuiteTest::asserting("left", || {}).ignored("no device"),
                ),
            ]
        };
        let journal = TestJournal::new(File::create(&path).expect("a file"));
        for mut records in [run(&arguments, given()), run_in_short(2, given(), journal)] {
            records.sort_by(|a, b| a.name.cmp(&b.name));
            let outcome = |at: usize| records[at].outcome.clone();
            assert!(matches!(outcome(0), TestOutcome::Failed(e) if e.contains("one is two")));
            assert_eq!(outcome(1), TestOutcome::Passed);
            assert_eq!(outcome(2), TestOutcome::Ignored("no device".into()));
            assert_eq!(outcome(3), TestOutcome::Failed("no".into()));
        }
        let journal = std::fs::read_to_string(&path).expect("written");
        assert_eq!(journal.lines().count(), 6, "{journal}");
        assert!(TestJournal::unfinished(&journal).is_empty());
        for file in [printed, path] {
            std::fs::remove_file(file).expect("removed");
        }
    }
}
