//! Gradients of pooling and resizing: linear in their elements, except for max and min pooling.

use tercet_tensor::{DType, Dim, Tensor, TensorType};

use super::conv::{columns_added, windows_added};
use super::reduce::others;
use crate::error::OpError;
use crate::grad::build::numel;
use crate::grad::{NoGradient, Vjp, VjpResult};
use crate::graph::Value;
use crate::ops::{Im2Col, PadMode, Pool, PoolFn, Resize};
use crate::scalar::{BinaryFn, CompareFn};

pub(crate) fn pool(op: &Pool, v: &mut Vjp<'_>) -> VjpResult {
    let dx = match op.f {
        PoolFn::Sum | PoolFn::Mean => averaged(op, v)?,
        PoolFn::Max | PoolFn::Min => chosen(op, v)?,
        PoolFn::Prod => multiplied(op, v)?,
    };
    Ok(v.accumulate(0, dx)?)
}

/// Each element of a window receives the window's cotangent, divided by the count for means.
fn averaged(op: &Pool, v: &mut Vjp<'_>) -> Result<Value, NoGradient> {
    let (x, mut dy) = (v.x(0), v.dy(0)?);
    let (shape, dtype) = (v.shape(x), v.dtype(x));
    dy = v.widen(dy)?;
    if op.f == PoolFn::Mean {
        // On a tensor of ones, sum pooling gives the number of elements that a window covers, and
        // mean pooling that number divided by the divisor of the mean.
        let mut one_each = v.ty(dy).with_shape(shape.clone());
        one_each.shape.dims_mut()[..2].fill(Dim::Known(1));
        let ones = v.filled(&one_each, 1.0)?;
        let mean = v.add(op.clone(), &[ones])?;
        let sum = Pool {
            f: PoolFn::Sum,
            count_include_pad: false,
            ..op.clone()
        };
        let sum = v.add(sum, &[ones])?;
        let sum = v.with(BinaryFn::Max, sum, 1.0)?;
        let share = v.div(mean, sum)?;
        dy = v.mul(dy, share)?;
    }
    let windows = v.shape(dy)[2..].to_vec();
    let lines = numel(&shape[..2])?;
    let apart: Vec<Dim> = [lines, Dim::Known(1)].into_iter().chain(windows).collect();
    let dy = v.shaped(dy, apart)?;
    let w = TensorType::new(v.dtype(dy), &[&[1, 1], &op.kernel[..]].concat());
    let w = v.filled(&(&w).into(), 1.0)?;
    let dx = windows_added(v, dy, w, &op.window(), 1, &shape[2..])?;
    let dx = v.shaped(dx, shape)?;
    Ok(v.in_dtype(dx, dtype)?)
}

/// The windows of a pool as columns `[lines, taps, windows]`, and its cotangent `[lines, 1,
/// windows]`.
struct PoolColumns {
    x: Value,
    dy: Value,
    taps: usize,
    windows: Vec<Dim>,
}

/// Gathers the windows of `x`; taps on padding read `fill`.
fn gathered(op: &Pool, v: &mut Vjp<'_>, x: Value, fill: f64) -> Result<PoolColumns, NoGradient> {
    let dy = v.dy(0)?;
    let (shape, windows) = (v.shape(x), v.shape(dy)[2..].to_vec());
    let rank = shape.rank();
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for (axis, n) in shape[2..].iter().enumerate() {
        before[2 + axis] = op.pad_before[axis];
        let reach = (op.kernel[axis] - 1) * op.dilation[axis] + 1;
        let known = beyond(n, &windows[axis], op.stride[axis], reach, before[2 + axis]);
        after[2 + axis] = known.unwrap_or_else(|| op.window().covered_pad(axis, reach, op.ceil));
    }
    let padded = v.pad(x, &before, &after, PadMode::Constant, fill)?;
    let unpadded = crate::ops::Window {
        pad_before: vec![0; rank - 2],
        pad_after: vec![0; rank - 2],
        ..op.window()
    };
    let columns = v.add(Im2Col::new(op.kernel.clone(), unpadded), &[padded])?;
    let taps: usize = op.kernel.iter().product();
    let (lines, count) = (numel(&shape[..2])?, numel(&windows)?);
    let columns = v.shaped(columns, [lines.clone(), Dim::Known(taps), count.clone()])?;
    let dy = v.shaped(dy, [lines, Dim::Known(1), count])?;
    Ok(PoolColumns {
        x: columns,
        dy,
        taps,
        windows,
    })
}

