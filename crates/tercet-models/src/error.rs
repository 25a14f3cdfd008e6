//! One error for callers that open models of any kind.

use crate::adapter::AdapterError;
use crate::builder::ModelError;
use crate::config::ConfigError;
use crate::dataset::DataError;
use crate::gguf::GgufError;
use crate::hf::HfError;
use crate::mmap::FileError;
use crate::picture::PictureError;
use crate::safetensors::SafeTensorsError;
use crate::save::SaveError;
use crate::search::SearchError;
use crate::speech::SpeechError;
#[cfg(feature = "splat")]
use crate::splat::SplatError;
use crate::tokenizer::TokenizerError;
use crate::weight::WeightError;

/// Any error of this crate; `source` is the reader's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A GGUF file was refused.
    #[error("GGUF file")]
    Gguf(#[from] GgufError),
    /// A safetensors file was refused.
    #[error("safetensors file")]
    SafeTensors(#[from] SafeTensorsError),
    /// A Hugging Face folder was refused.
    #[error("model folder")]
    Hf(#[from] HfError),
    /// A configuration was refused.
    #[error("model configuration")]
    Config(#[from] ConfigError),
    /// A tokenizer could not be built or used.
    #[error("tokenizer")]
    Tokenizer(#[from] TokenizerError),
    /// A tensor of a file could not be used.
    #[error("weight")]
    Weight(#[from] WeightError),
    /// Training data or the chat template of a model was refused.
    #[error("training data")]
    Data(#[from] DataError),
    /// A model could not be built or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An adapter was refused.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A model could not be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// A picture was refused.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A folder was not indexed, or an index not used.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// A scene of Gaussians was refused or could not be drawn.
    #[cfg(feature = "splat")]
    #[error("scene of Gaussians")]
    Splat(#[from] SplatError),
    /// Speech was not recognized.
    #[error(transparent)]
    Speech(#[from] SpeechError),
    /// An audio file was refused.
    #[cfg(feature = "audio")]
    #[error(transparent)]
    Audio(#[from] crate::speech::audio::AudioError),
    /// There is no builder for the architecture.
    #[error(
        "architecture `{name}` is not supported; supported: {}",
        crate::config::supported()
    )]
    Architecture {
        /// The architecture.
        name: String,
    },
}
