//! The llama family: pre-norm decoders with RoPE, grouped queries, RMS norm and SwiGLU.

use serde_json::{Map, Value};

use super::fields::HARMLESS;
use super::{ConfigError, Fields, ensure};
use crate::gguf::{self, Gguf, GgufError, clip};

/// Which elements of a head rotary embedding turns together.
///
/// The two orders give the same model with the rows of the Q and K weights permuted; GGUF files
/// of the llama architecture store them permuted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// Element `i` with `i + n_rot / 2` (GPT-NeoX, Hugging Face).
    Halves,
    /// Element `2 i` with `2 i + 1` (GPT-J, GGUF's llama).
    Pairs,
}

/// Everything that the weights of a llama-family model do not say themselves.
///
/// ```
/// use tercet_models::{LlamaConfig, RopeLayout};
///
/// let json = r#"{
///     "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2,
///     "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
///     "vocab_size": 300, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
///     "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": [2, 3]
/// }"#;
/// let json = serde_json::from_str(json)?;
/// let config = LlamaConfig::from_json(&json)?;
/// assert_eq!((config.head_dim, config.rope_layout), (16, RopeLayout::Halves));
///
/// let mut odd = json.clone();
/// odd.insert("residual_multiplier".into(), 0.22.into());
/// let refused = LlamaConfig::from_json(&odd).unwrap_err().to_string();
/// assert!(refused.contains("`residual_multiplier`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head; `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Leading elements of a head that are rotated (even); the rest passes through.
    pub rope_dims: usize,
    /// The order of the rotated elements in the Q and K weights.
    pub rope_layout: RopeLayout,
    /// Added to the mean square in RMS norms.
    pub rms_eps: f32,
    /// Whether the output projection is the embedding.
    pub tied_embeddings: bool,
    /// Whether the Q, K and V projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention output projection has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end one; may be empty.
    pub eos: Vec<u32>,
}

impl LlamaConfig {
    /// Reads a Hugging Face `config.json` with `model_type` `llama`, or `mistral` without a
    /// sliding window.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<Self, ConfigError> {
        let fields = Fields::new(json, "");
        let model_type = fields.required("model_type", fields.opt_str("model_type")?)?;
        fields.only("model_type", "\"llama\" (or \"mistral\")", |_| {
            matches!(model_type, "llama" | "mistral")
        })?;
        fields.only("hidden_act", "\"silu\"", |v| {
            matches!(v.as_str(), Some("silu" | "swish"))
        })?;
        fields.only("sliding_window", "null", |_| false)?;
        fields.only(
            "quantization_config",
            "an unquantised checkpoint (or a GGUF file)",
            |_| false,
        )?;
        fields.only("partial_rotary_factor", "1", |v| v.as_f64() == Some(1.0))?;
        fields.only("is_encoder_decoder", "false", |v| {
            v.as_bool() == Some(false)
        })?;
        fields.only("is_decoder", "true or false", Value::is_boolean)?;

