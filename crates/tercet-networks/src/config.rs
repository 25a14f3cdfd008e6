//! Model configurations: the data that a builder needs in addition to the weights.
//!
//! A Hugging Face `config.json` and GGUF metadata are read into the same types. This module never
//! ignores a field that changes the result: it either applies the field or returns an error. A
//! reader therefore marks every field that it reads. At the end, a field that is not marked is an
//! error if the family's reference implementation reads it and its value is not the default. Other
//! fields are ignored; [`ignored_keys`] names them.

pub(crate) mod activation;
pub(crate) mod bounds;
pub mod decoder;
pub mod encoder;
pub(crate) mod family_names;
mod fields;
pub(crate) mod known_keys;
pub(crate) mod outputs;
pub mod seq2seq;
pub mod speech;
pub mod vision;
pub mod vision_language;

pub use decoder::{
    AttentionDirection, AttentionSpec, AttentionTemperature, DecoderBiases, DecoderDims,
    DecoderFamily, DecoderScales, DecoderSpec, DecoderStorage, DeltaRows, ExpertGroups,
    ExpertTensors, Experts, FeedForward, FfnActivation, LatentAttention, LayerSpec, Mixer,
    Multipliers, NestedPrefix, NormKind, NormPlacement, NormSpec, QkNorm, QkvRows, ResidualOrder,
    RopeLayout, RopeOverrides, RopeScaling, RopeScalingKind, RopeSpec, RouterScoring, SharedExpert,
    SsmSpec, StateKind, StateNorm, TokenPositions,
};
pub use encoder::{
    AttentionPattern, EncoderDims, EncoderFamily, EncoderLayer, EncoderNorms, EncoderSpec,
    HeadSpec, PatchSpec, PositionEncoding, RelativePositionBias, TokenTypes,
};
pub(crate) use family_names::near;
pub use family_names::near_any;
pub use family_names::{FamilyNames, family_names};
pub(crate) use fields::ConfigFields;
pub use known_keys::with_notes;
pub use seq2seq::Seq2SeqSpec;
pub use speech::{MoonshineSpec, SpeechSpec, SpeechTokens};
pub use vision::{
    ImagePooling, ResidualLayer, StagesKind, StagesSpec, TextPooling, TextTower, VisionBody,
    VisionFamily, VisionSpec,
};
pub use vision_language::VisionLanguageSpec;

use serde_json::{Map, Value};

use tercet_files::gguf::GgufError;

/// The reason why a model's configuration is rejected.
///
/// ```
/// use tercet_networks::{ConfigError, VisionSpec};
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
    #[error("the model has tensors that this family does not have: {tensors}{}{remedy}", and_more(*more))]
    UnknownTensors {
        tensors: String,
        more: usize,
        remedy: String,
    },
    /// A count or size that the model's tensors do not have.
    #[error(
        "the configuration has {claimed} {what}, but the model has only {found} {unit}; \
         the configuration is damaged or belongs to another model"
    )]
    BeyondTensors {
        what: &'static str,
        claimed: usize,
        found: usize,
        unit: &'static str,
    },
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

/// Reads a Hugging Face `config.json` of any supported family without weights. Returns the keys
/// that were ignored because they cannot change the result, sorted, with a dot before keys of
/// nested objects.
///
/// ```
/// let json = r#"{
///     "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2,
///     "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 300,
///     "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "neftune_noise_alpha": 5
/// }"#;
/// let mut json = serde_json::from_str(json)?;
/// assert_eq!(tercet_networks::config::ignored_keys(&json)?, ["neftune_noise_alpha"]);
///
/// json.insert("hidden_act".into(), "mish".into());
/// assert!(tercet_networks::config::ignored_keys(&json).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ConfigError`]: a field is missing, wrong or unsupported.
pub fn ignored_keys(json: &Map<String, Value>) -> Result<Vec<String>, ConfigError> {
    let name = json.get("model_type").and_then(Value::as_str);
    let (read, notes) = with_notes(|| match name.unwrap_or_default() {
        name if vision::for_model_type(name).is_some() => VisionSpec::from_json(json).map(drop),
        name if vision_language::for_model_type(name).is_some() => {
            VisionLanguageSpec::from_json(json).map(drop)
        }
        name if seq2seq::is_model_type(name) => {
            let pair = json.get("is_encoder_decoder").and_then(Value::as_bool);
            match pair {
                Some(true) => Seq2SeqSpec::from_json(json).map(drop),
                Some(false) | None => EncoderSpec::from_json(json).map(drop),
            }
        }
        name if encoder::for_model_type(name).is_some() => EncoderSpec::from_json(json).map(drop),
        speech::MODEL_TYPE => SpeechSpec::from_json(json).map(drop),
        speech::MOONSHINE => MoonshineSpec::from_json(json).map(drop),
        _ => DecoderSpec::from_json(json).map(drop),
    });
    read?;
    Ok(notes)
}

/// `Ok` if `condition` holds, else [`ConfigError::Inconsistent`].
pub(crate) fn ensure(condition: bool, reason: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if condition {
        Ok(())
    } else {
        Err(ConfigError::Inconsistent { reason: reason() })
    }
}
