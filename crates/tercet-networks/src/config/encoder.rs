//! The encoder specification: the structure of a text encoder, as data (ADR 0025).
//!
//! One builder creates the graph of every model family from an [`EncoderSpec`]. A family is a row
//! of `families`. The row has the names of the family's fields and tensors, the structure of its
//! layers and heads, and the fields that it reads in addition to the common ones. A field or a
//! tensor that is not read is an error.

mod families;
mod gguf;
mod json;
mod modern;
mod part;
mod patches;
mod t5;
mod tensors;
mod towers;

use serde_json::{Map, Value};

use super::decoder::{FeedForward, FfnActivation, NormKind, NormSpec, RopeSpec};
use super::{ConfigError, ConfigFields, ensure};
pub use families::EncoderFamily;
pub use families::for_model_type;
pub(crate) use families::{model_types, task_prefixes};
pub(crate) use gguf::gguf_names;
pub use gguf::is_encoder;
pub use part::{EncoderNames, EncoderPart};
pub use patches::PatchSpec;
pub(crate) use patches::sides;
pub(crate) use tensors::{is_derived, known_tensors, reject_unknown_modules};
use tercet_files::gguf::Gguf;
pub(crate) use towers::read_tower;

/// The encoding of token positions.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::{EncoderSpec, PositionEncoding};
/// let rows = dims.context;
/// assert_eq!(EncoderSpec::bert(dims).positions, PositionEncoding::Learned { rows });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PositionEncoding {
    /// Learned position embeddings, from position 0.
    Learned {
        /// Rows of the position table.
        rows: usize,
    },
    /// Learned position embeddings (RoBERTa): non-padding tokens count from the padding token's id
    /// plus 1. Padding uses the row of its id.
    AfterPadding {
        /// Rows of the position table.
        rows: usize,
    },
    /// Rotary embeddings only.
    Rotary,
    /// Relative position biases only ([`EncoderSpec::relative_position_bias`]).
    Distances,
}

/// Relative position biases: a learned term per head and distance bucket that is added to attention
/// scores. Small distances have a bucket each; larger ones share logarithmic buckets (Raffel and
/// others, "Exploring the limits of transfer learning", 2020).
///
/// ```
/// # let json = r#"{
/// #     "model_type": "t5", "is_encoder_decoder": true, "d_model": 64, "d_kv": 16, "d_ff": 128,
/// #     "num_heads": 4, "num_layers": 2, "vocab_size": 300, "feed_forward_proj": "gated-gelu",
/// #     "decoder_start_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false
/// # }"#;
/// # let spec = tercet_networks::Seq2SeqSpec::from_json(&serde_json::from_str(json)?)?;
/// use tercet_networks::config::RelativePositionBias;
/// // `spec` is the specification of a T5 model.
/// let bias: Option<RelativePositionBias> = spec.encoder.relative_position_bias;
/// assert_eq!(bias.map(|bias| bias.farthest), Some(128));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelativePositionBias {
    /// Number of buckets. Bidirectional attention uses half of the buckets for each direction.
    pub buckets: usize,
    /// Distances from this value on share the last bucket.
    pub farthest: usize,
}

/// The segment embedding (token type embedding) that is added to token embeddings.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::{EncoderSpec, TokenTypes};
/// assert_eq!(EncoderSpec::bert(dims).token_types, TokenTypes::BySegment { rows: 2 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenTypes {
    /// No segment embedding.
    None,
    /// The first row of the table for every token, whatever its segment.
    First {
        /// Rows of the segment table.
        rows: usize,
    },
    /// The table row of the token's segment.
    BySegment {
        /// Rows of the segment table.
        rows: usize,
    },
}

/// The placement of norms in a layer.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::{EncoderSpec, config::EncoderNorms};
/// assert_eq!(EncoderSpec::bert(dims).placement, EncoderNorms::AfterSums);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderNorms {
    /// Post-norm: after the residual additions of attention and of the feed-forward network.
    AfterSums,
    /// Pre-norm: before attention and before the feed-forward network, with a final norm.
    Before,
}

/// The attention mask of layers without a window.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::{EncoderSpec, config::AttentionPattern};
/// assert_eq!(EncoderSpec::bert(dims).attention_pattern, AttentionPattern::Tokens);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionPattern {
    /// Each token attends to all tokens except padding.
    Tokens,
    /// Causal: each token attends to itself and earlier tokens.
    Causal,
    /// Each token attends to all tokens, including padding.
    All,
}

