//! The tuning file next to the pipeline cache.

use std::fs;
use std::path::Path;

use tercet_ir::SwitchError;
use tercet_plan::{TuningError, TuningTable};
use tercet_spirv::{DriverIdentity, files};

/// The name of the tuning file of a device and driver.
pub(crate) fn tuning_name(identity: &DriverIdentity) -> String {
    format!("tuning-{}.txt", identity.file_stem())
}

/// The name of the file with the kernel variants that a device and driver refuse.
pub(crate) fn refused_name(identity: &DriverIdentity) -> String {
    format!("refused-{}.txt", identity.file_stem())
}

/// Loads a tuning table; an empty one if the file is missing or damaged.
///
/// # Errors
/// [`SwitchError`] if the file has an invalid switch, which only a user can have written.
pub(crate) fn load_tuning(file: &Path) -> Result<TuningTable, SwitchError> {
    let Ok(text) = fs::read_to_string(file) else {
        return Ok(TuningTable::default());
    };
    match text.parse::<TuningTable>() {
        Ok(tuning) => Ok(tuning),
        Err(TuningError {
            switch: Some(switch),
            ..
        }) => Err(switch),
        Err(e) => {
            tracing::warn!("{}: {e}", file.display());
            Ok(TuningTable::default())
        }
    }
}

/// Replaces the tuning table in a file.
pub(crate) fn store_tuning(file: &Path, tuning: &TuningTable) -> std::io::Result<()> {
    files::replace(file, tuning.to_string().as_bytes())
}
