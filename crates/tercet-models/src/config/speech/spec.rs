//! `config.json` of Whisper, of which every field is read, known to have no influence, or refused.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::super::fields::HARMLESS;
use super::super::{ConfigError, Fields, decoder, encoder, ensure};
use super::MODEL_TYPE;
use crate::config::Activation;
use crate::hf::HfWeights;

/// Fields about training and heads that are not built, and those that `generation_config.json` says instead.
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

/// What a model of Whisper consists of (Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022):
/// two convolutions and pre-norm layers over log-mel features, and a decoder with cross attention. Heads of both have
/// `width / heads` elements.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechSpec {
    /// Mel bands of a frame.
    pub mels: usize,
    /// Width of the residual stream, of encoder and decoder.
    pub width: usize,
    /// Layers of the encoder.
    pub encoder_layers: usize,
    /// Heads of a layer of the encoder.
    pub encoder_heads: usize,
    /// Inner width of a feed-forward network of the encoder.
    pub encoder_ffn: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Heads of a layer of the decoder, for both attentions.
    pub decoder_heads: usize,
    /// Inner width of a feed-forward network of the decoder.
    pub decoder_ffn: usize,
    /// Tokens, timestamps included.
    pub vocab: usize,
    /// Rows that the encoder gives of a window; it reads two frames for each.
    pub audio_positions: usize,
    /// Tokens of the longest text.
    pub text_positions: usize,
    /// The nonlinearity of the feed-forward networks.
    pub activation: Activation,
}

impl SpeechSpec {
    /// Frames of a window: what the encoder reads at once.
    pub fn frames(&self) -> usize {
        2 * self.audio_positions
    }

    /// Reads a `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`] for a field that is missing, wrong, not supported or not known.
    pub fn from_json(json: &Map<String, Value>) -> Result<SpeechSpec, ConfigError> {
        let fields = Fields::new(json, "");
        fields.only("model_type", MODEL_TYPE, |v| v.as_str() == Some(MODEL_TYPE))?;
        fields.only("quantization_config", "an unquantised checkpoint", |_| {
            false
        })?;
        fields.only("is_encoder_decoder", "true", |v| v.as_bool() == Some(true))?;
        fields.only("tie_word_embeddings", "true", |v| v.as_bool() == Some(true))?;
        let width = fields.size("d_model")?;
        // No model has it, and what the library does with it has changed.
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
            activation: encoder::activation(&fields, "activation_function")?
                .unwrap_or(Activation::Gelu),
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
            ensure(layers <= MOST_LAYERS, || {
                format!("`{name}` = {layers}; at most {MOST_LAYERS} are possible")
            })?;
        }
        // Whisper's own window has 1500; this leaves room, and sizes that fit.
        ensure(spec.audio_positions <= MOST_POSITIONS, || {
            let n = spec.audio_positions;
            format!("`max_source_positions` = {n}; at most {MOST_POSITIONS} are possible")
        })?;
        Ok(spec)
    }

    /// Refuses a folder with a tensor that a model of this specification does not have.
    ///
    /// # Errors
    /// [`ConfigError::UnknownTensors`] names the first few.
    pub(crate) fn refuse_unknown_tensors(&self, weights: &HfWeights) -> Result<(), ConfigError> {
        let mut known: HashSet<String> = HashSet::new();
        let mut add = |module: String, bias: bool| {
            known.insert(format!("{module}.weight"));
            if bias {
                known.insert(format!("{module}.bias"));
            }
        };
        // Some writers keep a copy of the tied embedding.
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
        decoder::refuse(weights.tensors().map(|(_, info)| info.name()), &known)
    }
}

/// Layers of either side at most; the largest model has 32.
const MOST_LAYERS: usize = 4096;
/// Rows of the encoder at most.
const MOST_POSITIONS: usize = 1 << 16;

/// Modules outside of layers, and whether they have a bias.
const OUTSIDE: &[(&str, bool)] = &[
    ("encoder.conv1", true),
    ("encoder.conv2", true),
    ("encoder.embed_positions", false),
    ("encoder.layer_norm", true),
    ("decoder.embed_tokens", false),
    ("decoder.embed_positions", false),
    ("decoder.layer_norm", true),
];

/// The attentions of a layer: the encoder's has the first.
const ATTENTIONS: [&str; 2] = ["self_attn", "encoder_attn"];

/// Projections of an attention, and whether they have a bias.
const PROJECTIONS: &[(&str, bool)] = &[
    ("q_proj", true),
    ("k_proj", false),
    ("v_proj", true),
    ("out_proj", true),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of large-v3 that matter, as its folder has them.
    fn large() -> Map<String, Value> {
        let json = r#"{
            "model_type": "whisper", "d_model": 1280, "num_mel_bins": 128, "encoder_layers": 32, "decoder_layers": 32,
            "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120,
            "max_source_positions": 1500, "max_target_positions": 448, "vocab_size": 51866, "activation_function": "gelu",
            "scale_embedding": false, "is_encoder_decoder": true, "use_weighted_layer_sum": false, "median_filter_width": 7,
            "apply_spec_augment": false, "classifier_proj_size": 256, "num_hidden_layers": 32, "torch_dtype": "float16",
            "begin_suppress_tokens": [220, 50257], "suppress_tokens": null, "max_length": 448, "pad_token_id": 50256
        }"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_largest_is_read() {
        let spec = SpeechSpec::from_json(&large()).unwrap();
        assert_eq!((spec.mels, spec.frames(), spec.vocab), (128, 3000, 51_866));
        // Its turbo.
        let mut turbo = large();
        turbo.insert("decoder_layers".into(), 4.into());
        assert_eq!(SpeechSpec::from_json(&turbo).unwrap().decoder_layers, 4);
    }

    #[test]
    fn what_is_not_honoured_is_refused() {
        for (name, value, part) in [
            ("scale_embedding", true.into(), "`scale_embedding`"),
            ("rotary_dims", 32.into(), "`rotary_dims`"),
            ("d_model", 0.into(), "`d_model`"),
            ("d_model", 1281.into(), "not a multiple"),
            (
                "activation_function",
                "mish".into(),
                "`activation_function`",
            ),
            ("tie_word_embeddings", false.into(), "`tie_word_embeddings`"),
            ("encoder_layers", (1u64 << 31).into(), "`encoder_layers`"),
            (
                "max_source_positions",
                65_537.into(),
                "`max_source_positions`",
            ),
            ("model_type", "bert".into(), "`model_type`"),
        ] {
            let mut json = large();
            json.insert(name.into(), value);
            let said = SpeechSpec::from_json(&json).unwrap_err().to_string();
            assert!(said.contains(part), "{name}: {said}");
        }
        let mut json = large();
        json.remove("num_mel_bins");
        let said = SpeechSpec::from_json(&json).unwrap_err().to_string();
        assert!(said.contains("`num_mel_bins`"), "{said}");
    }
}
