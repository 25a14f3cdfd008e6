//! Model configurations: what a builder must know beyond the weights.
//!
//! Both sources, a Hugging Face `config.json` and GGUF metadata, give the same types. The rule
//! of this module: a field that changes the result is honoured or refused, never ignored. A
//! reader therefore marks every field it looks at, and at the end every field that is neither
//! marked nor on its list of fields without influence on inference is an error.

pub(crate) mod decoder;
pub(crate) mod encoder;
mod fields;
pub(crate) mod speech;
pub(crate) mod text_to_text;
pub(crate) mod vision;
pub(crate) mod vision_language;

pub use decoder::{
    Activation, DecoderDims, DecoderFamily, DecoderSpec, DeltaRows, ExpertTensors, Experts,
    Factors, FeedForward, Groups, Inside, Latent, LayerSpec, Mixer, Norm, NormKind, NormPlacement,
    QkNorm, QueryGrowth, Residual, Rope, RopeLayout, RopeScaling, Scores, Shared, StateKind,
    StateNorm, StateSpace,
};
pub use encoder::{
    EncoderDims, EncoderFamily, EncoderLayer, EncoderNorms, EncoderSpec, HeadSpec, PatchSpec,
    Positions, RelativeTerms, TokenTypes, Visible,
};
pub(crate) use fields::Fields;
pub use speech::{MoonshineSpec, SpeechSpec, SpeechTokens};
pub use text_to_text::TextToTextSpec;
pub use vision::{
    PicturePooling, ResidualLayer, StagesKind, StagesSpec, TextPooling, TextTower, VisionBody,
    VisionFamily, VisionSpec,
};
pub use vision_language::VisionLanguageSpec;

use crate::gguf::GgufError;

/// Why a model's configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum ConfigError {
    /// The metadata of a GGUF file lacks a value or has a bad one.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A field that is needed and not there.
    #[error("the field `{field}` is missing")]
    Missing { field: String },
    /// A value of another type, or out of range.
    #[error("the field `{field}` must be {expected}, it is {found}")]
    WrongType {
        field: String,
        expected: &'static str,
        found: String,
    },
    /// A value that asks for something which is not implemented.
    #[error("`{field}` = {found} is not supported, {supported} is")]
    Unsupported {
        field: String,
        found: String,
        supported: String,
    },
    /// Fields that may change the result and that this reader does not know.
    #[error(
        "these fields are not known and may change the result: {fields}; \
         remove them from the file if they do not"
    )]
    UnknownFields { fields: String },
    /// Tensors that the builder would not read, so that the result would be another model's.
    #[error("the model has tensors that this family does not have: {tensors}{}", and_more(*more))]
    UnknownTensors { tensors: String, more: usize },
    /// Values that contradict each other.
    #[error("the configuration contradicts itself: {reason}")]
    Inconsistent { reason: String },
}

fn and_more(more: usize) -> String {
    match more {
        0 => String::new(),
        _ => format!(", and {more} more"),
    }
}

/// The architectures that have a builder.
pub(crate) fn supported() -> String {
    let texts = [decoder::model_types(), encoder::model_types()];
    let rest = [
        vision::model_types(),
        vision_language::MODEL_TYPES.join(", "),
        speech::MODEL_TYPE.to_string(),
    ];
    format!("{}, {}", texts.join(", "), rest.join(", "))
}

/// `Ok` if `condition` holds, else [`ConfigError::Inconsistent`].
pub(crate) fn ensure(condition: bool, reason: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if condition {
        Ok(())
    } else {
        Err(ConfigError::Inconsistent { reason: reason() })
    }
}
