//! Scaled dot-product attention.

mod grad;
mod options;
mod reference;
mod saved;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attr::{AttrError, AttrLiteral, AttrValue, FloatAttr};
use crate::attrs;
use crate::error::{EvalError, TypeError};
use crate::grad::{Gradient, rules};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{expect_dtype, expect_equal, expect_rank, expect_same_dtype};

pub use grad::{AttentionGrad, AttentionGradOf};
pub use options::{AttentionMask, AttentionOptions};
use reference::AttentionReference;
pub use saved::AttentionWithLse;

crate::spelled! {
    /// The order of the axes of a rank 4 operand of [`Attention`] and [`Rope`](crate::ops::Rope).
    ///
    /// ```
    /// use tercet_ir::ops::AttentionLayout;
    /// let layout = AttentionLayout::Bhsd;
    /// assert_eq!((layout.head_axis(), layout.seq_axis()), (1, 2));
    /// assert_eq!(layout.name(), "bhsd");
    /// ```
    pub enum AttentionLayout {
        /// `[batch, sequence, heads, head dim]`
        Bshd "bshd",
        /// `[batch, heads, sequence, head dim]`
        Bhsd "bhsd",
    }
}

impl AttentionLayout {
    /// Index of the sequence axis.
    pub const fn seq_axis(self) -> usize {
        match self {
            AttentionLayout::Bshd => 1,
            AttentionLayout::Bhsd => 2,
        }
    }

    /// Index of the head axis.
    pub const fn head_axis(self) -> usize {
        match self {
            AttentionLayout::Bshd => 2,
            AttentionLayout::Bhsd => 1,
        }
    }

    /// Strides of batch, head and sequence in a dense tensor with these sizes; the last axis has
    /// stride 1.
    pub(crate) fn strides(self, shape: &[usize]) -> [usize; 3] {
        let outer = shape[2] * shape[3];
        let inner = shape[3];
        let batch = shape[1] * outer;
        match self {
            AttentionLayout::Bshd => [batch, inner, outer],
            AttentionLayout::Bhsd => [batch, outer, inner],
        }
    }
}

/// Which keys a query attends to, as an attribute of [`Attention`].
///
/// `n` is `kv_len`, or the number of keys if it is absent. Query `i` of `s_q` has the position `p =
/// n - s_q + i`: the last query aligns with the last key. Position `p` may be negative.
///
/// ```
/// use tercet_ir::attr::AttrValue;
/// use tercet_ir::{ops::MaskKind, parse_literal};
/// let mask = MaskKind::from_literal(&parse_literal("window(128)")?)?;
/// assert_eq!(mask, MaskKind::Window(128));
/// assert_eq!(MaskKind::Causal.to_literal().to_string(), "causal");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// All keys: `0 .. n`.
    None,
    /// Causal: keys `0 ..= p`.
    Causal,
    /// Sliding window: keys `p - w + 1 ..= p`, the last `w` keys up to the query's position; `w` is
    /// at least 1.
    Window(usize),
    /// Keys below `n` at which the mask operand is true.
    Keep,
    /// Keys below `n`. The bias operand is added to the scores; `-inf` masks a key.
    Bias,
}

impl AttrValue for MaskKind {
    fn kind() -> String {
        "one of `none` `causal` `window(`integer`)` `keep` `bias`".to_string()
    }

    fn to_literal(&self) -> AttrLiteral {
        let ident = |s: &str| AttrLiteral::Ident(s.to_string());
        match self {
            MaskKind::None => ident("none"),
            MaskKind::Causal => ident("causal"),
            MaskKind::Window(w) => AttrLiteral::Call("window".to_string(), vec![w.to_literal()]),
            MaskKind::Keep => ident("keep"),
            MaskKind::Bias => ident("bias"),
        }
    }

    fn from_literal(l: &AttrLiteral) -> Result<MaskKind, AttrError> {
        let expected = || AttrError::kind("one of none causal window(COUNT) keep bias", l);
        match l {
            AttrLiteral::Ident(s) => match s.as_str() {
                "none" => Ok(MaskKind::None),
                "causal" => Ok(MaskKind::Causal),
                "keep" => Ok(MaskKind::Keep),
                "bias" => Ok(MaskKind::Bias),
                _ => Err(expected()),
            },
            AttrLiteral::Call(s, args) if s == "window" => match args.as_slice() {
                [w] => usize::from_literal(w).map(MaskKind::Window),
                [] | [_, _, ..] => Err(expected()),
            },
            _ => Err(expected()),
        }
    }
}

