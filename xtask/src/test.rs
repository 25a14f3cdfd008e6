//! `cargo xtask test`: every test of the workspace, with what they need set up first.
//!
//! Installs the Debian packages of the GPU tests (as root), fetches MiniLM and ONNX models of packages, finds or builds nextest,
//! then runs:
//!
//! 1. the tests of the workspace on the machine's own devices, the large suites in a process each, side by side,
//! 2. those of this package, in a build without the GLSL compiler, which `--all-features` over the
//!    workspace would bring in,
//! 3. the Vulkan tests again on a newer lavapipe, which has cooperative matrices,
//! 4. the doc tests,
//! 5. the Python module's, where `python3` can make a virtual environment ([`python`]).
//!
//! All but 2 run on code built with the release profile, which is what users get.
//!
//! A software driver takes a processor up to seconds to compile a kernel, which is nearly all the time of 1 and 3. So
//! Vulkan and wgpu run a sixth of each operator's cases each, and it and the newer lavapipe only what tells them from Vulkan
//! ([`NOT_ON_WGPU`], [`ON_NEWER`]); `cargo xtask parity` runs everything on every executor of a machine with a GPU.
//!
//! Every pass runs even if one before it failed: one run shows all that is wrong. With arguments for
//! the test runner only the first two run. The variables of [`env`](mod@crate::env) are set so that
//! a missing model or executor fails.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::error::Error;
use crate::{cache, env, fetch, lavapipe, process, python, system};

/// What is tested and built together, so that nothing is built again for other features.
///
/// The bench beside other libraries is left out: these take a minute to compile.
pub(crate) const SELECTION: [&str; 7] = [
    PROFILE,
    "--workspace",
    "--exclude",
    "xtask",
    "--exclude",
    "tercet-bench-kernels",
    "--all-features",
];
/// What ships is what is tested.
const PROFILE: &str = "--release";
const OWN: [&str; 2] = ["--package", "xtask"];
const NEXTEST_CONFIG: &str = ".cargo/nextest.toml";

/// All suites of `tests/src/suites`, over devices that are opened once a process, where nextest would open one
/// for every test.
const SUITES: &str = "suites";

/// The plans of all cases for all described devices, each of them made once a process.
const PROGRAMS: &str = "programs";

/// An executor, and the processes that share its suites: a software driver keeps some gigabytes of code for its kernels,
/// one for all tests more than a small machine has.
const SHARES: [(&str, usize); 3] = [("vulkan", 4), ("wgpu", 3), ("cpu", 1)];

/// The part of each operator's cases that an executor runs; all where there is none. Software drivers share them, each with
/// cases of every operator.
fn sample(executor: &str) -> Option<&'static str> {
    match executor {
        "vulkan" => Some("0/6"),
        "wgpu" => Some("1/6"),
        _ => None,
    }
}

/// The tests that an executor leaves out, as patterns of their names.
fn skipped(executor: &str) -> Vec<String> {
    let own = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    match executor {
        "vulkan" => {
            let formats = UNPACKED_ALIKE.iter();
            let narrow = formats.flat_map(|f| {
                ["f16", "bf16"].map(|dtype| format!("/dequant_mat_mul/{f}*/{dtype}/"))
            });
            let slow = SLOW_TO_COMPILE.iter();
            let slow = slow.flat_map(|op| ["f16", "bf16"].map(|dtype| format!("/{op}/*/{dtype}/")));
            narrow.chain(slow).chain(own(&NOT_ON_VULKAN)).collect()
        }
        "wgpu" => own(&NOT_ON_WGPU),
        _ => Vec::new(),
    }
}

/// Formats of weights that are run with rows of F32 only: how a block is unpacked does not depend on what it is
/// multiplied by, and the other formats are run with all dtypes.
const UNPACKED_ALIKE: [&str; 10] = [
    "q4_1", "q5_", "q2_k", "q3_k", "iq", "tq", "int", "fp8_", "mxfp4", "nvfp4",
];

/// Operators whose kernels take a software driver longest: they are run in F32, the forms in 16 bits on a GPU.
const SLOW_TO_COMPILE: [&str; 4] = ["dequant_grouped_mat_mul", "fft", "gated_delta_net", "pool"];

