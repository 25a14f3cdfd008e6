//! Where the files of tests lie.

use std::path::{Path, PathBuf};

/// Set by the program for any machine, which brings the files with it.
pub const DATA_DIR: &str = "TERCET_TEST_DATA";

/// A file of `tests/data`.
pub fn data(path: &str) -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let dir = std::env::var_os(DATA_DIR).map_or_else(beside, PathBuf::from);
    dir.join(path)
}
