//! Gradients of reductions, running reductions and softmax.

use tercet_tensor::{DType, Dim, Shape};

use crate::error::OpError;
use crate::grad::build::{accumulate_dtype, numel};
use crate::grad::{NoGradient, Vjp, VjpResult};
use crate::graph::{Graph, Value};
use crate::ops::{CumSum, LogSoftmax, Reduce, ReduceFn, Scan, ScanFn, ScatterReduce, Softmax};
use crate::scalar::{BinaryFn, CompareFn};

pub(crate) fn reduce(op: &Reduce, v: &mut Vjp<'_>) -> VjpResult {
    let (x, y, dy) = (v.x(0), v.y(0), v.dy(0)?);
    let shape = v.shape(x);
    let mut kept = shape.clone();
    op.axes.iter().for_each(|&a| kept.dims_mut()[a] = 1.into());
    let dy = v.shaped(dy, kept.clone())?;
    let dx = match op.f {
        ReduceFn::Sum => dy,
        ReduceFn::Mean => {
            let dims: Vec<Dim> = op.axes.iter().map(|&a| shape[a].clone()).collect();
            let dtype = v.dtype(x);
            let count = v.count_of(&dims, accumulate_dtype(dtype))?;
            let dy = v.widen(dy)?;
            let mean = v.div(dy, count)?;
            v.in_dtype(mean, dtype)?
        }
        ReduceFn::Max | ReduceFn::Min => {
            let y = v.shaped(y, kept)?;
            shared(v, x, y, dy, &op.axes)?
        }
        ReduceFn::Prod => {
            let others = others(v, x, &op.axes)?;
            v.mul(others, dy)?
        }
    };
    let dx = v.broadcast_to_shape(dx, shape)?;
    Ok(v.accumulate(0, dx)?)
}

/// The cotangent of an extreme, divided equally among all elements equal to it.
fn shared(
    v: &mut Vjp<'_>,
    x: Value,
    y: Value,
    dy: Value,
    axes: &[usize],
) -> Result<Value, OpError> {
    let dtype = v.dtype(x);
    let hit = v.compare(CompareFn::Eq, x, y)?;
    let ones = v.in_dtype(hit, accumulate_dtype(dtype))?;
    let count = v.sum_along(ones, axes)?;
    // No element equals a NaN, so the count may be 0.
    let count = v.with(BinaryFn::Max, count, 1.0)?;
    let dy = v.widen(dy)?;
    let share = v.div(dy, count)?;
    let share = v.in_dtype(share, dtype)?;
    v.only_where(hit, share)
}

/// For each element, the product of all other elements along the axes. The products of the elements
/// before and after the element are multiplied, which avoids a division by zero elements.
pub(super) fn others(v: &mut Vjp<'_>, x: Value, axes: &[usize]) -> Result<Value, NoGradient> {
    let shape = v.shape(x);
    let kept: Vec<usize> = (0..shape.rank()).filter(|a| !axes.contains(a)).collect();
    let perm = [&kept[..], axes].concat();
    let dims = |axes: &[usize]| -> Vec<Dim> { axes.iter().map(|&a| shape[a].clone()).collect() };
    let flat = [numel(&dims(&kept))?, numel(&dims(axes))?];
    let (dtype, x) = (v.dtype(x), v.widen(x)?);
    let lines = v.permuted(x, &perm)?;
    let lines = v.shaped(lines, flat)?;
    let product = |reverse| CumSum {
        axis: 1,
        f: ScanFn::Prod,
        exclusive: true,
        reverse,
    };
    let before = v.scan(lines, product(false))?;
    let after = v.scan(lines, product(true))?;
    let others = v.mul(before, after)?;
    let others = v.shaped(others, dims(&perm))?;
    let mut back = vec![0; perm.len()];
    perm.iter()
        .enumerate()
        .for_each(|(to, &from)| back[from] = to);
    let others = v.permuted(others, &back)?;
    Ok(v.in_dtype(others, dtype)?)
}

pub(crate) fn cum_sum(op: &CumSum, v: &mut Vjp<'_>) -> VjpResult {
    let dy = v.dy(0)?;
    let dx = match op.f {
        ScanFn::Sum => {
            let back = CumSum {
                reverse: !op.reverse,
                ..op.clone()
            };
            v.scan(dy, back)?
        }
        ScanFn::Prod => running_product(op, v, dy)?,
        ScanFn::Max | ScanFn::Min => running_extreme(op, v, dy)?,
    };
    Ok(v.accumulate(0, dx)?)
}

