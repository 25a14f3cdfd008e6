//! `cargo xtask web`: builds `examples/web` as a static folder and tests it in a headless Chromium.
//! The steps are:
//!
//! 1. the crate for `wasm32-unknown-unknown`, with the release profile,
//! 2. its JavaScript bindings, by the `wasm-bindgen` version of `Cargo.lock`, which is built in the
//!    cache folder,
//! 3. the page and the models, copied to `target/web`,
//! 4. the page in Chromium, on WebGPU and on the CPU. The page's results are compared with the
//!    references of the suites, and its generated text with that of the `tercet` command.

pub(crate) mod chromium;
mod expectations;
pub(crate) mod server;

use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::{self, XtaskError};
use crate::{cache, env, fetch, process, python};
pub(crate) use expectations::PageCoverage;

pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// Settings of the build: a page downloads the module before it shows anything, so code is small.
/// The kernels of the CPU executor, and the tensors that they read, stay fast.
const SMALL_CODE: [&str; 3] = [
    r#"profile.release.opt-level="s""#,
    "profile.release.package.tercet-cpu.opt-level=3",
    "profile.release.package.tercet-tensor.opt-level=3",
];
/// The crate of the browser package.
pub(crate) const PACKAGE: &str = "web";
const CRATE: &str = "examples/web";
const LANGUAGE: &str = "tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf";
/// The path of the language model relative to the page.
const MODEL: &str = "models/language.gguf";
const MINILM_FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];
/// Maximum run time of a page; long, because a software GPU on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A device, and the coverage of its test.
pub(crate) type PageTrial = (&'static str, PageCoverage);

/// The action after the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterBuild {
    /// Test the page in Chromium on these devices.
    Test(&'static [PageTrial]),
    /// As [`AfterBuild::Test`], with the reduced coverage of CI. Missing tools are installed; if
    /// that fails, the tests that need them are reported as not run.
    Check(&'static [PageTrial]),
    /// Serve on this port of the machine until interrupted.
    Serve(u16),
    /// Only build the folder.
    Nothing,
}

/// Builds the folder, then tests or serves it.
pub(crate) fn run(then: AfterBuild) -> Result<(), XtaskError> {
    match then {
        AfterBuild::Test(trials) => {
            // Check first, so that a missing browser is reported before the build.
            let browser = chromium::find()?;
            test(&built(&tools()?)?, &browser, trials)
        }
        AfterBuild::Check(trials) => check(trials),
        AfterBuild::Serve(port) => {
            let server = server::PageServer::start(&built(&tools()?)?, port)?;
            println!("http://127.0.0.1:{}/", server.port());
            server.wait()
        }
        AfterBuild::Nothing => built(&tools()?).map(drop),
    }
}

/// Runs the tests for which the tools are available.
fn check(trials: &[PageTrial]) -> Result<(), XtaskError> {
    let bindgen = match tools() {
        Ok(bindgen) => bindgen,
        Err(e) => {
            println!("NOT RUN: {e}");
            return Ok(());
        }
    };
    let folder = built(&bindgen)?;
    match chromium::install().and_then(|()| chromium::find()) {
        Ok(browser) => test(&folder, &browser, trials),
        Err(e) => {
            println!("NOT RUN, only built: {e}");
            Ok(())
        }
    }
}

/// Installs the compiler target through rustup if possible, and the `wasm-bindgen` command. Returns
/// the path of the command.
fn tools() -> Result<PathBuf, XtaskError> {
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "list", "--installed"]);
    let installed = process::output(&mut rustup);
    let has_target = |list: Vec<u8>| String::from_utf8_lossy(&list).lines().any(|l| l == TARGET);
    // If there is no rustup, the compiler reports the missing target.
    if installed.is_ok_and(|list| !has_target(list)) {
        let mut add = Command::new("rustup");
        if process::run(add.args(["target", "add", TARGET])).is_err() {
            return Err(XtaskError::NoRustTarget { target: TARGET });
        }
    }
    bindgen(&cache::dir()?)
}

/// Builds the folder and prints its files.
fn built(bindgen: &Path) -> Result<PathBuf, XtaskError> {
    let folder = build(bindgen)?;
    println!("{}", folder.display());
    sizes(&folder, &folder)?;
    Ok(folder)
}

/// Builds the JavaScript bindings with their types into a folder, as files whose names start with `name`.
pub(crate) fn bindings(folder: &Path, name: &str) -> Result<(), XtaskError> {
    let mut bindgen = Command::new(tools()?);
    bindgen.args(["--target", "web", "--out-name", name, "--out-dir"]);
    process::run(bindgen.arg(folder).arg(module()?))
}

/// Builds the WebAssembly module.
fn module() -> Result<PathBuf, XtaskError> {
    let mut cargo = process::cargo();
    cargo.args([
        "build",
        "--release",
        "--package",
        PACKAGE,
        "--target",
        TARGET,
    ]);
    for setting in SMALL_CODE {
        cargo.args(["--config", setting]);
    }
    // A separate folder, whose lock does not stop other builds: `.ci/run` lints meanwhile.
    let build = python::target_dir().join("browser");
    cargo.arg("--target-dir").arg(&build);
    process::run(&mut cargo)?;
    Ok(build.join(TARGET).join("release").join("web.wasm"))
}

