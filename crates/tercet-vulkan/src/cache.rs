//! The tuning file next to the pipeline cache.

use std::fs;
use std::path::Path;

use tercet_plan::TuningTable;
use tercet_spirv::{DriverIdentity, files};

/// The name of the tuning file of a device and driver.
pub(crate) fn tuning_name(identity: &DriverIdentity) -> String {
    format!("tuning-{}.txt", identity.file_stem())
}

/// Loads a tuning table; `None` if the file is missing or damaged.
pub(crate) fn load_tuning(file: &Path) -> Option<TuningTable> {
    let text = fs::read_to_string(file).ok()?;
    match text.parse() {
        Ok(tuning) => Some(tuning),
        Err(e) => {
            tracing::warn!("{}: {e}", file.display());
            None
        }
    }
}

/// Replaces the tuning table in a file.
pub(crate) fn store_tuning(file: &Path, tuning: &TuningTable) -> std::io::Result<()> {
    files::replace(file, tuning.to_string().as_bytes())
}