/// The cotangent of each running extreme goes to the last element that set or equalled it.
fn running_extreme(op: &CumSum, v: &mut Vjp<'_>, dy: Value) -> Result<Value, OpError> {
    let (x, axis) = (v.x(0), op.axis);
    let shape = v.shape(x);
    let inclusive = CumSum {
        exclusive: false,
        ..op.clone()
    };
    let y = match op.exclusive {
        true => v.scan(x, inclusive.clone())?,
        false => v.y(0),
    };
    let record = v.compare(CompareFn::Eq, x, y)?;
    let mut line = vec![Dim::Known(1); shape.rank()];
    line[axis] = shape[axis].clone();
    let places = v.iota(&shape[axis])?;
    let places = v.shaped(places, line)?;
    // For each element, the index of the latest element that set a new extreme. The first element
    // is always a new extreme, unless it is NaN.
    let (f, none) = match op.reverse {
        false => (ScanFn::Max, v.scalar(DType::I32, 0.0)?),
        true => {
            let count = v.count_of(&shape[axis..=axis], DType::I32)?;
            (ScanFn::Min, v.shifted(count, -1.0)?)
        }
    };
    let places = v.where_(record, places, none)?;
    let from = v.scan(places, CumSum { f, ..inclusive })?;
    let zeros = v.zeros_like(x)?;
    let dy = match op.exclusive {
        true => moved_back(v, dy, axis, op.reverse)?,
        false => dy,
    };
    v.scatter_elements(zeros, from, dy, axis, ScatterReduce::Add)
}

/// Shifts the cotangents of an exclusive scan by one step, to those of an inclusive one.
fn moved_back(v: &mut Vjp<'_>, dy: Value, axis: usize, reverse: bool) -> Result<Value, OpError> {
    if v.shape(dy)[axis] == Dim::Known(0) {
        return Ok(dy);
    }
    match reverse {
        false => {
            let padded = v.zeros_around(dy, axis, 0, 1)?;
            v.slice_axis(padded, axis, 1, i64::MAX, 1)
        }
        true => {
            let padded = v.zeros_around(dy, axis, 1, 0)?;
            v.slice_axis(padded, axis, 0, -1, 1)
        }
    }
}

/// `dx[i] = p[i] s[i]`, with `p` the product of the preceding elements and `s[i] = dy[i] + x[i + 1]
/// s[i + 1]`. `s` sums over later results, times the products between. There is no division, so
/// zero elements are safe.
fn running_product(op: &CumSum, v: &mut Vjp<'_>, dy: Value) -> Result<Value, NoGradient> {
    let (x, axis) = (v.x(0), op.axis);
    let dtype = v.dtype(x);
    let before = v.scan(
        x,
        CumSum {
            exclusive: true,
            ..op.clone()
        },
    )?;
    let dy = match op.exclusive {
        true => moved_back(v, dy, axis, op.reverse)?,
        false => dy,
    };
    let (wide_x, wide_dy) = (v.widen(x)?, v.widen(dy)?);
    let sequences = [
        v.move_axis(wide_x, axis, 0)?,
        v.move_axis(wide_dy, axis, 0)?,
    ];
    let mut part = v.ty(sequences[0]).clone();
    part.shape = part.shape.iter().skip(1).cloned().collect::<Shape>();
    let mut body = Graph::new();
    let product = body.input("product", part.clone())?;
    let x = body.input("x", part.clone())?;
    let dy = body.input("dy", part.clone())?;
    let sum = body.plus(product, dy)?;
    let next = body.mul(sum, x)?;
    let symbols = v.with_symbols(std::slice::from_ref(&part))?;
    for (i, symbol) in symbols.iter().enumerate() {
        body.input(&format!("size {i}"), v.ty(*symbol).clone())?;
    }
    body.output("next", next)?;
    body.output("sum", sum)?;
    let scan = Scan {
        body: body.into(),
        carried: 1,
        scanned: 2,
        reverse: vec![!op.reverse; 2],
        reverse_results: vec![!op.reverse],
    };
    let start = v.filled(&part, 0.0)?;
    let sums = v
        .add(scan, &[&[start], &sequences[..], &symbols].concat())?
        .port(1);
    let sums = v.move_axis(sums, 0, axis)?;
    let before = v.widen(before)?;
    let dx = v.mul(before, sums)?;
    Ok(v.in_dtype(dx, dtype)?)
}

/// `dx = y (dy - sum(dy y))`
pub(crate) fn softmax(op: &Softmax, v: &mut Vjp<'_>) -> VjpResult {
    let (y, dy) = (v.y(0), v.dy(0)?);
    let dtype = v.dtype(y);
    let (y, dy) = (v.widen(y)?, v.widen(dy)?);
    let weighed = v.mul(dy, y)?;
    let sum = v.sum_along(weighed, &[op.axis])?;
    let rest = v.sub(dy, sum)?;
    let dx = v.mul(y, rest)?;
    let dx = v.in_dtype(dx, dtype)?;
    Ok(v.accumulate(0, dx)?)
}

/// `dx = dy - exp(y) sum(dy)`
pub(crate) fn log_softmax(op: &LogSoftmax, v: &mut Vjp<'_>) -> VjpResult {
    let (y, dy) = (v.y(0), v.dy(0)?);
    let dtype = v.dtype(y);
    let (y, dy) = (v.widen(y)?, v.widen(dy)?);
    let sum = v.sum_along(dy, &[op.axis])?;
    let p = v.exp(y)?;
    let part = v.mul(p, sum)?;
    let dx = v.sub(dy, part)?;
    let dx = v.in_dtype(dx, dtype)?;
    Ok(v.accumulate(0, dx)?)
}
