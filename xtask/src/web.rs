//! `cargo xtask web`: `examples/web` as one folder that any web server can serve, and its test in a headless Chromium.
//!
//! 1. the crate for `wasm32-unknown-unknown`, on the release profile,
//! 2. its JavaScript, by the `wasm-bindgen` of the version in `Cargo.lock`, which is built into the cache folder,
//! 3. page and models beside it, in `target/web`,
//! 4. the page in Chromium, on WebGPU and on the CPU, whose results are compared with the references of the suites, and its
//!    texts with those of the `tercet` command.

mod chromium;
mod judge;
mod server;

use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{self, XtaskError};
use crate::{cache, env, fetch, process, python};
pub(crate) use judge::PageCoverage;

const TARGET: &str = "wasm32-unknown-unknown";
const CRATE: &str = "examples/web";
const LANGUAGE: &str = "tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf";
/// Where the page has it.
const MODEL: &str = "models/language.gguf";
const MINILM_FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];
/// How long a page may take: on a device that is emulated, on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A device, and how much is asked of it.
pub(crate) type PageTrial = (&'static str, PageCoverage);

/// What follows building.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterBuild {
    /// The tests in Chromium, on these devices.
    Test(&'static [PageTrial]),
    /// As [`AfterBuild::Test`], of what CI has the time for; what is missing is installed, and where it cannot be, a line says so
    /// and what needs it is left out.
    Check(&'static [PageTrial]),
    /// Serving on this port of the machine itself, until interrupted.
    Serve(u16),
    /// Nothing.
    Nothing,
}

/// Builds the folder, then tests or serves it.
pub(crate) fn run(then: AfterBuild) -> Result<(), XtaskError> {
    match then {
        AfterBuild::Test(trials) => {
            // What is missing is said before anything is built.
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

/// As much as there are tools for.
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

/// Installs the compiler's target where rustup can, and the `wasm-bindgen` command, which is returned.
fn tools() -> Result<PathBuf, XtaskError> {
    let mut rustup = std::process::Command::new("rustup");
    rustup.args(["target", "list", "--installed"]);
    let installed = process::output(&mut rustup);
    let has_target = |list: Vec<u8>| String::from_utf8_lossy(&list).lines().any(|l| l == TARGET);
    // Without rustup the compiler says what it lacks.
    if installed.is_ok_and(|list| !has_target(list)) {
        let mut add = std::process::Command::new("rustup");
        if process::run(add.args(["target", "add", TARGET])).is_err() {
            return Err(XtaskError::NoRustTarget { target: TARGET });
        }
    }
    bindgen(&cache::dir()?)
}

/// The folder, whose files are printed.
fn built(bindgen: &Path) -> Result<PathBuf, XtaskError> {
    let folder = build(bindgen)?;
    println!("{}", folder.display());
    sizes(&folder, &folder)?;
    Ok(folder)
}

fn build(bindgen: &Path) -> Result<PathBuf, XtaskError> {
    let minilm = fetch::minilm(&cache::dir()?)?;
    let mut cargo = process::cargo();
    cargo.args(["build", "--release", "--package", "web", "--target", TARGET]);
    process::run(&mut cargo)?;
    let target = python::target_dir();
    let folder = target.join("web");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(error::file("remove", &folder))?;
    }
    let wasm = target.join(TARGET).join("release").join("web.wasm");
    let mut bindgen = std::process::Command::new(bindgen);
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

/// The `wasm-bindgen` command of the version that the crate is built with.
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
    // A debug build is enough, and takes half the time.
    let mut cargo = process::cargo();
    cargo.args(["install", "--quiet", "--debug", "wasm-bindgen-cli"]);
    cargo.args(["--version", &version, "--root"]).arg(&root);
    let build = root.join("build");
    cargo.env("CARGO_TARGET_DIR", &build);
    process::run(&mut cargo)?;
    fs::remove_dir_all(&build).map_err(error::file("remove", &build))?;
    Ok(program)
}

/// The `tercet` command: the one that the environment names, or that was built before; else it is built.
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

/// The page on each device, and what came of it beside the references.
fn test(folder: &Path, browser: &Path, trials: &[PageTrial]) -> Result<(), XtaskError> {
    let mut references = judge::PageReferences::read()?;
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