/// What passes and rules make of a case is run on the CPU here, and on a GPU by `cargo xtask parity`: a software driver
/// would compile most kernels twice more. The graphs of gradients are made of operators that are run in all their cases:
/// two of each, ten of those that torch was asked for, and one training; the others on a GPU.
const NOT_ON_VULKAN: [&str; 10] = [
    "/without_passes",
    "/decomposed",
    "gradients/*/more",
    "torch/*/more",
    "curves/*/more",
    "decoders/*/more",
    "encoders/*/more",
    "speech/*/more",
    "onnx/silero_vad_",
    "steps/*/more",
];

/// wgpu plays the programs that Vulkan plays, of the same kernels in WGSL. So models that differ by their graphs alone, hundreds of
/// sentences, long rows and the forms in 16 bits, which differ from F32 in how words are unpacked, are run on Vulkan.
const NOT_ON_WGPU: [&str; 15] = [
    "minilm/embeddings",
    "llama/gguf_q8_0",
    "gradients/",
    "torch/",
    "curves/",
    "decoders/*/more",
    "encoders/*/more",
    "speech/*/more",
    "onnx/",
    "rows/",
    "steps/*/more",
    "/without_passes",
    "/decomposed",
    "/bf16/",
    "/f16/",
];

/// What nextest leaves to [`SUITES`] and [`PROGRAMS`], which it would give a process for each test.
const NOT_SUITES: &str = "not binary(suites) - binary(programs)";

/// What of the suites runs on the newer lavapipe, which has cooperative matrices of F16: what is computed with them, each
/// case as it is, one of three. It takes three times as long to compile a kernel as the one of Debian 12; all cases run on
/// the matrices of a GPU by `cargo xtask parity`.
const ON_NEWER: [&str; 7] = [
    "/mat_mul/*/f16/",
    "/linear/*/f16/",
    "/dot_general/*/f16/",
    "/dequant_mat_mul/*_prefill_*/f16/",
    "/attention/*/f16/",
    "/conv/*/f16/",
    "/conv_weight_grad/*/f16/",
];
const SAMPLE_ON_NEWER: &str = "0/5";
const NOT_ON_NEWER: [&str; 3] = ["/without_passes", "/decomposed", "gradients/"];

/// The Vulkan player's own tests, as nextest's filter.
const PLAYER: &str = "package(tercet-vulkan)";

/// Runs the tests; `args` go to the test runner. The newer lavapipe and the doc tests have filters of
/// their own or none, so they run only when there are no `args`.
pub(crate) fn run(args: &[OsString]) -> Result<(), Error> {
    let ci = is_ci();
    system::prepare(ci);
    let cache = cache::dir()?;
    let onnx_models = fetch::onnx_models(&cache);
    if let Err(error) = &onnx_models {
        eprintln!("NOT RUN: the ONNX models of packages");
        eprintln!("  because: {error}");
    }
    let setup = Setup {
        minilm: fetch::minilm(&cache)?,
        has_onnx_models: onnx_models.is_ok(),
        nextest: timed("test runner", || nextest(&cache))?,
        cache,
        ci,
    };
    let mut tests = setup.tests();
    tests.args(SELECTION).args(args);
    if !args.is_empty() {
        let tests = process::run(&mut tests);
        return tests.and(process::run(setup.own_tests().args(args)));
    }
    if setup.nextest.is_some() {
        tests.args(["--filterset", NOT_SUITES]);
    }
    println!("{}", compiler()?);
    let tests = timed("building, and tests one by one", || {
        process::run(&mut tests)
    });
    let suites = timed("suites", || match setup.nextest {
        // A software driver makes its code on one thread a device: side by side they fill the machine.
        Some(_) => process::run_together(setup.suites()),
        None => Ok(()),
    });
    let own = timed("tests of xtask", || process::run(&mut setup.own_tests()));
    let newer = timed("newer lavapipe", || match lavapipe::fetch(&setup.cache) {
        Ok(_) => process::run_together(setup.on_newer_lavapipe().into()),
        Err(error) => {
            eprintln!("NOT RUN: the Vulkan tests on a newer lavapipe, with cooperative matrices");
            eprintln!("  because: {error}");
            Ok(())
        }
    });
    let mut doc = process::cargo();
    doc.args(["test", "--doc"]).args(SELECTION);
    let doc = timed("doc tests", || process::run(setup.prepare(&mut doc)));
    let python = timed("Python", || match setup.ci || python::is_possible() {
        true => python::run(false),
        false => {
            eprintln!("NOT RUN: the Python module; it needs python3 with the module venv");
            Ok(())
        }
    });
    let all = [suites, own, newer, doc, python];
    all.into_iter().fold(tests, Result::and)
}

