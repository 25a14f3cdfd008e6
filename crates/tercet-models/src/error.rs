//! The common error type for callers that open models of any type.

#[cfg(feature = "audio")]
pub(crate) mod audio;
mod model_path;
mod search;
mod speech;

use crate::family::ModelFamily;
use tercet_files::{FileError, FolderError, GgufError, SafeTensorsError, SaveError, WeightError};
use tercet_networks::ModelError;
use tercet_networks::config::ConfigError;
use tercet_networks::hf::HfError;
use tercet_networks::image::ImageError;
use tercet_networks::low_rank::AdapterError;
use tercet_text::dataset::{ChatTemplateError, DataError};
use tercet_text::tokenizer::TokenizerError;

#[cfg(feature = "audio")]
pub use audio::AudioError;
pub use model_path::ModelPathError;
pub use search::SearchError;
pub use speech::SpeechError;

/// Any error of this crate; `source` is the error of the specific reader.
///
/// ```
/// use tercet_models::{Error, ModelFiles};
/// let error = ModelFiles::open("no/such/model.gguf").unwrap_err();
/// assert!(matches!(error, Error::Gguf(_)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A path or name leads to no model.
    #[error(transparent)]
    Path(#[from] ModelPathError),
    /// A GGUF file is invalid or unsupported.
    #[error("GGUF file")]
    Gguf(#[from] GgufError),
    /// A safetensors file is invalid.
    #[error("safetensors file")]
    SafeTensors(#[from] SafeTensorsError),
    /// A Hugging Face folder is invalid or unsupported.
    #[error("model folder")]
    Hf(#[from] HfError),
    /// A configuration is invalid or unsupported.
    #[error("model configuration")]
    Config(#[from] ConfigError),
    /// A tokenizer cannot be created or used.
    #[error("tokenizer")]
    Tokenizer(#[from] TokenizerError),
    /// A tensor of a file cannot be used.
    #[error("weight")]
    Weight(#[from] WeightError),
    /// Training data, or the chat template of a model, is invalid.
    #[error("training data")]
    Data(#[from] DataError),
    /// A model cannot be built or run.
    #[error(transparent)]
    Model(ModelError),
    /// An adapter is invalid or unsupported.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A model cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// An image is invalid or unsupported.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A folder cannot be indexed, or an index cannot be used.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// A Gaussian splatting scene is invalid or cannot be rendered.
    #[cfg(feature = "splat")]
    #[error("Gaussian splatting scene")]
    Splat(#[from] tercet_splat::SplatError),
    /// Speech recognition failed.
    #[error(transparent)]
    Speech(#[from] SpeechError),
    /// An audio file is invalid or unsupported.
    #[cfg(feature = "audio")]
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// No device can be opened.
    #[error(transparent)]
    Device(#[from] tercet::DeviceError),
    /// The model is of a family that this type does not run.
    #[error(
        "`{wanted}` does not run {}; open it with {}", found.describe(), found.opened_with()
    )]
    OtherFamily {
        /// The type that was to open the model.
        wanted: &'static str,
        /// The family of the model.
        found: ModelFamily,
    },
    /// The architecture has no builder.
    #[error(
        "architecture `{name}` is not supported; supported: {}",
        tercet_networks::config::near_any(name)
    )]
    Architecture {
        /// The name of the architecture.
        name: String,
    },
}

impl From<FolderError> for Error {
    fn from(error: FolderError) -> Error {
        Error::Hf(error.into())
    }
}

impl From<ChatTemplateError> for Error {
    fn from(error: ChatTemplateError) -> Error {
        match error {
            ChatTemplateError::File(error) => Error::File(error),
            ChatTemplateError::Folder(error) => error.into(),
            ChatTemplateError::Gguf(error) => Error::Gguf(error),
            ChatTemplateError::Data(error) => Error::Data(error),
        }
    }
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Error {
        match error {
            ModelError::Tokenizer(error) => Error::Tokenizer(error),
            ModelError::Image(error) => Error::Image(error),
            error => Error::Model(error),
        }
    }
}
