//! Decompositions of attention (two matmuls and a softmax) and of rotary embedding.

mod grad;

use tercet_tensor::{DType, Dim, Shape};

use super::util::ValueResult;
use super::{LegalizeRule, RuleResult};
use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{
    Attention, AttentionLayout, Concat, Gather, MaskKind, Op, OpKind, ReduceFn, RopeStyle, Softmax,
};
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "attention_as_products_and_softmax",
        on: OpKind::Attention,
        apply: attention,
    },
    LegalizeRule {
        name: "attention_with_lse_as_attention_and_sums",
        on: OpKind::AttentionWithLse,
        apply: attention_with_lse,
    },
    LegalizeRule {
        name: "attention_grad_as_products",
        on: OpKind::AttentionGrad,
        apply: grad::attention_grad,
    },
    LegalizeRule {
        name: "rope_as_rotated_halves",
        on: OpKind::Rope,
        apply: rope,
    },
];

/// The sizes of an attention.
struct AttentionRuleDims {
    batch: Dim,
    queries: Dim,
    keys: Dim,
    value_dim: Dim,
    /// The number of score rows of one key head: query heads per key head times queries.
    rows: Dim,
}

/// Queries and keys in head-major order, widened for accumulation, with the mask operands.
struct AttentionRuleOperands {
    q: Value,
    k: Value,
    head_dim: usize,
    dims: AttentionRuleDims,
    mask: Option<Value>,
    len: Option<Value>,
}

/// The operands of an attention; `None` if a required size is not known. `rest` are the operands
/// after the values.
fn operands(
    b: &mut LegalizeBuilder<'_>,
    o: &Attention,
    [q, k, v]: [Value; 3],
    rest: &[Value],
) -> Result<Option<AttentionRuleOperands>, OpError> {
    let q = heads_first(b, q, o.layout)?;
    let k = heads_first(b, k, o.layout)?;
    let value_dim = b.shape(v)[3].clone();
    let (q_shape, k_shape) = (b.shape(q), b.shape(k));
    let rows = q_shape[2].checked_mul(&Dim::Known(o.q_heads / o.kv_heads));
    let (Some(rows), Some(head_dim)) = (rows, q_shape[3].known()) else {
        return Ok(None);
    };
    let dims = AttentionRuleDims {
        batch: q_shape[0].clone(),
        queries: q_shape[2].clone(),
        keys: k_shape[2].clone(),
        value_dim,
        rows,
    };
    let mut rest = rest.iter().copied();
    let mask = match o.has_mask_operand() {
        true => rest.next(),
        false => None,
    };
    let len = match rest.next() {
        Some(len) => Some(checked_len(b, len, &dims)?),
        None => None,
    };
    Ok(Some(AttentionRuleOperands {
        q,
        k,
        head_dim,
        dims,
        mask,
        len,
    }))
}