/// Runs a pass and says how long it took: where the time of a machine goes.
fn timed<T>(name: &str, pass: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = pass();
    println!("{:5} s  {name}", start.elapsed().as_secs());
    result
}

/// Whether the run decides about a change: then nothing may be missing, and Vulkan is validated.
fn is_ci() -> bool {
    std::env::var_os(env::CI).is_some_and(|value| !value.is_empty())
}

/// What every pass of the tests is run with.
struct Setup {
    /// Absolute, as the runner script needs it.
    cache: PathBuf,
    minilm: PathBuf,
    /// Whether those that packages carry are in the cache.
    has_onnx_models: bool,
    nextest: Option<PathBuf>,
    ci: bool,
}

impl Setup {
    /// The test runner, before its selection: nextest, or plain `cargo test` without it.
    fn tests(&self) -> Command {
        let mut command = match &self.nextest {
            Some(program) => nextest_run(program),
            None => {
                let mut cargo = process::cargo();
                cargo.args(["test", "--tests", "--no-fail-fast"]);
                cargo
            }
        };
        self.prepare(&mut command);
        command
    }

    fn own_tests(&self) -> Command {
        let mut command = self.tests();
        command.args(OWN);
        if self.nextest.is_some() {
            // The filter may be for the others.
            command.arg("--no-tests=pass");
        }
        command
    }

    /// The suites on each executor, in processes of their own, and what else is one process.
    fn suites(&self) -> Vec<Command> {
        let mut all = Vec::new();
        for (executor, n) in SHARES {
            for at in 0..n {
                let mut command = self.suites_on(executor, &skipped(executor));
                command.env(env::SLICE, format!("{at}/{n}"));
                all.push(command);
            }
        }
        all.push(self.together(PROGRAMS));
        all
    }

    /// The suites on an executor, but for tests that match a pattern.
    fn suites_on(&self, executor: &str, skipped: &[String]) -> Command {
        let mut command = self.together(SUITES);
        command.env(env::EXECUTORS, executor);
        if !skipped.is_empty() {
            command.env(env::SKIP, skipped.join(","));
        }
        if let Some(part) = sample(executor) {
            command.env(env::SAMPLE, part);
        }
        command
    }

    /// All tests of a target in one process.
    fn together(&self, target: &str) -> Command {
        let mut command = process::cargo();
        command.args(["test", "--no-fail-fast"]).args(SELECTION);
        command.args(["--test", target, "--", "--quiet"]);
        self.prepare(&mut command);
        command
    }

    /// The tests of the Vulkan player, and of the suites [`ON_NEWER`].
    fn on_newer_lavapipe(&self) -> [Command; 2] {
        // The same selection as before, so that nothing is built again for other features.
        let mut player = self.tests();
        match self.nextest {
            Some(_) => player.args(SELECTION).args(["--filterset", PLAYER]),
            None => player.args([PROFILE, "--package", "tercet-vulkan", "--all-features"]),
        };
        let mut parity = self.suites_on("vulkan", &NOT_ON_NEWER.map(String::from));
        parity.env(env::TESTS, ON_NEWER.join(","));
        parity.env(env::SAMPLE, SAMPLE_ON_NEWER);
        let script = process::root().join("xtask").join("newer-lavapipe");
        [player, parity].map(|mut command| {
            command.env(env::RUNNER, &script);
            command.env(env::REQUIRE, env::REQUIRE_NEWER);
            command.env(env::CACHE_DIR, &self.cache);
            command
        })
    }

    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(env::MINILM_DIR, &self.minilm);
        if self.has_onnx_models {
            command.env(env::ONNX_MODELS, &self.cache);
        }
        let unset = |name: &str| std::env::var_os(name).is_none_or(|value| value.is_empty());
        if unset(env::REQUIRE) {
            let required = if self.ci {
                env::REQUIRE_CI
            } else {
                env::REQUIRE_DEFAULT
            };
            command.env(env::REQUIRE, required);
        }
        if self.ci && unset(env::VALIDATION) {
            command.env(env::VALIDATION, "1");
        }
        command
    }
}

