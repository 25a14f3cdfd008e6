//! Gradients of operators that read or write by indices. Cotangents of an element that was read
//! several times are added in the order of the indices. Indices have no gradient.

use tercet_tensor::{DType, Dim, Type};

use crate::grad::build::numel;
use crate::grad::{Vjp, VjpResult};
use crate::graph::Value;
use crate::ops::{
    DynamicSlice, DynamicUpdateSlice, Gather, GatherElements, GatherNd, ScatterReduce, Sort, TopK,
    Unique,
};
use crate::scalar::CompareFn;

/// `dx[idx[i]] += dy[i]` along the axis.
pub(crate) fn gather(op: &Gather, v: &mut Vjp<'_>) -> VjpResult {
    let (data, idx, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let (shape, of_idx, of_dy) = (v.shape(data), v.shape(idx), v.shape(dy));
    let count = numel(&of_idx)?;
    let mut flat = of_dy.into_dims();
    flat.splice(op.axis..op.axis + of_idx.rank(), [count.clone()]);
    let dy = v.shaped(dy, flat)?;
    let idx = v.shaped(idx, [count])?;
    let dx = v.added_at(dy, op.axis, idx, &shape[op.axis])?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn gather_elements(op: &GatherElements, v: &mut Vjp<'_>) -> VjpResult {
    let (data, idx, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let mut one = v.shape(data);
    one.dims_mut()[op.axis] = Dim::Known(1);
    let dx = match v.shape(idx) == one {
        true => placed(v, data, idx, dy, op.axis)?,
        false => elements_added(v, data, idx, dy, op.axis)?,
    };
    Ok(v.accumulate(0, dx)?)
}

/// Zeros like `data`, except for one element of each line. The element is selected by an
/// elementwise comparison, so the reader of the result can fuse it, and the zeros need no memory.
fn placed(
    v: &mut Vjp<'_>,
    data: Value,
    idx: Value,
    dy: Value,
    axis: usize,
) -> Result<Value, crate::OpError> {
    let shape = v.shape(data);
    let dtype = v.dtype(idx);
    let count = v.count_of(&shape[axis..=axis], dtype)?;
    let zero = v.scalar(dtype, 0.0)?;
    let is_negative = v.compare(CompareFn::Lt, idx, zero)?;
    let from_end = v.plus(idx, count)?;
    let idx = v.where_(is_negative, from_end, idx)?;
    let places = v.iota(&shape[axis])?;
    let places = v.in_dtype_of(places, idx)?;
    let mut line = vec![Dim::Known(1); shape.rank()];
    line[axis] = shape[axis].clone();
    let places = v.shaped(places, line)?;
    let is_own = v.compare(CompareFn::Eq, places, idx)?;
    v.only_where(is_own, dy)
}

/// Zeros like `data`, with each element of `dy` added at its index.
fn elements_added(
    v: &mut Vjp<'_>,
    data: Value,
    idx: Value,
    dy: Value,
    axis: usize,
) -> Result<Value, crate::OpError> {
    let zeros = v.zeros_like(data)?;
    v.scatter_elements(zeros, idx, dy, axis, ScatterReduce::Add)
}

pub(crate) fn gather_nd(op: &GatherNd, v: &mut Vjp<'_>) -> VjpResult {
    let (data, mut idx, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let rows = v.shape(idx);
    let rows = &rows[..rows.rank() - 1];
    // Coordinates of the batch axes, so that the index has a coordinate for every axis.
    for axis in (0..op.batch_dims).rev() {
        let places = v.iota(&rows[axis])?;
        let places = v.in_dtype_of(places, idx)?;
        let mut column = vec![Dim::Known(1); rows.len() + 1];
        column[axis] = rows[axis].clone();
        let places = v.shaped(places, column)?;
        let mut full = rows.to_vec();
        full.push(Dim::Known(1));
        let places = v.broadcast_to_shape(places, full)?;
        idx = v.concat(&[places, idx], rows.len())?;
    }
    let zeros = v.zeros_like(data)?;
    let dx = v.scatter_nd(zeros, idx, dy, ScatterReduce::Add)?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn top_k(op: &TopK, v: &mut Vjp<'_>) -> VjpResult {
    ordered(v, op.axis)
}

pub(crate) fn sort(op: &Sort, v: &mut Vjp<'_>) -> VjpResult {
    ordered(v, op.axis)
}

/// Routes the cotangents of sorted values to the indices that they came from.
fn ordered(v: &mut Vjp<'_>, axis: usize) -> VjpResult {
    let (x, indices, dy) = (v.x(0), v.y(1), v.dy(0)?);
    let dx = elements_added(v, x, indices, dy, axis)?;
    Ok(v.accumulate(0, dx)?)
}

/// The first element of each value receives its cotangent; entries after the last value are
/// constant.
pub(crate) fn unique(_: &Unique, v: &mut Vjp<'_>) -> VjpResult {
    let (x, firsts, count, dy) = (v.x(0), v.y(1), v.y(4), v.dy(0)?);
    let shape = v.shape(x);
    let n = numel(&shape)?;
    let places = v.iota(&n)?;
    let used = v.compare(CompareFn::Lt, places, count)?;
    let dy = v.only_where(used, dy)?;
    let dx = v.scatter_add(dy, firsts, n)?;
    let dx = v.shaped(dx, shape)?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn dynamic_slice(_: &DynamicSlice, v: &mut Vjp<'_>) -> VjpResult {
    let (x, starts, dy) = (v.x(0), v.x(1), v.dy(0)?);
    let zeros = v.zeros_like(x)?;
    let dx = v.dynamic_update_slice(zeros, dy, starts)?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn dynamic_update_slice(_: &DynamicUpdateSlice, v: &mut Vjp<'_>) -> VjpResult {
    let (update, starts, dy) = (v.x(1), v.x(2), v.dy(0)?);
    if v.needs_cotangent(0) {
        let zeros = v.zeros_like(update)?;
        let dx = v.dynamic_update_slice(dy, zeros, starts)?;
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(1) {
        let sizes = v.shape(update);
        let du = v.dynamic_slice(dy, starts, sizes)?;
        v.accumulate(1, du)?;
    }
    Ok(())
}

/// `0, 1, ..` in the shape of a value, as `I32`: the flat index of each element.
pub(super) fn numbered(v: &mut Vjp<'_>, x: Value) -> Result<Value, crate::grad::NoGradient> {
    let shape = v.shape(x);
    let count = numel(&shape)?;
    let numbers = v.iota(&count)?;
    debug_assert_eq!(v.ty(numbers), &Type::new(DType::I32, [count]));
    Ok(v.shaped(numbers, shape)?)
}