/// Query heads that share a key head become rows of one matmul, so keys are not copied per query
/// head. All intermediate values are F32 or wider, and the result is rounded once.
fn attention(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Attention(o), &[q, k, v, ref rest @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(q);
    let Some(all) = operands(b, o, [q, k, v], rest)? else {
        return Ok(None);
    };
    let v = heads_first(b, v, o.layout)?;
    let AttentionRuleOperands {
        q,
        k,
        head_dim,
        dims,
        mask,
        len,
    } = all;
    let scores = scores(b, o, q, k, head_dim, &dims)?;
    let scores = masked(b, o, scores, mask, len, &dims)?;
    let p = b.add(Softmax { axis: 3 }, &[scores])?;
    let kv_heads = Dim::Known(o.kv_heads);
    let grouped = vec![
        dims.batch.clone(),
        kv_heads,
        dims.rows.clone(),
        dims.keys.clone(),
    ];
    let p = b.reshape(p, grouped)?;
    let y = match o.mask == MaskKind::None && len.is_none() {
        true => b.matmul(p, v)?,
        false => weighted_values(b, p, v)?,
    };
    let heads = vec![
        dims.batch,
        Dim::Known(o.q_heads),
        dims.queries,
        dims.value_dim,
    ];
    let y = b.reshape(y, heads)?;
    let y = match o.layout {
        AttentionLayout::Bhsd => y,
        AttentionLayout::Bshd => b.transpose(y, &[0, 2, 1, 3])?,
    };
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// The attention, with the log-sum-exp of the scores, for which the scores are computed a second
/// time.
fn attention_with_lse(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::AttentionWithLse(o), &[q, k, v, ref rest @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let o = o.attention();
    let y = b.add(o.clone(), inputs)?;
    let Some(all) = operands(b, &o, [q, k, v], rest)? else {
        return Ok(None);
    };
    let scores = scores(b, &o, all.q, all.k, all.head_dim, &all.dims)?;
    let scores = masked(b, &o, scores, all.mask, all.len, &all.dims)?;
    let most = b.reduce(ReduceFn::Max, scores, &[3])?;
    let least = b.scalar(b.dtype(most), f64::NEG_INFINITY)?;
    let zero = b.scalar(b.dtype(most), 0.0)?;
    let sees_none = b.compare(CompareFn::Eq, most, least)?;
    let center = b.select(sees_none, zero, most)?;
    let powers = b.binary(BinaryFn::Sub, scores, center)?;
    let powers = b.unary(UnaryFn::Exp, powers)?;
    let sum = b.reduce(ReduceFn::Sum, powers, &[3])?;
    let sum = b.unary(UnaryFn::Ln, sum)?;
    let lse = b.binary(BinaryFn::Add, sum, center)?;
    let shape = vec![all.dims.batch, Dim::Known(o.q_heads), all.dims.queries];
    let lse = b.reshape(lse, shape)?;
    Ok(Some(vec![y, lse]))
}

/// Converts to `[batch, heads, sequence, head dim]` and widens.
fn heads_first(b: &mut LegalizeBuilder<'_>, x: Value, layout: AttentionLayout) -> ValueResult {
    let x = b.widen(x)?;
    match layout {
        AttentionLayout::Bhsd => Ok(x),
        AttentionLayout::Bshd => b.transpose(x, &[0, 2, 1, 3]),
    }
}

/// The scores `softcap * tanh(scale * q k / softcap)` as `[B, H, Sq, Sk]`.
fn scores(
    b: &mut LegalizeBuilder<'_>,
    o: &Attention,
    q: Value,
    k: Value,
    head_dim: usize,
    dims: &AttentionRuleDims,
) -> ValueResult {
    let dtype = b.dtype(q);
    let grouped = vec![
        dims.batch.clone(),
        Dim::Known(o.kv_heads),
        dims.rows.clone(),
        Dim::Known(head_dim),
    ];
    let q = b.reshape(q, grouped)?;
    let k = b.transpose_last_two(k)?;
    let s = b.matmul(q, k)?;
    let full = vec![
        dims.batch.clone(),
        Dim::Known(o.q_heads),
        dims.queries.clone(),
        dims.keys.clone(),
    ];
    let s = b.reshape(s, full)?;
    let scale = b.scalar(dtype, o.scale_for(head_dim))?;
    let s = b.binary(BinaryFn::Mul, s, scale)?;
    let Some(cap) = o.softcap else {
        return Ok(s);
    };
    let cap = b.scalar(dtype, cap.0)?;
    let s = b.binary(BinaryFn::Div, s, cap)?;
    let s = b.unary(UnaryFn::Tanh, s)?;
    b.binary(BinaryFn::Mul, s, cap)
}

/// `kv_len` as `[B, 1, 1, 1]` or `[1, 1, 1, 1]`. The length is read through a gather from `0 ..=
/// Sk`, so an out-of-range length makes the run fail, as in the fused operator.
fn checked_len(b: &mut LegalizeBuilder<'_>, len: Value, dims: &AttentionRuleDims) -> ValueResult {
    let zero = b.scalar(DType::I32, 0.0)?;
    let outside = b.scalar(DType::I32, f64::from(i32::MAX))?;
    let negative = b.compare(CompareFn::Lt, len, zero)?;
    let index = b.select(negative, outside, len)?;
    let lengths = dims.keys.checked_add(&Dim::Known(1));
    let lengths = b.iota(&lengths.unwrap_or_else(|| dims.keys.clone()), false)?;
    let len = b.add(Gather { axis: 0 }, &[lengths, index])?;
    let one = Dim::Known(1);
    let batch = b.ty(len).shape.first().cloned().unwrap_or(one.clone());
    b.reshape(len, vec![batch, one.clone(), one.clone(), one])
}

/// `p v` that ignores values with weight 0: a masked key may hold any data, and `0 * NaN` is NaN.
/// NaNs and infinities are therefore excluded from the matmul, and every result that gives them a
/// nonzero weight becomes NaN.
fn weighted_values(b: &mut LegalizeBuilder<'_>, p: Value, v: Value) -> ValueResult {
    let dtype = b.dtype(v);
    let zero = b.scalar(dtype, 0.0)?;
    let most = b.scalar(dtype, f64::INFINITY)?;
    let nan = b.scalar(dtype, f64::NAN)?;
    let size = b.unary(UnaryFn::Abs, v)?;
    let finite = b.compare(CompareFn::Lt, size, most)?;
    let ordinary = b.select(finite, v, zero)?;
    let y = b.matmul(p, ordinary)?;
    let other = b.unary(UnaryFn::Not, finite)?;
    let other = b.cast(other, dtype)?;
    let weighs = b.compare(CompareFn::Gt, p, zero)?;
    let weighs = b.cast(weighs, dtype)?;
    let hits = b.matmul(weighs, other)?;
    let hit = b.compare(CompareFn::Gt, hits, zero)?;
    b.select(hit, nan, y)
}

/// The scores with `-inf` at masked keys.
fn masked(
    b: &mut LegalizeBuilder<'_>,
    o: &Attention,
    scores: Value,
    mask: Option<Value>,
    len: Option<Value>,
    dims: &AttentionRuleDims,
) -> ValueResult {
    let least = b.scalar(b.dtype(scores), f64::NEG_INFINITY)?;
    let mut scores = scores;
    let mut seen = by_position(b, o, len, dims)?;
    if let Some(mask) = mask {
        let mask = mask_of_rank_4(b, mask)?;
        let by_operand = if o.mask == MaskKind::Bias {
            let bias = b.widen(mask)?;
            scores = b.binary(BinaryFn::Add, scores, bias)?;
            b.compare(CompareFn::Ne, bias, least)?
        } else {
            mask
        };
        seen.push(by_operand);
    }
    for seen in seen {
        scores = b.select(seen, scores, least)?;
    }
    Ok(scores)
}

/// Mask conditions on the position of key `j` for query `i`. With `r = Sq - 1 - i` the query is at
/// position `n - 1 - r`. Without a length, `n = Sk` and `n - 1 - j` is also an index from the end,
/// so no size must be known.
fn by_position(
    b: &mut LegalizeBuilder<'_>,
    o: &Attention,
    len: Option<Value>,
    dims: &AttentionRuleDims,
) -> Result<Vec<Value>, OpError> {
    let window = match o.mask {
        MaskKind::None | MaskKind::Keep | MaskKind::Bias => {
            let Some(len) = len else {
                return Ok(vec![]);
            };
            let j = b.iota(&dims.keys, false)?;
            return Ok(vec![b.compare(CompareFn::Lt, j, len)?]);
        }
        MaskKind::Causal => None,
        MaskKind::Window(w) => Some(w.min(i32::MAX as usize)),
    };
    let r = b.iota(&dims.queries, true)?;
    let r = b.reshape(r, vec![dims.queries.clone(), Dim::Known(1)])?;
    // The distance of the key before the query: 0 at the query's position, negative after it.
    let distance = match len {
        Some(len) => {
            let j = b.iota(&dims.keys, false)?;
            let one = b.scalar(DType::I32, 1.0)?;
            let last = b.binary(BinaryFn::Sub, len, one)?;
            let after = b.binary(BinaryFn::Add, r, j)?;
            b.binary(BinaryFn::Sub, last, after)?
        }
        None => {
            let from_end = b.iota(&dims.keys, true)?;
            b.binary(BinaryFn::Sub, from_end, r)?
        }
    };
    let zero = b.scalar(DType::I32, 0.0)?;
    let mut seen = vec![b.compare(CompareFn::Ge, distance, zero)?];
    if let Some(w) = window {
        let w = b.scalar(DType::I32, w as f64)?;
        seen.push(b.compare(CompareFn::Lt, distance, w)?);
    }
    Ok(seen)
}

/// Expands the mask: `[B, Sk]` to `[B, 1, 1, Sk]`, `[B, Sq, Sk]` to `[B, 1, Sq, Sk]`.
fn mask_of_rank_4(b: &mut LegalizeBuilder<'_>, mask: Value) -> ValueResult {
    let mut shape = b.shape(mask).into_dims();
    while shape.len() < 4 {
        shape.insert(1, Dim::Known(1));
    }
    b.reshape(mask, shape)
}

fn rope(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Rope(o), &[x, cos, sin]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let x = b.widen(x)?;
    let (cos, sin) = (table(b, cos, x, o.layout)?, table(b, sin, x, o.layout)?);
    let n = o.n_rot as i64;
    let (p, q) = match o.style {
        RopeStyle::NeoX => (b.slice(x, 3, 0, n / 2, 1)?, b.slice(x, 3, n / 2, n, 1)?),
        RopeStyle::GptJ => (b.slice(x, 3, 0, n, 2)?, b.slice(x, 3, 1, n.max(1), 2)?),
    };
    let turned = |b: &mut LegalizeBuilder<'_>, f, a, c, d, e| -> ValueResult {
        let left = b.binary(BinaryFn::Mul, a, c)?;
        let right = b.binary(BinaryFn::Mul, d, e)?;
        b.binary(f, left, right)
    };
    let p2 = turned(b, BinaryFn::Sub, p, cos, q, sin)?;
    let q2 = turned(b, BinaryFn::Add, p, sin, q, cos)?;
    let rotated = match o.style {
        RopeStyle::NeoX => b.add(Concat { axis: 3 }, &[p2, q2])?,
        RopeStyle::GptJ => interleaved(b, p2, q2)?,
    };
    let head_dim = b.ty(x).shape[3].known();
    let y = match head_dim == Some(o.n_rot) {
        true => rotated,
        false => {
            let rest = b.slice(x, 3, n, i64::MAX, 1)?;
            b.add(Concat { axis: 3 }, &[rotated, rest])?
        }
    };
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// A table of angles that broadcasts over the heads of `x`, in the dtype of `x`.
fn table(
    b: &mut LegalizeBuilder<'_>,
    table: Value,
    x: Value,
    layout: AttentionLayout,
) -> ValueResult {
    let table = b.cast(table, b.dtype(x))?;
    let mut shape = b.shape(table).into_dims();
    shape.insert(shape.len() - 2, Dim::Known(1));
    if layout == AttentionLayout::Bshd {
        let rank = shape.len();
        shape.swap(rank - 3, rank - 2);
    }
    b.reshape(table, shape)
}

/// Interleaves two tensors along the last axis: `a0 b0 a1 b1 ..`
fn interleaved(b: &mut LegalizeBuilder<'_>, p: Value, q: Value) -> ValueResult {
    let half = b.shape(p);
    let column: Shape = half.iter().cloned().chain([Dim::Known(1)]).collect();
    let (p, q) = (b.reshape(p, column.clone())?, b.reshape(q, column)?);
    let pairs = b.add(Concat { axis: 4 }, &[p, q])?;
    let mut flat = half.into_dims();
    let last = flat.len() - 1;
    flat[last] = flat[last]
        .checked_mul(&Dim::Known(2))
        .unwrap_or_else(|| flat[last].clone());
    b.reshape(pairs, flat)
}