attrs! {
    /// Softmax attention with grouped queries: `softmax(mask(cap(scale * q k^T))) v`.
    ///
    /// Scores are `s = scale * (q . k)`, then `softcap * tanh(s / softcap)`, then masked. The
    /// softmax runs in F32 or wider over the visible keys. Masked keys contribute nothing, whatever
    /// data they hold. A query without visible keys gives zeros. Query head `h` reads key and value
    /// head `h / (q_heads / kv_heads)`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Op, Type, ops::{AttentionLayout, AttentionOptions}};
    /// let mut g = Graph::new();
    /// let q = g.input("q", Type::new(DType::F32, [1, 8, 5, 64]))?;
    /// let kv = g.input("kv", Type::new(DType::F32, [1, 2, 9, 64]))?;
    /// let options = AttentionOptions::new(8, 2, AttentionLayout::Bhsd).causal();
    /// let y = g.attention(q, kv, kv, options)?;
    /// assert_eq!(g.ty(y), g.ty(q));
    /// let Op::Attention(op) = &g.node(y.node).op else { panic!("`y` is attention") };
    /// assert_eq!((op.q_heads, op.kv_heads), (8, 2));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Attention {
        /// Number of heads of `q` and of the result; a multiple of `kv_heads`.
        pub q_heads: usize,
        /// Number of heads of `k` and `v`.
        pub kv_heads: usize,
        /// The order of the axes of `q`, `k`, `v` and the result.
        pub layout: AttentionLayout,
        /// Which keys a query attends to. `keep` and `bias` need an additional operand.
        pub mask: MaskKind,
        /// Factor of the scores; `1 / sqrt(head dim)` if absent.
        pub scale: Option<FloatAttr>,
        /// Caps the scores as `softcap * tanh(s / softcap)` if present.
        pub softcap: Option<FloatAttr>,
        /// True for an additional operand: the number of keys, I32 `[]` or `[B]`, read at run time.
        pub kv_len: bool,
    }
}

