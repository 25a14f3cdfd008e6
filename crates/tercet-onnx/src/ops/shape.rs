//! Shape queries and operators that move elements.

use tercet_ir::{Dim, Graph, Value, broadcast_shapes};

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axes, axis, one};
use crate::error::NodeErrorKind;
use crate::shape_values::{backward_bounds, is_open_end};
use crate::val::{ImportedValue, ShapeElem};

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Shape", 1, shape).without_folding(),
    op("Size", 1, size).without_folding(),
    op("Reshape", 5, reshape),
    op("Flatten", 1, flatten),
    op("Transpose", 1, transpose),
    op("Squeeze", 1, squeeze),
    op("Unsqueeze", 1, unsqueeze),
    op("Concat", 4, concat),
    op("Split", 2, split),
    op("Slice", 1, slice_attributes).until(9),
    op("Slice", 10, slice),
    op("Expand", 8, expand),
    op("Tile", 6, tile),
];

fn shape(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let dims = dims_of(k)?;
    let rank = dims.len() as i64;
    let at = |i: i64| if i < 0 { i.saturating_add(rank) } else { i }.clamp(0, rank) as usize;
    let (start, end) = (at(k.attrs.int("start", 0)?), at(k.attrs.int("end", rank)?));
    let picked = dims.get(start..end).unwrap_or(&[]);
    Ok(vec![ImportedValue::sizes(
        picked.iter().map(ShapeElem::from_dim).collect(),
        false,
    )])
}

/// The dimensions of the first operand, which need not be a graph value.
fn dims_of(k: &mut ImportNode<'_, '_>) -> Result<Vec<Dim>, NodeErrorKind> {
    match k.val(0) {
        ImportedValue::ConstTensor(known) => Ok(known
            .tensor
            .shape()
            .iter()
            .map(|n| Dim::Known(*n))
            .collect()),
        _ => {
            let x = k.x(0)?;
            Ok(k.dims(x))
        }
    }
}

fn size(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let dims = dims_of(k)?;
    let count = dims.iter().try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    let count =
        count.ok_or_else(|| NodeErrorKind::unsupported("the number of elements overflows"))?;
    Ok(vec![ImportedValue::sizes(
        vec![ShapeElem::from_dim(&count)],
        true,
    )])
}

/// The target shape of `Reshape`: 0 copies the operand's size, -1 is inferred.
fn new_shape(
    from: &[Dim],
    asked: &[ShapeElem],
    zero_is_zero: bool,
) -> Result<Vec<Dim>, NodeErrorKind> {
    let mut rest = None;
    let mut dims = Vec::with_capacity(asked.len());
    for (i, num) in asked.iter().enumerate() {
        dims.push(match num {
            ShapeElem::Int(0) if !zero_is_zero => {
                let own = from.get(i).cloned();
                own.ok_or_else(|| {
                    NodeErrorKind::operand(
                        1,
                        format!("axis {i} is 0, but the operand has {} axes", from.len()),
                    )
                })?
            }
            ShapeElem::Int(-1) if rest.is_none() => {
                rest = Some(i);
                Dim::Known(1)
            }
            num => num.dim().ok_or_else(|| {
                NodeErrorKind::operand(1, format!("{asked:?} is not a valid shape"))
            })?,
        });
    }
    let Some(rest) = rest else { return Ok(dims) };
    // Cancel equal dimensions, so that symbolic sizes need no division.
    let mut left: Vec<Dim> = dims
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != rest)
        .map(|(_, d)| d.clone())
        .collect();
    let mut over = Vec::new();
    for d in from {
        match left.iter().position(|l| l == d && *d != Dim::Known(0)) {
            Some(at) => drop(left.swap_remove(at)),
            None => over.push(d.clone()),
        }
    }
    let product = |list: &[Dim]| list.iter().try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    let quotient = product(&over)
        .zip(product(&left))
        .and_then(|(a, b)| a.div_exact(&b));
    dims[rest] = quotient.ok_or_else(|| {
        NodeErrorKind::operand(1, format!("{from:?} cannot be reshaped to {asked:?}; the file may contain a constant for a symbolic size"))
    })?;
    Ok(dims)
}

