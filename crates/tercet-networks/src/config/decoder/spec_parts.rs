//! Parts of a decoder's specification.

use super::layers::{LatentAttention, QkNorm};
use super::multipliers::{AttentionTemperature, Multipliers};
use super::nested::NestedPrefix;

/// The positions that a query attends to.
///
/// ```
/// use tercet_networks::config::{AttentionDirection, AttentionSpec};
/// assert_eq!(AttentionSpec::default().direction, AttentionDirection::Causal);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttentionDirection {
    /// Its own position and those before it.
    #[default]
    Causal,
    /// All positions: the model computes text embeddings and does not generate. A layer's window
    /// then counts positions in each direction.
    Bidirectional,
}

/// The attention of a decoder's layers.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// use tercet_networks::{DecoderSpec, config::AttentionSpec};
/// let attention = AttentionSpec { sinks: true, softcap: Some(50.0), ..AttentionSpec::default() };
/// let spec = DecoderSpec { attention, ..DecoderSpec::llama(dims) };
/// assert!(spec.attention.sinks && !spec.is_bidirectional());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionSpec {
    /// The positions that a query attends to.
    pub direction: AttentionDirection,
    /// Optional norms of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Multi-head latent attention in place of plain Q, K and V projections. Each head's unrotated
    /// elements come first, followed by `rope_dims` rotated ones.
    pub latent: Option<LatentAttention>,
    /// Whether the attention output is multiplied by the sigmoid of a gate. The gate is projected
    /// together with the queries: each head has its query followed by its gate.
    pub gated: bool,
    /// Whether each head has an attention sink: an extra score in the softmax that belongs to no
    /// key and adds no value.
    pub sinks: bool,
    /// The factor of attention scores; `None` means `head_dim^-0.5`.
    pub scale: Option<f64>,
    /// Soft cap `c` of attention scores: `c tanh(score / c)`.
    pub softcap: Option<f64>,
    /// Position-dependent scale of queries.
    pub temperature: Option<AttentionTemperature>,
}

/// Scale factors of a decoder. The default changes nothing.
///
/// ```
/// use tercet_networks::config::DecoderScales;
/// assert_eq!(DecoderScales::default().embedding, 1.0);
/// assert_eq!(DecoderScales::default().logit_softcap, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecoderScales {
    /// The factor of token embeddings.
    pub embedding: f32,
    /// The factor on the outputs of attention and of the feed-forward network before the residual
    /// addition.
    pub residual: f32,
    /// The factor of logits.
    pub logits: f32,
    /// Soft cap `c` of logits: `c tanh(logit / c)`.
    pub logit_softcap: Option<f64>,
    /// Scale factors of projections.
    pub multipliers: Multipliers,
}

impl Default for DecoderScales {
    fn default() -> DecoderScales {
        DecoderScales {
            embedding: 1.0,
            residual: 1.0,
            logits: 1.0,
            logit_softcap: None,
            multipliers: Multipliers::ONES,
        }
    }
}

/// How a token's position enters its embedding.
///
/// ```
/// use tercet_networks::config::TokenPositions;
/// assert_eq!(TokenPositions::default(), TokenPositions::Rotary);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TokenPositions {
    /// Not at all: layers rotate queries and keys, or have states, or need no position.
    #[default]
    Rotary,
    /// A table of learned embeddings is added, one row per position of the context.
    Learned,
}

/// The projections that have biases.
///
/// ```
/// use tercet_networks::config::DecoderBiases;
/// assert_eq!(DecoderBiases { qkv: true, ..DecoderBiases::default() }.output, false);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DecoderBiases {
    /// The Q, K and V projections.
    pub qkv: bool,
    /// The attention output projection.
    pub output: bool,
    /// The feed-forward projections.
    pub mlp: bool,
    /// The output projection (LM head).
    pub head: bool,
}

/// The order of the rows of a fused Q, K and V projection.
///
/// ```
/// use tercet_networks::config::{DecoderStorage, QkvRows};
/// let fused = DecoderStorage { fused_qkv: true, qkv_rows: QkvRows::ByGroup, ..DecoderStorage::default() };
/// assert_ne!(fused.qkv_rows, DecoderStorage::default().qkv_rows);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QkvRows {
    /// All Q rows, then all K rows, then all V rows.
    #[default]
    ByPart,
    /// Grouped by key/value head: the queries, key and value of the first, then of the second, and
    /// so on.
    ByGroup,
}

/// How files store the tensors of a decoder: names, and projections that share a tensor. Nothing of
/// it changes results.
///
/// ```
/// use tercet_networks::config::{DecoderStorage, QkvRows};
/// assert_eq!(DecoderStorage::default().qkv_rows, QkvRows::ByPart);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DecoderStorage {
    /// Whether Q, K and V are rows of one fused projection.
    pub fused_qkv: bool,
    /// The order of the rows of the fused projection.
    pub qkv_rows: QkvRows,
    /// Whether gate and up are rows of one projection, the gate first.
    pub fused_gate_up: bool,
    /// Whether tensor names in the folder lack the family's prefix, as in folders saved without the
    /// LM head.
    pub bare_names: bool,
    /// The prefix of the decoder's tensor names if it is part of a larger model in the folder.
    pub nested_prefix: NestedPrefix,
    /// Whether the folder names the output projection `lm_head` instead of the family's older name.
    pub output_is_lm_head: bool,
}
