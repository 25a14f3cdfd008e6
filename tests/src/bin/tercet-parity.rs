//! `tercet-parity`: runs every suite on the executors of a machine and prints a verdict in one line
//! and a JSON report.
//!
//! After `cargo xtask parity --pack` the program contains the test files and is self-contained.
//! Each executor runs in a separate process, so a driver crash counts as a failure of that
//! executor.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Instant;

use clap::Parser;
use tercet_tests::data::DATA_DIR;
use tercet_tests::harness::{self, TestJournal};
use tercet_tests::report::{ExecutorReport, ParityReport, TestNote};
use tercet_tests::suites::variants::{self, VariantSummary, VariantTests};
use tercet_tests::{ONLY, SuiteTest, TestExecutor, complaints, executors, package, suites};

/// The environment variable with the folder of a worker process. Each worker tests one executor.
const WORKER: &str = "TERCET_PARITY_WORKER";
const MINILM_DIR: &str = "TERCET_MINILM_DIR";
/// An environment variable that is set because Mesa prints warnings about Wayland without it.
const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";

type BoxError = Box<dyn std::error::Error>;

/// Run every suite on the executors of this machine and print a one-line verdict; exit code 0 if
/// all tests passed
#[derive(Parser)]
#[command(name = "tercet-parity", version)]
struct ParityCli {
    /// Executor that must be available: cpu, vulkan or wgpu; repeatable; default: all available
    /// ones
    #[arg(long)]
    device: Vec<String>,
    /// Suite to run; repeatable; default: all
    #[arg(long)]
    suite: Vec<String>,
    /// Force kernel variants in cases of operators, in place of the suites: all, a family or
    /// FAMILY=VARIANT
    #[arg(long, value_name = "SELECTION", conflicts_with = "suite")]
    variants: Option<String>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of tests to run in parallel
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// List the tests of each executor and exit
    #[arg(long)]
    list: bool,
    /// Append the files of folders to a copy of this program and exit
    #[arg(long, value_name = "FILE", hide = true)]
    pack: Option<PathBuf>,
    /// Folder to append with --pack: NAME=FOLDER
    #[arg(long, value_name = "NAME=FOLDER", hide = true)]
    folder: Vec<String>,
    /// Run only tests with this text in their names
    filter: Option<String>,
}

fn main() -> ExitCode {
    match run(&ParityCli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {}", tercet::one_line(&*e));
            ExitCode::from(2)
        }
    }
}

fn run(cli: &ParityCli) -> Result<bool, BoxError> {
    if let Some(to) = &cli.pack {
        let folder = |text: &String| match text.split_once('=') {
            Some((name, folder)) => Ok((name.to_string(), PathBuf::from(folder))),
            None => Err(format!("`{text}` is not of the form NAME=FOLDER")),
        };
        let folders: Vec<_> = cli.folder.iter().map(folder).collect::<Result<_, _>>()?;
        let folders = folders.iter().map(|(n, f)| (n.as_str(), f.clone()));
        package::write(&std::env::current_exe()?, &folders.collect::<Vec<_>>(), to)?;
        return Ok(true);
    }
    if let Some(dir) = std::env::var_os(WORKER) {
        work(cli, Path::new(&dir))?;
        return Ok(true);
    }
    // Report an unknown suite name before any test runs. The suites themselves read test data, which
    // is not unpacked yet.
    suites::check_names(&cli.suite)?;
    if cli.list {
        with_files(|files| list(cli, files))?;
        return Ok(true);
    }
    eprintln!("{}", tercet::BUILD);
    let report = with_files(|files| all(cli, files))?;
    if let Some(path) = &cli.json {
        fs::write(path, serde_json::to_vec_pretty(&report)?)?;
    }
    let complaints = report.executors.iter().flat_map(|on| &on.complaints);
    complaints.for_each(|text| eprintln!("{text}"));
    println!("{report}");
    Ok(report.passed())
}

