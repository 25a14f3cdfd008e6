//! Gradient of attention. For F16, and for F32 and BF16 with many scores, [`AttentionGrad`]
//! computes the cotangents of queries, keys and values from the log-sum-exp that
//! [`AttentionWithLse`] saves.
//!
//! In all other cases the gradients are computed from the full score matrix. The cotangent of a
//! bias is as large as the scores. No executor has kernels for other dtypes that avoid the scores,
//! and there `delta = dy . y` would only add roundings of `y`. With the attention weights `p`: `dv
//! = pT dy` and `ds = p (dp - sum(p dp))` with `dp = dy vT`. `ds` is then propagated through masks,
//! cap and scale to queries and keys. Groups of query heads are rows of one matmul, which therefore
//! also sums over a group.
//!
//! Matmul operands have the operands' dtype, and sums are F32 or wider.

use tercet_tensor::DType;

use crate::error::OpError;
use crate::grad::decompose::decompose;
use crate::grad::reverse::reverse_pass;
use crate::grad::{NoGradient, Vjp, VjpResult};
use crate::graph::{NodeId, Value};
use crate::ops::{
    Attention, AttentionGrad, AttentionGradOf, AttentionLayout, AttentionWithLse, MaskKind, Op,
    OpKind,
};
use crate::scalar::CompareFn;

/// Number of scores of a key head below which F32 and BF16 use the full score matrix. With so few
/// scores, kernels without a score matrix are not profitable, and `delta` would only add roundings.
const MIN_SCORES_FOR_KERNELS: usize = 8192;

/// The number of scores of a key head, if the sizes are known.
fn scores_of(op: &Attention, v: &Vjp<'_>) -> Option<usize> {
    let seq = match op.layout {
        AttentionLayout::Bhsd => 2,
        AttentionLayout::Bshd => 1,
    };
    let queries = v.shape(v.x(0))[seq].known()?;
    let keys = v.shape(v.x(1))[seq].known()?;
    queries
        .checked_mul(op.q_heads / op.kv_heads)?
        .checked_mul(keys)
}

pub(crate) fn attention(op: &Attention, v: &mut Vjp<'_>) -> VjpResult {
    let wants_bias = op.mask == MaskKind::Bias && v.needs_cotangent(3);
    let has_kernels = match v.dtype(v.x(0)) {
        DType::F16 => true,
        DType::F32 | DType::BF16 => scores_of(op, v).is_some_and(|n| n >= MIN_SCORES_FOR_KERNELS),
        _ => false,
    };
    match has_kernels && !wants_bias {
        true => without_scores(op, v),
        false => through_scores(op, v),
    }
}

fn without_scores(op: &Attention, v: &mut Vjp<'_>) -> VjpResult {
    let dy = v.dy(0)?;
    let operands = v.operands();
    let y = v.add(AttentionWithLse::from(op.clone()), &operands)?;
    let lse = y.port(1);
    let (wide_dy, y) = (v.widen(dy)?, v.widen(y)?);
    let both = v.mul(wide_dy, y)?;
    let delta = v.reduce_sum(both, &[3], false)?;
    let delta = match op.layout {
        AttentionLayout::Bhsd => delta,
        AttentionLayout::Bshd => v.permuted(delta, &[0, 2, 1])?,
    };
    let (first, rest) = operands.split_at(3);
    let all = [first, &[dy, lse, delta], rest].concat();
    if v.needs_cotangent(0) {
        let dq = v.add(
            AttentionGrad::new(AttentionGradOf::Queries, op.clone()),
            &all,
        )?;
        v.accumulate(0, dq)?;
    }
    if v.needs_cotangent(1) || v.needs_cotangent(2) {
        let dk = v.add(AttentionGrad::new(AttentionGradOf::Keys, op.clone()), &all)?;
        v.accumulate(1, dk)?;
        v.accumulate(2, dk.port(1))?;
    }
    Ok(())
}

