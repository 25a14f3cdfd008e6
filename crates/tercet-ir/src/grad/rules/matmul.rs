//! Gradients of matmuls: `dx = dy w^T` and `dw = x^T dy`, summed over broadcast batch axes.

use tercet_tensor::Dim;
use tercet_tensor::quant::Scheme;

use super::elementwise::slope;
use crate::error::OpError;
use crate::grad::build::numel;
use crate::grad::{NoGradient, Vjp, VjpResult};
use crate::graph::{Graph, Value};
use crate::ops::{
    DequantGroupedMatMul, DequantMatMul, Dequantize, GroupedMatMul, Linear, LoraMatMul, MatMul,
};
use crate::scalar::{CompareFn, UnaryFn};

type MatMulGradResult = Result<Value, OpError>;

/// Why quantized weights have no gradient.
pub(crate) const PACKED: &str = "quantized weights are constants; train an adapter (LoRA) instead";

pub(crate) fn mat_mul(_: &MatMul, v: &mut Vjp<'_>) -> VjpResult {
    let (a, b, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let (a_shape, b_shape) = (v.shape(a), v.shape(b));
    let one = Dim::Known(1);
    // Treats vectors as matrices with one row or column.
    let mut of_dy = v.shape(dy).into_dims();
    let a2 = match a_shape.rank() {
        1 => {
            let row = of_dy.len() - usize::from(b_shape.rank() > 1);
            of_dy.insert(row, one.clone());
            v.shaped(a, [one.clone(), a_shape[0].clone()])?
        }
        _ => a,
    };
    let b2 = match b_shape.rank() {
        1 => {
            of_dy.push(one.clone());
            v.shaped(b, [b_shape[0].clone(), one])?
        }
        _ => b,
    };
    let dy = v.shaped(dy, of_dy)?;
    if v.needs_cotangent(0) {
        let other = v.swapped(b2)?;
        let da = v.matmul(dy, other)?;
        let own = v.shape(a2);
        let da = v.summed_to(da, &own)?;
        let da = v.shaped(da, a_shape)?;
        v.accumulate(0, da)?;
    }
    if v.needs_cotangent(1) {
        let db = right(v, a2, b2, dy)?;
        let db = v.shaped(db, b_shape)?;
        v.accumulate(1, db)?;
    }
    Ok(())
}

/// Computes the cotangent of the right operand of a matmul. If all batches share one right matrix,
/// a single matmul over the rows of all batches computes the cotangent.
fn right(g: &mut Graph, a: Value, b: Value, dy: Value) -> Result<Value, NoGradient> {
    let own = g.shape(b);
    let (a, dy) = match own.rank() {
        2 => (rows(g, a)?, rows(g, dy)?),
        _ => (a, dy),
    };
    let other = g.swapped(a)?;
    let db = g.matmul(other, dy)?;
    Ok(g.summed_to(db, &own)?)
}

/// Reshapes `x [.., K]` to `[rows, K]`.
fn rows(g: &mut Graph, x: Value) -> Result<Value, NoGradient> {
    let shape = g.shape(x);
    let (last, leading) = shape.split_last().ok_or_else(|| {
        NoGradient::because("a product of scalars") // Type inference rejects it.
    })?;
    let count = numel(leading)?;
    Ok(g.shaped(x, [count, last.clone()])?)
}

/// Computes the cotangent of an activation's operand. If the derivative follows from the
/// activation's result, the operand is not recomputed.
pub(super) fn before_activation(
    v: &mut Vjp<'_>,
    activation: Option<UnaryFn>,
    pre: impl FnOnce(&mut Vjp<'_>) -> MatMulGradResult,
) -> Result<Option<Value>, OpError> {
    let (y, dy) = (v.y(0), v.dy(0)?);
    let Some(f) = activation else {
        return Ok(Some(dy));
    };
    let x = match f {
        UnaryFn::Relu | UnaryFn::Sigmoid | UnaryFn::Tanh | UnaryFn::Exp => y,
        _ => pre(v)?,
    };
    slope(v, f, x, y, dy)
}

pub(crate) fn linear(op: &Linear, v: &mut Vjp<'_>) -> VjpResult {
    let operands = v.operands();
    let (x, w) = (operands[0], operands[1]);
    let plain = Linear { activation: None };
    let pre = |v: &mut Vjp<'_>| v.add(plain, &operands);
    let Some(dz) = before_activation(v, op.activation, pre)? else {
        return Ok(());
    };
    if v.needs_cotangent(0) {
        let other = v.swapped(w)?;
        let dx = v.matmul(dz, other)?;
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(1) {
        let (x, dz) = (rows(v, x)?, rows(v, dz)?);
        let dw = right(v, x, w, dz)?;
        v.accumulate(1, dw)?;
    }
    if v.needs_cotangent(2) {
        let shape = v.shape(operands[2]);
        let db = v.summed_to(dz, &shape)?;
        v.accumulate(2, db)?;
    }
    Ok(())
}

/// Differentiates two matmuls and their sum; only the parts that gradients need are computed.
pub(crate) fn lora(op: &LoraMatMul, v: &mut Vjp<'_>) -> VjpResult {
    v.through(|g, operands| {
        let &[x, w, down, up] = operands else {
            return Err(NoGradient::because("expected four operands"));
        };
        let y = g.matmul(x, w)?;
        let low = g.matmul(x, down)?;
        let change = g.matmul(low, up)?;
        let change = g.times(change, op.scale.0)?;
        Ok(vec![g.plus(y, change)?])
    })
}

/// The gradient of the matrices is dense over the experts: rows of other experts count as zeros.
pub(crate) fn grouped(_: &GroupedMatMul, v: &mut Vjp<'_>) -> VjpResult {
    let (x, w, expert, dy) = (v.x(0), v.x(1), v.x(2), v.dy(0)?);
    if v.needs_cotangent(0) {
        let other = v.swapped(w)?;
        let dx = v.grouped_matmul(dy, other, expert)?;
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(1) {
        let dw = expert_weight_grad(v, x, w, expert, dy)?;
        v.accumulate(1, dw)?;
    }
    Ok(())
}

fn expert_weight_grad(
    v: &mut Vjp<'_>,
    x: Value,
    w: Value,
    expert: Value,
    dy: Value,
) -> MatMulGradResult {
    let experts = v.shape(w)[0].clone();
    let (of_x, of_dy) = (v.shape(x), v.shape(dy));
    let dtype = v.dtype(expert);
    let numbers = v.iota(&experts)?;
    let numbers = v.in_dtype(numbers, dtype)?;
    let numbers = v.shaped(numbers, [experts.clone(), 1.into()])?;
    let count = v.count_of(std::slice::from_ref(&experts), dtype)?;
    let from_end = v.plus(expert, count)?;
    let negative = v.is(CompareFn::Lt, expert, 0.0)?;
    let expert = v.where_(negative, from_end, expert)?;
    let own = v.compare(CompareFn::Eq, numbers, expert)?;
    let own = v.shaped(own, [experts.clone(), of_x[0].clone(), 1.into()])?;
    let x = v.shaped(x, [1.into(), of_x[0].clone(), of_x[1].clone()])?;
    let x = v.only_where(own, x)?;
    let other = v.swapped(x)?;
    let dy = v.shaped(dy, [1.into(), of_dy[0].clone(), of_dy[1].clone()])?;
    let dy = v.broadcast_to_shape(dy, [experts, of_dy[0].clone(), of_dy[1].clone()])?;
    v.matmul(other, dy)
}

pub(crate) fn dequantize(op: &Dequantize, v: &mut Vjp<'_>) -> VjpResult {
    expect_floats(op.scheme)?;
    let (w, dy) = (v.x(0), v.dy(0)?);
    let dw = v.in_dtype_of(dy, w)?;
    Ok(v.accumulate(0, dw)?)
}

/// Only weights stored as floats have gradients.
fn expect_floats(scheme: Scheme) -> VjpResult {
    match scheme.storage().is_float() {
        true => Ok(()),
        false => Err(NoGradient::because(PACKED)),
    }
}

/// `dx = dy w`, in the dtype of `x`. For 16-bit dtypes the weights are decoded to that dtype, as
/// kernels do in the forward pass. Weights stored in that dtype are read directly.
pub(crate) fn dequant(op: &DequantMatMul, v: &mut Vjp<'_>) -> VjpResult {
    let (x, w, dy) = (v.x(0), v.x(1), v.dy(0)?);
    if v.needs_cotangent(0) {
        let values = match op.scheme.storage() == v.dtype(x) {
            true => w,
            false => {
                let values = v.dequantize(w, op.scheme)?;
                v.in_dtype_of(values, x)?
            }
        };
        let dx = v.matmul(dy, values)?;
        v.accumulate(0, dx)?;
    }
    let dy = v.widen(dy)?;
    if v.needs_cotangent(1) {
        expect_floats(op.scheme)?;
        let x = v.widen(x)?;
        let (x, dy) = (rows(v, x)?, rows(v, dy)?);
        let other = v.swapped(dy)?;
        let dw = v.matmul(other, x)?;
        let dw = v.in_dtype_of(dw, w)?;
        v.accumulate(1, dw)?;
    }
    Ok(())
}

pub(crate) fn dequant_grouped(op: &DequantGroupedMatMul, v: &mut Vjp<'_>) -> VjpResult {
    let (x, w, expert, dy) = (v.x(0), v.x(1), v.x(2), v.dy(0)?);
    let dy = v.widen(dy)?;
    let values = v.dequantize(w, op.scheme)?;
    let values = v.in_dtype_of(values, dy)?;
    if v.needs_cotangent(0) {
        let dx = v.grouped_matmul(dy, values, expert)?;
        let dx = v.in_dtype_of(dx, x)?;
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(1) {
        expect_floats(op.scheme)?;
        let x = v.widen(x)?;
        let of_values = v.swapped(values)?;
        let dw = expert_weight_grad(v, x, of_values, expert, dy)?;
        let dw = v.swapped(dw)?;
        let dw = v.in_dtype_of(dw, w)?;
        v.accumulate(1, dw)?;
    }
    Ok(())
}
