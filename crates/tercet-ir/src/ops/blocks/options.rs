//! Arguments of the block builders: weights and options.

use crate::graph::Value;
use crate::ops::attention::AttentionMask;
use crate::ops::rope::RopeStyle;

/// A linear layer: weight and optional bias.
///
/// ```
/// use tercet_ir::ops::LinearWeights;
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let weight = g.param("weight", Type::new(DType::F32, [64, 32]))?;
/// let bias = g.param("bias", Type::new(DType::F32, [32]))?;
/// assert_eq!(LinearWeights::new(weight, bias).bias, Some(bias));
/// assert_eq!(LinearWeights::without_bias(weight).bias, None);
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
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
///
/// ```
/// use tercet_ir::ops::{AttentionBlockOptions, BlockRope, RopeStyle};
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let cos = g.input("cos", Type::new(DType::F32, [5, 16]))?;
/// let sin = g.input("sin", Type::new(DType::F32, [5, 16]))?;
/// let options = AttentionBlockOptions::new(8, 2).rope(RopeStyle::NeoX, cos, sin);
/// assert_eq!(options.rope, Some(BlockRope { style: RopeStyle::NeoX, cos, sin }));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
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
///
/// ```
/// use tercet_ir::ops::{AttentionBlockOptions, AttentionMask, LinearWeights};
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [1, 5, 64]))?;
/// let qkv = g.param("qkv", Type::new(DType::F32, [64, (8 + 2 * 2) * 16]))?;
/// let out = g.param("out", Type::new(DType::F32, [8 * 16, 64]))?;
/// let [qkv, out] = [qkv, out].map(LinearWeights::without_bias);
/// let options = AttentionBlockOptions::new(8, 2).mask(AttentionMask::Causal);
/// let y = g.attention_block(x, qkv, out, options)?;
/// assert_eq!(g.ty(y), g.ty(x));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
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
///
/// ```
/// # use tercet_ir::{DType, Graph, Type, scalar::UnaryFn};
/// use tercet_ir::ops::{AttentionBlockOptions, LinearWeights, TransformerWeights};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [1, 5, 64]))?;
/// # let mut param = |name: &str, shape: &[usize]| g.param(name, Type::new(DType::F32, shape));
/// let weights = TransformerWeights {
///     qkv: LinearWeights::without_bias(param("qkv", &[64, 192])?),
///     out: LinearWeights::without_bias(param("out", &[64, 64])?),
///     attention_norm: [param("gamma_1", &[64])?, param("beta_1", &[64])?],
///     up: LinearWeights::without_bias(param("up", &[64, 256])?),
///     down: LinearWeights::without_bias(param("down", &[256, 64])?),
///     last_norm: [param("gamma_2", &[64])?, param("beta_2", &[64])?],
/// };
/// let (options, gelu) = (AttentionBlockOptions::new(4, 4), Some(UnaryFn::Gelu));
/// let y = g.transformer_layer(x, &weights, options, gelu, 1e-5)?;
/// assert_eq!(g.ty(y), g.ty(x));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
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
