//! Scaled dot-product attention.

mod cases;
mod options;

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
use crate::scalar::maximum;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

pub use options::{AttentionMask, AttentionOptions};

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

/// The sizes of an attention, from its operands' shapes.
struct Sizes {
    batch: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    value_dim: usize,
}

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

    /// The number of keys per batch entry.
    fn kv_lens(&self, operand: Option<&Tensor>, sizes: &Sizes) -> Result<Vec<usize>, EvalError> {
        let Some(lens) = operand else {
            return Ok(vec![sizes.keys; sizes.batch]);
        };
        let lens: Result<Vec<usize>, EvalError> = lens
            .to_i64s()
            .into_iter()
            .map(|n| {
                let len = usize::try_from(n).ok().filter(|&n| n <= sizes.keys);
                let keys = sizes.keys;
                len.ok_or_else(|| {
                    EvalError::Data(format!(
                        "kv_len is {n}; accepted: 0 to {keys}, the keys given"
                    ))
                })
            })
            .collect();
        let lens = lens?;
        Ok((0..sizes.batch).map(|b| lens[b % lens.len()]).collect())
    }
}

/// The mask operand with the strides of `[batch, head, query, key]`, 0 where it broadcasts.
struct MaskData {
    values: Vec<f64>,
    strides: [usize; 4],
}

impl MaskData {
    fn new(mask: &Tensor) -> MaskData {
        let shape = mask.shape();
        let mut strides = [0; 4];
        let slots: &[usize] = match shape.len() {
            2 => &[0, 3],
            3 => &[0, 2, 3],
            _ => &[0, 1, 2, 3],
        };
        for (axis, stride) in crate::types::row_major_strides(shape)
            .into_iter()
            .enumerate()
        {
            if shape[axis] != 1 {
                strides[slots[axis]] = stride;
            }
        }
        MaskData {
            values: mask.to_f64s(),
            strides,
        }
    }

    fn at(&self, index: [usize; 4]) -> f64 {
        self.values[index
            .iter()
            .zip(self.strides)
            .map(|(i, s)| i * s)
            .sum::<usize>()]
    }
}

/// Softmax over `(score, key)` pairs and the weighted sum of the keys' values into `out`.
fn attend(scores: &[(f64, usize)], value: impl Fn(usize, usize) -> f64, out: &mut [f64]) {
    let max = scores.iter().map(|s| s.0).fold(f64::NEG_INFINITY, maximum);
    if max == f64::NEG_INFINITY {
        return;
    }
    let sum: f64 = scores.iter().map(|s| (s.0 - max).exp()).sum();
    for &(score, key) in scores {
        let weight = (score - max).exp() / sum;
        for (c, out) in out.iter_mut().enumerate() {
            *out += weight * value(key, c);
        }
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
        Ok(vec![q.with_shape(out)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (q, k, v) = (operands[0], operands[1], operands[2]);
        let sizes = Sizes {
            batch: q.shape()[0],
            queries: q.shape()[self.layout.seq_axis()],
            keys: k.shape()[self.layout.seq_axis()],
            head_dim: q.shape()[3],
            value_dim: v.shape()[3],
        };
        let mask = self.has_mask_operand().then(|| MaskData::new(operands[3]));
        let lens = match self.kv_len {
            true => operands.last().copied(),
            false => None,
        };
        let lens = self.kv_lens(lens, &sizes)?;
        let y = self.eval_rows([q, k, v], mask.as_ref(), &lens, &sizes, &results[0].shape);
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
    fn eval_rows(
        &self,
        [q, k, v]: [&Tensor; 3],
        mask: Option<&MaskData>,
        lens: &[usize],
        sizes: &Sizes,
        out_shape: &[usize],
    ) -> Vec<f64> {
        let (qs, ks, vs, os) = (
            self.layout.strides(q.shape()),
            self.layout.strides(k.shape()),
            self.layout.strides(v.shape()),
            self.layout.strides(out_shape),
        );
        let at = |s: [usize; 3], b: usize, h: usize, i: usize| b * s[0] + h * s[1] + i * s[2];
        let (q, k, v) = (q.to_f64s(), k.to_f64s(), v.to_f64s());
        let scale = self.scale_for(sizes.head_dim);
        let group = self.q_heads / self.kv_heads;
        let mut y = vec![0.0; out_shape.iter().product()];
        crate::ops::util::for_each_index(&[sizes.batch, self.q_heads, sizes.queries], |index| {
            let [b, h, i] = [index[0], index[1], index[2]];
            let query = &q[at(qs, b, h, i)..][..sizes.head_dim];
            let mut scores = Vec::new();
            for j in self.visible(i, sizes.queries, lens[b]) {
                let key = &k[at(ks, b, h / group, j)..][..sizes.head_dim];
                let dot: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                let mut score = scale * dot;
                if let Some(cap) = self.softcap {
                    score = cap.0 * (score / cap.0).tanh();
                }
                if let Some(mask) = mask {
                    let m = mask.at([b, h, i, j]);
                    let keep = self.mask == MaskKind::Keep;
                    if (keep && m == 0.0) || (!keep && m == f64::NEG_INFINITY) {
                        continue;
                    }
                    score += if keep { 0.0 } else { m };
                }
                scores.push((score, j));
            }
            let value = |j: usize, c: usize| v[at(vs, b, h / group, j) + c];
            let out = &mut y[at(os, b, h, i)..][..sizes.value_dim];
            attend(&scores, value, out);
        });
        y
    }
}
