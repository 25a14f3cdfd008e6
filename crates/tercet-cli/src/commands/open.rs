//! Opening a model's files, with a note about ignored configuration keys.

use std::path::Path;
use std::sync::{Mutex, OnceLock};

use tercet_models::ModelFiles;

use crate::error::CliError;
use crate::output;

/// Whether keys that would be ignored are an error; from the flag `--strict`.
static STRICT: OnceLock<bool> = OnceLock::new();

/// The notes so far: a command that opens a model several times prints its note once.
static NOTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Sets the rule for keys that would be ignored. Only the first call has an effect.
pub(crate) fn set_strict(strict: bool) {
    let _ = STRICT.set(strict);
}

/// Opens a model's files. One note names the configuration keys that are ignored; with `--strict`
/// they are an error. `what` is the message for errors.
pub(crate) fn open_files(path: &Path, what: &str) -> Result<ModelFiles, CliError> {
    let files = ModelFiles::open(path).map_err(CliError::model(what))?;
    // The command reads the configuration again, and then reports its errors.
    let keys = files.ignored_keys().unwrap_or_default();
    if keys.is_empty() {
        return Ok(files);
    }
    let file = match files {
        ModelFiles::Gguf(_) => "metadata",
        ModelFiles::Hf(_) => "config.json",
    };
    let keys = keys.join(", ");
    if STRICT.get() == Some(&true) {
        return Err(CliError::IgnoredKeys {
            what: what.to_string(),
            file,
            keys,
        });
    }
    let note = format!("note: {file}: ignored keys that change nothing: {keys}");
    if let Ok(mut noted) = NOTED.lock()
        && !noted.contains(&note)
    {
        output::print_note(format_args!("{note}"));
        noted.push(note);
    }
    Ok(files)
}
