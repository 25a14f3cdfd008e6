//! `config.json` of Moonshine. Every field is applied, known to be harmless, or an error.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::super::fields::HARMLESS;
use super::super::{ConfigError, ConfigFields, activation, decoder, ensure};
use super::RATE;
use crate::config::FfnActivation;
use tercet_files::folder_weights::HfWeights;

/// The `model_type` of Moonshine folders.
pub const MOONSHINE: &str = "moonshine";

/// Kernel size and stride of the first convolution, in samples.
pub(crate) const RAW_FRAME: usize = 127;
pub(crate) const RAW_HOP: usize = 64;
/// Kernel size and stride of the second and the third convolution, in rows.
pub(crate) const STEMS: [[usize; 2]; 2] = [[7, 3], [3, 2]];

/// Fields of `config.json` about padding, which does not change the result.
const WITHOUT_INFLUENCE: &[&str] = &["pad_head_dim_to_multiple_of"];
/// Harmless fields of `generation_config.json`.
const OF_GENERATION: &[&str] = &["_from_model_config", "bos_token_id", "transformers_version"];
/// Harmless fields of `preprocessor_config.json`.
const OF_FEATURES: &[&str] = &[
    "feature_extractor_type",
    "padding_side",
    "padding_value",
    "processor_class",
    "return_attention_mask",
];

/// Maximum number of layers of the encoder and of the decoder.
const MAX_LAYERS: usize = 4096;

/// Maximum number of positions of a text; the published models have 194.
const MAX_POSITIONS: usize = 1 << 14;

/// The specification of a Moonshine model (Jeffries et al., "Moonshine: Speech Recognition for Live
/// Transcription and Voice Commands", 2024). A Moonshine model has three convolutions over samples,
/// pre-norm layers with rotary embeddings, and a decoder with cross-attention.
///
/// ```
/// # let json = r#"{
/// #     "model_type": "moonshine", "hidden_size": 288, "intermediate_size": 1152,
/// #     "vocab_size": 32768, "max_position_embeddings": 194,
/// #     "encoder_num_hidden_layers": 6, "decoder_num_hidden_layers": 6,
/// #     "encoder_num_attention_heads": 8, "decoder_num_attention_heads": 8,
/// #     "encoder_num_key_value_heads": 8, "decoder_num_key_value_heads": 8,
/// #     "encoder_hidden_act": "gelu", "decoder_hidden_act": "silu",
/// #     "partial_rotary_factor": 0.9, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2,
/// #     "decoder_start_token_id": 1, "is_encoder_decoder": true
/// # }"#;
/// use tercet_networks::MoonshineSpec;
/// // `json` is the `config.json` of Moonshine Tiny.
/// let spec = MoonshineSpec::from_json(&serde_json::from_str(json)?)?;
/// assert_eq!((spec.width, spec.rope_dims, spec.text_positions), (288, 32, 194));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MoonshineSpec {
    /// Width of the residual stream of encoder and decoder.
    pub width: usize,
    /// Number of heads of every attention.
    pub heads: usize,
    /// Intermediate width of the feed-forward networks.
    pub ffn: usize,
    /// Number of encoder layers.
    pub encoder_layers: usize,
    /// Number of decoder layers.
    pub decoder_layers: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Maximum length of a text, in tokens.
    pub text_positions: usize,
    /// The base of the rotary frequencies.
    pub theta: f64,
    /// Leading elements of a head that are rotated, in adjacent pairs.
    pub rope_dims: usize,
    /// Whether the Q, K and V projections have biases.
    pub bias: bool,
    /// The activation of the encoder's feed-forward networks.
    pub encoder_activation: FfnActivation,
    /// The activation of the gates in the decoder's feed-forward networks.
    pub decoder_activation: FfnActivation,
    /// The decoder's start token.
    pub start: u32,
    /// The end-of-sequence tokens.
    pub end: Vec<u32>,
    /// Maximum number of generated tokens per text, including the start token.
    pub max_length: usize,
}