fn reshape(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (asked, zero_is_zero) = (k.nums(1)?, k.attrs.flag("allowzero", false)?);
    let dims = new_shape(&k.dims(x), &asked, zero_is_zero)?;
    one(k.g().reshape(x, dims)?)
}

/// Reshapes a value.
pub(crate) fn reshaped(g: &mut Graph, x: Value, dims: &[Dim]) -> Result<Value, NodeErrorKind> {
    Ok(g.reshape(x, dims.to_vec())?)
}

/// The product of dimensions.
pub(crate) fn product(dims: &[Dim]) -> Result<Dim, NodeErrorKind> {
    let n = dims.iter().try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    n.ok_or_else(|| NodeErrorKind::unsupported("the number of elements overflows"))
}

/// Flattens to two axes: those before `at`, and the others.
pub(crate) fn two_axes(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    at: usize,
) -> Result<Value, NodeErrorKind> {
    let dims = k.dims(x);
    let two = [product(&dims[..at])?, product(&dims[at..])?];
    reshaped(k.g(), x, &two)
}

fn flatten(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let rank = k.rank(x);
    let at = match k.attrs.int("axis", 1)? {
        a if a == rank as i64 => rank,
        a => axis(a, rank)?,
    };
    one(two_axes(k, x, at)?)
}

fn transpose(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let rank = k.rank(x);
    let perm = match k.attrs.ints_opt("perm")? {
        Some(list) => axes(list, rank)?,
        None => (0..rank).rev().collect(),
    };
    one(k.g().transpose(x, &perm)?)
}

fn squeeze(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let dims = k.dims(x);
    let gone = match k.axes(1, 13)? {
        Some(list) => axes(&list, dims.len())?,
        None => (0..dims.len()).filter(|i| dims[*i].is_one()).collect(),
    };
    if let Some(a) = gone.iter().find(|a| !dims[**a].is_one()) {
        return Err(NodeErrorKind::unsupported(format!(
            "axis {a} of {} does not have size 1",
            k.ty(x)
        )));
    }
    let kept: Vec<Dim> = (0..dims.len())
        .filter(|i| !gone.contains(i))
        .map(|i| dims[i].clone())
        .collect();
    one(reshaped(k.g(), x, &kept)?)
}

fn unsqueeze(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let list = k
        .axes(1, 13)?
        .ok_or_else(|| NodeErrorKind::unsupported("the axes are missing"))?;
    let mut dims = k.dims(x);
    let mut new = axes(&list, dims.len() + list.len())?;
    new.sort_unstable();
    new.dedup();
    if new.len() != list.len() {
        return Err(NodeErrorKind::unsupported(format!(
            "axes {list:?} contain a duplicate"
        )));
    }
    new.iter().for_each(|a| dims.insert(*a, Dim::Known(1)));
    one(reshaped(k.g(), x, &dims)?)
}

fn concat(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let xs = k.xs()?;
    let first = *xs
        .first()
        .ok_or_else(|| NodeErrorKind::operand(0, "is missing"))?;
    let rank = k.rank(first);
    let at = k
        .attrs
        .int_opt("axis")?
        .ok_or_else(|| NodeErrorKind::attribute("axis", "is required"))?;
    let at = axis(at, rank)?;
    one(k.g().concat(&xs, at)?)
}