        let hidden = fields.size("hidden_size")?;
        let heads = fields.size("num_attention_heads")?;
        let head_dim = fields.opt_size("head_dim")?;
        let rope_theta = rope_theta_of_json(&fields)?;
        let attention_bias = fields.opt_bool("attention_bias")?.unwrap_or(false);
        let head_dim = derived_head_dim(head_dim, hidden, heads)?;
        let config = Self {
            hidden,
            layers: fields.size("num_hidden_layers")?,
            heads,
            kv_heads: fields.opt_size("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            ffn: fields.size("intermediate_size")?,
            vocab: fields.size("vocab_size")?,
            context: fields.size("max_position_embeddings")?,
            rope_theta,
            rope_dims: head_dim,
            rope_layout: RopeLayout::Halves,
            rms_eps: fields.positive("rms_norm_eps")? as f32,
            tied_embeddings: fields.opt_bool("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias: fields.opt_bool("mlp_bias")?.unwrap_or(false),
            bos: fields.opt_token("bos_token_id")?,
            eos: fields.tokens("eos_token_id")?,
        };
        fields.finish(&[HARMLESS])?;
        config.check()?;
        Ok(config)
    }

    /// Reads the `llama.*` metadata of a GGUF file; biases and tied embeddings are seen from
    /// its tensors.
    ///
    /// # Errors
    /// [`ConfigError`]: a key is missing, wrong, unsupported, or unknown.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let meta = gguf.metadata();
        let architecture = meta.get_str("general.architecture")?;
        if architecture != "llama" {
            return Err(unsupported("general.architecture", architecture, "llama"));
        }
        refuse_gguf_variants(gguf)?;

        let hidden = size(meta, "llama.embedding_length")?;
        let heads = size(meta, "llama.attention.head_count")?;
        let head_dim =
            derived_head_dim(opt_size(meta, "llama.attention.key_length")?, hidden, heads)?;
        if let Some(found) = opt_size(meta, "llama.attention.value_length")?
            && found != head_dim
        {
            let supported = format!("{head_dim} (the key length)");
            return Err(unsupported(
                "llama.attention.value_length",
                found,
                supported,
            ));
        }
        let rms_key = "llama.attention.layer_norm_rms_epsilon";
        let config = Self {
            hidden,
            layers: size(meta, "llama.block_count")?,
            heads,
            kv_heads: opt_size(meta, "llama.attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            ffn: size(meta, "llama.feed_forward_length")?,
            vocab: vocab_of_gguf(gguf)?,
            context: size(meta, "llama.context_length")?,
            rope_theta: f64::from(meta.opt_f32("llama.rope.freq_base")?.unwrap_or(10_000.0)),
            rope_dims: opt_size(meta, "llama.rope.dimension_count")?.unwrap_or(head_dim),
            rope_layout: RopeLayout::Pairs,
            rms_eps: meta.get_f32(rms_key)?,
            tied_embeddings: !gguf.has_tensor("output.weight"),
            qkv_bias: gguf.has_tensor("blk.0.attn_q.bias"),
            output_bias: gguf.has_tensor("blk.0.attn_output.bias"),
            mlp_bias: gguf.has_tensor("blk.0.ffn_down.bias"),
            bos: meta.opt_u32("tokenizer.ggml.bos_token_id")?,
            eos: gguf_eos(meta)?,
        };
        refuse_unknown_keys(meta)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        ensure(self.heads.is_multiple_of(self.kv_heads), || {
            format!(
                "{} query heads cannot share {} key/value heads evenly",
                self.heads, self.kv_heads
            )
        })?;
        ensure(
            self.rope_dims.is_multiple_of(2) && self.rope_dims <= self.head_dim,
            || {
                format!(
                    "rotary embedding of {} elements needs an even number, at most the head's {}",
                    self.rope_dims, self.head_dim
                )
            },
        )?;
        ensure(self.rope_theta.is_finite() && self.rope_theta > 0.0, || {
            format!(
                "the rotary base is {}, it must be positive",
                self.rope_theta
            )
        })?;
        ensure(self.rms_eps.is_finite() && self.rms_eps > 0.0, || {
            format!(
                "the RMS norm epsilon is {}, it must be positive",
                self.rms_eps
            )
        })?;
        let beyond = self
            .bos
            .iter()
            .chain(&self.eos)
            .find(|id| **id as usize >= self.vocab);
        ensure(beyond.is_none(), || {
            format!(
                "the special token {} is beyond the vocabulary of {}",
                beyond.copied().unwrap_or_default(),
                self.vocab
            )
        })
    }
}

fn derived_head_dim(
    given: Option<usize>,
    hidden: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    if let Some(head_dim) = given {
        return Ok(head_dim);
    }
    ensure(hidden.is_multiple_of(heads), || {
        format!("a width of {hidden} is not a multiple of {heads} heads, and no head size is given")
    })?;
    Ok(hidden / heads)
}

/// Old files have `rope_theta` and `rope_scaling`, new ones `rope_parameters` with both.
fn rope_theta_of_json(fields: &Fields<'_>) -> Result<f64, ConfigError> {
    const DEFAULT_THETA: f64 = 10_000.0;
    let mut theta = fields.opt_positive("rope_theta")?;
    for (name, prefix) in [
        ("rope_scaling", "rope_scaling."),
        ("rope_parameters", "rope_parameters."),
    ] {
        let Some(object) = fields.opt_object(name)? else {
            continue;
        };
        let inner = Fields::new(object, prefix);
        for type_field in ["rope_type", "type"] {
            inner.only(type_field, "\"default\"", |v| v.as_str() == Some("default"))?;
        }
        inner.only("partial_rotary_factor", "1", |v| v.as_f64() == Some(1.0))?;
        let inner_theta = inner.opt_positive("rope_theta")?;
        inner.finish(&[])?;
        if let (Some(outer), Some(found)) = (theta, inner_theta) {
            ensure(outer == found, || {
                format!("rope_theta is {outer}, but {prefix}rope_theta is {found}")
            })?;
        }
        theta = inner_theta.or(theta);
    }
    Ok(theta.unwrap_or(DEFAULT_THETA))
}

fn unsupported(
    field: &str,
    found: impl std::fmt::Display,
    supported: impl Into<String>,
) -> ConfigError {
    ConfigError::Unsupported {
        field: field.to_owned(),
        found: clip(&found.to_string()),
        supported: supported.into(),
    }
}

fn opt_size(meta: &gguf::Metadata, key: &str) -> Result<Option<usize>, ConfigError> {
    let Some(found) = meta.opt_u32(key)? else {
        return Ok(None);
    };
    if found == 0 || found > 1 << 31 {
        return Err(ConfigError::WrongType {
            field: key.to_owned(),
            expected: "an integer from 1 to 2^31",
            found: found.to_string(),
        });
    }
    Ok(Some(found as usize))
}

fn size(meta: &gguf::Metadata, key: &str) -> Result<usize, ConfigError> {
    opt_size(meta, key)?.ok_or_else(|| {
        GgufError::MissingKey {
            key: key.to_owned(),
        }
        .into()
    })
}

/// Refuses what other files of the `llama` architecture may ask for.
fn refuse_gguf_variants(gguf: &Gguf) -> Result<(), ConfigError> {
    let meta = gguf.metadata();
    if let Some(kind) = meta.opt_str("llama.rope.scaling.type")?
        && kind != "none"
    {
        return Err(unsupported("llama.rope.scaling.type", kind, "none"));
    }
    for key in ["llama.rope.scaling.factor", "llama.rope.scale_linear"] {
        // Some converters write a factor of 0 for "no scaling".
        if let Some(factor) = meta.opt_f32(key)?
            && factor != 1.0
            && factor != 0.0
        {
            return Err(unsupported(key, factor, "1"));
        }
    }
    if gguf.has_tensor("rope_freqs.weight") {
        return Err(unsupported(
            "rope_freqs.weight",
            "a tensor of scaled rotary frequencies",
            "a model without rope scaling",
        ));
    }
    for key in ["llama.expert_count", "llama.expert_used_count"] {
        if let Some(count) = meta.opt_u32(key)?
            && count != 0
        {
            return Err(unsupported(key, count, "a dense model"));
        }
    }
    if let Some(causal) = meta.opt_bool("llama.attention.causal")?
        && !causal
    {
        return Err(unsupported("llama.attention.causal", causal, "true"));
    }
    Ok(())
}

/// `llama.*` keys that are honoured or checked above, or that describe the file only.
const KNOWN_KEYS: &[&str] = &[
    "llama.attention.causal",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.attention.value_length",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.expert_count",
    "llama.expert_used_count",
    "llama.feed_forward_length",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scale_linear",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.finetuned",
    "llama.rope.scaling.original_context_length",
    "llama.rope.scaling.type",
    "llama.tensor_data_layout",
    "llama.vocab_size",
];

fn refuse_unknown_keys(meta: &gguf::Metadata) -> Result<(), ConfigError> {
    let unknown: Vec<String> = meta
        .iter()
        .map(|(key, _)| key)
        .filter(|key| key.starts_with("llama.") && !KNOWN_KEYS.contains(key))
        .map(|key| format!("`{}`", clip(key)))
        .collect();
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(ConfigError::UnknownFields {
            fields: clip(&unknown.join(", ")),
        })
    }
}

fn vocab_of_gguf(gguf: &Gguf) -> Result<usize, ConfigError> {
    let embedding = gguf.tensor("token_embd.weight")?;
    let shape = embedding.shape();
    let &[rows, _] = shape.as_slice() else {
        return Err(ConfigError::Inconsistent {
            reason: format!("token_embd.weight has shape {shape:?}, not [vocabulary, width]"),
        });
    };
    if let Some(stated) = opt_size(gguf.metadata(), "llama.vocab_size")? {
        ensure(stated == rows, || {
            format!("llama.vocab_size is {stated}, but token_embd.weight has {rows} rows")
        })?;
    }
    Ok(rows)
}

/// The end-of-text token, and the end-of-turn token where a chat model has another one.
pub(crate) fn gguf_eos(meta: &gguf::Metadata) -> Result<Vec<u32>, GgufError> {
    let mut eos = Vec::new();
    for key in [
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
    ] {
        if let Some(id) = meta.opt_u32(key)?
            && !eos.contains(&id)
        {
            eos.push(id);
        }
    }
    Ok(eos)
}
