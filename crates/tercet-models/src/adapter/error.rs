//! Why an adapter was refused.

use std::path::PathBuf;

use tercet::{DType, TensorError};

use crate::config::ConfigError;
use crate::gguf::GgufError;
use crate::mmap::FileError;
use crate::safetensors::SafeTensorsError;
use crate::save::SaveError;
use crate::weight::WeightError;

/// Why an adapter was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum AdapterError {
    /// A file could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file could not be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// `adapter_config.json` is not JSON.
    #[error("{path}: not valid JSON", path = path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// `adapter_config.json`, or the metadata of a GGUF file, asks for something else.
    #[error("{path}: not a supported adapter", path = path.display())]
    Config { path: PathBuf, source: ConfigError },
    /// The file of tensors is not sound.
    #[error("{path}: not a sound safetensors file", path = path.display())]
    SafeTensors {
        path: PathBuf,
        source: SafeTensorsError,
    },
    /// The GGUF file is not sound.
    #[error("{path}: not a sound GGUF file", path = path.display())]
    Gguf { path: PathBuf, source: GgufError },
    /// A tensor is stored in a way that is not read.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The bytes do not make a tensor.
    #[error("tensor `{tensor}` of the adapter")]
    Tensor { tensor: String, source: TensorError },
    /// A tensor that is no part of a low-rank adapter.
    #[error("the adapter's tensor `{tensor}` is {reason}")]
    Stray {
        tensor: String,
        reason: &'static str,
    },
    /// One of two matrices is missing.
    #[error("the adapter has `{tensor}`, but not `{missing}`; the file is not whole")]
    Incomplete { tensor: String, missing: String },
    /// There is nothing in it.
    #[error("the adapter has no low-rank matrices")]
    Empty,
    /// The model has no such projection.
    #[error(
        "the adapter changes `{module}`, which is no projection of this model; it was made for another one{hint}"
    )]
    UnknownTarget { module: String, hint: String },
    /// No projection of the model has this name.
    #[error("no projection of the model is called `{target}`; there are: {known}")]
    NoTarget { target: String, known: String },
    /// A matrix of another shape.
    #[error("the adapter's tensor `{tensor}` is {found:?}; expected {expected}")]
    Shape {
        tensor: String,
        found: Vec<usize>,
        expected: String,
    },
    /// A matrix of another rank.
    #[error("the adapter's tensor `{tensor}` has rank {found}; expected {expected}")]
    Rank {
        tensor: String,
        found: usize,
        expected: usize,
    },
    /// A matrix of another dtype.
    #[error("the adapter's tensor `{tensor}` is {found}; expected f32, f16 or bf16")]
    DType { tensor: String, found: DType },
    /// A number out of its range.
    #[error("{what} is {found}; expected {expected}", expected = "a finite number")]
    Number { what: String, found: f64 },
    /// A rank of zero, or more than a matrix has.
    #[error("a rank of {rank}; expected 1 to {most}")]
    BadRank { rank: usize, most: usize },
    /// Something that is not done.
    #[error("{0}")]
    Unsupported(String),
}
