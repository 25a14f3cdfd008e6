//! `config.json` of Whisper. Every field is applied, known to be harmless, or an error.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::super::fields::HARMLESS;
use super::super::{ConfigError, ConfigFields, activation, decoder, ensure};
use super::MODEL_TYPE;
use crate::config::FfnActivation;
use tercet_files::folder_weights::HfWeights;

/// Fields about training and unimplemented heads, and fields that `generation_config.json`
/// overrides.
const WITHOUT_INFLUENCE: &[&str] = &[
    "activation_dropout",
    "apply_spec_augment",
    "begin_suppress_tokens",
    "bos_token_id",
    "classifier_proj_size",
    "decoder_layerdrop",
    "decoder_start_token_id",
    "dropout",
    "encoder_layerdrop",
    "eos_token_id",
    "forced_decoder_ids",
    "init_std",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "max_length",
    "median_filter_width",
    "num_hidden_layers",
    "suppress_tokens",
    "use_weighted_layer_sum",
];

/// The specification of a Whisper model (Radford et al., "Robust Speech Recognition via Large-Scale
/// Weak Supervision", 2022). The encoder has two convolutions and pre-norm layers over log-mel
/// features; the decoder has cross-attention. Attention heads have `width / heads` elements.
///
/// ```
/// # let json = r#"{
/// #     "model_type": "whisper", "d_model": 8, "num_mel_bins": 80, "encoder_layers": 1,
/// #     "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
/// #     "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_source_positions": 1500,
/// #     "max_target_positions": 448, "vocab_size": 51865
/// # }"#;
/// use tercet_networks::SpeechSpec;
/// // `json` is the `config.json` of a Whisper model.
/// let spec = SpeechSpec::from_json(&serde_json::from_str(json)?)?;
/// assert_eq!((spec.mels, spec.frames()), (80, 3000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechSpec {
    /// Number of mel bands per frame.
    pub mels: usize,
    /// Width of the residual stream of encoder and decoder.
    pub width: usize,
    /// Number of encoder layers.
    pub encoder_layers: usize,
    /// Number of attention heads per encoder layer.
    pub encoder_heads: usize,
    /// Intermediate width of the encoder's feed-forward networks.
    pub encoder_ffn: usize,
    /// Number of decoder layers.
    pub decoder_layers: usize,
    /// Number of heads of self-attention and of cross-attention per decoder layer.
    pub decoder_heads: usize,
    /// Intermediate width of the decoder's feed-forward networks.
    pub decoder_ffn: usize,
    /// Vocabulary size, including timestamp tokens.
    pub vocab: usize,
    /// Number of encoder output rows per window; the encoder reads two frames for each row.
    pub audio_positions: usize,
    /// Maximum length of a text, in tokens.
    pub text_positions: usize,
    /// The activation of the feed-forward networks.
    pub activation: FfnActivation,
}

