//! Products: `dx = dy w^T` and `dw = x^T dy`, batches that were broadcast summed.

use crate::dim::Dim;
use crate::error::OpError;
use crate::grad::build::numel;
use crate::grad::{NoGradient, Ruled, Vjp};
use crate::graph::{Graph, Value};
use crate::ops::{
    DequantGroupedMatMul, DequantMatMul, Dequantize, GroupedMatMul, Linear, LoraMatMul, MatMul,
};
use crate::quant::Scheme;
use crate::scalar::{CompareFn, UnaryFn};

use super::elementwise::slope;

type Built = Result<Value, OpError>;

/// Why packed weights have no gradient.
pub(crate) const PACKED: &str = "packed weights are constants; train an adapter beside them";

pub(crate) fn mat_mul(_: &MatMul, v: &mut Vjp<'_>) -> Ruled {
    let (a, b, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let (a_shape, b_shape) = (v.shape(a), v.shape(b));
    let one = Dim::Known(1);
    // Vectors as matrices of one row or column.
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
    if v.wants(0) {
        let other = v.swapped(b2)?;
        let da = v.matmul(dy, other)?;
        let own = v.shape(a2);
        let da = v.summed_to(da, &own)?;
        let da = v.shaped(da, a_shape)?;
        v.give(0, da)?;
    }
    if v.wants(1) {
        let db = right(v, a2, b2, dy)?;
        let db = v.shaped(db, b_shape)?;
        v.give(1, db)?;
    }
    Ok(())
}

/// The cotangent of the right one of two matrices. One matrix for all batches is one product over all rows.
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

/// `x [.., K]` as `[rows, K]`.
fn rows(g: &mut Graph, x: Value) -> Result<Value, NoGradient> {
    let shape = g.shape(x);
    let (last, leading) = shape.split_last().ok_or_else(|| {
        NoGradient::because("a product of scalars") // Inference refuses it.
    })?;
    let count = numel(leading)?;
    Ok(g.shaped(x, [count, last.clone()])?)
}

/// The cotangent before an activation, which is computed from the result where that suffices.
pub(super) fn before_activation(
    v: &mut Vjp<'_>,
    activation: Option<UnaryFn>,
    pre: impl FnOnce(&mut Vjp<'_>) -> Built,
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

pub(crate) fn linear(op: &Linear, v: &mut Vjp<'_>) -> Ruled {
    let operands = v.operands();
    let (x, w) = (operands[0], operands[1]);
    let plain = Linear { activation: None };
    let pre = |v: &mut Vjp<'_>| v.add(plain, &operands);
    let Some(dz) = before_activation(v, op.activation, pre)? else {
        return Ok(());
    };
    if v.wants(0) {
        let other = v.swapped(w)?;
        let dx = v.matmul(dz, other)?;
        v.give(0, dx)?;
    }
    if v.wants(1) {
        let (x, dz) = (rows(v, x)?, rows(v, dz)?);
        let dw = right(v, x, w, dz)?;
        v.give(1, dw)?;
    }
    if v.wants(2) {
        let shape = v.shape(operands[2]);
        let db = v.summed_to(dz, &shape)?;
        v.give(2, db)?;
    }
    Ok(())
}

/// Through two products and their sum, of which only what gradients need is computed.
pub(crate) fn lora(op: &LoraMatMul, v: &mut Vjp<'_>) -> Ruled {
    v.through(|g, operands| {
        let &[x, w, down, up] = operands else {
            return Err(NoGradient::because("it takes four operands"));
        };
        let y = g.matmul(x, w)?;
        let low = g.matmul(x, down)?;
        let change = g.matmul(low, up)?;
        let change = g.times(change, op.scale.0)?;
        Ok(vec![g.plus(y, change)?])
    })
}

/// The gradient of the matrices is dense over the experts: rows of other experts count as zeros.
pub(crate) fn grouped(_: &GroupedMatMul, v: &mut Vjp<'_>) -> Ruled {
    let (x, w, expert, dy) = (v.x(0), v.x(1), v.x(2), v.dy(0)?);
    if v.wants(0) {
        let other = v.swapped(w)?;
        let dx = v.grouped_matmul(dy, other, expert)?;
        v.give(0, dx)?;
    }
    if v.wants(1) {
        let dw = of_experts(v, x, w, expert, dy)?;
        v.give(1, dw)?;
    }
    Ok(())
}

fn of_experts(v: &mut Vjp<'_>, x: Value, w: Value, expert: Value, dy: Value) -> Built {
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
    let dy = v.spread(dy, [experts, of_dy[0].clone(), of_dy[1].clone()])?;
    v.matmul(other, dy)
}

pub(crate) fn dequantize(op: &Dequantize, v: &mut Vjp<'_>) -> Ruled {
    expect_floats(op.scheme)?;
    let (w, dy) = (v.x(0), v.dy(0)?);
    let dw = v.in_dtype_of(dy, w)?;
    Ok(v.give(0, dw)?)
}

/// Weights that are stored as floats have gradients.
fn expect_floats(scheme: Scheme) -> Ruled {
    match scheme.storage().is_float() {
        true => Ok(()),
        false => Err(NoGradient::because(PACKED)),
    }
}

/// `dx = dy w`, in the dtype of `x`: with 16 bits weights are decoded to them, as kernels do on the way forward, and those that
/// are stored so are read as they are.
pub(crate) fn dequant(op: &DequantMatMul, v: &mut Vjp<'_>) -> Ruled {
    let (x, w, dy) = (v.x(0), v.x(1), v.dy(0)?);
    if v.wants(0) {
        let values = match op.scheme.storage() == v.dtype(x) {
            true => w,
            false => {
                let values = v.dequantize(w, op.scheme)?;
                v.in_dtype_of(values, x)?
            }
        };
        let dx = v.matmul(dy, values)?;
        v.give(0, dx)?;
    }
    let dy = v.widen(dy)?;
    if v.wants(1) {
        expect_floats(op.scheme)?;
        let x = v.widen(x)?;
        let (x, dy) = (rows(v, x)?, rows(v, dy)?);
        let other = v.swapped(dy)?;
        let dw = v.matmul(other, x)?;
        let dw = v.in_dtype_of(dw, w)?;
        v.give(1, dw)?;
    }
    Ok(())
}

pub(crate) fn dequant_grouped(op: &DequantGroupedMatMul, v: &mut Vjp<'_>) -> Ruled {
    let (x, w, expert, dy) = (v.x(0), v.x(1), v.x(2), v.dy(0)?);
    let dy = v.widen(dy)?;
    let values = v.dequantize(w, op.scheme)?;
    let values = v.in_dtype_of(values, dy)?;
    if v.wants(0) {
        let dx = v.grouped_matmul(dy, values, expert)?;
        let dx = v.in_dtype_of(dx, x)?;
        v.give(0, dx)?;
    }
    if v.wants(1) {
        expect_floats(op.scheme)?;
        let x = v.widen(x)?;
        let of_values = v.swapped(values)?;
        let dw = of_experts(v, x, of_values, expert, dy)?;
        let dw = v.swapped(dw)?;
        let dw = v.in_dtype_of(dw, w)?;
        v.give(1, dw)?;
    }
    Ok(())
}
