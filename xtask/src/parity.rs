//! `cargo xtask parity`: runs the suites on the devices of this machine, or packs them for another
//! machine.
//!
//! The program is `tercet-parity` of the crate `tests`, built with the release profile. The packed
//! program has the test files appended, including MiniLM's weights. The packed program needs no
//! toolchain and no network. With `--target`, the program is for another platform; it runs here on the CPU, by an
//! emulator.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::error::{self, XtaskError};
use crate::test::SELECTION;
use crate::vulkan_layer::PortabilityLayer;
use crate::{cache, dist, env, fetch, process};

const PROGRAM: &str = "tercet-parity";

/// The folders of `tests/data` that tests read at run time; other test data is compiled into the
/// program.
const DATA: [&str; 12] = [
    "tiny-rust-llama",
    "minilm",
    "decoders",
    "encoders",
    "vision",
    "vision-language",
    "speech",
    "text-to-text",
    "onnx-torch",
    "onnx-attention",
    "onnx-learned",
    "onnx-packages",
];

/// Suites that read packed files, which run without the checkout.
const AWAY_SUITES: [&str; 6] = [
    "onnx",
    "decoders",
    "encoders",
    "vision",
    "speech",
    "text-to-text",
];
/// Hides the folder `$0` from a program.
const HIDDEN: &str = r#"set -e; mount -t tmpfs none "$0"; test ! -e "$0/Cargo.toml"; exec "$@""#;

/// The options of `cargo xtask parity`.
pub(crate) struct ParityOptions {
    /// Write a self-contained program instead of running it.
    pub(crate) pack: Option<PathBuf>,
    /// Leave out the MiniLM weights; the MiniLM tests are then ignored.
    pub(crate) without_minilm: bool,
    /// Build for this platform instead of this machine.
    pub(crate) target: Option<String>,
    /// Run with the limits of a portability driver.
    pub(crate) portability: bool,
    /// Arguments for the program.
    pub(crate) args: Vec<OsString>,
}

/// Builds the program, then packs or runs it.
pub(crate) fn run(options: &ParityOptions) -> Result<(), XtaskError> {
    let program = match &options.target {
        Some(target) => dist::foreign_program(target, PROGRAM)?,
        None => {
            let mut build = process::cargo();
            build.arg("build").args(SELECTION).args(["--bin", PROGRAM]);
            process::run(&mut build)?;
            program()
        }
    };
    let minilm = match options.without_minilm {
        true => None,
        false => Some(fetch::minilm(&cache::dir()?)?),
    };
    let mut command = match &options.pack {
        Some(to) => packing(program, to, minilm.as_deref()),
        None => running(program, &options.args, minilm.as_deref()),
    };
    let layer = match options.portability {
        true => Some(portability_layer()?),
        false => None,
    };
    if let Some(layer) = &layer {
        command.envs(layer.variables());
    }
    match (&options.target, &options.pack) {
        (Some(_), None) => println!("cpu: {}", emulate(command)?),
        (None, _) | (_, Some(_)) => process::run(&mut command)?,
    }
    if let Some(layer) = layer {
        layer.check()?;
    }
    if let Some(to) = &options.pack {
        println!(
            "{} runs every suite on machines with this architecture and a C library at least as new; \
             see --help",
            to.display()
        );
    }
    Ok(())
}

/// Builds and installs the layer.
fn portability_layer() -> Result<PortabilityLayer, XtaskError> {
    let mut build = process::cargo();
    build.args(["build", "--release", "--package", "tercet-vulkan-layer"]);
    process::run(&mut build)?;
    PortabilityLayer::new(&process::target_dir().join("release"))
}

fn program() -> Command {
    let name = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    Command::new(process::target_dir().join("release").join(name))
}

fn packing(mut command: Command, to: &Path, minilm: Option<&Path>) -> Command {
    command.arg("--pack").arg(to);
    let folder = |name: &str, folder: &Path| -> OsString {
        let parts = [OsStr::new(name), OsStr::new("="), folder.as_os_str()];
        parts.into_iter().collect()
    };
    let data = process::root().join("tests").join("data");
    for name in DATA {
        command.arg("--folder");
        command.arg(folder(&format!("data/{name}"), &data.join(name)));
    }
    if let Some(minilm) = minilm {
        command.arg("--folder").arg(folder("minilm", minilm));
    }
    command
}

