//! The gradients of attention, down to products of matrices of queries by keys.
//!
//! Factors of products are in the operands' dtype, sums in F32 or wider. Groups of query heads are rows of one product, so
//! that the sums over a group are those of the product.
//!
//! Of F16 and BF16 the weights are made from the sums that were kept. Of wider dtypes they are a softmax, and `delta` is the sum of `p dp`: what the
//! operands are by definition, without the roundings of `y`, so that cotangents that are zero come out as zero.

use super::{Operands, masked, operands, scores};
use crate::dtype::DType;
use crate::graph::Value;
use crate::legalize::Builder;
use crate::ops::{AttentionGradOf, Layout, MaskKind, Op, ReduceFn, Softmax};
use crate::rules::Applied;
use crate::rules::util::Built;
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};
use crate::types::Shape;

/// What the products share.
struct Parts {
    layout: Layout,
    dtype: DType,
    /// `[batch, heads, queries, keys]` and `[batch, key heads, rows, keys]`, one matrix for each key head.
    full: Shape,
    grouped: Shape,
}

pub(super) fn attention_grad(b: &mut Builder<'_>, op: &Op, inputs: &[Value]) -> Applied {
    let (Op::AttentionGrad(o), &[q, k, v, dy, lse, delta, ref rest @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let (of, o) = (o.of, o.attention());
    let Some(all) = operands(b, &o, [q, k, v], rest)? else {
        return Ok(None);
    };
    let Operands {
        dims, mask, len, ..
    } = all;
    let s = scores(b, &o, all.q, all.k, all.head_dim, &dims)?;
    let full = b.shape(s);
    let parts = Parts {
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
    let products = Products { p, dy, v, hides };
    let ds = products.of_scores(b, &parts, keeps_sums.then_some(delta))?;
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
            let dk = parts.turned_product(b, q, ds)?;
            let p = b.reshape(p, parts.grouped.clone())?;
            let p = b.cast(p, parts.dtype)?;
            vec![dk, parts.turned_product(b, dy, p)?]
        }
    }))
}

/// `exp(scores - lse)`; 0 where a query does not see a key.
fn weights(b: &mut Builder<'_>, scores: Value, lse: Value, hides: bool) -> Built {
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

struct Products {
    p: Value,
    dy: Value,
    v: Value,
    hides: bool,
}

impl Products {
    /// `p (dy vT - delta)`, `[batch, heads, queries, keys]`; the sum of `p dy vT` where no `delta` is given.
    fn of_scores(&self, b: &mut Builder<'_>, parts: &Parts, delta: Option<Value>) -> Built {
        let values = parts.heads_first(b, self.v)?;
        let dy = parts.rows(b, self.dy)?;
        let (values, dy) = (b.widen(values)?, b.widen(dy)?);
        let values = b.swap_last(values)?;
        let dp = b.matmul(dy, values)?;
        let mut dp = b.reshape(dp, parts.full.clone())?;
        if self.hides {
            // What a query does not see may hold anything.
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

impl Parts {
    /// `[batch, heads, sequence, head dim]` from the layout of the operator, and back: both turn the same axes.
    fn heads_first(&self, b: &mut Builder<'_>, x: Value) -> Built {
        match self.layout {
            Layout::Bhsd => Ok(x),
            Layout::Bshd => b.transpose(x, &[0, 2, 1, 3]),
        }
    }

    /// What belongs to queries as rows of one product for each key head.
    fn rows(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let x = self.heads_first(b, x)?;
        let mut shape = self.grouped.clone();
        shape.dims_mut()[3] = b.shape(x)[3].clone();
        b.reshape(x, shape)
    }

    /// `by` transposed times what belongs to queries. As the transpose of that: the few columns of `x` are turned instead of
    /// all of `by`.
    fn turned_product(&self, b: &mut Builder<'_>, x: Value, by: Value) -> Built {
        let x = self.rows(b, x)?;
        let turned = b.swap_last(x)?;
        let product = b.matmul(turned, by)?;
        let product = b.swap_last(product)?;
        self.heads_first(b, product)
    }
}