/// The properties that may differ between layers.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::{EncoderSpec, config::EncoderLayer};
/// let layer = EncoderLayer { window: None, rope: None, attention_norm: true };
/// assert_eq!(EncoderSpec::bert(dims).layers[0], layer);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncoderLayer {
    /// Sliding attention window in positions per direction; `None` for full attention.
    pub window: Option<usize>,
    /// Index into the model's [`EncoderSpec::ropes`] for queries and keys.
    pub rope: Option<usize>,
    /// Whether the layer has a norm before attention. The first layer lacks this norm if an
    /// embedding norm precedes it.
    pub attention_norm: bool,
}

/// A classification head.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::{EncoderSpec, FfnActivation, config::HeadSpec};
/// let head: HeadSpec = EncoderSpec::bert(dims).head;
/// assert_eq!((head.mean, head.dense), (false, Some(FfnActivation::Tanh)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadSpec {
    /// Whether texts are classified by the mean of their token states; otherwise by the state of
    /// the first token.
    pub mean: bool,
    /// The activation of a dense layer before the classifier, if there is one.
    pub dense: Option<FfnActivation>,
    /// Whether the dense layer has a bias.
    pub dense_bias: bool,
    /// Whether a norm follows the dense layer.
    pub norm: bool,
    /// Whether token classification also uses the dense layer.
    pub dense_of_tokens: bool,
}

/// The sizes of an encoder.
///
/// ```
/// use tercet_networks::{EncoderDims, EncoderSpec};
/// let dims = EncoderDims { hidden: 64, layers: 2, heads: 2, ffn: 128, vocab: 50, context: 16 };
/// assert_eq!(EncoderSpec::bert(dims).head_dim, 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncoderDims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads; divides `hidden`.
    pub heads: usize,
    /// Intermediate width of the feed-forward network.
    pub ffn: usize,
    /// Vocabulary size: rows of the token embedding table.
    pub vocab: usize,
    /// Maximum number of positions.
    pub context: usize,
}

/// The specification of an encoder: everything that its weights do not determine.
///
/// ```
/// use tercet_networks::{EncoderSpec, PositionEncoding};
///
/// let json = r#"{
///     "model_type": "bert", "hidden_act": "gelu", "hidden_size": 384, "num_hidden_layers": 6,
///     "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522,
///     "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12
/// }"#;
/// let json = serde_json::from_str(json)?;
/// let spec = EncoderSpec::from_json(&json)?;
/// assert_eq!((spec.head_dim, spec.positions), (32, PositionEncoding::Learned { rows: 512 }));
///
/// let mut odd = json.clone();
/// odd.insert("hidden_act".into(), "mish".into());
/// let refused = EncoderSpec::from_json(&odd).unwrap_err().to_string();
/// assert!(refused.contains("`hidden_act` = "), "{refused}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the embeddings. If this width differs from `hidden`, a projection follows the
    /// embeddings.
    pub embedding: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Size of one attention head; `heads * head_dim` need not equal `hidden`.
    pub head_dim: usize,
    /// Intermediate width of the feed-forward network.
    pub ffn: usize,
    /// Vocabulary size: rows of the token embedding table.
    pub vocab: usize,
    /// Maximum input length, in tokens.
    pub context: usize,
    /// The layers, in order.
    pub layers: Vec<EncoderLayer>,
    /// The encoding of token positions.
    pub positions: PositionEncoding,
    /// The image patches of a vision encoder, which has no vocabulary; `None` for text encoders.
    pub patches: Option<PatchSpec>,
    /// The attention mask of layers without a window.
    pub attention_pattern: AttentionPattern,
    /// Whether a norm follows the embeddings.
    pub embedding_norm: bool,
    /// Whether the outputs of attention and of the feed-forward network are multiplied by learned
    /// vectors (LayerScale; Touvron and others, "Going deeper with image transformers", 2021).
    pub layer_scale: bool,
    /// Relative position biases of attention scores.
    pub relative_position_bias: Option<RelativePositionBias>,
    /// The factor of attention scores; `None` means `head_dim^-0.5`.
    pub attention_scale: Option<f64>,
    /// The segment embeddings.
    pub token_types: TokenTypes,
    /// The rotary embeddings, which layers refer to by index.
    pub ropes: Vec<RopeSpec>,
    /// The norms.
    pub norm: NormSpec,
    /// The placement of the norms in a layer.
    pub placement: EncoderNorms,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
    /// Whether Q, K and V are rows of one fused projection.
    pub fused_qkv: bool,
    /// Whether gate and up are rows of one projection, the gate first.
    pub fused_gate_up: bool,
    /// Whether the Q, K and V projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention output projection has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// The padding token for the shorter sequences of a batch.
    pub pad: u32,
    /// The classification head, for models that have one.
    pub head: HeadSpec,
    /// Whether the folder uses the family's older tensor names.
    pub old_names: bool,
    /// The model family, which determines tensor names in files.
    pub family: EncoderFamily,
}