impl SpeechSpec {
    /// Number of frames per window, the unit of audio that the encoder reads in one run.
    pub fn frames(&self) -> usize {
        2 * self.audio_positions
    }

    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`] for a field that is missing, wrong, not supported or not known.
    pub fn from_json(json: &Map<String, Value>) -> Result<SpeechSpec, ConfigError> {
        let fields = ConfigFields::new(json, "").of_class(super::MODEL_TYPE);
        fields.only("model_type", MODEL_TYPE, |v| v.as_str() == Some(MODEL_TYPE))?;
        fields.only("quantization_config", "an unquantised checkpoint", |_| {
            false
        })?;
        fields.only("is_encoder_decoder", "true", |v| v.as_bool() == Some(true))?;
        fields.only("tie_word_embeddings", "true", |v| v.as_bool() == Some(true))?;
        let width = fields.size("d_model")?;
        // No published model sets `scale_embedding`, and its meaning differs between versions of
        // transformers.
        fields.only("scale_embedding", "false", |v| v.as_bool() == Some(false))?;
        let spec = SpeechSpec {
            mels: fields.size("num_mel_bins")?,
            width,
            encoder_layers: fields.size("encoder_layers")?,
            encoder_heads: fields.size("encoder_attention_heads")?,
            encoder_ffn: fields.size("encoder_ffn_dim")?,
            decoder_layers: fields.size("decoder_layers")?,
            decoder_heads: fields.size("decoder_attention_heads")?,
            decoder_ffn: fields.size("decoder_ffn_dim")?,
            vocab: fields.size("vocab_size")?,
            audio_positions: fields.size("max_source_positions")?,
            text_positions: fields.size("max_target_positions")?,
            activation: activation::read(&fields, "activation_function")?
                .unwrap_or(FfnActivation::Gelu),
        };
        fields.finish(&[HARMLESS, WITHOUT_INFLUENCE])?;
        for (name, heads) in [
            ("encoder_attention_heads", spec.encoder_heads),
            ("decoder_attention_heads", spec.decoder_heads),
        ] {
            ensure(width.is_multiple_of(heads), || {
                format!("`d_model` = {width} is not a multiple of `{name}` = {heads}")
            })?;
        }
        for (name, layers) in [
            ("encoder_layers", spec.encoder_layers),
            ("decoder_layers", spec.decoder_layers),
        ] {
            ensure(layers <= MAX_LAYERS, || {
                format!("`{name}` = {layers}; at most {MAX_LAYERS} are supported")
            })?;
        }
        // Whisper has 1500 positions. The limit permits longer windows and keeps sizes computable.
        ensure(spec.audio_positions <= MAX_POSITIONS, || {
            let n = spec.audio_positions;
            format!("`max_source_positions` = {n}; at most {MAX_POSITIONS} are supported")
        })?;
        Ok(spec)
    }

    /// Rejects a folder with a tensor that a model of this specification does not have.
    ///
    /// # Errors
    /// [`ConfigError::UnknownTensors`] names the first few.
    pub(crate) fn reject_unknown_tensors(&self, weights: &HfWeights) -> Result<(), ConfigError> {
        let mut known: HashSet<String> = HashSet::new();
        let mut add = |module: String, bias: bool| {
            known.insert(format!("{module}.weight"));
            if bias {
                known.insert(format!("{module}.bias"));
            }
        };
        // Some tools save a copy of the tied embedding as the output projection.
        add("proj_out".into(), false);
        for (name, bias) in OUTSIDE {
            add(format!("model.{name}"), *bias);
        }
        for (side, layers, attentions) in [
            ("encoder", self.encoder_layers, &ATTENTIONS[..1]),
            ("decoder", self.decoder_layers, &ATTENTIONS[..]),
        ] {
            for layer in 0..layers {
                let layer = format!("model.{side}.layers.{layer}");
                for name in ["fc1", "fc2", "final_layer_norm"] {
                    add(format!("{layer}.{name}"), true);
                }
                for attention in attentions {
                    add(format!("{layer}.{attention}_layer_norm"), true);
                    for (name, bias) in PROJECTIONS {
                        add(format!("{layer}.{attention}.{name}"), *bias);
                    }
                }
            }
        }
        decoder::reject_names(weights.tensors().map(|(_, info)| info.name()), &known)
    }
}

/// Maximum number of layers of the encoder and of the decoder; the largest model has 32.
const MAX_LAYERS: usize = 4096;
/// Maximum number of encoder output rows.
const MAX_POSITIONS: usize = 1 << 16;

/// Modules outside of layers, and whether each has a bias.
const OUTSIDE: &[(&str, bool)] = &[
    ("encoder.conv1", true),
    ("encoder.conv2", true),
    ("encoder.embed_positions", false),
    ("encoder.layer_norm", true),
    ("decoder.embed_tokens", false),
    ("decoder.embed_positions", false),
    ("decoder.layer_norm", true),
];

/// The attentions of a decoder layer; encoder layers have the first only.
const ATTENTIONS: [&str; 2] = ["self_attn", "encoder_attn"];

/// The projections of an attention, and whether each has a bias.
const PROJECTIONS: &[(&str, bool)] = &[
    ("q_proj", true),
    ("k_proj", false),
    ("v_proj", true),
    ("out_proj", true),
];
