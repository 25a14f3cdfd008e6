//! The environment variables of the chores and of the tests, in one place.
//!
//! The tests read [`REQUIRE`], [`MINILM_DIR`] and [`VALIDATION`]; `cargo xtask test` sets them. Without
//! them (a plain `cargo test`) a test whose model or device is missing reports itself as ignored and
//! says why.

/// Set by CI services and by `.ci/run`: nothing may be missing, Vulkan is validated.
pub(crate) const CI: &str = "CI";

/// Where fetched files and tools are kept; without it `$XDG_CACHE_HOME/tercet`, else
/// `~/.cache/tercet`.
pub(crate) const CACHE_DIR: &str = "TERCET_CACHE_DIR";

/// The executors that must be there, separated by commas: what is missing fails instead of being
/// ignored. `cargo xtask test` sets [`REQUIRE_DEFAULT`], or [`REQUIRE_CI`] under [`CI`], unless the
/// variable is set already.
pub(crate) const REQUIRE: &str = "TERCET_REQUIRE";

/// See [`REQUIRE`]: any machine runs the tests of the CPU.
pub(crate) const REQUIRE_DEFAULT: &str = "cpu";

/// See [`REQUIRE`].
pub(crate) const REQUIRE_CI: &str = "cpu,wgpu,vulkan";

/// See [`REQUIRE`]: on the newer lavapipe, which has cooperative matrices.
pub(crate) const REQUIRE_NEWER: &str = "cpu,vulkan,coop";

/// Patterns of names, separated by commas: of the suites only tests that match one of them. A pattern is parts of a name
/// with `*` between them.
pub(crate) const TESTS: &str = "TERCET_TESTS";

/// Patterns of names of tests that are left out.
pub(crate) const SKIP: &str = "TERCET_SKIP";

/// The executors that the suites run on, separated by commas; all of the build without it.
pub(crate) const EXECUTORS: &str = "TERCET_EXECUTORS";

/// `AT/N`: of each operator's parity tests one of `N`, from the one at `AT` on.
pub(crate) const SAMPLE: &str = "TERCET_SAMPLE";

/// `AT/N`: the part of the suites that a process runs, of N.
pub(crate) const SLICE: &str = "TERCET_SLICE";

/// `1` turns the Vulkan validation layers on in tests; any message then fails the test.
pub(crate) const VALIDATION: &str = "TERCET_VALIDATION";

/// The folder of all-MiniLM-L6-v2: `model.safetensors`, `config.json`, `tokenizer.json`.
pub(crate) const MINILM_DIR: &str = "TERCET_MINILM_DIR";

/// The folder of the ONNX models that packages carry.
pub(crate) const ONNX_MODELS: &str = "TERCET_ONNX_MODELS";

/// `1` makes the tests that compare documents with the code write them.
pub(crate) const UPDATE_DOCS: &str = "TERCET_UPDATE_DOCS";

/// The number of threads of the CPU executor (rayon's own variable).
pub(crate) const THREADS: &str = "RAYON_NUM_THREADS";

/// The `tercet` command, for the tests of the Python module that talk to its server.
pub(crate) const COMMAND: &str = "TERCET_COMMAND";

/// The Chromium that `cargo xtask web` tests in; without it the first on the `PATH`.
pub(crate) const CHROMIUM: &str = "TERCET_CHROMIUM";