impl EncoderSpec {
    /// BERT (Devlin and others, 2019): learned positions from 0, two segments, post-norm layers
    /// with an epsilon of 1e-12, GELU, and biases throughout.
    pub fn bert(dims: EncoderDims) -> EncoderSpec {
        let EncoderDims {
            hidden,
            layers,
            heads,
            ffn,
            vocab,
            context,
        } = dims;
        let layer = EncoderLayer {
            window: None,
            rope: None,
            attention_norm: true,
        };
        EncoderSpec {
            hidden,
            embedding: hidden,
            heads,
            head_dim: hidden / heads.max(1),
            ffn,
            vocab,
            context,
            layers: vec![layer; layers],
            positions: PositionEncoding::Learned { rows: context },
            patches: None,
            attention_pattern: AttentionPattern::Tokens,
            embedding_norm: true,
            layer_scale: false,
            relative_position_bias: None,
            attention_scale: None,
            token_types: TokenTypes::BySegment { rows: 2 },
            ropes: Vec::new(),
            norm: NormSpec {
                kind: NormKind::Layer,
                eps: 1e-12,
                bias: true,
                one_plus: false,
            },
            placement: EncoderNorms::AfterSums,
            feed_forward: FeedForward::Plain(FfnActivation::Gelu),
            fused_qkv: false,
            fused_gate_up: false,
            qkv_bias: true,
            output_bias: true,
            mlp_bias: true,
            pad: 0,
            head: HeadSpec {
                mean: false,
                dense: Some(FfnActivation::Tanh),
                dense_bias: true,
                norm: false,
                dense_of_tokens: false,
            },
            old_names: false,
            family: EncoderFamily::BERT,
        }
    }

    /// Reads a Hugging Face `config.json` of an encoder family.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<Self, ConfigError> {
        let spec = json::read(ConfigFields::new(json, ""))?;
        spec.check()?;
        Ok(spec)
    }

    /// Detects from the folder's tensors whether a Nomic BERT has the older tensor names, which
    /// newer versions of transformers write with the newer field names.
    pub(crate) fn settle_names<'a>(&mut self, mut tensors: impl Iterator<Item = &'a str>) {
        const FUSED: &str = "encoder.layers.0.attn.Wqkv.weight";
        if self.family.model_type() == "nomic_bert" {
            self.old_names = tensors.any(|name| name.ends_with(FUSED));
            self.fused_qkv = self.old_names;
        }
    }

    /// Reads the metadata and the tensor list of a GGUF file of an encoder architecture.
    ///
    /// # Errors
    /// [`ConfigError`] if a key or a tensor is missing, wrong, unsupported or unknown.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let spec = gguf::read(gguf)?;
        spec.check()?;
        Ok(spec)
    }

    /// Width of the queries of all heads.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Sets a window of `window` positions per direction on the layers for which `windowed(layer)`
    /// is true.
    fn set_windows(&mut self, window: usize, windowed: impl Fn(usize) -> bool) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.window = windowed(i).then_some(window);
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        ensure(self.context > 0, || {
            "the position table has no row for a token".to_string()
        })?;
        ensure(
            self.patches.is_some() || (self.pad as usize) < self.vocab,
            || {
                format!(
                    "the padding token {} is beyond the vocabulary of {}",
                    self.pad, self.vocab
                )
            },
        )?;
        let rotated = self.layers.iter().any(|layer| layer.rope.is_some());
        ensure(!rotated || self.head_dim.is_multiple_of(2), || {
            format!(
                "cannot rotate heads of {} elements; expected an even number",
                self.head_dim
            )
        })?;
        for rope in &self.ropes {
            rope.check(self.head_dim)?;
        }
        if let Some(RelativePositionBias { buckets, farthest }) = self.relative_position_bias {
            ensure(buckets.is_multiple_of(4) && farthest > buckets, || {
                format!("cannot map distances up to {farthest} to {buckets} buckets")
            })?;
        }
        Ok(())
    }
}
