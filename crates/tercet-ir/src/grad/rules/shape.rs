//! Gradients of operators that move elements: the cotangent moves back, and is summed if an element
//! was used several times.

use tercet_tensor::{DType, Dim, Shape};

use crate::error::OpError;
use crate::grad::build::numel;
use crate::grad::{Vjp, VjpResult};
use crate::graph::Value;
use crate::ops::{Concat, Expand, Pad, PadMode, Reshape, Roll, Slice, Tile, Transpose, Trilu};

pub(crate) fn identity<O>(_: &O, v: &mut Vjp<'_>) -> VjpResult {
    let dy = v.dy(0)?;
    Ok(v.accumulate(0, dy)?)
}

pub(crate) fn reshape(_: &Reshape, v: &mut Vjp<'_>) -> VjpResult {
    let (shape, dy) = (v.shape(v.x(0)), v.dy(0)?);
    let dx = v.shaped(dy, shape)?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn transpose(op: &Transpose, v: &mut Vjp<'_>) -> VjpResult {
    let mut inverse = vec![0; op.perm.len()];
    for (to, &from) in op.perm.iter().enumerate() {
        inverse[from] = to;
    }
    let dy = v.dy(0)?;
    let dx = v.permuted(dy, &inverse)?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn expand(_: &Expand, v: &mut Vjp<'_>) -> VjpResult {
    let (shape, dy) = (v.shape(v.x(0)), v.dy(0)?);
    let dx = v.summed_to(dy, &shape)?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn tile(op: &Tile, v: &mut Vjp<'_>) -> VjpResult {
    let mut dx = v.dy(0)?;
    let sizes = v.shape(v.x(0));
    for (axis, &reps) in op.reps.iter().enumerate().filter(|(_, reps)| **reps != 1) {
        let mut apart = v.shape(dx).into_dims();
        apart[axis] = sizes[axis].clone();
        apart.insert(axis, Dim::Known(reps));
        // Splitting the axis could exceed the maximum rank, so the outer axes are merged.
        let outer = numel(&apart[..axis])?;
        let inner = numel(&apart[axis + 1..])?;
        let shape = [&apart[..axis], &apart[axis + 1..]].concat();
        let flat = v.shaped(dx, [outer, Dim::Known(reps), inner])?;
        let sum = v.reduce_sum(flat, &[1], false)?;
        dx = v.shaped(sum, shape)?;
    }
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn roll(op: &Roll, v: &mut Vjp<'_>) -> VjpResult {
    let sizes = v.shape(v.x(0));
    // The minimum integer has no negative of the same width; for a symbolic axis, the minimum of
    // I32 counts.
    let mut back = Vec::with_capacity(op.shifts.len());
    let mut rest = vec![0; op.shifts.len()];
    for (axis, &shift) in op.shifts.iter().enumerate() {
        back.push(match sizes[axis].known() {
            Some(n) => -(shift.rem_euclid(n.max(1) as i64)),
            None if shift == i64::from(i32::MIN) => {
                rest[axis] = 1;
                i64::from(i32::MAX)
            }
            None => -shift,
        });
    }
    let mut dx = v.dy(0)?;
    for shifts in [back, rest] {
        if shifts.iter().any(|s| *s != 0) {
            dx = v.roll(dx, &shifts)?;
        }
    }
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn trilu(op: &Trilu, v: &mut Vjp<'_>) -> VjpResult {
    let dy = v.dy(0)?;
    let dx = v.trilu(dy, op.upper, op.k)?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn slice(op: &Slice, v: &mut Vjp<'_>) -> VjpResult {
    let (mut dx, sizes) = (v.dy(0)?, v.shape(v.x(0)));
    for (axis, n) in sizes.iter().enumerate() {
        let (start, end, step) = (op.starts[axis], op.ends[axis], op.steps[axis]);
        dx = unsliced(v, dx, axis, n, [start, end, step])?;
    }
    Ok(v.accumulate(0, dx)?)
}

/// `dy` at the indices of an axis of `n` elements that a slice takes, zeros at the others.
fn unsliced(
    v: &mut Vjp<'_>,
    dy: Value,
    axis: usize,
    n: &Dim,
    [start, end, step]: [i64; 3],
) -> Result<Value, OpError> {
    if step == 1 && v.shape(dy)[axis] == *n {
        return Ok(dy);
    }
    // If the slice is a prefix or suffix of a symbolic axis, a known number of zeros is missing.
    let rest = n.checked_sub(&v.shape(dy)[axis]).and_then(|d| d.known());
    if let Some(rest) = rest.filter(|_| step == 1) {
        let from_start = usize::try_from(start).ok().filter(|s| *s <= rest);
        if let Some(before) = from_start {
            return v.zeros_around(dy, axis, before, rest - before);
        }
    }
    if let (Some(n), Some(count)) = (n.known(), v.shape(dy)[axis].known()) {
        let first = match (start, step > 0) {
            _ if count == 0 => 0,
            (s, true) if s < 0 => (s.saturating_add(n as i64)).max(0) as usize,
            (s, true) => s as usize,
            (s, false) if s < 0 => s.saturating_add(n as i64) as usize,
            (s, false) => s.min(n as i64 - 1) as usize,
        };
        return placed(v, dy, axis, n, count, first, step);
    }
    let places = v.iota(n)?;
    let taken = v.slice(places, &[start], &[end], &[step])?;
    v.added_at(dy, axis, taken, n)
}

/// `dy` at `first, first + step, ..` of an axis of `n` elements, zeros elsewhere.
fn placed(
    v: &mut Vjp<'_>,
    dy: Value,
    axis: usize,
    n: usize,
    count: usize,
    first: usize,
    step: i64,
) -> Result<Value, OpError> {
    if count == 0 {
        return v.zeros_around(dy, axis, 0, n);
    }
    let stride = step.unsigned_abs() as usize;
    let (mut x, mut first) = (dy, first);
    if step < 0 && count > 1 {
        x = v.flipped(x, axis)?;
        first -= (count - 1) * stride;
    }
    let mut reach = count;
    if stride > 1 && count > 1 {
        x = apart(v, x, axis, stride)?;
        reach = (count - 1) * stride + 1;
        x = v.slice_axis(x, axis, 0, reach as i64, 1)?;
    }
    v.zeros_around(x, axis, first, n - first - reach)
}

/// Inserts `stride - 1` zeros after each element of an axis.
fn apart(v: &mut Vjp<'_>, x: Value, axis: usize, stride: usize) -> Result<Value, OpError> {
    let shape = v.shape(x);
    let known = |dims: &[Dim]| dims.iter().try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    let (outer, inner) = (known(&shape[..=axis]), known(&shape[axis + 1..]));
    let too_large = || OpError {
        op: "slice",
        operands: vec![v.ty(x).clone()],
        source: crate::TypeError::TooLarge {
            ty: v.ty(x).clone(),
        },
    };
    let (outer, inner) = outer.zip(inner).ok_or_else(too_large)?;
    let mut joined = shape.clone().into_dims();
    joined[axis] = joined[axis]
        .checked_mul(&Dim::Known(stride))
        .ok_or_else(too_large)?;
    let x = v.shaped(x, [outer, Dim::Known(1), inner])?;
    let x = v.zeros_around(x, 1, 0, stride - 1)?;
    v.shaped(x, joined)
}

pub(crate) fn pad(op: &Pad, v: &mut Vjp<'_>) -> VjpResult {
    let (mut dx, sizes) = (v.dy(0)?, v.shape(v.x(0)));
    for (axis, n) in sizes.iter().enumerate() {
        let (before, after) = (op.before[axis], op.after[axis]);
        if (before, after) == (0, 0) {
            continue;
        }
        dx = match op.mode {
            PadMode::Constant => {
                let end = match after {
                    0 => i64::MAX,
                    after => -(after as i64),
                };
                v.slice_axis(dx, axis, before as i64, end, 1)?
            }
            // Computes the source index of every element.
            PadMode::Reflect | PadMode::Edge | PadMode::Wrap => {
                let places = v.iota(n)?;
                let from = v.pad(places, &[before], &[after], op.mode, 0.0)?;
                v.added_at(dx, axis, from, n)?
            }
        };
    }
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn concat(op: &Concat, v: &mut Vjp<'_>) -> VjpResult {
    let (axis, dy) = (op.axis, v.dy(0)?);
    let parts = v.operands();
    let sizes: Vec<Dim> = parts.iter().map(|x| v.shape(*x)[axis].clone()).collect();
    for (i, size) in sizes.iter().enumerate() {
        if !v.needs_cotangent(i) {
            continue;
        }
        let sum = |dims: &[Dim]| numel_sum(dims).and_then(|d| d.known());
        let dx = match (sum(&sizes[..i]), size.known(), sum(&sizes[i + 1..])) {
            (Some(before), Some(n), _) => {
                v.slice_axis(dy, axis, before as i64, (before + n) as i64, 1)?
            }
            (Some(before), None, Some(0)) => v.slice_axis(dy, axis, before as i64, i64::MAX, 1)?,
            (Some(before), None, Some(after)) => {
                v.slice_axis(dy, axis, before as i64, -(after as i64), 1)?
            }
            (None, Some(n), Some(0)) if n > 0 => {
                v.slice_axis(dy, axis, -(n as i64), i64::MAX, 1)?
            }
            (None, Some(n), Some(after)) if after > 0 && n > 0 => {
                v.slice_axis(dy, axis, -((n + after) as i64), -(after as i64), 1)?
            }
            _ => part(v, dy, axis, &sizes[..i], size)?,
        };
        v.accumulate(i, dx)?;
    }
    Ok(())
}

fn numel_sum(dims: &[Dim]) -> Option<Dim> {
    let mut dims = dims.iter();
    dims.try_fold(Dim::Known(0), |n, d| n.checked_add(d))
}

/// `size` elements along an axis, at an offset that is the sum of these runtime sizes.
fn part(
    v: &mut Vjp<'_>,
    x: Value,
    axis: usize,
    before: &[Dim],
    size: &Dim,
) -> Result<Value, OpError> {
    let mut start = v.scalar(DType::I32, 0.0)?;
    for dim in before {
        let count = v.count_of(std::slice::from_ref(dim), DType::I32)?;
        start = v.plus(start, count)?;
    }
    let start = v.shaped(start, [1])?;
    let mut sizes = v.shape(x).into_dims();
    sizes[axis] = size.clone();
    let starts = v.zeros_around(start, 0, axis, sizes.len() - 1 - axis)?;
    v.dynamic_slice(x, starts, Shape::from(sizes))
}
