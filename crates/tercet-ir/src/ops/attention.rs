//! Scaled dot-product attention.

mod cases;
mod grad;
mod options;
mod reference;
mod saved;

use crate::accuracy::Accuracy;
use crate::attr::{AttrError, AttrValue, Literal, Real};
use crate::attrs;
use crate::case::{Case, Reject};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, TypeError};
use crate::grad::{Gradient, rules};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{expect_dtype, expect_equal, expect_rank, expect_same_dtype};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

pub use grad::{AttentionGrad, AttentionGradOf};
pub use options::{AttentionMask, AttentionOptions};
use reference::Reference;
pub use saved::AttentionWithLse;

crate::spelled! {
    /// The order of the axes of a rank 4 operand of [`Attention`] and [`Rope`](crate::ops::Rope).
    pub enum Layout {
        /// `[batch, sequence, heads, head dim]`
        Bshd "bshd",
        /// `[batch, heads, sequence, head dim]`
        Bhsd "bhsd",
    }
}

impl Layout {
    /// The axis of the sequence.
    pub const fn seq_axis(self) -> usize {
        match self {
            Layout::Bshd => 1,
            Layout::Bhsd => 2,
        }
    }

    /// The axis of the heads.
    pub const fn head_axis(self) -> usize {
        match self {
            Layout::Bshd => 2,
            Layout::Bhsd => 1,
        }
    }

    /// Strides of batch, head and sequence in a dense tensor of these sizes; the last axis has 1.
    pub(crate) fn strides(self, shape: &[usize]) -> [usize; 3] {
        let outer = shape[2] * shape[3];
        let inner = shape[3];
        let batch = shape[1] * outer;
        match self {
            Layout::Bshd => [batch, inner, outer],
            Layout::Bhsd => [batch, outer, inner],
        }
    }
}

/// Which keys a query sees, as the attribute of [`Attention`].
///
/// With `n = kv_len` (the number of keys where it is absent), query `i` of `s_q` stands at position
/// `p = n - s_q + i`: the last query is at the last key. Position `p` may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// Keys `0 .. n`.
    None,
    /// Keys `0 ..= p`.
    Causal,
    /// Keys `p - w + 1 ..= p`: the last `w` keys up to the query's own position, at least 1.
    Window(usize),
    /// Keys below `n` where the operand is true.
    Keep,
    /// Keys below `n`; the operand is added to the scores, and a key at `-inf` is not seen.
    Bias,
}

impl AttrValue for MaskKind {
    fn kind() -> String {
        "one of `none` `causal` `window(`integer`)` `keep` `bias`".to_string()
    }

    fn to_literal(&self) -> Literal {
        let ident = |s: &str| Literal::Ident(s.to_string());
        match self {
            MaskKind::None => ident("none"),
            MaskKind::Causal => ident("causal"),
            MaskKind::Window(w) => Literal::Call("window".to_string(), vec![w.to_literal()]),
            MaskKind::Keep => ident("keep"),
            MaskKind::Bias => ident("bias"),
        }
    }

    fn from_literal(l: &Literal) -> Result<MaskKind, AttrError> {
        let expected = || AttrError::kind("one of none causal window(COUNT) keep bias", l);
        match l {
            Literal::Ident(s) => match s.as_str() {
                "none" => Ok(MaskKind::None),
                "causal" => Ok(MaskKind::Causal),
                "keep" => Ok(MaskKind::Keep),
                "bias" => Ok(MaskKind::Bias),
                _ => Err(expected()),
            },
            Literal::Call(s, args) if s == "window" => match args.as_slice() {
                [w] => usize::from_literal(w).map(MaskKind::Window),
                [] | [_, _, ..] => Err(expected()),
            },
            _ => Err(expected()),
        }
    }
}

attrs! {
    /// Softmax attention of grouped queries: `softmax(mask(cap(scale * q k^T))) v`.
    ///
    /// Scores are `s = scale * (q . k)`, then `softcap * tanh(s / softcap)`, then the mask, then a
    /// softmax in F32 or better over the keys that the query sees. Keys that it does not see
    /// contribute nothing, whatever they hold; a query that sees no key gives zeros. Query head `h`
    /// reads key and value head `h / (q_heads / kv_heads)`.
    pub struct Attention {
        /// Heads of `q` and of the result; a multiple of `kv_heads`.
        pub q_heads: usize,
        /// Heads of `k` and `v`.
        pub kv_heads: usize,
        /// The order of the axes of `q`, `k`, `v` and the result.
        pub layout: Layout,
        /// Which keys a query sees. `keep` and `bias` take one more operand.
        pub mask: MaskKind,
        /// Factor of the scores; `1 / sqrt(head dim)` where absent.
        pub scale: Option<Real>,
        /// Bounds the scores by `softcap * tanh(s / softcap)` where present.
        pub softcap: Option<Real>,
        /// True for one more operand: how many keys there are, I32 `[]` or `[B]`, read at run time.
        pub kv_len: bool,
    }
}

/// Declares an operator that has attributes of its own, then those of [`Attention`].
macro_rules! like_attention {
    ($(#[$m:meta])* pub struct $Op:ident { $($(#[$fm:meta])* $own:ident: $t:ty),* $(,)? }) => {
        $crate::attrs! {
            $(#[$m])*
            pub struct $Op {
                $($(#[$fm])* pub $own: $t,)*
                /// As of [`Attention`].
                pub q_heads: usize,
                /// As of [`Attention`].
                pub kv_heads: usize,
                /// The order of the axes of operands and results of rank 4.
                pub layout: Layout,
                /// As of [`Attention`].
                pub mask: MaskKind,
                /// As of [`Attention`].
                pub scale: Option<Real>,
                /// As of [`Attention`].
                pub softcap: Option<Real>,
                /// As of [`Attention`].
                pub kv_len: bool,
            }
        }

        impl $Op {
            fn of_attention($($own: $t,)* op: Attention) -> $Op {
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

            /// The attention that it is of.
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

/// `[batch, heads, sequence, head dim]` of a rank 4 type.
fn parts(ty: &Type, layout: Layout) -> [&Dim; 4] {
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

    /// The keys that query `i` of `queries` may see when there are `kv_len`, before `keep` and
    /// `bias`.
    pub fn visible(&self, i: usize, queries: usize, kv_len: usize) -> std::ops::Range<usize> {
        // One past the query's own position; zero where that is negative.
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
    const DOC: Doc = Doc {
        name: "attention",
        text: "`softmax(mask(softcap * tanh(scale * q k^T / softcap))) v` of grouped queries, over the keys that a query sees.",
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
        let (y, _) = Reference::new(self, operands, &operands[3..])?.attend(operands[2]);
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<Case> {
        cases::cases()
    }

    fn rejects() -> Vec<Reject> {
        cases::rejects()
    }
}

impl Attention {
    /// The type of `y`, of operands as those of [`Attention`].
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
