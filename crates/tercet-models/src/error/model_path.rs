//! Errors of the location of a model.

use std::path::PathBuf;

use tercet_files::FileError;

/// The reason why a path or name leads to no model.
///
/// ```
/// use tercet_models::{Error, ModelFiles, ModelPathError};
/// let error = ModelFiles::open("no-such-org/no-such-model").unwrap_err();
/// assert!(matches!(error, Error::Path(ModelPathError::NotInHub { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum ModelPathError {
    /// A file or folder cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A folder has several GGUF files that are not parts of one model.
    #[error("{path}: the folder has {count} GGUF models: {names}; give the path of one",
        path = path.display())]
    SeveralGguf {
        path: PathBuf,
        count: usize,
        names: String,
    },
    /// There is no such path, and no such model in the cache of the hub.
    #[error("{name}: no such file or folder, and no such model in the hub's cache {cache}; \
        download it with `tercet pull {name}`", cache = cache.display())]
    NotInHub { name: String, cache: PathBuf },
    /// The cache has a model, but not the file or revision.
    #[error("{path}: {reason}; download it with `tercet pull {name}`", path = path.display())]
    IncompleteInHub {
        path: PathBuf,
        name: String,
        reason: String,
    },
    /// There is no such model in Ollama's store.
    #[error("{name}: Ollama's store has no manifest {path}; download it with `ollama pull {model}`",
        path = path.display())]
    NotInOllama {
        name: String,
        model: String,
        path: PathBuf,
    },
    /// A manifest of Ollama's store is invalid or describes an unsupported model.
    #[error("{path}: {reason}", path = path.display())]
    BadManifest { path: PathBuf, reason: String },
    /// The folder of a store is unknown.
    #[error("{name}: {variable} is not set, and neither is the home folder; set {variable}")]
    NoStore {
        name: String,
        variable: &'static str,
    },
}