/// The first extreme of a window receives its cotangent.
fn chosen(op: &Pool, v: &mut Vjp<'_>) -> Result<Value, NoGradient> {
    let x = v.x(0);
    let greatest = op.f == PoolFn::Max;
    let worst = match greatest {
        true => f64::NEG_INFINITY,
        false => f64::INFINITY,
    };
    let of = gathered(op, v, x, worst)?;
    let first = match greatest {
        true => v.arg_max(of.x, 1, true)?,
        false => v.arg_min(of.x, 1, true)?,
    };
    let places = v.iota(&Dim::Known(of.taps))?;
    let places = v.shaped(places, [1, of.taps, 1])?;
    let is_first = v.compare(CompareFn::Eq, places, first)?;
    let dy = v.only_where(is_first, of.dy)?;
    columns_added(v, dy, &op.kernel, &op.window(), &of.windows, x)
}

/// Each element of a window receives the window's cotangent times the product of the others.
fn multiplied(op: &Pool, v: &mut Vjp<'_>) -> Result<Value, NoGradient> {
    let x = v.x(0);
    let of = gathered(op, v, x, 1.0)?;
    let others = others(v, of.x, &[1])?;
    let dy = v.mul(others, of.dy)?;
    columns_added(v, dy, &op.kernel, &op.window(), &of.windows, x)
}

/// The number of elements that the last window reads beyond the end of an axis; `None` if it
/// depends on symbols.
fn beyond(n: &Dim, windows: &Dim, stride: usize, reach: usize, before: usize) -> Option<usize> {
    let end = windows
        .checked_mul(&Dim::Known(stride))
        .and_then(|n| n.checked_add(&Dim::Known(reach)));
    let own = n.checked_add(&Dim::Known(before + stride));
    let (end, own) = end.zip(own)?;
    match (end.checked_sub(&own), own.checked_sub(&end)) {
        (Some(Dim::Known(n)), _) => Some(n),
        (_, Some(Dim::Known(_))) => Some(0),
        _ => None,
    }
}

/// Each result adds its cotangent to its source elements, with the interpolation weights.
pub(crate) fn resize(op: &Resize, v: &mut Vjp<'_>) -> VjpResult {
    let (x, mut dx) = (v.x(0), v.dy(0)?);
    let (shape, dtype) = (v.shape(x), v.dtype(x));
    dx = v.widen(dx)?;
    for axis in op.axes(&shape) {
        let (Some(n), Some(m)) = (shape[axis].known(), op.sizes[axis].known()) else {
            return Err(NoGradient::because(
                "a resized axis has a symbolic size; fix it with `Graph::with_sizes`",
            ));
        };
        let taps = op.taps(axis, n, m);
        let mut sum: Option<Value> = None;
        for tap in 0..taps.count {
            let weights: Vec<f64> = (0..m).map(|o| taps.weight(o, tap)).collect();
            let indices: Vec<i64> = (0..m).map(|o| taps.index(o, tap) as i64).collect();
            let part = added_by(v, dx, axis, n, &weights, &indices)?;
            sum = Some(match sum {
                Some(sum) => v.plus(sum, part)?,
                None => part,
            });
        }
        dx = sum.unwrap_or(dx);
    }
    let dx = v.in_dtype(dx, dtype)?;
    Ok(v.accumulate(0, dx)?)
}

fn added_by(
    v: &mut Vjp<'_>,
    dy: Value,
    axis: usize,
    n: usize,
    weights: &[f64],
    indices: &[i64],
) -> Result<Value, OpError> {
    let mut line = vec![1; v.rank(dy)];
    line[axis] = weights.len();
    let weights = Tensor::from_f64s(TensorType::new(v.dtype(dy), &line), weights)
        .expect("invariant: as many weights as results");
    let weights = v.constant(weights)?;
    let indices = Tensor::from_i64s(TensorType::new(DType::I32, &[indices.len()]), indices)
        .expect("invariant: as many indices as results");
    let indices = v.constant(indices)?;
    let weighed = v.mul(dy, weights)?;
    v.added_at(weighed, axis, indices, &Dim::Known(n))
}
