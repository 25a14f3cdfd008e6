//! Decompositions of contractions into `MatMul` of matrices.

use tercet_tensor::quant::Scheme;
use tercet_tensor::{Dim, Shape, broadcast_shapes};

use super::{LegalizeRule, RuleResult};
use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{Dequantize, DotGeneral, GroupedMatMul, Op, OpKind};
use crate::scalar::BinaryFn;

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "linear_as_matmul_bias_activation",
        on: OpKind::Linear,
        apply: linear,
    },
    LegalizeRule {
        name: "dequant_matmul_as_dequantize_and_matmul",
        on: OpKind::DequantMatMul,
        apply: dequant_matmul,
    },
    LegalizeRule {
        name: "dequant_grouped_matmul_as_dequantize_and_grouped_matmul",
        on: OpKind::DequantGroupedMatMul,
        apply: dequant_grouped_matmul,
    },
    LegalizeRule {
        name: "dot_general_as_batched_matmul",
        on: OpKind::DotGeneral,
        apply: dot_general,
    },
    LegalizeRule {
        name: "vector_matmul_as_matrix_matmul",
        on: OpKind::MatMul,
        apply: vector_matmul,
    },
    LegalizeRule {
        name: "matmul_with_explicit_batch",
        on: OpKind::MatMul,
        apply: broadcast_matmul,
    },
];

/// For F16 and BF16, the parts are computed in F32, because the fused operator rounds once.
fn linear(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Linear(o), &[x, w, ref bias @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let several = o.activation.is_some() || !bias.is_empty();
    let (x, w) = match several {
        true => (b.widen(x)?, b.widen(w)?),
        false => (x, w),
    };
    let mut y = b.matmul(x, w)?;
    if let Some(&bias) = bias.first() {
        let bias = b.widen(bias)?;
        y = b.binary(BinaryFn::Add, y, bias)?;
    }
    if let Some(f) = o.activation {
        y = b.unary(f, y)?;
    }
    Ok(Some(vec![b.cast(y, dtype)?]))
}

fn dequant_matmul(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::DequantMatMul(o), &[x, w]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let x = b.widen(x)?;
    let w = decoded(b, o.scheme, w, x)?;
    let y = b.matmul(x, w)?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

fn dequant_grouped_matmul(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::DequantGroupedMatMul(o), &[x, w, expert]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let x = b.widen(x)?;
    let w = decoded(b, o.scheme, w, x)?;
    let y = b.add(GroupedMatMul {}, &[x, w, expert])?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// Decoded weights as matrices `[.., k, n]` in the dtype of `x`.
fn decoded(
    b: &mut LegalizeBuilder<'_>,
    scheme: Scheme,
    w: Value,
    x: Value,
) -> Result<Value, OpError> {
    let w = b.add(Dequantize { scheme }, &[w])?;
    let w = b.cast(w, b.dtype(x))?;
    b.transpose_last_two(w)
}

/// A rank 1 operand as a matrix with one row (left) or one column (right).
fn vector_matmul(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::MatMul(_), &[l, r]) = (op, inputs) else {
        return Ok(None);
    };
    let (l_shape, r_shape) = (b.shape(l), b.shape(r));
    let one = Dim::Known(1);
    let l2 = match l_shape.rank() {
        1 => b.reshape(l, vec![one.clone(), l_shape[0].clone()])?,
        _ => l,
    };
    let r2 = match r_shape.rank() {
        1 => b.reshape(r, vec![r_shape[0].clone(), one])?,
        _ => r,
    };
    if (l2, r2) == (l, r) {
        return Ok(None);
    }
    let y = b.matmul(l2, r2)?;
    let mut shape = b.shape(y).into_dims();
    if r_shape.rank() == 1 {
        shape.pop();
    }
    if l_shape.rank() == 1 {
        let row = shape.len() - usize::from(r_shape.rank() != 1) - 1;
        shape.remove(row);
    }
    Ok(Some(vec![b.reshape(y, shape)?]))
}

/// Broadcasts both operands to all batch axes of the result.
fn broadcast_matmul(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::MatMul(_), &[l, r]) = (op, inputs) else {
        return Ok(None);
    };
    let (l_shape, r_shape) = (b.shape(l), b.shape(r));
    let (Some((l_batch, l_matrix)), Some((r_batch, r_matrix))) = (
        l_shape.len().checked_sub(2).map(|n| l_shape.split_at(n)),
        r_shape.len().checked_sub(2).map(|n| r_shape.split_at(n)),
    ) else {
        return Ok(None);
    };
    let Some(batch) = broadcast_shapes(l_batch, r_batch) else {
        return Ok(None);
    };
    let with = |matrix: &[Dim]| -> Shape { batch.iter().chain(matrix).cloned().collect() };
    let (l_full, r_full) = (with(l_matrix), with(r_matrix));
    if l_full == l_shape && r_full == r_shape {
        return Ok(None);
    }
    let (l, r) = (b.expand(l, l_full)?, b.expand(r, r_full)?);
    Ok(Some(vec![b.matmul(l, r)?]))
}

/// Transposes and reshapes the operands to `[batch, free, contracted]` and `[batch, contracted,
/// free]`; each group becomes one axis.
fn dot_general(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::DotGeneral(o), &[l, r]) = (op, inputs) else {
        return Ok(None);
    };
    let DotGeneral {
        lhs_contract,
        rhs_contract,
        lhs_batch,
        rhs_batch,
    } = o;
    let (l_shape, r_shape) = (b.shape(l), b.shape(r));
    let free = |shape: &Shape, taken: [&Vec<usize>; 2]| -> Vec<usize> {
        let used = |a: &usize| taken.iter().any(|t| t.contains(a));
        (0..shape.rank()).filter(|a| !used(a)).collect()
    };
    let l_free = free(&l_shape, [lhs_contract, lhs_batch]);
    let r_free = free(&r_shape, [rhs_contract, rhs_batch]);
    let dims = |shape: &Shape, axes: &[usize]| -> Shape {
        axes.iter().map(|&a| shape[a].clone()).collect()
    };
    let one_axis = |shape: Shape| shape.numel();
    let (Some(batch), Some(m), Some(k), Some(n)) = (
        one_axis(dims(&l_shape, lhs_batch)),
        one_axis(dims(&l_shape, &l_free)),
        one_axis(dims(&l_shape, lhs_contract)),
        one_axis(dims(&r_shape, &r_free)),
    ) else {
        return Ok(None);
    };
    let l = b.transpose(l, &[&lhs_batch[..], &l_free, lhs_contract].concat())?;
    let r = b.transpose(r, &[&rhs_batch[..], rhs_contract, &r_free].concat())?;
    let l = b.reshape(l, vec![batch.clone(), m, k.clone()])?;
    let r = b.reshape(r, vec![batch, k, n])?;
    let y = b.matmul(l, r)?;
    let shape: Shape = [
        dims(&l_shape, lhs_batch),
        dims(&l_shape, &l_free),
        dims(&r_shape, &r_free),
    ]
    .iter()
    .flat_map(|s| s.iter().cloned())
    .collect();
    Ok(Some(vec![b.reshape(y, shape)?]))
}
