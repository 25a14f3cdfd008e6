//! Arguments of the block builders: weights and options.

use crate::graph::Value;
use crate::ops::attention::AttentionMask;
use crate::ops::rope::RopeStyle;

/// A linear layer: weight and optional bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearWeights {
    /// The weight matrix `[K, N]`.
    pub weight: Value,
    /// The bias `[N]`.
    pub bias: Option<Value>,
}

impl LinearWeights {
    /// A linear layer with a bias.
    pub fn new(weight: Value, bias: Value) -> LinearWeights {
        let bias = Some(bias);
        LinearWeights { weight, bias }
    }

    /// A linear layer without a bias.
    pub fn without_bias(weight: Value) -> LinearWeights {
        LinearWeights { weight, bias: None }
    }
}

/// The rotation of the queries and keys of a block, with tables as for [`Rope`](crate::ops::Rope).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRope {
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// Cosines `[S, n_rot/2]` or `[B, S, n_rot/2]`, of the dtype of the rows or F32.
    pub cos: Value,
    /// Sines, with the type of `cos`.
    pub sin: Value,
}

/// The attention options of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionBlockOptions {
    /// Number of query heads; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Which tokens a token attends to.
    pub mask: AttentionMask,
    /// Factor of the scores; `1 / sqrt(head dim)` if absent.
    pub scale: Option<f64>,
    /// Caps the scores if present.
    pub softcap: Option<f64>,
    /// Rotates queries and keys if present.
    pub rope: Option<BlockRope>,
}

impl AttentionBlockOptions {
    /// Options without mask, cap and rotation, with the default scale.
    pub fn new(q_heads: usize, kv_heads: usize) -> AttentionBlockOptions {
        AttentionBlockOptions {
            q_heads,
            kv_heads,
            mask: AttentionMask::None,
            scale: None,
            softcap: None,
            rope: None,
        }
    }

    /// Sets which tokens a token attends to.
    pub fn mask(self, mask: AttentionMask) -> AttentionBlockOptions {
        AttentionBlockOptions { mask, ..self }
    }

    /// Sets the factor of the scores.
    pub fn scale(self, scale: f64) -> AttentionBlockOptions {
        let scale = Some(scale);
        AttentionBlockOptions { scale, ..self }
    }

    /// Caps the scores as `softcap * tanh(s / softcap)`.
    pub fn softcap(self, softcap: f64) -> AttentionBlockOptions {
        let softcap = Some(softcap);
        AttentionBlockOptions { softcap, ..self }
    }

    /// Rotates queries and keys with these tables.
    pub fn rope(self, style: RopeStyle, cos: Value, sin: Value) -> AttentionBlockOptions {
        let rope = Some(BlockRope { style, cos, sin });
        AttentionBlockOptions { rope, ..self }
    }
}

/// The weights of an encoder layer over rows of width `E`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerWeights {
    /// QKV projection `[E, (q_heads + 2 kv_heads) D]`: columns of all queries, then keys, then
    /// values.
    pub qkv: LinearWeights,
    /// Output projection of attention, `[q_heads D, E]`.
    pub out: LinearWeights,
    /// Gamma and beta of the norm after attention, each `[E]`.
    pub attention_norm: [Value; 2],
    /// First feed-forward projection, `[E, F]`.
    pub up: LinearWeights,
    /// Second feed-forward projection, `[F, E]`.
    pub down: LinearWeights,
    /// Gamma and beta of the final norm, each `[E]`.
    pub last_norm: [Value; 2],
}
