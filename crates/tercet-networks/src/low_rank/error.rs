//! Errors of reading, writing and applying adapters.

use std::path::PathBuf;

use tercet::{DType, TensorError};

use crate::config::ConfigError;
use tercet_files::FileError;
use tercet_files::gguf::GgufError;
use tercet_files::safetensors::SafeTensorsError;
use tercet_files::weight::WeightError;
use tercet_files::writing::SaveError;

/// Error of reading, writing or applying an adapter.
///
/// ```
/// use tercet::Tensor;
/// use tercet_networks::{AdapterError, LowRank};
/// let a = Tensor::from_slice(&[2, 3], &[0f32; 6])?;
/// let b = Tensor::from_slice(&[4, 1], &[0f32; 4])?;
/// let error = LowRank::new("q_proj", a, b, 2.0).unwrap_err();
/// assert!(matches!(error, AdapterError::Rank { found: 1, expected: 2, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// `adapter_config.json` is not valid JSON.
    #[error("{path}: not valid JSON", path = path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// `adapter_config.json` or the GGUF metadata describes an unsupported adapter.
    #[error("{path}: not a supported adapter", path = path.display())]
    Config { path: PathBuf, source: ConfigError },
    /// The safetensors file is invalid.
    #[error("{path}: invalid safetensors file", path = path.display())]
    SafeTensors {
        path: PathBuf,
        source: SafeTensorsError,
    },
    /// The GGUF file is invalid.
    #[error("{path}: invalid GGUF file", path = path.display())]
    Gguf { path: PathBuf, source: GgufError },
    /// A tensor has an unsupported storage format.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The bytes of a tensor do not match its dtype and shape.
    #[error("tensor `{tensor}` of the adapter")]
    Tensor { tensor: String, source: TensorError },
    /// A tensor does not belong to a low-rank adapter.
    #[error("the adapter's tensor `{tensor}` is {reason}")]
    Stray {
        tensor: String,
        reason: &'static str,
    },
    /// One of the two matrices of a module is missing.
    #[error("the adapter has `{tensor}`, but not `{missing}`; the file is incomplete")]
    Incomplete { tensor: String, missing: String },
    /// The adapter has no low-rank matrices.
    #[error("the adapter has no low-rank matrices")]
    Empty,
    /// The model has no projection with the adapter's module name.
    #[error(
        "the adapter targets `{module}`, which is not a projection of this model; it was trained for another model{hint}"
    )]
    UnknownTarget { module: String, hint: String },
    /// The model has no projection with the requested target name.
    #[error("the model has no projection `{target}`; expected one of: {known}")]
    NoTarget { target: String, known: String },
    /// A matrix has an unexpected shape.
    #[error("the adapter's tensor `{tensor}` is {found:?}; expected {expected}")]
    Shape {
        tensor: String,
        found: Vec<usize>,
        expected: String,
    },
    /// A matrix has an unexpected rank.
    #[error("the adapter's tensor `{tensor}` has rank {found}; expected {expected}")]
    Rank {
        tensor: String,
        found: usize,
        expected: usize,
    },
    /// A matrix has an unsupported dtype.
    #[error("the adapter's tensor `{tensor}` is {found}; expected f32, f16 or bf16")]
    DType { tensor: String, found: DType },
    /// A number is not finite.
    #[error("{what} is {found}; expected {expected}", expected = "a finite number")]
    Number { what: String, found: f64 },
    /// The rank is zero, or larger than a matrix dimension.
    #[error("rank {rank} is out of range; expected 1 to {most}")]
    BadRank { rank: usize, most: usize },
    /// The operation is not supported for this adapter.
    #[error("{0}")]
    Unsupported(String),
}