fn split(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let at = k.axis(0, k.rank(x))?;
    let wanted = k.node.output.len();
    let given = match k.opset >= 13 {
        true => k.ints_opt(1)?,
        false => k.attrs.ints_opt("split")?.map(<[i64]>::to_vec),
    };
    let parts = k.attrs.int_opt("num_outputs")?;
    let lens: Vec<usize> = match given {
        Some(list) => crate::call::unsigned("split", &list)?,
        None => {
            let n = k.size(x, at)?;
            let count = usize::try_from(parts.unwrap_or(wanted as i64))
                .ok()
                .filter(|c| *c > 0 && *c <= wanted);
            let count = count.ok_or_else(|| {
                NodeErrorKind::attribute("num_outputs", "does not match the number of results")
            })?;
            let each = n.div_ceil(count);
            (0..count)
                .map(|i| each.min(n.saturating_sub(i * each)))
                .collect()
        }
    };
    let mut start = 0;
    let mut results = Vec::with_capacity(lens.len());
    for len in lens {
        results.push(k.g().narrow(x, at, start, len)?.into());
        start = len.saturating_add(start);
    }
    match k.dims(x)[at].known() {
        Some(n) if n != start => Err(NodeErrorKind::unsupported(format!(
            "the parts have {start} elements in total, the axis {n}"
        ))),
        _ => Ok(results),
    }
}

/// Minimum bound that means the end of an axis with symbolic size; TensorFlow exporters emit such
/// bounds.
const END: i64 = 1_000_000_000;

/// A slice bound as an integer; a symbolic bound becomes a distance from the end. Returns `None` if
/// the bound has neither form.
fn bound(num: &ShapeElem, size: &Dim) -> Option<i64> {
    let dim = match num {
        ShapeElem::Int(n) if *n >= END && size.known().is_none() => return Some(i64::MAX),
        ShapeElem::Int(n) => return Some(*n),
        ShapeElem::Dim(d) => d,
        ShapeElem::Data(_) => return None,
    };
    match size.checked_sub(dim).and_then(|d| d.known()) {
        Some(0) => Some(i64::MAX),
        Some(n) => i64::try_from(n).map(|n| -n).ok(),
        None if dim.is_at_least(size) => Some(i64::MAX),
        None => None,
    }
}

/// A slice with symbolic bounds, as a gather. A run fails if the bounds exceed the axis, whereas
/// ONNX would return fewer elements.
fn picked(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    at: usize,
    [from, to]: [&ShapeElem; 2],
) -> Result<Value, NodeErrorKind> {
    let size = k.dims(x)[at].clone();
    let place = |num: &ShapeElem| match num {
        ShapeElem::Int(n) if *n < 0 => size.checked_sub(&Dim::Known(n.unsigned_abs() as usize)),
        ShapeElem::Int(n) if *n >= i64::from(i32::MAX) => Some(size.clone()),
        ShapeElem::Int(n) => {
            let n = *n as usize;
            Some(Dim::Known(size.known().map_or(n, |size| size.min(n))))
        }
        ShapeElem::Dim(dim) => Some(dim.clone()),
        ShapeElem::Data(_) => None,
    };
    let places = place(from).zip(place(to));
    let found = places.and_then(|(from, to)| Some((to.checked_sub(&from)?, from)));
    let (len, from) = found.ok_or_else(|| {
        NodeErrorKind::unsupported(format!(
            "{from:?} to {to:?} of an axis of size {size} cannot be expressed"
        ))
    })?;
    let mut places = super::attention::positions(k, &len)?;
    if from != Dim::Known(0) {
        let from = k.c.place(
            &ImportedValue::sizes(vec![ShapeElem::from_dim(&from)], true),
            1,
        )?;
        places = k.g().plus(places, from)?;
    }
    Ok(k.g().gather(x, places, at)?)
}

