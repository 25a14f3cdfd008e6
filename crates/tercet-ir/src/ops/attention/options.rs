//! The builder of attention.

use super::{Attention, AttentionLayout, MaskKind};
use crate::attr::FloatAttr;
use crate::error::OpError;
use crate::graph::{Graph, Value};

/// Which keys a query attends to, with the mask operand if there is one.
///
/// ```
/// use tercet_ir::ops::{AttentionLayout, AttentionMask, AttentionOptions};
/// use tercet_ir::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let q = g.input("q", Type::new(DType::F32, [1, 5, 2, 64]))?;
/// let visible = g.input("visible", Type::new(DType::Bool, [1, 5]))?;
/// let options = AttentionOptions::new(2, 2, AttentionLayout::Bshd);
/// let y = g.attention(q, q, q, options.mask(AttentionMask::Keep(visible)))?;
/// assert_eq!(g.ty(y), g.ty(q));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// All keys are visible.
    None,
    /// Causal mask: keys up to the query's position.
    Causal,
    /// Sliding window: this number of keys, up to the query's position.
    Window(usize),
    /// Keys at which a `Bool` operand is true.
    Keep(Value),
    /// An additive bias of the scores.
    Bias(Value),
}

impl AttentionMask {
    /// Splits the mask into its attribute and its operand.
    pub(crate) fn split(self) -> (MaskKind, Option<Value>) {
        match self {
            AttentionMask::None => (MaskKind::None, None),
            AttentionMask::Causal => (MaskKind::Causal, None),
            AttentionMask::Window(w) => (MaskKind::Window(w), None),
            AttentionMask::Keep(m) => (MaskKind::Keep, Some(m)),
            AttentionMask::Bias(m) => (MaskKind::Bias, Some(m)),
        }
    }
}

/// Options of [`Graph::attention`].
///
/// ```
/// use tercet_ir::{DType, Graph, Type, ops::{AttentionLayout, AttentionOptions}};
/// let mut g = Graph::new();
/// let q = g.input("q", Type::new(DType::F32, [1, 3, 8, 64]))?;
/// let kv = g.input("kv", Type::new(DType::F32, [1, 100, 2, 64]))?;
/// let len = g.input("len", Type::new(DType::I32, [0; 0]))?;
/// let options = AttentionOptions::new(8, 2, AttentionLayout::Bshd).causal().kv_len(len);
/// let y = g.attention(q, kv, kv, options)?;
/// assert_eq!(g.ty(y).to_string(), "f32[1, 3, 8, 64]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Number of query heads; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// The order of the axes.
    pub layout: AttentionLayout,
    /// Which keys a query attends to.
    pub mask: AttentionMask,
    /// Factor of the scores; `1 / sqrt(head dim)` if absent.
    pub scale: Option<f64>,
    /// Caps the scores if present.
    pub softcap: Option<f64>,
    /// The number of keys, I32 `[]` or `[B]`; all keys if absent.
    pub kv_len: Option<Value>,
}

impl AttentionOptions {
    /// Options without a mask and a cap, with the default scale.
    pub fn new(q_heads: usize, kv_heads: usize, layout: AttentionLayout) -> AttentionOptions {
        AttentionOptions {
            q_heads,
            kv_heads,
            layout,
            mask: AttentionMask::None,
            scale: None,
            softcap: None,
            kv_len: None,
        }
    }

    /// Causal mask: a query attends to the keys up to its position, with the ends of both sequences
    /// aligned.
    pub fn causal(self) -> AttentionOptions {
        self.mask(AttentionMask::Causal)
    }

    /// Sliding window: a query attends to the last `w` keys up to its position.
    pub fn window(self, w: usize) -> AttentionOptions {
        self.mask(AttentionMask::Window(w))
    }

    /// A query attends to the keys at which `mask` is true: `Bool [B,Sk]`, `[B,Sq,Sk]` or
    /// `[B,H,Sq,Sk]`; axes of size 1 broadcast.
    pub fn keep(self, mask: Value) -> AttentionOptions {
        self.mask(AttentionMask::Keep(mask))
    }

    /// Adds `bias` to the scores. The bias has the dtype of `q` and a shape as in
    /// [`AttentionOptions::keep`]; `-inf` masks a key.
    pub fn bias(self, bias: Value) -> AttentionOptions {
        self.mask(AttentionMask::Bias(bias))
    }

    /// Sets which keys a query attends to.
    pub fn mask(self, mask: AttentionMask) -> AttentionOptions {
        AttentionOptions { mask, ..self }
    }

    /// Sets the factor of the scores.
    pub fn scale(self, scale: f64) -> AttentionOptions {
        let scale = Some(scale);
        AttentionOptions { scale, ..self }
    }

    /// Caps the scores as `softcap * tanh(s / softcap)`.
    pub fn softcap(self, softcap: f64) -> AttentionOptions {
        let softcap = Some(softcap);
        AttentionOptions { softcap, ..self }
    }

    /// Sets the number of keys, I32 `[]` or `[B]`; keys beyond it are masked.
    pub fn kv_len(self, kv_len: Value) -> AttentionOptions {
        let kv_len = Some(kv_len);
        AttentionOptions { kv_len, ..self }
    }

    /// Splits the options into the operator and its operands from the mask on.
    pub(crate) fn split(self) -> (Attention, Vec<Value>) {
        let (mask, operand) = self.mask.split();
        let op = Attention {
            q_heads: self.q_heads,
            kv_heads: self.kv_heads,
            layout: self.layout,
            mask,
            scale: self.scale.map(FloatAttr),
            softcap: self.softcap.map(FloatAttr),
            kv_len: self.kv_len.is_some(),
        };
        (op, operand.into_iter().chain(self.kv_len).collect())
    }
}

impl Graph {
    /// Attention of `q [B,Sq,q_heads,D]` over `k [B,Sk,kv_heads,D]` and `v [B,Sk,kv_heads,Dv]`
    /// (with the axis order of the layout), floats of one dtype. The result is `[B,Sq,q_heads,Dv]`.
    /// See [`Attention`] and [`MaskKind`] for the definition.
    ///
    /// # Errors
    /// [`OpError`] when types, heads or the mask do not match, a head dim is symbolic, the window
    /// is 0, or scale or softcap are not finite. A run fails if `kv_len` is outside `0 ..= Sk`.
    pub fn attention(
        &mut self,
        q: Value,
        k: Value,
        v: Value,
        options: AttentionOptions,
    ) -> Result<Value, OpError> {
        let (op, rest) = options.split();
        let operands: Vec<Value> = [q, k, v].into_iter().chain(rest).collect();
        self.add(op, &operands)
    }
}
