//! The error type of the xtask commands.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// An error of a command. Messages name the cause and, if there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XtaskError {
    #[error("no cache folder: set TERCET_CACHE_DIR, XDG_CACHE_HOME or HOME")]
    NoCacheDir,
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot start `{program}`: is it installed and on the PATH?")]
    Start { program: String, source: io::Error },
    #[error("`{command}` failed ({status})")]
    Failed { command: String, status: ExitStatus },
    #[error("`{command}` was killed after its time limit of {} s", limit.as_secs())]
    TimeOut { command: String, limit: Duration },
    #[error("cannot read cargo's build messages")]
    CargoMessage(#[source] serde_json::Error),
    #[error(
        "python3 is needed to {purpose} and was not found; on Debian: \
         apt-get install python3 python3-venv"
    )]
    NoPython { purpose: &'static str },
    #[error(
        "python3 has neither pip nor the venv module to {purpose}; on Debian: \
         apt-get install python3-venv"
    )]
    NoPip {
        purpose: &'static str,
        source: Box<XtaskError>,
    },
    #[error(
        "{} has SHA-256 {found}, expected {expected}; delete it and run the command again",
        path.display()
    )]
    Hash {
        path: PathBuf,
        found: String,
        expected: &'static str,
    },
    #[error("cannot read {} as JSON", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("no criterion results under {}; run without --no-run", dir.display())]
    NoResults { dir: PathBuf },
    #[error("maturin built no wheel in {}", dir.display())]
    NoWheel { dir: PathBuf },
    #[error("{} has {bytes} bytes, expected at most {most}", path.display())]
    WheelSize {
        path: PathBuf,
        bytes: u64,
        most: u64,
    },
    #[error("`{program}` does not start; on Debian: apt-get install {packages}")]
    NoTool {
        program: &'static str,
        packages: String,
    },
    #[error("`cargo metadata` did not name the target folder")]
    NoTargetDir,
    #[cfg(not(feature = "glsl"))]
    #[error(
        "cmake, which builds the GLSL compiler, was not found; on Debian: apt-get install cmake g++"
    )]
    NoCmake,
    #[cfg(feature = "glsl")]
    #[error("the GLSL compiler does not start")]
    Shaderc(#[from] shaderc::Error),
    #[cfg(feature = "glsl")]
    #[error("kernels do not compile:\n{}", problems.join("\n"))]
    Shaders { problems: Vec<String> },
    #[error("shader modules are stale; run `cargo xtask shaders` and commit its output:\n{}", problems.join("\n"))]
    StaleShaders { problems: Vec<String> },
    #[error(
        "files or functions are too long; split them, or add a comment `Long: REASON` at the top:\n{}",
        problems.join("\n")
    )]
    TooLong { problems: Vec<String> },
    #[error("cannot parse {} as Rust", path.display())]
    Rust { path: PathBuf, source: syn::Error },
    #[error(
        "imports break the layers; move the item to a lower layer, or change `xtask/layers.txt`:\n{}",
        problems.join("\n")
    )]
    Imports { problems: Vec<String> },
    #[error("words, names or commits break the project's rules (CONTRIBUTING.md):\n{}", problems.join("\n"))]
    Words { problems: Vec<String> },
    #[error(
        "programs differ; if that is intended, run `cargo xtask programs --digest --update`:\n{}",
        problems.join("\n")
    )]
    Programs { problems: Vec<String> },
    #[error("{} lacks the lines `{}` and `{}`, which enclose the table", path.display(), marks[0], marks[1])]
    NoMarks {
        path: PathBuf,
        marks: [&'static str; 2],
    },
    #[error(
        "no Chromium on the PATH; on Debian: apt-get install chromium; or set {}",
        crate::env::CHROMIUM
    )]
    NoChromium,
    #[error("rustc has no `{target}`; with rustup: rustup target add {target}")]
    NoRustTarget { target: &'static str },
    #[error("{} has no package `{package}`", path.display())]
    NotLocked {
        package: &'static str,
        path: PathBuf,
    },
    #[error("cannot listen on port {port}; choose another with --port")]
    Listen { port: u16, source: io::Error },
    #[error("the results of the page differ from the references:\n{}", problems.join("\n"))]
    Web { problems: Vec<String> },
    #[error("the page of the server fails: {problem}")]
    ServerPage { problem: String },
    #[error("clients failed; the server's log is in the cache folder, in `clients/run`:\n{}", failures.join("\n"))]
    Clients { failures: Vec<String> },
    #[error("linters accept faulty files: {}; delete `linters` in the cache folder", accepted.join(", "))]
    BlindLinters { accepted: Vec<&'static str> },
    #[error("{} is not usable: {problem}", path.display())]
    DistInput { path: PathBuf, problem: String },
    #[error("artifacts failed their checks:\n{}", problems.join("\n"))]
    Artifacts { problems: Vec<String> },
    #[error("crates cannot be published:\n{}", problems.join("\n"))]
    Packages { problems: Vec<String> },
    #[error("the site has dead links:\n{}", problems.join("\n"))]
    DeadLinks { problems: Vec<String> },
    #[error("examples of {} do not give the expected output:\n{}", page, problems.join("\n"))]
    Doors {
        page: &'static str,
        problems: Vec<String>,
    },
    #[error("apt has no Debian mirror among its sources; run `apt-get update` on Debian")]
    NoMirror,
    #[error("a newer lavapipe cannot be fetched: {reason}")]
    Lavapipe { reason: &'static str },
}

/// Creates the argument of `map_err` for file operations: `error::file("read", path)`.
pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> XtaskError {
    let path = path.to_owned();
    move |source| XtaskError::File {
        action,
        path,
        source,
    }
}