fn build(bindgen: &Path) -> Result<PathBuf, XtaskError> {
    let minilm = fetch::minilm(&cache::dir()?)?;
    let wasm = module()?;
    let folder = python::target_dir().join("web");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(error::file("remove", &folder))?;
    }
    let mut bindgen = Command::new(bindgen);
    bindgen.args(["--target", "web", "--no-typescript", "--out-dir"]);
    bindgen.arg(folder.join("pkg")).arg(&wasm);
    process::run(&mut bindgen)?;
    let root = process::root();
    let page = root.join(CRATE).join("page");
    for entry in fs::read_dir(&page).map_err(error::file("read", &page))? {
        let entry = entry.map_err(error::file("read", &page))?;
        copy(&entry.path(), &folder.join(entry.file_name()))?;
    }
    copy(&root.join(LANGUAGE), &folder.join(MODEL))?;
    for name in MINILM_FILES {
        copy(&minilm.join(name), &folder.join("models/minilm").join(name))?;
    }
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<(), XtaskError> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir).map_err(error::file("create", dir))?;
    }
    fs::copy(from, to).map_err(error::file("copy", from))?;
    Ok(())
}

/// The `wasm-bindgen` command of the version that the crate uses.
fn bindgen(cache: &Path) -> Result<PathBuf, XtaskError> {
    let lock = process::root().join("Cargo.lock");
    let text = fs::read_to_string(&lock).map_err(error::file("read", &lock))?;
    let version = locked(&text, "wasm-bindgen").ok_or(XtaskError::NotLocked {
        package: "wasm-bindgen",
        path: lock,
    })?;
    let root = cache.join("tools").join(format!("wasm-bindgen-{version}"));
    let program = format!("wasm-bindgen{EXE_SUFFIX}");
    let program = root.join("bin").join(program);
    if program.is_file() {
        return Ok(program);
    }
    // A debug build of `wasm-bindgen` suffices and takes half the time.
    let mut cargo = process::cargo();
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.args(["install", "--quiet", "--debug", "wasm-bindgen-cli"]);
    cargo.args(["--version", &version, "--root"]).arg(&root);
    let build = root.join("build");
    cargo.env("CARGO_TARGET_DIR", &build);
    process::run(&mut cargo)?;
    fs::remove_dir_all(&build).map_err(error::file("remove", &build))?;
    Ok(program)
}

/// The `tercet` command: the one in the environment variable, an existing build, or a new build.
fn command() -> Result<PathBuf, XtaskError> {
    if let Some(named) = std::env::var_os(env::COMMAND).filter(|named| !named.is_empty()) {
        return Ok(PathBuf::from(named));
    }
    let release = python::target_dir().join("release");
    let built = release.join(format!("tercet{EXE_SUFFIX}"));
    if !built.is_file() {
        let mut cargo = process::cargo();
        cargo.args(["build", "--quiet", "--release", "--package", "tercet-cli"]);
        process::run(&mut cargo)?;
    }
    Ok(built)
}

/// The version of a package in a lock file.
fn locked(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    let version = lines.nth(1)?.strip_prefix("version = \"")?;
    Some(version.strip_suffix('"')?.to_string())
}

/// Prints the files of a folder with their sizes.
fn sizes(root: &Path, dir: &Path) -> Result<(), XtaskError> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .map_err(error::file("read", dir))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            sizes(root, &path)?;
            continue;
        }
        let bytes = fs::metadata(&path)
            .map_err(error::file("read", &path))?
            .len();
        let name = path.strip_prefix(root).unwrap_or(&path);
        println!("{bytes:>12}  {}", name.display());
    }
    Ok(())
}

/// Opens the page on each device and compares its results with the references.
fn test(folder: &Path, browser: &Path, trials: &[PageTrial]) -> Result<(), XtaskError> {
    let mut references = expectations::PageReferences::read()?;
    references.run_reference(&command()?, &folder.join(MODEL))?;
    let mut problems = Vec::new();
    for (device, share) in trials {
        let began = Instant::now();
        let server = server::PageServer::start(folder, 0)?.with_cases(references.cases(*share));
        let query = format!("?test&device={device}");
        let page = format!("http://127.0.0.1:{}/{query}", server.port());
        let browser = chromium::HeadlessBrowser::open(browser, &page)?;
        let result = server.result(PATIENCE);
        drop(browser);
        let found = match result {
            Some(result) => references.judge(device, *share, &result),
            None => vec![format!("no answer within {} s", PATIENCE.as_secs())],
        };
        let seconds = began.elapsed().as_secs_f64();
        match found.is_empty() {
            true => println!("{device}: ok, {seconds:.1} s"),
            false => println!("{device}: FAILED, {seconds:.1} s"),
        }
        problems.extend(
            found
                .into_iter()
                .map(|problem| format!("{device}: {problem}")),
        );
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(XtaskError::Web { problems }),
    }
}

#[cfg(test)]
mod tests {
    use super::locked;

    #[test]
    fn versions_are_found() {
        let lock = "[[package]]\nname = \"a-b\"\nversion = \"1.2.3\"\n\n[[package]]\nname = \"a\"\nversion = \"0.4.5\"\n";
        assert_eq!(locked(lock, "a").as_deref(), Some("0.4.5"));
        assert_eq!(locked(lock, "a-b").as_deref(), Some("1.2.3"));
        assert_eq!(locked(lock, "b"), None);
    }
}
