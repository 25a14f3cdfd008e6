//! Opening a model's files, with a note about ignored configuration keys.

use std::path::Path;
use std::sync::{Mutex, OnceLock};

use tercet_models::{ModelFamily, ModelFiles};

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
    if let Some((found, command)) = command_of_file(path) {
        let what = what.to_string();
        return Err(CliError::OtherCommand {
            what,
            found,
            command,
        });
    }
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

/// The kind of a file that is no model of these commands, and the command for it.
fn command_of_file(path: &Path) -> Option<(&'static str, &'static str)> {
    if !path.is_file() {
        return None;
    }
    let end = path.extension()?.to_str()?.to_ascii_lowercase();
    match &*end {
        "onnx" => Some(("an ONNX model", "`tercet run`")),
        "tercet" => Some(("a graph in text form", "`tercet run`")),
        #[cfg(feature = "splat")]
        "ply" => Some(("a 3D Gaussian splatting scene", "`tercet splat`")),
        _ => None,
    }
}

/// Refuses a model of a family that the command cannot run, with the command that can. A model of an
/// unknown family passes; its reader reports it.
pub(crate) fn check_family(
    files: &ModelFiles,
    what: &str,
    accepted: &[ModelFamily],
) -> Result<(), CliError> {
    let Ok(family) = files.family() else {
        return Ok(());
    };
    if accepted.contains(&family) {
        return Ok(());
    }
    let (found, command) = match family {
        ModelFamily::Encoder => ("a text encoder", encoder_command(files)),
        ModelFamily::Vision => ("an image model", "`tercet embed` or `tercet classify`"),
        ModelFamily::Speech => ("a speech recognizer", "`tercet transcribe`"),
        ModelFamily::TextToText => ("an encoder-decoder", "`tercet generate`"),
        ModelFamily::VisionLanguage => (
            "a vision-language model",
            "`tercet generate` or `tercet chat`",
        ),
        ModelFamily::Decoder => ("a language model", "`tercet generate` or `tercet chat`"),
    };
    let what = what.to_string();
    Err(CliError::OtherCommand {
        what,
        found,
        command,
    })
}

/// The command for a text encoder, by the class that its configuration names.
fn encoder_command(files: &ModelFiles) -> &'static str {
    let class = match files {
        ModelFiles::Hf(folder) => {
            let classes = folder.config().get("architectures");
            classes.and_then(|classes| classes[0].as_str())
        }
        ModelFiles::Gguf(_) => None,
    };
    match class {
        Some(class) if class.ends_with("ForTokenClassification") => "`tercet classify`",
        Some(class) if class.ends_with("ForSequenceClassification") => {
            "`tercet classify` or `tercet rerank`"
        }
        _ => "`tercet embed` or `tercet search`",
    }
}
