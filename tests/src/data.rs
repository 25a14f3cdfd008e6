//! The paths of test data files.

use std::path::{Path, PathBuf};

/// The environment variable with the folder of the test data. `tercet-parity` sets the variable to
/// the folder with its unpacked files.
pub const DATA_DIR: &str = "TERCET_TEST_DATA";

/// The path of a file in `tests/data`.
pub fn data(path: &str) -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let dir = std::env::var_os(DATA_DIR).map_or_else(beside, PathBuf::from);
    dir.join(path)
}
