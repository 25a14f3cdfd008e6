//! Models by name: `tercet pull`, `list`, `rm` and `show`, and names as arguments of other commands.

pub(crate) mod arguments;
pub(crate) mod list;
mod names;
pub(crate) mod pull;
mod pull_progress;
pub(crate) mod rm;
pub(crate) mod show;

use std::sync::OnceLock;

use serde::Serialize;
use tercet_hub::{CachedModel, Hub, HubSettings};

pub(crate) use arguments::rewritten;
pub(crate) use names::resolved;

use crate::error::CliError;

/// Whether the network must not be used; from the flag `--offline`.
static OFFLINE: OnceLock<bool> = OnceLock::new();

/// Flags that select a model of the hub, for all commands. [`rewritten`] turns the first two into the
/// argument of the model.
#[derive(clap::Args)]
pub(crate) struct HubArgs {
    /// Use this model of the hub, and download it if it is not in the cache; QUANT is a quantization
    /// such as Q8_0. Also -hf
    #[arg(long, global = true, value_name = "ORG/NAME[:QUANT]")]
    hf_repo: Option<String>,
    /// File of the model of --hf-repo
    #[arg(long, global = true, value_name = "FILE")]
    hf_file: Option<String>,
    /// Use models of the cache only, without the network; also HF_HUB_OFFLINE=1
    #[arg(long, global = true)]
    offline: bool,
}

impl HubArgs {
    /// Sets offline mode, and refuses flags that no command has taken. Only the first call has an
    /// effect.
    pub(crate) fn apply(&self) -> Result<(), CliError> {
        let _ = OFFLINE.set(self.offline);
        match (&self.hf_repo, &self.hf_file) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(CliError::Usage(
                "--hf-file needs --hf-repo: the repository of the file".into(),
            )),
            (Some(_), _) => Err(CliError::Usage(
                "--hf-repo goes after the name of the command".into(),
            )),
        }
    }
}

/// The hub of the environment.
fn hub() -> Result<Hub, CliError> {
    let mut settings = HubSettings::from_env()?;
    settings.is_offline |= OFFLINE.get() == Some(&true);
    Ok(Hub::new(settings))
}

/// A model of the cache, in JSON.
#[derive(Serialize)]
struct CachedModelRow {
    repo: String,
    commit: String,
    format: &'static str,
    quant: Option<String>,
    path: String,
    bytes: u64,
    files: Vec<String>,
    mmproj: Option<String>,
}

impl From<&CachedModel> for CachedModelRow {
    fn from(model: &CachedModel) -> CachedModelRow {
        let text = |path: &std::path::PathBuf| path.display().to_string();
        CachedModelRow {
            repo: model.repo.clone(),
            commit: model.commit.clone(),
            format: model.format.label(),
            quant: model.quant.clone(),
            path: text(&model.path),
            bytes: model.bytes,
            files: model.files.iter().map(text).collect(),
            mmproj: model.projector.as_ref().map(text),
        }
    }
}
