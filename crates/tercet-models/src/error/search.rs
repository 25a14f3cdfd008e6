//! Errors of search.

use std::path::PathBuf;

use tercet_files::{SafeTensorsError, SaveError};

/// The reason why a folder cannot be indexed, or an index cannot be used.
///
/// ```
/// use tercet_models::search::{SearchError, SearchIndex};
/// let error = SearchIndex::open("no/such.index").unwrap_err();
/// assert!(matches!(error, SearchError::NotFound { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum SearchError {
    /// There is no such file.
    #[error(
        "{path}: no such index; create it with `tercet search index -m MODEL FOLDER -o {path}`",
        path = path.display()
    )]
    NotFound { path: PathBuf },
    /// The file is not a safetensors file.
    #[error("{path}: not a readable index", path = path.display())]
    Unreadable {
        path: PathBuf,
        source: SafeTensorsError,
    },
    /// The file is a safetensors file, but not a valid index.
    #[error("{path}: invalid index: {reason}; create it again", path = path.display())]
    Damaged { path: PathBuf, reason: String },
    /// The index has another format version.
    #[error(
        "{path}: index version {version} is not supported, expected {known}; remove the file and create it again",
        path = path.display()
    )]
    Version {
        path: PathBuf,
        version: u64,
        known: u64,
    },
    /// The index belongs to another model.
    #[error("{path}: the index was created with another model; use that model, or create the \
     index again", path = path.display())]
    OtherModel { path: PathBuf },
    /// The index belongs to another folder.
    #[error("{path}: the index belongs to {folder}; use another file for this folder", path = path.display(), folder = folder.display())]
    OtherFolder { path: PathBuf, folder: PathBuf },
    /// The index has other settings.
    #[error("{path}: the index was created with {made}, not with {asked}; use the same settings, \
     or create the index again", path = path.display())]
    OtherSettings {
        path: PathBuf,
        made: String,
        asked: String,
    },
    /// The index has vectors of another pooling.
    #[error("{path}: the index was created with {made} pooling, not with {asked}; leave out the \
     pooling of the query, or create the index again", path = path.display())]
    OtherPooling {
        path: PathBuf,
        made: &'static str,
        asked: &'static str,
    },
    /// The folder has nothing to index.
    #[error(
        "{path}: has no {unit} to index; name a folder with files of this kind",
        path = path.display()
    )]
    NothingIndexed { path: PathBuf, unit: &'static str },
    /// The index has no vectors.
    #[error(
        "{path}: the index has no vectors; create it again with `tercet search index`",
        path = path.display()
    )]
    NoVectors { path: PathBuf },
    /// The folder cannot be read.
    #[error("{path}: cannot be read", path = path.display())]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A passage is longer than the model's maximum, and cannot be cut.
    #[error(
        "{path}, line {line}: the passage has {length} with its prompt, but the model reads at most \
         {most} tokens; shorten the prompt",
        path = path.display()
    )]
    TooLong {
        path: PathBuf,
        line: usize,
        length: String,
        most: usize,
    },
    /// The model produced a zero or non-finite vector, which has no direction.
    #[error("the vector of {what} is not finite, or zero")]
    NoDirection { what: String },
    /// The index cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
}