fn sliced(
    k: &mut ImportNode<'_, '_>,
    starts: &[ShapeElem],
    ends: &[ShapeElem],
    along: Option<Vec<i64>>,
    steps: &[i64],
) -> NodeOutputs {
    let mut x = k.x(0)?;
    let dims = k.dims(x);
    let along = match along {
        Some(list) => axes(&list, dims.len())?,
        None => (0..starts.len().min(dims.len())).collect(),
    };
    let lens = [starts.len(), ends.len(), steps.len()];
    if lens.iter().any(|n| *n != along.len()) {
        return Err(NodeErrorKind::unsupported(format!(
            "starts, ends and steps have {lens:?} values for {} axes",
            along.len()
        )));
    }
    let mut s = (
        vec![0i64; dims.len()],
        vec![i64::MAX; dims.len()],
        vec![1i64; dims.len()],
    );
    for (i, a) in along.into_iter().enumerate() {
        if steps[i] == 0 {
            return Err(NodeErrorKind::unsupported("a step is 0"));
        }
        let bounds = (bound(&starts[i], &dims[a]), bound(&ends[i], &dims[a]));
        let (Some(start), Some(end)) = bounds else {
            if steps[i] != 1 {
                let text = "a symbolic bound requires a step of 1";
                return Err(NodeErrorKind::unsupported(text));
            }
            x = picked(k, x, a, [&starts[i], &ends[i]])?;
            continue;
        };
        (s.0[a], s.1[a], s.2[a]) = (start, end, steps[i]);
        if steps[i] >= 0 {
            continue;
        }
        // The minimum 32-bit integers also mean "to the beginning".
        if s.1[a] <= -i64::from(i32::MAX) || ends[i].int().is_some_and(is_open_end) {
            s.1[a] = i64::MIN;
        }
        if let Some(n) = dims[a].known().and_then(|n| i64::try_from(n).ok()) {
            let (start, end) = backward_bounds(s.0[a], s.1[a], n);
            (s.0[a], s.1[a]) = (start, if end < 0 { i64::MIN } else { end });
        }
    }
    one(k.g().slice(x, &s.0, &s.1, &s.2)?)
}

fn slice_attributes(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let list = |name: &str| -> Result<Vec<ShapeElem>, NodeErrorKind> {
        let list = k.attrs.ints_opt(name)?;
        let list = list.ok_or_else(|| NodeErrorKind::attribute(name, "is required"))?;
        Ok(list.iter().map(|n| ShapeElem::Int(*n)).collect())
    };
    let (starts, ends) = (list("starts")?, list("ends")?);
    let along = k.attrs.ints_opt("axes")?.map(<[i64]>::to_vec);
    sliced(k, &starts, &ends, along, &vec![1; starts.len()])
}

fn slice(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (starts, ends) = (k.nums(1)?, k.nums(2)?);
    let along = k.ints_opt(3)?;
    let steps = k.ints_opt(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    sliced(k, &starts, &ends, along, &steps)
}

fn expand(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (dims, asked) = (k.dims(x), k.shape_operand(1)?);
    let shape = broadcast_shapes(&dims, &asked).ok_or_else(|| {
        NodeErrorKind::operand(1, format!("{} does not broadcast to {asked:?}", k.ty(x)))
    })?;
    one(k.g().expand(x, shape)?)
}

fn tile(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let nums = k.nums(1)?;
    let reps: Option<Vec<i64>> = nums.iter().map(ShapeElem::int).collect();
    if let Some(reps) = reps {
        let reps = crate::call::unsigned("repeats", &reps)?;
        return one(k.g().tile(x, &reps)?);
    }
    // Each repeated axis gets a preceding axis that is expanded; an axis of size 1 is expanded
    // directly.
    let dims = k.dims(x);
    let reps: Option<Vec<Dim>> = nums.iter().map(ShapeElem::dim).collect();
    let reps = reps.filter(|r| r.len() == dims.len());
    let reps =
        reps.ok_or_else(|| NodeErrorKind::operand(1, "must have one repetition count per axis"))?;
    let (mut apart, mut wide, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, times) in dims.iter().zip(&reps) {
        let own = [Dim::Known(1), dim.clone()];
        let skipped = usize::from(dim.is_one() || times.is_one());
        apart.extend_from_slice(&own[skipped..]);
        match skipped {
            0 => wide.extend([times.clone(), dim.clone()]),
            _ => wide.push(if dim.is_one() { times } else { dim }.clone()),
        }
        joined.push(product(&[times.clone(), dim.clone()])?);
    }
    if apart.len() > tercet_ir::MAX_RANK {
        return Err(NodeErrorKind::operand(1, "is symbolic for too many axes"));
    }
    let x = reshaped(k.g(), x, &apart)?;
    let x = k.g().expand(x, wide)?;
    one(reshaped(k.g(), x, &joined)?)
}