impl MoonshineSpec {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`] for a field that is missing, wrong, not supported or not known.
    pub fn from_json(json: &Map<String, Value>) -> Result<MoonshineSpec, ConfigError> {
        let fields = ConfigFields::new(json, "").of_class(MOONSHINE);
        fields.only("model_type", MOONSHINE, |v| v.as_str() == Some(MOONSHINE))?;
        fields.only("quantization_config", "an unquantised checkpoint", |_| {
            false
        })?;
        for name in ["is_encoder_decoder", "tie_word_embeddings"] {
            fields.only(name, "true", |v| v.as_bool() == Some(true))?;
        }
        let width = fields.size("hidden_size")?;
        let heads = fields.size("decoder_num_attention_heads")?;
        for name in [
            "encoder_num_attention_heads",
            "encoder_num_key_value_heads",
            "decoder_num_key_value_heads",
        ] {
            let supported = format!("{heads} (the number of decoder heads)");
            fields.only(name, &supported, |v| v.as_u64() == Some(heads as u64))?;
        }
        ensure(width.is_multiple_of(heads), || {
            format!("`hidden_size` = {width} is not a multiple of {heads} heads")
        })?;
        let (theta, partial) = rope(&fields)?;
        let size = width / heads;
        let supported = format!("{size} (the width of a head)");
        fields.only("head_dim", &supported, |v| v.as_u64() == Some(size as u64))?;
        let text_positions = fields.size("max_position_embeddings")?;
        let activation = |name, default| {
            Ok::<_, ConfigError>(activation::read(&fields, name)?.unwrap_or(default))
        };
        let start = fields.opt_token("decoder_start_token_id")?;
        fields.opt_token("bos_token_id")?;
        let spec = MoonshineSpec {
            width,
            heads,
            ffn: fields.size("intermediate_size")?,
            encoder_layers: fields.size("encoder_num_hidden_layers")?,
            decoder_layers: fields.size("decoder_num_hidden_layers")?,
            vocab: fields.size("vocab_size")?,
            text_positions,
            theta,
            rope_dims: (size as f64 * partial) as usize,
            bias: fields.opt_bool("attention_bias")?.unwrap_or(false),
            encoder_activation: activation("encoder_hidden_act", FfnActivation::Gelu)?,
            decoder_activation: activation("decoder_hidden_act", FfnActivation::Silu)?,
            start: start.unwrap_or(1),
            end: fields.tokens("eos_token_id")?,
            max_length: text_positions,
        };
        fields.finish(&[HARMLESS, WITHOUT_INFLUENCE])?;
        spec.check()?;
        Ok(spec)
    }

    /// Reads a `generation_config.json`: the start and end tokens, and the maximum length of a
    /// text.
    ///
    /// # Errors
    /// [`ConfigError`] for a field that is wrong, not supported or not known.
    pub(crate) fn read_generation(&mut self, json: &Map<String, Value>) -> Result<(), ConfigError> {
        let fields = ConfigFields::new(json, "").of_class("GenerationConfig");
        for name in ["num_beams", "num_return_sequences", "temperature"] {
            fields.only(name, "1", |v| v.as_f64() == Some(1.0))?;
        }
        fields.only("do_sample", "false", |v| v.as_bool() == Some(false))?;
        if let Some(start) = fields.opt_token("decoder_start_token_id")? {
            self.start = start;
        }
        let end = fields.tokens("eos_token_id")?;
        if !end.is_empty() {
            self.end = end;
        }
        if let Some(most) = fields.opt_size("max_length")? {
            self.max_length = most.min(self.text_positions);
        }
        fields.finish(&[HARMLESS, OF_GENERATION])?;
        self.check()
    }

    /// Rejects a folder whose samples require preprocessing.
    ///
    /// # Errors
    /// [`ConfigError`] names the field.
    pub(crate) fn check_features(json: &Map<String, Value>) -> Result<(), ConfigError> {
        let fields = ConfigFields::new(json, "").of_class("Wav2Vec2FeatureExtractor");
        for (name, want) in [("feature_size", 1), ("sampling_rate", RATE)] {
            fields.only(name, &want.to_string(), |v| v.as_u64() == Some(want as u64))?;
        }
        fields.only("do_normalize", "false", |v| v.as_bool() == Some(false))?;
        fields.finish(&[OF_FEATURES])
    }

    fn check(&self) -> Result<(), ConfigError> {
        let size = self.width / self.heads;
        ensure(
            self.rope_dims.is_multiple_of(2) && (2..=size).contains(&self.rope_dims),
            || {
                let dims = self.rope_dims;
                format!(
                    "rotary embedding covers {dims} of a head's {size} elements; expected an \
                     even number"
                )
            },
        )?;
        for layers in [self.encoder_layers, self.decoder_layers] {
            ensure(layers <= MAX_LAYERS, || {
                format!("{layers} layers; at most {MAX_LAYERS} are supported")
            })?;
        }
        let most = MAX_POSITIONS;
        ensure((2..=most).contains(&self.text_positions), || {
            let n = self.text_positions;
            format!("`max_position_embeddings` = {n}; expected 2 to {most} positions")
        })?;
        // The start token counts.
        ensure(self.max_length >= 2, || {
            let n = self.max_length;
            format!("`max_length` = {n}; expected at least 2: the start token and one of the text")
        })?;
        let mut tokens = self.end.iter().chain([&self.start]);
        ensure(tokens.all(|id| (*id as usize) < self.vocab), || {
            format!("a special token is beyond the vocabulary of {}", self.vocab)
        })
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
        for (side, layers, attentions, norms) in [
            (
                "encoder",
                self.encoder_layers,
                &ATTENTIONS[..1],
                &NORMS[..2],
            ),
            ("decoder", self.decoder_layers, &ATTENTIONS[..], &NORMS[..]),
        ] {
            for layer in 0..layers {
                let layer = format!("model.{side}.layers.{layer}");
                for name in ["mlp.fc1", "mlp.fc2"] {
                    add(format!("{layer}.{name}"), true);
                }
                for name in norms {
                    add(format!("{layer}.{name}"), false);
                }
                for attention in attentions {
                    for name in ["q_proj", "k_proj", "v_proj"] {
                        add(format!("{layer}.{attention}.{name}"), self.bias);
                    }
                    add(format!("{layer}.{attention}.o_proj"), false);
                }
            }
        }
        decoder::reject_names(weights.tensors().map(|(_, info)| info.name()), &known)
    }
}

/// Reads the base of the rotary frequencies, and the rotated fraction of a head.
fn rope(fields: &ConfigFields<'_>) -> Result<(f64, f64), ConfigError> {
    let mut theta = fields.opt_positive("rope_theta")?;
    let mut partial = fields.opt_positive("partial_rotary_factor")?;
    fields.only("rope_scaling", "null", |_| false)?;
    if let Some(object) = fields.opt_object("rope_parameters")? {
        let inner = ConfigFields::new(object, "rope_parameters.");
        inner.only("rope_type", "default", |v| v.as_str() == Some("default"))?;
        theta = inner.opt_positive("rope_theta")?.or(theta);
        partial = inner.opt_positive("partial_rotary_factor")?.or(partial);
        inner.finish_scaling("default")?;
    }
    let partial = partial.unwrap_or(0.9);
    ensure(partial <= 1.0, || {
        format!("partial_rotary_factor is {partial}; expected at most 1")
    })?;
    Ok((theta.unwrap_or(10_000.0), partial))
}

/// Modules outside of layers, and whether each has a bias.
const OUTSIDE: &[(&str, bool)] = &[
    ("encoder.conv1", false),
    ("encoder.conv2", true),
    ("encoder.conv3", true),
    ("encoder.groupnorm", true),
    ("encoder.layer_norm", false),
    ("decoder.embed_tokens", false),
    ("decoder.norm", false),
];

/// The attentions of a decoder layer; encoder layers have the first only.
const ATTENTIONS: [&str; 2] = ["self_attn", "encoder_attn"];
/// The norms of a decoder layer; encoder layers have the first two only.
const NORMS: [&str; 3] = [
    "input_layernorm",
    "post_attention_layernorm",
    "final_layernorm",
];
