//! The text that `generate` begins with: an argument, standard input, or a file; as it is, or as one turn of a
//! conversation.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use tercet_models::ModelFiles;
use tercet_models::Tokenizer;
use tercet_models::dataset::template::Value;
use tercet_models::dataset::{ChatTemplate, Message, Role};

use crate::error::CliError;

const EMBEDDED_PROMPT: &str = "Ownership is";

/// Bytes of a text at most: what is longer fits no context.
const MAX_TEXT: u64 = 64 << 20;

#[derive(clap::Args)]
pub(crate) struct Source {
    /// The beginning of the text; `-` reads standard input
    #[arg(short, long, default_value = EMBEDDED_PROMPT, value_name = "TEXT")]
    prompt: String,
    /// A file with the beginning of the text; one line end at its end is left out
    #[arg(short, long, value_name = "PATH", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Write the answer to the prompt: it is one turn of a conversation in the model's chat template
    #[arg(long)]
    pub(crate) chat: bool,
    /// A chat template in place of the model's, in Jinja
    #[arg(long, value_name = "PATH", requires = "chat")]
    template: Option<PathBuf>,
    /// With --chat: what the model is told before the conversation
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
}

/// What goes into the model.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    /// The tokens that end the text.
    pub(crate) ends: Vec<u32>,
}

impl Source {
    /// The text.
    pub(crate) fn read(&self) -> Result<String, CliError> {
        match (&self.file, self.prompt.as_str()) {
            (Some(path), _) => {
                let mut text = read_text(path)?;
                if text.ends_with('\n') {
                    text.truncate(text.len() - 1);
                    if text.ends_with('\r') {
                        text.truncate(text.len() - 1);
                    }
                }
                Ok(text)
            }
            (None, "-") => bounded(std::io::stdin(), Path::new("standard input")),
            (None, text) => Ok(text.to_string()),
        }
    }

    /// Its tokens.
    pub(crate) fn tokens(
        &self,
        text: &str,
        files: &ModelFiles,
        tokenizer: &Tokenizer,
        eos: &[u32],
        model: Option<&Path>,
    ) -> Result<Prompt, CliError> {
        if !self.chat {
            let ids = tokenizer.encode(text, true);
            let ids = ids.map_err(CliError::model("cannot process the prompt"))?;
            let ends = eos.to_vec();
            return Ok(Prompt { ids, ends });
        }
        let template = template(self.template.as_deref(), files, tokenizer, model)?;
        if spells_special(tokenizer, text)? {
            return Err(CliError::Usage(SPELLS.into()));
        }
        let system = self.system.iter().map(|s| Message::new(Role::System, s));
        let mut messages: Vec<Message> = system.collect();
        messages.push(Message::new(Role::User, text));
        let ids = tokenizer.encode(&render(&template, &messages)?, false);
        Ok(Prompt {
            ids: ids.map_err(CliError::model("cannot process the prompt"))?,
            ends: template.ends(tokenizer, eos),
        })
    }
}

/// Why a message is refused.
pub(crate) const SPELLS: &str =
    "the message spells a special token of the model, which could end its turn; leave it out";

/// Whether a message would be read with special tokens in it.
///
/// What a message says is read together with what the template puts around it: it could end its own turn and begin another.
pub(crate) fn spells_special(tokenizer: &Tokenizer, message: &str) -> Result<bool, CliError> {
    let failed = || CliError::model("cannot process the message");
    let plain = tokenizer.encode(message, false).map_err(failed())?;
    let literal = tokenizer.encode_literally(message, false);
    Ok(plain != literal.map_err(failed())?)
}

/// A conversation up to where the answer begins.
pub(crate) fn render(template: &ChatTemplate, messages: &[Message]) -> Result<String, CliError> {
    let rendered = template.render(messages, &Value::None, true);
    let rendered = rendered.map_err(tercet_models::dataset::DataError::from);
    Ok(rendered
        .map_err(CliError::model("cannot write the conversation"))?
        .text)
}

/// The chat template of a file, else the model's own.
pub(crate) fn template(
    file: Option<&Path>,
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    model: Option<&Path>,
) -> Result<ChatTemplate, CliError> {
    let source = file.map(read_text).transpose()?;
    let what = match (file, model) {
        (Some(path), _) => format!("cannot use the chat template {}", path.display()),
        (None, Some(model)) => format!("cannot use the chat template of {}", model.display()),
        (None, None) => "cannot use the chat template of the embedded model".to_string(),
    };
    let template = ChatTemplate::own(files, tokenizer, source.as_deref());
    template
        .map_err(CliError::model(what))?
        .ok_or_else(|| CliError::NoTemplate {
            model: model.map_or_else(
                || "the embedded model".to_string(),
                |m| m.display().to_string(),
            ),
        })
}

fn read_text(path: &Path) -> Result<String, CliError> {
    let file = File::open(path).map_err(|source| CliError::File {
        path: path.to_path_buf(),
        source,
    })?;
    bounded(file, path)
}

fn bounded(from: impl Read, path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = from.take(MAX_TEXT + 1).read_to_string(&mut text);
    let read = read.map_err(|source| CliError::File {
        path: path.to_path_buf(),
        source,
    })?;
    if read as u64 > MAX_TEXT {
        let (path, limit) = (path.display(), MAX_TEXT >> 20);
        return Err(CliError::Usage(format!(
            "{path} holds more than {limit} MiB of text, which fits no context; give less"
        )));
    }
    Ok(text)
}
