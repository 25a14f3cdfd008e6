//! The builder of attention.

use super::{Attention, Layout, MaskKind};
use crate::attr::Real;
use crate::error::OpError;
use crate::graph::{Graph, Value};

/// Which keys a query sees, with the operand where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Every key.
    None,
    /// Keys up to the query's own position.
    Causal,
    /// The last so many keys up to the query's own position.
    Window(usize),
    /// Keys where a `Bool` operand is true.
    Keep(Value),
    /// A term of the scores.
    Bias(Value),
}

impl AttentionMask {
    /// The attribute and the operand.
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

/// How [`Graph::attention`] attends.
///
/// ```
/// use tercet_ir::{DType, Graph, Type, ops::{AttentionOptions, Layout}};
/// let mut g = Graph::new();
/// let q = g.input("q", Type::new(DType::F32, [1, 3, 8, 64]))?;
/// let kv = g.input("kv", Type::new(DType::F32, [1, 100, 2, 64]))?;
/// let len = g.input("len", Type::new(DType::I32, [0; 0]))?;
/// let options = AttentionOptions::new(8, 2, Layout::Bshd).causal().kv_len(len);
/// let y = g.attention(q, kv, kv, options)?;
/// assert_eq!(g.ty(y).to_string(), "f32[1, 3, 8, 64]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Heads of the queries; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// The order of the axes.
    pub layout: Layout,
    /// Which keys a query sees.
    pub mask: AttentionMask,
    /// Factor of the scores; `1 / sqrt(head dim)` where absent.
    pub scale: Option<f64>,
    /// Bounds the scores where present.
    pub softcap: Option<f64>,
    /// How many keys there are, I32 `[]` or `[B]`; all where absent.
    pub kv_len: Option<Value>,
}

impl AttentionOptions {
    /// Every key is seen, the scale is the default, scores are not bounded.
    pub fn new(q_heads: usize, kv_heads: usize, layout: Layout) -> AttentionOptions {
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

    /// A query sees the keys up to its own position, counted from the end of both sequences.
    pub fn causal(self) -> AttentionOptions {
        self.mask(AttentionMask::Causal)
    }

    /// A query sees the last `w` keys up to its own position.
    pub fn window(self, w: usize) -> AttentionOptions {
        self.mask(AttentionMask::Window(w))
    }

    /// A query sees the keys where `mask` is true: `Bool [B,Sk]`, `[B,Sq,Sk]` or `[B,H,Sq,Sk]`,
    /// where an axis of 1 repeats.
    pub fn keep(self, mask: Value) -> AttentionOptions {
        self.mask(AttentionMask::Keep(mask))
    }

    /// Adds `bias` to the scores: of the dtype of `q` and of a shape as for
    /// [`AttentionOptions::keep`]; a key at `-inf` is not seen.
    pub fn bias(self, bias: Value) -> AttentionOptions {
        self.mask(AttentionMask::Bias(bias))
    }

    /// Which keys a query sees.
    pub fn mask(self, mask: AttentionMask) -> AttentionOptions {
        AttentionOptions { mask, ..self }
    }

    /// The factor of the scores.
    pub fn scale(self, scale: f64) -> AttentionOptions {
        let scale = Some(scale);
        AttentionOptions { scale, ..self }
    }

    /// Scores become `softcap * tanh(s / softcap)`.
    pub fn softcap(self, softcap: f64) -> AttentionOptions {
        let softcap = Some(softcap);
        AttentionOptions { softcap, ..self }
    }

    /// How many keys there are, I32 `[]` or `[B]`; those beyond are never seen.
    pub fn kv_len(self, kv_len: Value) -> AttentionOptions {
        let kv_len = Some(kv_len);
        AttentionOptions { kv_len, ..self }
    }

    /// The operator, and its operands from the mask on.
    pub(crate) fn split(self) -> (Attention, Vec<Value>) {
        let (mask, operand) = self.mask.split();
        let op = Attention {
            q_heads: self.q_heads,
            kv_heads: self.kv_heads,
            layout: self.layout,
            mask,
            scale: self.scale.map(Real),
            softcap: self.softcap.map(Real),
            kv_len: self.kv_len.is_some(),
        };
        (op, operand.into_iter().chain(self.kv_len).collect())
    }
}

impl Graph {
    /// Attention of `q [B,Sq,q_heads,D]` over `k [B,Sk,kv_heads,D]` and `v [B,Sk,kv_heads,Dv]`
    /// (the middle axes in the order of the layout), floats of one dtype: `[B,Sq,q_heads,Dv]`. See
    /// [`Attention`] and [`MaskKind`] for the meaning.
    ///
    /// # Errors
    /// [`OpError`] when types, heads or the mask do not fit, a head dim is symbolic, the window is
    /// 0, or scale or softcap are not finite. A `kv_len` outside `0 ..= Sk` ends the run.
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