/// The compiler and the profile of the tests, in one line.
fn compiler() -> Result<String, Error> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let version = process::output(Command::new(rustc).current_dir(process::root()).arg("-V"))?;
    let version = String::from_utf8_lossy(&version);
    let profile = PROFILE.trim_start_matches('-');
    Ok(format!(
        "tests are built with {}, profile {profile}",
        version.trim()
    ))
}

/// The program of `PROGRAM nextest`: cargo where it has the command, else the binary from the cache
/// folder, built into it once. `None` when building fails: the tests then run under plain
/// `cargo test`.
fn nextest(cache: &Path) -> Result<Option<PathBuf>, Error> {
    if process::works(process::cargo().args(["nextest", "--version"])) {
        return Ok(Some(PathBuf::from(process::cargo().get_program())));
    }
    let tools = cache.join("tools");
    let binary = tools.join("bin").join("cargo-nextest");
    if !process::works(Command::new(&binary).args(["nextest", "--version"])) {
        eprintln!(
            "building cargo-nextest into {} (once, some minutes)",
            tools.display()
        );
        let mut cargo = process::cargo();
        // Neither its updates, which bring in half of its dependencies, nor its speed are of use here.
        cargo
            .args(["install", "cargo-nextest", "--locked", "--debug"])
            .args(["--no-default-features", "--features", "default-no-update"])
            .arg("--root")
            .arg(&tools)
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
        if let Err(error) = process::run(&mut cargo) {
            eprintln!("{error}: running the tests under plain cargo test");
            return Ok(None);
        }
    }
    Ok(Some(binary))
}

fn nextest_run(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(process::root());
    command.args(["nextest", "run", "--config-file", NEXTEST_CONFIG].map(OsStr::new));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(ci: bool) -> Setup {
        Setup {
            cache: PathBuf::from("/cache"),
            minilm: PathBuf::from("/cache/minilm"),
            has_onnx_models: false,
            nextest: Some(PathBuf::from("cargo")),
            ci,
        }
    }

    fn variable<'a>(command: &'a Command, name: &str) -> Option<&'a OsStr> {
        let found = command.get_envs().find(|(key, _)| *key == name);
        found.and_then(|(_, value)| value)
    }

    #[test]
    fn tests_are_told_where_the_model_is_and_what_is_required() {
        for (ci, required, validation) in [
            (false, "cpu", None),
            (true, "cpu,wgpu,vulkan", Some(OsStr::new("1"))),
        ] {
            let command = setup(ci).tests();
            let model = Some(OsStr::new("/cache/minilm"));
            assert_eq!(variable(&command, env::MINILM_DIR), model);
            for (name, expected) in [
                (env::REQUIRE, Some(OsStr::new(required))),
                (env::VALIDATION, validation),
            ] {
                // What the caller set stays.
                let inherited = std::env::var_os(name).is_some_and(|value| !value.is_empty());
                let expected = expected.filter(|_| !inherited);
                assert_eq!(variable(&command, name), expected, "{name}");
            }
        }
    }

    #[test]
    fn the_newer_lavapipe_is_reached_through_the_runner() {
        for command in setup(true).on_newer_lavapipe() {
            let script = variable(&command, env::RUNNER).map(Path::new);
            assert!(script.is_some_and(Path::is_file), "{script:?}");
            let required = variable(&command, env::REQUIRE);
            assert_eq!(required, Some(OsStr::new(env::REQUIRE_NEWER)));
        }
    }

    #[test]
    fn every_executor_has_all_suites_in_the_profile_that_ships() {
        let commands = setup(true).suites();
        for executor in env::REQUIRE_CI.split(',') {
            let on = |c: &&Command| variable(c, env::EXECUTORS) == Some(OsStr::new(executor));
            let slices: Vec<_> = commands.iter().filter(on).collect();
            let n = slices.len();
            assert!(n > 0, "{executor}");
            for (at, command) in slices.into_iter().enumerate() {
                let slice = format!("{at}/{n}");
                assert_eq!(variable(command, env::SLICE), Some(OsStr::new(&slice)));
                assert!(command.get_args().any(|arg| arg == PROFILE), "{executor}");
            }
        }
    }

    #[test]
    fn nextest_reads_the_committed_configuration() {
        let command = nextest_run(Path::new("cargo"));
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["nextest", "run", "--config-file", NEXTEST_CONFIG]);
        assert!(process::root().join(NEXTEST_CONFIG).is_file());
    }
}
