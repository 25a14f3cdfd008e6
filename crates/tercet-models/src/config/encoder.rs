//! The encoder specification: what a layer of a text encoder consists of, as data (ADR 0026).
//!
//! One builder makes the graph of every family from an [`EncoderSpec`]; what tells families apart is here. A family is a
//! row of [`families`]: what its folders call fields and tensors, what its layers and heads consist of, and which fields
//! it honours beyond the common ones. A field or a tensor that nobody honours is refused.

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

use super::decoder::{Activation, FeedForward, Norm, NormKind, Rope};
use super::{ConfigError, Fields, ensure};
use crate::gguf::Gguf;
pub use families::EncoderFamily;
pub(crate) use families::{model_types, of_model_type, task_prefixes};
pub(crate) use gguf::is_encoder;
pub(crate) use json::activation;
pub(crate) use part::{EncoderNames, EncoderPart};
pub use patches::PatchSpec;
pub(crate) use patches::sides;
pub(crate) use tensors::{is_derived, known_tensors, refuse_unknown_modules};
pub(crate) use towers::read_tower;

/// How an encoder knows where a token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Positions {
    /// A row of a table for each position, from 0 on.
    Learned {
        /// Rows of the table.
        rows: usize,
    },
    /// The same, counting tokens that are no padding from the padding token's id plus 1 on (RoBERTa); padding has the
    /// row of its id.
    AfterPadding {
        /// Rows of the table.
        rows: usize,
    },
    /// By rotary embeddings alone.
    Rotary,
    /// By terms of the scores alone ([`EncoderSpec::relative`]).
    Distances,
}

/// Terms of the scores by the distance of query and key: every head has one for each bucket of distances. Near distances have
/// a bucket each, farther ones share logarithmic buckets (Raffel and others, "Exploring the limits of transfer learning",
/// 2020).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelativeTerms {
    /// How many buckets there are; half of them for each direction where tokens see both ways.
    pub buckets: usize,
    /// Distances from here on share the last one.
    pub farthest: usize,
}

/// What is added to the embedding of a token for the segment it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenTypes {
    /// Nothing.
    None,
    /// The first row of a table, whatever the segment.
    First {
        /// Rows of the table.
        rows: usize,
    },
    /// The row of the segment.
    BySegment {
        /// Rows of the table.
        rows: usize,
    },
}

/// Where a layer's norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderNorms {
    /// Of the sums after attention and after the feed-forward network.
    AfterSums,
    /// Before attention and before the feed-forward network, and once at the end.
    Before,
}

/// Which others a token sees, where no window says less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Visible {
    /// All that are no padding.
    Tokens,
    /// Those before it and itself.
    Causal,
    /// All, padding too.
    All,
}

/// What tells one layer from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncoderLayer {
    /// How many positions either way a query sees; all where there is none.
    pub window: Option<usize>,
    /// Which of the model's [`EncoderSpec::ropes`] turns queries and keys.
    pub rope: Option<usize>,
    /// Whether there is a norm before its attention; one that follows a norm has none.
    pub attention_norm: bool,
}

/// A head that tells classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadSpec {
    /// Whether the class of a text is told from the mean of its tokens; else from the first.
    pub mean: bool,
    /// The nonlinearity after a dense layer before the classifier, where there is one.
    pub dense: Option<Activation>,
    /// Whether that layer has a bias.
    pub dense_bias: bool,
    /// Whether a norm follows.
    pub norm: bool,
    /// Whether the classes of tokens are told through that layer as well.
    pub dense_of_tokens: bool,
}

/// The sizes of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncoderDims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Attention heads; divides `hidden`.
    pub heads: usize,
    /// Width of the feed-forward network.
    pub ffn: usize,
    /// Rows of the token embedding.
    pub vocab: usize,
    /// Positions.
    pub context: usize,
}

