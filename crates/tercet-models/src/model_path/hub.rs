//! The local cache of the Hugging Face hub: `models--ORG--NAME` with `refs/BRANCH`, which has the
//! name of a revision, and `snapshots/REVISION`, whose files are links to `blobs`.

use std::path::{Path, PathBuf};

use crate::error::ModelPathError;
use tercet_files::mmap::read_small;

/// Maximum size of a file in `refs`, in bytes; a revision has 40.
const MAX_REF_BYTES: u64 = 1024;

/// Whether a text can be an organization or the name of a model on the hub.
pub(super) fn is_name(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && !text.starts_with('.') && text.chars().all(known) && !text.contains("--")
}

/// The snapshot of a model: that of `refs/main`, or the only one. `None` if the cache does not have
/// the model.
pub(super) fn snapshot(
    cache: &Path,
    org: Option<&str>,
    name: &str,
) -> Result<Option<PathBuf>, ModelPathError> {
    if !is_name(name) {
        return Ok(None);
    }
    let (folder, repo) = match org {
        Some(org) => (format!("models--{org}--{name}"), format!("{org}/{name}")),
        None => (format!("models--{name}"), name.to_string()),
    };
    let model = cache.join(folder);
    if !model.is_dir() {
        return Ok(None);
    }
    let snapshots = model.join("snapshots");
    let incomplete = |path: PathBuf, reason: String| {
        Err(ModelPathError::IncompleteInHub {
            path,
            name: repo.clone(),
            reason,
        })
    };
    let main = model.join("refs").join("main");
    if main.is_file() {
        let revision = read_small(&main, MAX_REF_BYTES)?;
        let revision = String::from_utf8_lossy(&revision);
        let revision = revision.trim();
        if !is_name(revision) {
            return incomplete(main, "it has no name of a revision".to_string());
        }
        let found = snapshots.join(revision);
        return match found.is_dir() {
            true => Ok(Some(found)),
            false => incomplete(found, "no such snapshot".to_string()),
        };
    }
    let mut all: Vec<PathBuf> = std::fs::read_dir(&snapshots)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    match (all.pop(), all.len()) {
        (Some(only), 0) => Ok(Some(only)),
        (None, _) => incomplete(snapshots, "the model has no snapshot".to_string()),
        (Some(_), others) => {
            let reason = format!("{} snapshots, and no refs/main", others + 1);
            incomplete(snapshots, reason)
        }
    }
}
