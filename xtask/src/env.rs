//! The environment variables of xtask and of the tests.
//!
//! `cargo xtask test` sets [`REQUIRE`], [`MINILM_DIR`] and [`VALIDATION`] for the tests. Without
//! these variables (in a plain `cargo test`), a test whose model or device is missing reports
//! itself as ignored, with the reason.

/// CI services and `.ci/run` set this variable: missing models and devices are failures, and Vulkan
/// runs with validation.
pub(crate) const CI: &str = "CI";

/// The cache folder for downloaded files and tools; the default is `$XDG_CACHE_HOME/tercet`, else
/// `~/.cache/tercet`.
pub(crate) const CACHE_DIR: &str = "TERCET_CACHE_DIR";

/// Comma-separated executors that must be available: their absence is a failure instead of an
/// ignored test. `cargo xtask test` sets [`REQUIRE_DEFAULT`], or [`REQUIRE_CI`] under [`CI`],
/// unless the variable is already set.
pub(crate) const REQUIRE: &str = "TERCET_REQUIRE";

/// The default of [`REQUIRE`]: every machine can run the CPU tests.
pub(crate) const REQUIRE_DEFAULT: &str = "cpu";

/// The value of [`REQUIRE`] in CI.
pub(crate) const REQUIRE_CI: &str = "cpu,wgpu,vulkan";

/// The value of [`REQUIRE`] on the newer lavapipe, which has cooperative matrices.
pub(crate) const REQUIRE_NEWER: &str = "cpu,vulkan,coop";

/// Comma-separated name patterns: only suite tests that match a pattern run. In a pattern, `*`
/// matches any text.
pub(crate) const TESTS: &str = "TERCET_TESTS";

/// Comma-separated name patterns of suite tests to skip.
pub(crate) const SKIP: &str = "TERCET_SKIP";

/// Comma-separated executors that the suites run on; the default is every executor in the build.
pub(crate) const EXECUTORS: &str = "TERCET_EXECUTORS";

/// `AT/N`: run every `N`-th parity test of each operator, starting with index `AT`.
pub(crate) const SAMPLE: &str = "TERCET_SAMPLE";

/// `AT/N`: run the first and every `N`-th test of each suite besides the parity tests, starting with
/// index `AT`.
pub(crate) const SAMPLE_OF_SUITES: &str = "TERCET_SAMPLE_OF_SUITES";

/// `AT/N`: split the suites into `N` parts, and run part `AT` in this process.
pub(crate) const SLICE: &str = "TERCET_SLICE";

/// `1` enables the Vulkan validation layers in tests; any message then fails the test.
pub(crate) const VALIDATION: &str = "TERCET_VALIDATION";

/// Mesa's own variable. The tests set `nopt` for the system's lavapipe, unless the variable is
/// already set: it then leaves out optimizations of its LLVM code. It spends more time on compiling
/// than on running.
pub(crate) const GALLIVM_PERF: &str = "GALLIVM_PERF";

/// The folder of all-MiniLM-L6-v2: `model.safetensors`, `config.json`, `tokenizer.json`.
pub(crate) const MINILM_DIR: &str = "TERCET_MINILM_DIR";

/// The folder of the ONNX models that come from Python packages.
pub(crate) const ONNX_MODELS: &str = "TERCET_ONNX_MODELS";

/// `1` makes the tests that compare documents with the code write the documents.
pub(crate) const UPDATE_DOCS: &str = "TERCET_UPDATE_DOCS";

/// The number of threads of the CPU executor (rayon's own variable).
pub(crate) const THREADS: &str = "RAYON_NUM_THREADS";

/// The `tercet` command, for the Python tests that use its server.
pub(crate) const COMMAND: &str = "TERCET_COMMAND";

/// The Chromium that `cargo xtask web` uses; the default is the first one on the `PATH`.
pub(crate) const CHROMIUM: &str = "TERCET_CHROMIUM";
