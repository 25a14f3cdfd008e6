//! The flags of the chat template.

use std::path::{Path, PathBuf};

use super::super::sampling_args::text_of;
use crate::error::CliError;

#[derive(clap::Args)]
pub(crate) struct ChatTemplateArgs {
    /// Chat template (Jinja) instead of the model's, or `chatml`. Other names of built-in templates are
    /// not known
    #[arg(long, value_name = "TEMPLATE")]
    chat_template: Option<String>,
    /// File with the chat template
    #[arg(long, value_name = "FILE", conflicts_with = "chat_template")]
    chat_template_file: Option<PathBuf>,
}

impl ChatTemplateArgs {
    /// The template of the flags.
    pub(crate) fn source(&self) -> Result<Option<String>, CliError> {
        let file = self.chat_template_file.as_deref();
        match file {
            None => Ok(self.chat_template.clone()),
            Some(path) if path != Path::new("-") => text_of("", Some(path)).map(Some),
            Some(_) => text_of("-", None).map(Some),
        }
    }
}