/// Declares an operator whose own attributes are followed by those of [`Attention`].
macro_rules! like_attention {
    ($(#[$m:meta])* pub struct $Op:ident { $($(#[$fm:meta])* $own:ident: $t:ty),* $(,)? }) => {
        $crate::attrs! {
            $(#[$m])*
            pub struct $Op {
                $($(#[$fm])* pub $own: $t,)*
                /// Query heads, as in [`Attention`].
                pub q_heads: usize,
                /// Key and value heads, as in [`Attention`].
                pub kv_heads: usize,
                /// The order of the axes of operands and results of rank 4.
                pub layout: AttentionLayout,
                /// The mask, as in [`Attention`].
                pub mask: MaskKind,
                /// The factor of the scores, as in [`Attention`].
                pub scale: Option<FloatAttr>,
                /// The cap of the scores, as in [`Attention`].
                pub softcap: Option<FloatAttr>,
                /// Whether the number of keys is an operand, as in [`Attention`].
                pub kv_len: bool,
            }
        }

        impl $Op {
            fn from_attention($($own: $t,)* op: Attention) -> $Op {
                $Op {
                    $($own,)*
                    q_heads: op.q_heads,
                    kv_heads: op.kv_heads,
                    layout: op.layout,
                    mask: op.mask,
                    scale: op.scale,
                    softcap: op.softcap,
                    kv_len: op.kv_len,
                }
            }

            /// The underlying attention operator.
            pub fn attention(&self) -> Attention {
                Attention {
                    q_heads: self.q_heads,
                    kv_heads: self.kv_heads,
                    layout: self.layout,
                    mask: self.mask,
                    scale: self.scale,
                    softcap: self.softcap,
                    kv_len: self.kv_len,
                }
            }
        }
    };
}
use like_attention;

/// The dimensions `[batch, heads, sequence, head dim]` of a rank 4 type.
fn parts(ty: &Type, layout: AttentionLayout) -> [&Dim; 4] {
    let d = &ty.shape;
    [&d[0], &d[layout.head_axis()], &d[layout.seq_axis()], &d[3]]
}

impl Attention {
    /// The factor of the scores for this head dimension.
    pub fn scale_for(&self, head_dim: usize) -> f64 {
        self.scale
            .map_or(1.0 / (head_dim.max(1) as f64).sqrt(), |s| s.0)
    }

    /// True if the mask is an operand.
    pub fn has_mask_operand(&self) -> bool {
        match self.mask {
            MaskKind::Keep | MaskKind::Bias => true,
            MaskKind::None | MaskKind::Causal | MaskKind::Window(_) => false,
        }
    }

    /// The keys visible to query `i` of `queries` if there are `kv_len` keys, before `keep` and
    /// `bias`.
    pub fn visible(&self, i: usize, queries: usize, kv_len: usize) -> std::ops::Range<usize> {
        // The index after the query's position; zero if that is negative.
        let end = (kv_len + i + 1).saturating_sub(queries);
        match self.mask {
            MaskKind::None | MaskKind::Keep | MaskKind::Bias => 0..kv_len,
            MaskKind::Causal => 0..end,
            MaskKind::Window(w) => end.saturating_sub(w)..end,
        }
    }

    pub(crate) fn check_attrs(&self) -> Result<(), TypeError> {
        let bad = |name, reason: String| Err(TypeError::Attr { name, reason });
        let (q_heads, kv_heads) = (self.q_heads, self.kv_heads);
        if kv_heads == 0 || q_heads == 0 || q_heads % kv_heads != 0 {
            let reason = format!("{q_heads} is not a positive multiple of kv_heads = {kv_heads}");
            return bad("q_heads", reason);
        }
        if self.mask == MaskKind::Window(0) {
            return bad(
                "mask",
                "a window of 0 sees no key; accepted: 1 or more".into(),
            );
        }
        if let Some(s) = self.scale
            && !s.0.is_finite()
        {
            return bad("scale", format!("{s:?} is not finite"));
        }
        match self.softcap {
            Some(c) if !(c.0.is_finite() && c.0 > 0.0) => bad(
                "softcap",
                format!("{c:?} is not a finite number above zero"),
            ),
            Some(_) | None => Ok(()),
        }
    }

    fn check_mask(&self, mask: &Type, q: &Type, k: &Type) -> Result<(), TypeError> {
        match self.mask {
            MaskKind::Keep => expect_dtype("mask", mask, &[DType::Bool])?,
            MaskKind::Bias => expect_same_dtype("mask", mask, q)?,
            MaskKind::None | MaskKind::Causal | MaskKind::Window(_) => {}
        }
        let [b, h, sq, _] = parts(q, self.layout);
        let sk = parts(k, self.layout)[2];
        let full: &[&Dim] = match mask.rank() {
            2 => &[b, sk],
            3 => &[b, sq, sk],
            4 => &[b, h, sq, sk],
            _ => {
                return Err(TypeError::Rank {
                    operand: "mask",
                    found: mask.clone(),
                    expected: "[B, Sk], [B, Sq, Sk] or [B, H, Sq, Sk]".into(),
                });
            }
        };
        for (axis, (own, all)) in mask.shape.iter().zip(full).enumerate() {
            if !own.is_one() {
                expect_equal(&format!("axis {axis} of mask"), own, all)?;
            }
        }
        Ok(())
    }
}

impl OpSpec for Attention {
    const DOC: OpDoc = OpDoc {
        name: "attention",
        text: "Attention with grouped queries: `softmax(mask(softcap * tanh(scale * q k^T / \
               softcap))) v`, over the visible keys of each query.",
        operands: &["q", "k", "v", "mask?", "kv_len?"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::attention::attention);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        Ok(vec![self.result(operands)?])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (y, _) = AttentionReference::new(self, operands, &operands[3..])?.attend(operands[2]);
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

impl Attention {
    /// The type of `y`, for operands as in [`Attention`].
    fn result(&self, operands: &[&Type]) -> Result<Type, TypeError> {
        let expected = 3 + usize::from(self.has_mask_operand()) + usize::from(self.kv_len);
        let arity = || TypeError::Arity {
            expected: expected.to_string(),
            given: operands.len(),
        };
        let ([q, k, v], rest) = operands.split_first_chunk().ok_or_else(arity)?;
        if operands.len() != expected {
            return Err(arity());
        }
        self.check_attrs()?;
        expect_dtype("q", q, DType::FLOATS)?;
        expect_same_dtype("k", k, q)?;
        expect_same_dtype("v", v, q)?;
        for (name, ty) in [("q", q), ("k", k), ("v", v)] {
            expect_rank(name, ty, 4)?;
        }
        let [qb, qh, _, qd] = parts(q, self.layout);
        let [kb, kh, ks, kd] = parts(k, self.layout);
        let [vb, vh, vs, vd] = parts(v, self.layout);
        expect_equal("heads of q and q_heads", qh, &self.q_heads.into())?;
        expect_equal("heads of k and kv_heads", kh, &self.kv_heads.into())?;
        expect_equal("heads of v and kv_heads", vh, &self.kv_heads.into())?;
        expect_equal("batch of q and k", qb, kb)?;
        expect_equal("batch of q and v", qb, vb)?;
        expect_equal("head dim of q and k", qd, kd)?;
        expect_equal("sequence of k and v", ks, vs)?;
        if qd.known().is_none() || vd.known().is_none() {
            let reason = "the head dims of q and v must be known sizes";
            return Err(TypeError::Other(reason.into()));
        }
        let mut rest = rest.iter();
        if self.has_mask_operand()
            && let Some(mask) = rest.next()
        {
            self.check_mask(mask, q, k)?;
        }
        if self.kv_len
            && let Some(len) = rest.next()
        {
            expect_dtype("kv_len", len, &[DType::I32])?;
            if len.rank() > 0 {
                expect_rank("kv_len", len, 1)?;
                expect_equal("kv_len and the batch", &len.shape[0], qb)?;
            }
        }
        let mut out = q.shape.to_vec();
        out[3] = vd.clone();
        Ok(q.with_shape(out))
    }
}
