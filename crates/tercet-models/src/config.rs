//! Model configurations: the data that a builder needs in addition to the weights.
//!
//! A Hugging Face `config.json` and GGUF metadata are read into the same types. This module never
//! ignores a field that changes the result: it either applies the field or returns an error. A
//! reader therefore marks every field that it reads. At the end, a field is an error if it is
//! neither marked nor on the reader's list of fields without influence on inference.

pub(crate) mod decoder;
pub(crate) mod encoder;
mod fields;
pub(crate) mod seq2seq;
pub(crate) mod speech;
pub(crate) mod vision;
pub(crate) mod vision_language;

pub use decoder::{
    AttentionTemperature, DecoderDims, DecoderFamily, DecoderSpec, DeltaRows, ExpertGroups,
    ExpertTensors, Experts, FeedForward, FfnActivation, LatentAttention, LayerSpec, Mixer,
    Multipliers, NestedPrefix, NormKind, NormPlacement, NormSpec, QkNorm, ResidualOrder,
    RopeLayout, RopeScaling, RopeSpec, RouterScoring, SharedExpert, SsmSpec, StateKind, StateNorm,
};
pub use encoder::{
    AttentionPattern, EncoderDims, EncoderFamily, EncoderLayer, EncoderNorms, EncoderSpec,
    HeadSpec, PatchSpec, PositionEncoding, RelativePositionBias, TokenTypes,
};
pub(crate) use fields::ConfigFields;
pub use seq2seq::Seq2SeqSpec;
pub use speech::{MoonshineSpec, SpeechSpec, SpeechTokens};
pub use vision::{
    ImagePooling, ResidualLayer, StagesKind, StagesSpec, TextPooling, TextTower, VisionBody,
    VisionFamily, VisionSpec,
};
pub use vision_language::VisionLanguageSpec;

use crate::gguf::GgufError;

/// The reason why a model's configuration is rejected.
///
/// ```
/// use tercet_models::{ConfigError, VisionSpec};
/// let error = VisionSpec::from_json(&serde_json::Map::new()).unwrap_err();
/// assert!(matches!(error, ConfigError::Missing { field } if field == "model_type"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum ConfigError {
    /// A GGUF metadata value is missing or invalid.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A required field is missing.
    #[error("the field `{field}` is missing")]
    Missing { field: String },
    /// A value has the wrong type or is out of range.
    #[error("the field `{field}` is {found}; expected {expected}")]
    WrongType {
        field: String,
        expected: &'static str,
        found: String,
    },
    /// A value requests a feature that is not implemented.
    #[error("`{field}` = {found} is not supported; supported: {supported}")]
    Unsupported {
        field: String,
        found: String,
        supported: String,
    },
    /// Fields that may change the result and that this reader does not know.
    #[error(
        "unknown fields that may change the result: {fields}; \
         remove them from the file if they do not"
    )]
    UnknownFields { fields: String },
    /// Tensors that the builder would not read: the model would differ from the one in the file.
    #[error("the model has tensors that this family does not have: {tensors}{}", and_more(*more))]
    UnknownTensors { tensors: String, more: usize },
    /// Values that contradict each other.
    #[error("inconsistent configuration: {reason}")]
    Inconsistent { reason: String },
}

fn and_more(more: usize) -> String {
    match more {
        0 => String::new(),
        _ => format!(", and {more} more"),
    }
}

/// The supported architectures, for error messages.
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
