//! The file of measurements beside the pipeline cache.

use std::fs;
use std::path::Path;

use tercet_plan::TuningTable;
use tercet_spirv::{DriverIdentity, files};

/// The name of the file of measurements for a device and driver.
pub(crate) fn tuning_name(identity: &DriverIdentity) -> String {
    format!("tuning-{}.txt", identity.file_stem())
}

/// The measurements in a file; one that is missing or damaged is as good as none.
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

/// Replaces the measurements in a file.
pub(crate) fn store_tuning(file: &Path, tuning: &TuningTable) -> std::io::Result<()> {
    files::replace(file, tuning.to_string().as_bytes())
}