fn through_scores(op: &Attention, v: &mut Vjp<'_>) -> VjpResult {
    let dy = v.dy(0)?;
    let dtype = v.dtype(v.x(0));
    let from = v.len();
    let operands = v.operands();
    decompose(v, &Op::Attention(op.clone()), &operands)?;
    let (products, softmax) = (OpKind::MatMul, OpKind::Softmax);
    let (scores, p) = (first_of(v, from, products)?, first_of(v, from, softmax)?);
    let seen = v.node(p.node).inputs[0];
    // Score rows of one key head: query heads of the group times queries.
    let grouped = v.shape(scores);
    let rows = |v: &mut Vjp<'_>, x: Value| -> Result<Value, OpError> {
        let x = heads_first(v, x, op.layout)?;
        let mut shape = grouped.clone();
        shape.dims_mut()[3] = v.shape(x)[3].clone();
        v.shaped(x, shape)
    };
    let dy = rows(v, dy)?;
    if v.needs_cotangent(2) {
        let p = v.shaped(p, grouped.clone())?;
        let p = v.in_dtype(p, dtype)?;
        // Computed as the transpose of the reversed product: transposing values, which have few
        // columns, is cheaper than transposing all weights.
        let turned = v.swapped(dy)?;
        let dv = v.matmul(turned, p)?;
        let dv = v.swapped(dv)?;
        let dv = heads_first(v, dv, op.layout)?;
        v.accumulate(2, dv)?;
    }
    let wants_bias = op.mask == MaskKind::Bias && v.needs_cotangent(3);
    if !v.needs_cotangent(0) && !v.needs_cotangent(1) && !wants_bias {
        return Ok(());
    }
    let values = heads_first(v, v.x(2), op.layout)?;
    let (values, dy) = (v.widen(values)?, v.widen(dy)?);
    let values = v.swapped(values)?;
    let dp = v.matmul(dy, values)?;
    let full = v.shape(p);
    let mut dp = v.shaped(dp, full)?;
    if op.mask != MaskKind::None || op.kv_len {
        // Masked keys may hold any data, including NaN.
        let weighs = v.is(CompareFn::Gt, p, 0.0)?;
        dp = v.only_where(weighs, dp)?;
    }
    let weighed = v.mul(p, dp)?;
    let sum = v.sum_along(weighed, &[3])?;
    let rest = v.sub(dp, sum)?;
    let ds = v.mul(p, rest)?;
    let mut wanted = vec![scores];
    wanted.extend(wants_bias.then(|| v.x(3)));
    let pulled = reverse_pass(v, from, &[(seen, ds)], &wanted, Vec::new())
        .map_err(|e| NoGradient::because(crate::one_line(&e)))?;
    if let Some(Some(dbias)) = pulled.cotangents.get(1) {
        v.accumulate(3, *dbias)?;
    }
    let Some(Some(ds)) = pulled.cotangents.first().copied() else {
        return Ok(());
    };
    let ds = v.in_dtype(ds, dtype)?;
    if v.needs_cotangent(0) {
        let keys = heads_first(v, v.x(1), op.layout)?;
        let dq = v.matmul(ds, keys)?;
        let queries = heads_first(v, v.x(0), op.layout)?;
        let shape = v.shape(queries);
        let dq = v.shaped(dq, shape)?;
        let dq = heads_first(v, dq, op.layout)?;
        v.accumulate(0, dq)?;
    }
    if v.needs_cotangent(1) {
        let queries = rows(v, v.x(0))?;
        let turned = v.swapped(queries)?;
        let dk = v.matmul(turned, ds)?;
        let dk = v.swapped(dk)?;
        let dk = heads_first(v, dk, op.layout)?;
        v.accumulate(1, dk)?;
    }
    Ok(())
}

/// Converts between the operator's layout and `[batch, heads, sequence, head dim]`; the conversion
/// is its own inverse.
fn heads_first(v: &mut Vjp<'_>, x: Value, layout: AttentionLayout) -> Result<Value, OpError> {
    match layout {
        AttentionLayout::Bhsd => Ok(x),
        AttentionLayout::Bshd => v.permuted(x, &[0, 2, 1, 3]),
    }
}

/// The result of the first node of a kind from `from` on.
fn first_of(v: &Vjp<'_>, from: usize, kind: OpKind) -> Result<Value, NoGradient> {
    let mut nodes = v.nodes().skip(from);
    let found = nodes.find(|(_, node)| node.op.kind() == kind);
    let node: Option<NodeId> = found.map(|(id, _)| id);
    let node = node
        .ok_or_else(|| NoGradient::because("there is no decomposition that computes the scores"))?;
    Ok(Value { node, port: 0 })
}