/// Calls `run` with a temporary folder for the packed files and the output of worker processes.
fn with_files<T>(run: impl FnOnce(&Path) -> Result<T, BoxError>) -> Result<T, BoxError> {
    let dir = std::env::temp_dir().join(format!("tercet-parity-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let done = package::unpack(&std::env::current_exe()?, &dir)
        .map_err(BoxError::from)
        .and_then(|_| run(&dir));
    fs::remove_dir_all(&dir)?;
    done
}

/// The executors of this build that the command line selects.
fn selected(cli: &ParityCli) -> Result<Vec<&'static str>, BoxError> {
    let wanted = |name: &str| cli.device.is_empty() || cli.device.iter().any(|d| d == name);
    let mut known: Vec<&str> = executors().iter().map(|e| e.name).collect();
    if let Some(name) = cli.device.iter().find(|d| !known.contains(&d.as_str())) {
        return Err(format!(
            "no executor `{name}` in this build; available: {}",
            known.join(", ")
        )
        .into());
    }
    known.retain(|name| wanted(name));
    Ok(known)
}

/// Prints the names of the tests of each executor.
fn list(cli: &ParityCli, files: &Path) -> Result<(), BoxError> {
    for name in selected(cli)? {
        let (mut command, _) = worker(cli, name, files)?;
        let status = command.arg("--list").status()?;
        if !status.success() {
            return Err(format!("the tests of {name} cannot be listed: {status}").into());
        }
    }
    Ok(())
}

/// Runs the executors one after the other.
fn all(cli: &ParityCli, files: &Path) -> Result<ParityReport, BoxError> {
    let mut reports = Vec::new();
    for name in selected(cli)? {
        eprintln!("\n{name}:");
        let on = executor(cli, name, files)?;
        // Omit missing executors from the report, unless `--device` requests them.
        if on.passed + on.failed > 0 || on.died.is_some() || !cli.device.is_empty() {
            reports.push(on);
        } else {
            eprintln!("not available: {}", on.device);
        }
    }
    Ok(ParityReport::new(reports))
}

/// The command of a worker process for one executor, and the folder of its output.
fn worker(cli: &ParityCli, name: &str, files: &Path) -> Result<(Command, PathBuf), BoxError> {
    let dir = files.join(format!("on-{name}"));
    fs::create_dir_all(&dir)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.env(WORKER, &dir).env(ONLY, name);
    if std::env::var_os(RUNTIME_DIR).is_none() {
        command.env(RUNTIME_DIR, &dir);
    }
    for (variable, folder) in [(DATA_DIR, "data"), (MINILM_DIR, "minilm")] {
        let folder = files.join(folder);
        if folder.is_dir() {
            command.env(variable, folder);
        }
    }
    for suite in &cli.suite {
        command.arg("--suite").arg(suite);
    }
    if let Some(variants) = &cli.variants {
        command.arg("--variants").arg(variants);
    }
    if let Some(threads) = cli.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    command.args(&cli.filter);
    Ok((command, dir))
}

/// Runs one executor in a separate process.
fn executor(cli: &ParityCli, name: &str, files: &Path) -> Result<ExecutorReport, BoxError> {
    let (mut command, dir) = worker(cli, name, files)?;
    let started = Instant::now();
    let status = command.status()?;
    let report = fs::read(dir.join("report.json"));
    match report.map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(_)) | Err(_) => {
            let mut on =
                ExecutorReport::empty(name, String::new(), started.elapsed().as_secs_f64());
            let journal = fs::read_to_string(dir.join("journal")).unwrap_or_default();
            on.died = Some(died(status, &journal));
            Ok(on)
        }
    }
}

fn died(status: ExitStatus, journal: &str) -> String {
    match TestJournal::unfinished(journal).as_slice() {
        [] => format!("the process ended before a test ran: {status}"),
        open => format!("the process ended ({status}) during {}", open.join(", ")),
    }
}

/// The main function of a worker process.
fn work(cli: &ParityCli, dir: &Path) -> Result<(), BoxError> {
    let [executor] = executors() else {
        return Err(format!("{ONLY} must name exactly one executor").into());
    };
    if cli.list {
        for (suite, test) in chosen(cli, executor)?.0 {
            println!("{suite}: {}", test.name());
        }
        return Ok(());
    }
    // An executor may lack these kernel variants.
    let selected = executor.device().and_then(|_| chosen(cli, executor));
    let device = match &selected {
        Ok(_) => described(executor.name),
        Err(why) => why.clone(),
    };
    let threads = cli
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let journal = TestJournal::new(File::create(dir.join("journal"))?);
    let started = Instant::now();
    let (records, not_run) = match selected {
        Ok((tests, not_run)) => (harness::run_in_short(threads, tests, journal), not_run),
        Err(_) => (Vec::new(), Vec::new()),
    };
    let seconds = started.elapsed().as_secs_f64();
    let variants = cli.variants.is_some();
    let variants = variants.then(|| VariantSummary::new(&records, not_run));
    let mut on = ExecutorReport::new(executor.name, device, seconds, records);
    on.variants = variants;
    on.complaints = complaints();
    fs::write(dir.join("report.json"), serde_json::to_vec(&on)?)?;
    Ok(())
}

/// Tests with the names of their suites, and variants that a device cannot run.
type SelectedTests = (Vec<(&'static str, SuiteTest)>, Vec<TestNote>);

/// The tests that the command line selects, each with the name of its suite, and the selected
/// variants that the device cannot run.
fn chosen(cli: &ParityCli, executor: &'static TestExecutor) -> Result<SelectedTests, String> {
    let (mut tests, not_run) = match &cli.variants {
        None => (suites::tests(&cli.suite)?, Vec::new()),
        Some(selection) => {
            let VariantTests { tests, not_run } = variants::tests(executor, selection)?;
            let tests = tests.into_iter().map(|test| ("variants", test));
            (tests.collect(), not_run)
        }
    };
    if let Some(text) = &cli.filter {
        tests.retain(|(_, test)| test.name().contains(text));
    }
    Ok((tests, not_run))
}

/// The description of the first listed device with this name.
fn described(name: &str) -> String {
    let mut devices = tercet::devices().into_iter();
    let found = devices.find(|d| d.usable && d.name.split(':').next() == Some(name));
    found.map_or_else(String::new, |d| d.description)
}
