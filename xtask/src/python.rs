//! `cargo xtask python`: builds the Python wheel, runs its tests and checks its types. The steps
//! are:
//!
//! 1. a virtual environment in the cache folder with the packages of `requirements-tests.txt`,
//! 2. the wheel, built by maturin with the release profile in the workspace's target folder,
//! 3. the `tercet` command, whose server the tests use,
//! 4. pytest on the installed wheel, and mypy in strict mode on stubs and tests,
//! 5. with `--ray`, Ray in a separate virtual environment, and pytest on `examples/ray`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{self, XtaskError};
use crate::fetch::{self, PythonInterpreter};
use crate::test::SELECTION;
use crate::{cache, env, process};

const PURPOSE: &str = "build and test the Python module";
const CRATE: &str = "crates/tercet-python";
const REQUIREMENTS: &str = "requirements-tests.txt";
/// Maximum size of the wheel, to detect files that were included by mistake.
const MAX_WHEEL_BYTES: u64 = 25_000_000;

/// Builds and tests the wheel. Downloads MiniLM for the tests.
pub(crate) fn run(with_ray: bool) -> Result<(), XtaskError> {
    let cache = cache::dir()?;
    let minilm = fetch::minilm(&cache)?;
    let folder = process::root().join(CRATE);
    let python = fetch::environment(
        &cache.join("python-tests"),
        PURPOSE,
        &folder.join(REQUIREMENTS),
    )?;
    let wheel = wheel(&cache, &folder, &python)?;
    install(&python, &wheel)?;

    // Use the same features as the workspace tests, so that the dependencies are not built twice.
    let mut build = process::cargo();
    build.args(["test", "--no-run", "--tests", "--quiet"]);
    build.args(SELECTION);
    process::run(&mut build)?;
    let mut tests = python.command();
    tests
        .args(["-m", "pytest", "-p", "no:cacheprovider"])
        .current_dir(&folder);
    tests.env(env::MINILM_DIR, &minilm);
    tests.env(env::COMMAND, target_dir().join("release").join("tercet"));
    let tests = process::run(&mut tests);
    let mut types = python.command();
    types
        .args(["-m", "mypy", "--strict", "--cache-dir"])
        .arg(cache.join("mypy"));
    types.args(["python", "tests"]).current_dir(&folder);
    let types = process::run(&mut types);
    let ray = match with_ray {
        true => ray(&cache, &wheel, &minilm),
        false => Ok(()),
    };
    tests.and(types).and(ray)
}

/// Runs the tests of the Ray example.
fn ray(cache: &Path, wheel: &Path, minilm: &Path) -> Result<(), XtaskError> {
    let folder = process::root().join("examples").join("ray");
    let python = fetch::environment(
        &cache.join("python-ray"),
        PURPOSE,
        &folder.join("requirements.txt"),
    )?;
    install(&python, wheel)?;
    let mut tests = python.command();
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    tests.env(env::MINILM_DIR, minilm).current_dir(&folder);
    process::run(&mut tests)
}

/// Installs this wheel into a virtual environment that already has its dependencies.
fn install(python: &PythonInterpreter, wheel: &Path) -> Result<(), XtaskError> {
    let mut pip = pip(python);
    pip.args(["--no-deps", "--force-reinstall"]).arg(wheel);
    process::run(&mut pip)
}

/// `pip install`.
fn pip(python: &PythonInterpreter) -> Command {
    let mut pip = python.command();
    pip.args(["-m", "pip", "--disable-pip-version-check", "install"]);
    pip.arg("--quiet");
    pip
}

/// Whether this machine can run the Python tests: `python3` with the module `venv`.
pub(crate) fn is_possible() -> bool {
    let venv = |python: PythonInterpreter| {
        process::works(python.command().args(["-c", "import ensurepip, venv"]))
    };
    PythonInterpreter::find(PURPOSE).is_ok_and(venv)
}

/// Builds the wheel into a separate folder and checks its size.
fn wheel(cache: &Path, folder: &Path, python: &PythonInterpreter) -> Result<PathBuf, XtaskError> {
    let out = cache.join("wheels");
    if out.is_dir() {
        fs::remove_dir_all(&out).map_err(error::file("remove", &out))?;
    }
    let mut maturin = python.command();
    maturin.args(["-m", "maturin", "build", "--release", "--quiet"]);
    maturin
        .args(["--auditwheel", "skip", "--out"])
        .arg(&out)
        .current_dir(folder);
    maturin.env("CARGO_TARGET_DIR", target_dir());
    process::share_outputs(&mut maturin);
    process::run(&mut maturin)?;
    let entries = fs::read_dir(&out).map_err(error::file("read", &out))?;
    let mut wheels = entries.filter_map(Result::ok).map(|e| e.path());
    let found = wheels.find(|p| p.extension().is_some_and(|e| e == "whl"));
    let found = found.ok_or_else(|| XtaskError::NoWheel { dir: out.clone() })?;
    let bytes = fs::metadata(&found)
        .map_err(error::file("read", &found))?
        .len();
    println!("{}: {:.1} MB", found.display(), bytes as f64 / 1e6);
    match bytes > MAX_WHEEL_BYTES {
        true => Err(XtaskError::WheelSize {
            path: found,
            bytes,
            most: MAX_WHEEL_BYTES,
        }),
        false => Ok(found),
    }
}

/// The absolute target folder; a relative one is resolved against the workspace root, as cargo does
/// there.
pub(crate) fn target_dir() -> PathBuf {
    let dir = std::env::var_os("CARGO_TARGET_DIR");
    process::root().join(dir.unwrap_or_else(|| "target".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packages with their features that a build of `selection` contains, one per line.
    fn built(selection: &[&str], edges: &str) -> Vec<String> {
        let mut tree = process::cargo();
        tree.args(["tree", "--locked", "--prefix", "none", "--edges", edges]);
        tree.args(["--format", "{p} [{f}]"]).args(selection);
        let lines = process::output(tree.current_dir(process::root())).expect("cargo tree");
        let lines = String::from_utf8(lines).expect("UTF-8");
        let lines = lines
            .lines()
            .map(|line| line.trim_end_matches(" (*)").to_string());
        lines.collect()
    }

    #[test]
    fn the_wheel_is_made_of_what_the_tests_are_built_with() {
        let tests = built(&SELECTION[1..], "normal,build,dev");
        let wheel = built(&["--package", "tercet-python"], "normal,build");
        assert!(wheel.len() > 100);
        let differ: Vec<_> = wheel.iter().filter(|line| !tests.contains(line)).collect();
        assert!(
            differ.is_empty(),
            "enable these features in {CRATE}/Cargo.toml: {differ:?}"
        );
    }
}
