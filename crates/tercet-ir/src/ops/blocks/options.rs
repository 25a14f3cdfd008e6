//! What builders of blocks take: weights and options.

use crate::graph::Value;
use crate::ops::attention::AttentionMask;
use crate::ops::rope::RopeStyle;

/// A product with what is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dense {
    /// `[K, N]`
    pub weight: Value,
    /// `[N]`
    pub bias: Option<Value>,
}

impl Dense {
    /// A product with a bias.
    pub fn new(weight: Value, bias: Value) -> Dense {
        let bias = Some(bias);
        Dense { weight, bias }
    }

    /// A product alone.
    pub fn without_bias(weight: Value) -> Dense {
        Dense { weight, bias: None }
    }
}

/// The rotation of the queries and keys of a block, by tables as of [`Rope`](crate::ops::Rope).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRope {
    /// Which elements make a pair.
    pub style: RopeStyle,
    /// `[S, n_rot/2]` or `[B, S, n_rot/2]`, of the dtype of the rows or F32.
    pub cos: Value,
    /// As `cos`.
    pub sin: Value,
}

/// How a block attends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionBlockOptions {
    /// Heads of the queries; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Which tokens a token sees.
    pub mask: AttentionMask,
    /// Factor of the scores; `1 / sqrt(head dim)` where absent.
    pub scale: Option<f64>,
    /// Bounds the scores where present.
    pub softcap: Option<f64>,
    /// Rotates queries and keys where present.
    pub rope: Option<BlockRope>,
}

impl AttentionBlockOptions {
    /// Every token is seen, the scale is the default, scores are not bounded, nothing is rotated.
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

    /// Which tokens a token sees.
    pub fn mask(self, mask: AttentionMask) -> AttentionBlockOptions {
        AttentionBlockOptions { mask, ..self }
    }

    /// The factor of the scores.
    pub fn scale(self, scale: f64) -> AttentionBlockOptions {
        let scale = Some(scale);
        AttentionBlockOptions { scale, ..self }
    }

    /// Scores become `softcap * tanh(s / softcap)`.
    pub fn softcap(self, softcap: f64) -> AttentionBlockOptions {
        let softcap = Some(softcap);
        AttentionBlockOptions { softcap, ..self }
    }

    /// Rotates queries and keys by tables.
    pub fn rope(self, style: RopeStyle, cos: Value, sin: Value) -> AttentionBlockOptions {
        let rope = Some(BlockRope { style, cos, sin });
        AttentionBlockOptions { rope, ..self }
    }
}

/// The weights of an encoder layer over rows of `E`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerWeights {
    /// `[E, (q_heads + 2 kv_heads) D]`: columns of all queries, then keys, then values.
    pub qkv: Dense,
    /// `[q_heads D, E]`
    pub out: Dense,
    /// Gamma and beta after attention, each `[E]`.
    pub attention_norm: [Value; 2],
    /// `[E, F]`
    pub up: Dense,
    /// `[F, E]`
    pub down: Dense,
    /// Gamma and beta at the end, each `[E]`.
    pub last_norm: [Value; 2],
}
