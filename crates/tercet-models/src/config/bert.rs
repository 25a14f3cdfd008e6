//! BERT encoders: post-norm, learned absolute positions, token types.

use serde_json::{Map, Value};

use super::fields::HARMLESS;
use super::{ConfigError, Fields, ensure};

/// The activation of a BERT feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BertActivation {
    /// GELU through the error function.
    Gelu,
    /// GELU through the hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    Silu,
}

/// Spellings of the activations in `config.json`.
const ACTIVATIONS: &[(&str, BertActivation)] = &[
    ("gelu", BertActivation::Gelu),
    ("gelu_new", BertActivation::GeluTanh),
    ("gelu_pytorch_tanh", BertActivation::GeluTanh),
    ("relu", BertActivation::Relu),
    ("silu", BertActivation::Silu),
    ("swish", BertActivation::Silu),
];

/// Fields about heads on top of the encoder, which embeddings do not use.
const HEADS_ONLY: &[&str] = &[
    "bos_token_id",
    "directionality",
    "eos_token_id",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "tie_word_embeddings",
];

/// Everything that the weights of a BERT encoder do not say themselves.
///
/// ```
/// use tercet_models::{BertActivation, BertConfig};
///
/// let json = r#"{
///     "model_type": "bert", "hidden_act": "gelu", "hidden_size": 384, "num_hidden_layers": 6,
///     "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522,
///     "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12
/// }"#;
/// let config = BertConfig::from_json(&serde_json::from_str(json)?)?;
/// assert_eq!((config.head_dim(), config.activation), (32, BertActivation::Gelu));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of encoder layers.
    pub layers: usize,
    /// Attention heads; divides `hidden`.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Rows of the token embedding.
    pub vocab: usize,
    /// Rows of the position embedding: the longest sequence.
    pub max_positions: usize,
    /// Rows of the token type embedding.
    pub token_types: usize,
    /// Added to the variance in layer norms.
    pub layer_norm_eps: f32,
    /// The activation of the feed-forward layers.
    pub activation: BertActivation,
    /// The token that fills short rows of a batch.
    pub pad: u32,
}

impl BertConfig {
    /// Elements of one attention head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Reads a Hugging Face `config.json` with `model_type` `bert`.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<Self, ConfigError> {
        let fields = Fields::new(json, "");
        fields.required("model_type", fields.opt_str("model_type")?)?;
        fields.only("model_type", "\"bert\"", |v| v.as_str() == Some("bert"))?;
        fields.only("position_embedding_type", "\"absolute\"", |v| {
            v.as_str() == Some("absolute")
        })?;
        for name in ["is_decoder", "add_cross_attention", "is_encoder_decoder"] {
            fields.only(name, "false", |v| v.as_bool() == Some(false))?;
        }
        fields.only("quantization_config", "an unquantised checkpoint", |_| {
            false
        })?;
        let spelled = fields.opt_str("hidden_act")?.unwrap_or("gelu");
        let Some((_, activation)) = ACTIVATIONS.iter().find(|(name, _)| *name == spelled) else {
            let names: Vec<_> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
            fields.only("hidden_act", &names.join(", "), |_| false)?;
            return Err(ConfigError::Missing {
                field: "hidden_act".to_owned(),
            });
        };
        let config = Self {
            hidden: fields.size("hidden_size")?,
            layers: fields.size("num_hidden_layers")?,
            heads: fields.size("num_attention_heads")?,
            ffn: fields.size("intermediate_size")?,
            vocab: fields.size("vocab_size")?,
            max_positions: fields.size("max_position_embeddings")?,
            token_types: fields.opt_size("type_vocab_size")?.unwrap_or(2),
            layer_norm_eps: fields.opt_positive("layer_norm_eps")?.unwrap_or(1e-12) as f32,
            activation: *activation,
            pad: fields.opt_token("pad_token_id")?.unwrap_or(0),
        };
        fields.finish(&[HARMLESS, HEADS_ONLY])?;
        ensure(config.hidden.is_multiple_of(config.heads), || {
            format!(
                "a width of {} is not a multiple of {} heads",
                config.hidden, config.heads
            )
        })?;
        ensure((config.pad as usize) < config.vocab, || {
            format!(
                "the padding token {} is beyond the vocabulary of {}",
                config.pad, config.vocab
            )
        })?;
        Ok(config)
    }
}
