//! Errors of the weights and JSON files of a folder.

use std::path::PathBuf;

use crate::mmap::FileError;
use crate::safetensors::SafeTensorsError;

/// The reason why the weights or a JSON file of a folder are rejected.
///
/// ```
/// use tercet_files::{FolderError, HfWeights};
/// let error = HfWeights::open("no/such/folder").unwrap_err();
/// assert!(matches!(error, FolderError::NoWeights { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum FolderError {
    /// A file of the folder cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not valid JSON of the expected form.
    #[error("{path}: not valid JSON", path = path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// A weight file is invalid.
    #[error("{path}: invalid safetensors file", path = path.display())]
    Weights {
        path: PathBuf,
        source: SafeTensorsError,
    },
    /// The folder has no weights, or only in an unsupported format.
    #[error("the folder {path} has neither model.safetensors nor model.safetensors.index.json{hint}", path = path.display())]
    NoWeights { path: PathBuf, hint: String },
    /// The index has no tensors.
    #[error("{path}: `weight_map` has no tensors", path = path.display())]
    EmptyIndex { path: PathBuf },
    /// The index has a tensor twice.
    #[error("{path}: `weight_map` has the tensor `{tensor}` twice", path = path.display())]
    DuplicateInIndex { path: PathBuf, tensor: String },
    /// The index has a shard that is not a plain file name.
    #[error(
        "{path}: invalid shard name `{shard}` of tensor `{tensor}`; expected a file name without \
         folders", path = path.display()
    )]
    UnsafeShardName {
        path: PathBuf,
        shard: String,
        tensor: String,
    },
    /// A shard in the index does not exist.
    #[error("{path}: the shard is missing (the index has it for tensor `{tensor}`); download it", path = path.display())]
    MissingShard { path: PathBuf, tensor: String },
    /// A tensor is missing from the shard that the index names.
    #[error("{path}: tensor `{tensor}` is missing, but the index assigns it to this file", path = path.display())]
    NotInShard { path: PathBuf, tensor: String },
    /// A shard has a tensor that the index does not assign to it.
    #[error(
        "{path}: has the tensor `{tensor}`, which the index has {elsewhere}; shards and index \
         are not of the same download", path = path.display()
    )]
    StrayTensor {
        path: PathBuf,
        tensor: String,
        elsewhere: String,
    },
    /// A required tensor is missing.
    #[error("the model has no tensor `{tensor}`")]
    NoSuchTensor { tensor: String },
}
