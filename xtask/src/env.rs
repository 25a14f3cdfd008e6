//! The environment variables of the chores and of the tests, in one place.
//!
//! The tests read [`REQUIRE`] and [`MINILM_DIR`]; `cargo xtask test` sets both. Without them (a
//! plain `cargo test`) a test whose model or device is missing reports itself as ignored and says
//! why.

/// Where fetched files and tools are kept; without it `$XDG_CACHE_HOME/tercet`, else
/// `~/.cache/tercet`.
pub(crate) const CACHE_DIR: &str = "TERCET_CACHE_DIR";

/// The executors that must be there, separated by commas: what is missing fails instead of being
/// ignored. `cargo xtask test` sets [`REQUIRE_DEFAULT`] unless the variable is set already.
pub(crate) const REQUIRE: &str = "TERCET_REQUIRE";

/// See [`REQUIRE`].
pub(crate) const REQUIRE_DEFAULT: &str = "cpu";

/// The folder of all-MiniLM-L6-v2: `model.safetensors`, `config.json`, `tokenizer.json`.
pub(crate) const MINILM_DIR: &str = "TERCET_MINILM_DIR";

/// The number of threads of the CPU executor (rayon's own variable).
pub(crate) const THREADS: &str = "RAYON_NUM_THREADS";