fn running(mut command: Command, args: &[OsString], minilm: Option<&Path>) -> Command {
    command.args(args);
    if let Some(minilm) = minilm {
        command.env(env::MINILM_DIR, minilm);
    }
    command
}

/// Forces every kernel variant of the CPU in cases of each operator, by an emulator. Returns the numbers of tests.
pub(crate) fn emulated_variants(target: &str) -> Result<String, XtaskError> {
    let mut command = dist::foreign_program(target, PROGRAM)?;
    command.args(["--variants", "all"]);
    emulate(command)
}

/// Packs the program for this machine, and runs it while the checkout is hidden. Returns the verdict.
pub(crate) fn without_checkout(target: &str) -> Result<String, XtaskError> {
    let dir = std::env::temp_dir().join(format!("xtask-away-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(error::file("create", &dir))?;
    let packed = dir.join(PROGRAM);
    process::run(&mut packing(
        dist::foreign_program(target, PROGRAM)?,
        &packed,
        None,
    ))?;
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "--propagation", "private", "sh", "-c", HIDDEN]);
    hidden.arg(process::root()).arg(&packed);
    hidden.args(["--device", "cpu"]);
    for suite in AWAY_SUITES {
        hidden.args(["--suite", suite]);
    }
    let printed = process::output(hidden.current_dir(&dir));
    fetch::remove_dir(&dir)?;
    let printed = printed?;
    let printed = String::from_utf8_lossy(&printed);
    Ok(printed.lines().last().unwrap_or_default().to_string())
}

/// Runs the program as its own worker for the CPU: an emulated program cannot start itself again.
/// Returns the numbers of tests.
fn emulate(mut command: Command) -> Result<String, XtaskError> {
    let dir = std::env::temp_dir().join(format!("xtask-parity-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(error::file("create", &dir))?;
    command.env("TERCET_PARITY_WORKER", &dir);
    command.env(env::EXECUTORS, "cpu");
    command.env("TERCET_TEST_DATA", process::root().join("tests/data"));
    process::run(&mut command)?;
    let path = dir.join("report.json");
    let text = fs::read(&path).map_err(error::file("read", &path))?;
    fetch::remove_dir(&dir)?;
    let report = serde_json::from_slice(&text);
    let report: EmulatedReport = report.map_err(|source| XtaskError::Json { path, source })?;
    match report.failures.is_empty() {
        true if report.passed > 0 => Ok(format!(
            "{} passed, {} ignored in {:.0} s",
            report.passed, report.ignored, report.seconds
        )),
        true => Err(XtaskError::Artifacts {
            problems: vec!["no test of the program ran".to_string()],
        }),
        false => Err(XtaskError::Artifacts {
            problems: report.failures.into_iter().map(|note| note.name).collect(),
        }),
    }
}

/// The parts of the program's report that the verdict needs.
#[derive(Deserialize)]
struct EmulatedReport {
    passed: usize,
    ignored: usize,
    seconds: f64,
    failures: Vec<EmulatedFailure>,
}

#[derive(Deserialize)]
struct EmulatedFailure {
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folders of test data that a source file reads at run time.
    fn folders_read(source: &str) -> impl Iterator<Item = &str> {
        let calls = source.split("data(\"").skip(1);
        calls.filter_map(|call| call.split(['"', '/']).next())
    }

    fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => sources(&path, all),
                false => all.push(path),
            }
        }
    }

    #[test]
    fn every_folder_that_a_suite_reads_is_packed() {
        let mut all = Vec::new();
        sources(&process::root().join("tests").join("src"), &mut all);
        let mut found = 0;
        for path in all
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        {
            let source = std::fs::read_to_string(path).expect("a source file");
            for folder in folders_read(&source) {
                assert!(DATA.contains(&folder), "{}: {folder}", path.display());
                found += 1;
            }
        }
        assert!(found >= DATA.len(), "only {found} reads of test data");
    }

    #[test]
    fn what_is_packed_is_there() {
        let command = packing(
            program(),
            Path::new("out"),
            Some(Path::new("/cache/minilm")),
        );
        let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        assert_eq!(args[..2], ["--pack", "out"]);
        assert_eq!(args.last().map(|a| &**a), Some("minilm=/cache/minilm"));
        for folder in args.iter().filter_map(|arg| arg.strip_prefix("data/")) {
            let (_, folder) = folder.split_once('=').expect("a name and a folder");
            assert!(Path::new(folder).is_dir(), "{folder}");
        }
    }
}
