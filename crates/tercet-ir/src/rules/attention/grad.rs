//! Decomposition of the attention gradients into matmuls over all queries and keys.
//!
//! Matmul operands have the dtype of the attention's operands, and sums are F32 or wider. Groups of
//! query heads are rows of one matmul, which therefore also sums over a group.
//!
//! For F16 and BF16 the attention weights are recomputed from the saved log-sum-exp. For wider
//! dtypes the weights are recomputed by a softmax, and `delta` as the sum of `p dp`. These values
//! equal the saved operands mathematically, but do not contain the roundings of `y`, so cotangents
//! that are mathematically zero are exactly zero.

use tercet_tensor::{DType, Shape};

use super::{AttentionRuleOperands, masked, operands, scores};
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{AttentionGradOf, AttentionLayout, MaskKind, Op, ReduceFn, Softmax};
use crate::rules::RuleResult;
use crate::rules::util::ValueResult;
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};

/// The common properties of the matmuls.
struct AttentionGradOperands {
    layout: AttentionLayout,
    dtype: DType,
    /// `full` is `[batch, heads, queries, keys]`; `grouped` is `[batch, key heads, rows, keys]`,
    /// one matrix for each key head.
    full: Shape,
    grouped: Shape,
}

pub(super) fn attention_grad(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::AttentionGrad(o), &[q, k, v, dy, lse, delta, ref rest @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let (of, o) = (o.of, o.attention());
    let Some(all) = operands(b, &o, [q, k, v], rest)? else {
        return Ok(None);
    };
    let AttentionRuleOperands {
        dims, mask, len, ..
    } = all;
    let s = scores(b, &o, all.q, all.k, all.head_dim, &dims)?;
    let full = b.shape(s);
    let parts = AttentionGradOperands {
        layout: o.layout,
        dtype: b.dtype(q),
        grouped: vec![
            dims.batch.clone(),
            o.kv_heads.into(),
            dims.rows.clone(),
            dims.keys.clone(),
        ]
        .into(),
        full,
    };
    let hides = o.mask != MaskKind::None || len.is_some();
    let seen = masked(b, &o, s, mask, len, &dims)?;
    let keeps_sums = matches!(parts.dtype, DType::F16 | DType::BF16);
    let p = match keeps_sums {
        true => weights(b, seen, lse, hides)?,
        false => b.add(Softmax { axis: 3 }, &[seen])?,
    };
    let products = AttentionGradProducts { p, dy, v, hides };
    let ds = products.score_grad(b, &parts, keeps_sums.then_some(delta))?;
    let slope = b.scalar(b.dtype(ds), o.scale_for(all.head_dim))?;
    let ds = match o.softcap {
        None => ds,
        Some(cap) => {
            let cap = b.scalar(b.dtype(s), cap.0)?;
            let part = b.binary(BinaryFn::Div, s, cap)?;
            let square = b.binary(BinaryFn::Mul, part, part)?;
            let one = b.scalar(b.dtype(s), 1.0)?;
            let rest = b.binary(BinaryFn::Sub, one, square)?;
            b.binary(BinaryFn::Mul, ds, rest)?
        }
    };
    let ds = b.binary(BinaryFn::Mul, ds, slope)?;
    let ds = b.cast(ds, parts.dtype)?;
    let ds = b.reshape(ds, parts.grouped.clone())?;
    Ok(Some(match of {
        AttentionGradOf::Queries => {
            let keys = parts.heads_first(b, k)?;
            let dq = b.matmul(ds, keys)?;
            let mut shape = parts.full.clone();
            shape.dims_mut()[3] = b.shape(q)[3].clone();
            let dq = b.reshape(dq, shape)?;
            vec![parts.heads_first(b, dq)?]
        }
        AttentionGradOf::Keys => {
            let dk = parts.transposed_product(b, q, ds)?;
            let p = b.reshape(p, parts.grouped.clone())?;
            let p = b.cast(p, parts.dtype)?;
            vec![dk, parts.transposed_product(b, dy, p)?]
        }
    }))
}

/// `exp(scores - lse)`; 0 at masked keys.
fn weights(b: &mut LegalizeBuilder<'_>, scores: Value, lse: Value, hides: bool) -> ValueResult {
    let mut shape = b.shape(lse).into_dims();
    shape.push(1.into());
    let lse = b.reshape(lse, shape)?;
    let powers = b.binary(BinaryFn::Sub, scores, lse)?;
    let p = b.unary(UnaryFn::Exp, powers)?;
    if !hides {
        return Ok(p);
    }
    let least = b.scalar(b.dtype(scores), f64::NEG_INFINITY)?;
    let zero = b.scalar(b.dtype(scores), 0.0)?;
    let is_seen = b.compare(CompareFn::Ne, scores, least)?;
    b.select(is_seen, p, zero)
}

struct AttentionGradProducts {
    p: Value,
    dy: Value,
    v: Value,
    hides: bool,
}

impl AttentionGradProducts {
    /// `p (dy vT - delta)`, `[batch, heads, queries, keys]`. Without a `delta`, uses the sum of `p
    /// dy vT`.
    fn score_grad(
        &self,
        b: &mut LegalizeBuilder<'_>,
        parts: &AttentionGradOperands,
        delta: Option<Value>,
    ) -> ValueResult {
        let values = parts.heads_first(b, self.v)?;
        let dy = parts.rows(b, self.dy)?;
        let (values, dy) = (b.widen(values)?, b.widen(dy)?);
        let values = b.transpose_last_two(values)?;
        let dp = b.matmul(dy, values)?;
        let mut dp = b.reshape(dp, parts.full.clone())?;
        if self.hides {
            // Masked keys may hold any data, including NaN.
            let zero = b.scalar(b.dtype(dp), 0.0)?;
            let weighs = b.compare(CompareFn::Gt, self.p, zero)?;
            dp = b.select(weighs, dp, zero)?;
        }
        let delta = match delta {
            Some(delta) => {
                let mut shape = b.shape(delta).into_dims();
                shape.push(1.into());
                b.reshape(delta, shape)?
            }
            None => {
                let weighed = b.binary(BinaryFn::Mul, self.p, dp)?;
                b.reduce(ReduceFn::Sum, weighed, &[3])?
            }
        };
        let rest = b.binary(BinaryFn::Sub, dp, delta)?;
        b.binary(BinaryFn::Mul, self.p, rest)
    }
}

impl AttentionGradOperands {
    /// Converts between the operator's layout and `[batch, heads, sequence, head dim]`; the
    /// conversion is its own inverse.
    fn heads_first(&self, b: &mut LegalizeBuilder<'_>, x: Value) -> ValueResult {
        match self.layout {
            AttentionLayout::Bhsd => Ok(x),
            AttentionLayout::Bshd => b.transpose(x, &[0, 2, 1, 3]),
        }
    }

    /// Reshapes a per-query value to rows of one matmul for each key head.
    fn rows(&self, b: &mut LegalizeBuilder<'_>, x: Value) -> ValueResult {
        let x = self.heads_first(b, x)?;
        let mut shape = self.grouped.clone();
        shape.dims_mut()[3] = b.shape(x)[3].clone();
        b.reshape(x, shape)
    }

    /// `by` transposed times a per-query value. The product is computed as the transpose of the
    /// reversed product: transposing `x`, which has few columns, is cheaper than transposing `by`.
    fn transposed_product(&self, b: &mut LegalizeBuilder<'_>, x: Value, by: Value) -> ValueResult {
        let x = self.rows(b, x)?;
        let turned = b.transpose_last_two(x)?;
        let product = b.matmul(turned, by)?;
        let product = b.transpose_last_two(product)?;
        self.heads_first(b, product)
    }
}