/// Everything that the weights of a text encoder do not say themselves.
///
/// ```
/// use tercet_models::{EncoderSpec, Positions};
///
/// let json = r#"{
///     "model_type": "bert", "hidden_act": "gelu", "hidden_size": 384, "num_hidden_layers": 6,
///     "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522,
///     "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12
/// }"#;
/// let json = serde_json::from_str(json)?;
/// let spec = EncoderSpec::from_json(&json)?;
/// assert_eq!((spec.head_dim, spec.positions), (32, Positions::Learned { rows: 512 }));
///
/// let mut odd = json.clone();
/// odd.insert("embedding_norm_scale".into(), 0.5.into());
/// let refused = EncoderSpec::from_json(&odd).unwrap_err().to_string();
/// assert!(refused.contains("`embedding_norm_scale`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the embeddings; where it is not `hidden`, a projection follows them.
    pub embedding: usize,
    /// Attention heads.
    pub heads: usize,
    /// Elements of one head; `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub ffn: usize,
    /// Rows of the token embedding.
    pub vocab: usize,
    /// Tokens of the longest text.
    pub context: usize,
    /// The layers, in order.
    pub layers: Vec<EncoderLayer>,
    /// How positions are known.
    pub positions: Positions,
    /// How pictures are read, for an encoder that reads patches in the place of tokens; it has no vocabulary.
    pub patches: Option<PatchSpec>,
    /// Which others a token sees.
    pub visible: Visible,
    /// Whether there is a norm of the embeddings.
    pub embedding_norm: bool,
    /// Whether the results of attention and feed-forward network are multiplied with a vector each (Touvron and others, "Going
    /// deeper with image transformers", 2021).
    pub layer_scale: bool,
    /// Terms of the scores by distance.
    pub relative: Option<RelativeTerms>,
    /// The factor of the scores; `head_dim^-0.5` where there is none.
    pub attention_scale: Option<f64>,
    /// What segments add.
    pub token_types: TokenTypes,
    /// The rotary embeddings that layers choose from.
    pub ropes: Vec<Rope>,
    /// The norms.
    pub norm: Norm,
    /// Where they stand in a layer.
    pub placement: EncoderNorms,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
    /// Whether Q, K and V are rows of one projection.
    pub fused_qkv: bool,
    /// Whether gate and up are rows of one projection, the gate first.
    pub fused_gate_up: bool,
    /// Whether the Q, K and V projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention output projection has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// The token that fills short rows of a batch.
    pub pad: u32,
    /// The head of those of its models that tell classes.
    pub head: HeadSpec,
    /// Whether a folder has the names of the family's first writers, where it was renamed since.
    pub old_names: bool,
    /// The family, which says what files call the tensors.
    pub family: EncoderFamily,
}

impl EncoderSpec {
    /// BERT (Devlin and others, 2019): learned positions from 0 on, two segments, layer norms of the sums with an
    /// epsilon of 1e-12, GELU, biases everywhere.
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
            positions: Positions::Learned { rows: context },
            patches: None,
            visible: Visible::Tokens,
            embedding_norm: true,
            layer_scale: false,
            relative: None,
            attention_scale: None,
            token_types: TokenTypes::BySegment { rows: 2 },
            ropes: Vec::new(),
            norm: Norm {
                kind: NormKind::Layer,
                eps: 1e-12,
                bias: true,
                one_plus: false,
            },
            placement: EncoderNorms::AfterSums,
            feed_forward: FeedForward::Plain(Activation::Gelu),
            fused_qkv: false,
            fused_gate_up: false,
            qkv_bias: true,
            output_bias: true,
            mlp_bias: true,
            pad: 0,
            head: HeadSpec {
                mean: false,
                dense: Some(Activation::Tanh),
                dense_bias: true,
                norm: false,
                dense_of_tokens: false,
            },
            old_names: false,
            family: EncoderFamily::BERT,
        }
    }

    /// Reads a Hugging Face `config.json` of any of the families.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<Self, ConfigError> {
        let fields = Fields::new(json, "");
        let spec = json::read(&fields)?;
        spec.check()?;
        Ok(spec)
    }

    /// Reads the metadata of a GGUF file of any architecture of encoders, and which tensors it has.
    ///
    /// # Errors
    /// [`ConfigError`]: a key is missing, wrong, unsupported, or unknown, or a tensor is.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let spec = gguf::read(gguf)?;
        spec.check()?;
        Ok(spec)
    }

    /// The width of all queries.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Every layer sees `window` positions either way where `windowed` says so for its number.
    fn set_windows(&mut self, window: usize, windowed: impl Fn(usize) -> bool) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.window = windowed(i).then_some(window);
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        ensure(self.context > 0, || {
            "there is no position for a token".to_string()
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
            format!("heads of {} elements cannot be rotated", self.head_dim)
        })?;
        for rope in &self.ropes {
            rope.check(self.head_dim)?;
        }
        if let Some(RelativeTerms { buckets, farthest }) = self.relative {
            ensure(buckets.is_multiple_of(4) && farthest > buckets, || {
                format!("{buckets} buckets of distances up to {farthest}")
            })?;
        }
        Ok(())
    }
}
