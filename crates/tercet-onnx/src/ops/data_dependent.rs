//! Operators with data-dependent selection: nonzero elements, masked elements, and non-maximum
//! suppression.

use tercet_ir::ops::{ReduceFn, Scan};
use tercet_ir::scalar::{BinaryFn, CompareFn};
use tercet_ir::{DType, Dim, Graph, SubGraph, Tensor, Type, Value};

use super::shape::{product, reshaped};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs};
use crate::error::NodeErrorKind;
use crate::padded_value::{PaddedValue, places};
use crate::val::{ImportedValue, ShapeElem};

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("NonZero", 9, non_zero).without_folding(),
    op("NonMaxSuppression", 10, non_max_suppression).without_folding(),
    op("Unique", 11, unique).without_folding(),
];

/// A size as a graph value.
fn number(k: &mut ImportNode<'_, '_>, dim: &Dim) -> Result<Value, NodeErrorKind> {
    k.c.place(
        &ImportedValue::sizes(vec![ShapeElem::from_dim(dim)], true),
        0,
    )
}

/// The coordinates of flat indices in a tensor with these sizes, each `[N]`.
fn coordinates(
    k: &mut ImportNode<'_, '_>,
    at: Value,
    sizes: &[Dim],
) -> Result<Vec<Value>, NodeErrorKind> {
    let mut rest = at;
    let mut all = Vec::with_capacity(sizes.len());
    for dim in sizes.iter().rev() {
        let n = number(k, dim)?;
        let g = k.g();
        all.push(g.binary(BinaryFn::Rem, rest, n)?);
        rest = g.div(rest, n)?;
    }
    all.reverse();
    Ok(all)
}

/// The coordinates of the nonzero elements, `[rank, N]`.
fn non_zero(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    if let ImportedValue::ConstTensor(known) = k.val(0) {
        return known_non_zero(&known.tensor);
    }
    let x = k.x(0)?;
    let dims = match k.dims(x) {
        dims if dims.is_empty() => vec![Dim::Known(1)],
        dims => dims,
    };
    let n = product(&dims)?;
    let flat = reshaped(k.g(), x, &[n])?;
    let keep = k.g().cast(flat, DType::Bool)?;
    let (at, count) = places(k.c, keep)?;
    let rows = coordinates(k, at, &dims)?;
    let mut parts = Vec::with_capacity(rows.len());
    for row in rows {
        parts.push(k.g().unsqueeze(row, 0)?);
    }
    let y = k.g().concat(&parts, 0)?;
    Ok(vec![PaddedValue::val(y, 1, count)])
}

/// As [`non_zero`], for a constant tensor.
fn known_non_zero(x: &Tensor) -> NodeOutputs {
    let shape = match x.shape() {
        [] => &[1],
        shape => shape,
    };
    let values = x.to_f64s();
    let found = values.iter().enumerate().filter(|(_, v)| **v != 0.0);
    let places: Vec<usize> = found.map(|(at, _)| at).collect();
    let strides = tercet_ir::row_major_strides(shape);
    let coordinates = shape.iter().zip(strides).flat_map(|(n, stride)| {
        let along = move |at: &usize| (at / stride % n) as i64;
        places.iter().map(along).collect::<Vec<i64>>()
    });
    let coordinates: Vec<i64> = coordinates.collect();
    let sizes = [shape.len(), places.len()];
    Ok(vec![ImportedValue::known(Tensor::from_slice(
        &sizes,
        &coordinates,
    )?)])
}

/// The parameters of non-maximum suppression.
struct NmsLimits {
    steps: usize,
    overlap: f64,
    score: Option<f64>,
}

/// Gathers the elements `at [B, C, 1]` of the last axis of `x [B, 1, S]`, for each class.
fn picked(g: &mut Graph, x: Value, at: Value) -> Result<Value, NodeErrorKind> {
    let (x, at) = (g.squeeze(x, 1)?, g.squeeze(at, 2)?);
    let own = g.gather_elements(x, at, 1)?;
    Ok(g.unsqueeze(own, 2)?)
}

/// The intersection over union of the box `a` with the boxes `b`. A box is its sorted corners and
/// its area.
fn overlaps(g: &mut Graph, a: &[Value; 4], b: &[Value; 4]) -> Result<Value, NodeErrorKind> {
    let zero = g.scalar(g.ty(a[0]).dtype, 0.0)?;
    let mut both = None;
    let (mut own, mut others) = (None, None);
    for axis in 0..2 {
        let (low, high) = (g.max(a[axis], b[axis])?, g.min(a[axis + 2], b[axis + 2])?);
        let part = g.sub(high, low)?;
        let part = g.max(part, zero)?;
        let (x, y) = (g.sub(a[axis + 2], a[axis])?, g.sub(b[axis + 2], b[axis])?);
        for (total, part) in [(&mut both, part), (&mut own, x), (&mut others, y)] {
            *total = Some(match *total {
                Some(so_far) => g.mul(so_far, part)?,
                None => part,
            });
        }
    }
    let (Some(both), Some(own), Some(others)) = (both, own, others) else {
        return Err(NodeErrorKind::unsupported("boxes have two axes"));
    };
    let sum = g.plus(own, others)?;
    let union = g.sub(sum, both)?;
    let ratio = g.div(both, union)?;
    // Boxes with area 0 overlap with nothing.
    let some = g.compare(CompareFn::Gt, both, zero)?;
    Ok(g.where_(some, ratio, zero)?)
}

/// The scan body: selects the best box of each class, and removes the scores of that box and of the
/// boxes that overlap with it. The operands are scores `[B, C, S]`, a sequence element that counts
/// steps, and the corners `[B, 1, S]`.
fn step(scores: &Type, corner: &Type, limits: &NmsLimits) -> Result<Graph, NodeErrorKind> {
    let mut g = Graph::new();
    let left = g.input("scores", scores.clone())?;
    let beat = g.input("beat", Type::new(DType::I64, [0usize; 0]))?;
    let mut corners = [left; 4];
    for (i, value) in corners.iter_mut().enumerate() {
        *value = g.input(&format!("corner{i}"), corner.clone())?;
    }
    let best = g.arg_max(left, 2, true)?;
    let score = g.reduce(ReduceFn::Max, left, &[2], true)?;
    let least = limits.score.unwrap_or(f64::NEG_INFINITY);
    let least = g.scalar(scores.dtype, least)?;
    let good = g.compare(CompareFn::Gt, score, least)?;
    let mut own = corners;
    for value in &mut own {
        *value = picked(&mut g, *value, best)?;
    }
    let overlap = overlaps(&mut g, &own, &corners)?;
    let most = g.scalar(scores.dtype, limits.overlap)?;
    let covered = g.compare(CompareFn::Gt, overlap, most)?;
    let none = g.scalar(scores.dtype, f64::NEG_INFINITY)?;
    let rest = g.where_(covered, none, left)?;
    let gone = g.expand(none, g.ty(best).shape.to_vec())?;
    let replace = tercet_ir::ops::ScatterReduce::Replace;
    let rest = g.scatter_elements(rest, best, gone, 2, replace)?;
    let best = g.cast(best, DType::I64)?;
    let best = g.plus(best, beat)?;
    g.output("scores", rest)?;
    g.output("best", best)?;
    g.output("good", good)?;
    Ok(g)
}

/// The sorted corners `y1, x1, y2, x2`, each `[B, 1, S]`, of boxes `[B, S, 4]`.
fn corners(k: &mut ImportNode<'_, '_>, boxes: Value) -> Result<[Value; 4], NodeErrorKind> {
    let centered = match k.attrs.int("center_point_box", 0)? {
        0 => false,
        1 => true,
        other => {
            let text = format!("{other} is not supported");
            return Err(NodeErrorKind::attribute("center_point_box", text));
        }
    };
    let half = k.like(boxes, 0.5)?;
    let g = k.g();
    let mut parts = [boxes; 4];
    for (i, part) in parts.iter_mut().enumerate() {
        let own = g.narrow(boxes, 2, i, 1)?;
        *part = g.transpose(own, &[0, 2, 1])?;
    }
    let mut corners = parts;
    for axis in 0..2 {
        let (a, b) = (parts[axis], parts[axis + 2]);
        (corners[axis], corners[axis + 2]) = match centered {
            // The center format: center and size.
            true => {
                let reach = g.mul(b, half)?;
                (g.sub(a, reach)?, g.plus(a, reach)?)
            }
            false => (g.min(a, b)?, g.max(a, b)?),
        };
    }
    Ok(corners)
}

/// Non-maximum suppression: the boxes of each class by descending score, without boxes that overlap
/// with a better one. The result rows are batch, class and box.
fn non_max_suppression(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (boxes, scores) = (k.x(0)?, k.x(1)?);
    let most = match k.has(2) {
        true => usize::try_from(k.int(2)?).unwrap_or(0),
        false => 0,
    };
    let overlap = if k.has(3) { k.float(3)? } else { 0.0 };
    let score = if k.has(4) { Some(k.float(4)?) } else { None };
    let dims = k.dims(scores);
    if dims.len() != 3 || k.rank(boxes) != 3 || k.size(boxes, 2)? != 4 {
        let text = "expected boxes `[B, S, 4]` and scores `[B, C, S]`";
        return Err(NodeErrorKind::unsupported(text));
    }
    let steps = dims[2].known().map_or(most, |n| n.min(most));
    if steps == 0 {
        k.attrs.ignore(&["center_point_box"]);
        let none = Tensor::from_slice::<i64>(&[0, 3], &[])?;
        return Ok(vec![ImportedValue::known(none)]);
    }
    let corners = corners(k, boxes)?;
    let limits = NmsLimits {
        steps,
        overlap,
        score,
    };
    let body = step(&k.ty(scores), &k.ty(corners[0]), &limits)?;
    let zero = k.c.scalar(DType::I64, 0.0)?;
    let beats = k.g().expand(zero, [Dim::Known(limits.steps)])?;
    let op = Scan {
        body: SubGraph::new(body),
        carried: 1,
        scanned: 1,
        reverse: vec![false],
        reverse_results: vec![false; 2],
    };
    let operands: Vec<Value> = [scores, beats].into_iter().chain(corners).collect();
    let first = k.g().add(op, &operands)?;
    // Flattens `[steps, B, C, 1]` to rows of batch, class and step.
    let sizes = [dims[0].clone(), dims[1].clone(), Dim::Known(steps)];
    let n = product(&sizes)?;
    let flat = |k: &mut ImportNode<'_, '_>, x: Value| {
        let turned = k.g().transpose(x, &[1, 2, 0, 3])?;
        reshaped(k.g(), turned, std::slice::from_ref(&n))
    };
    let (best, good) = (flat(k, first.port(1))?, flat(k, first.port(2))?);
    let (at, count) = places(k.c, good)?;
    let rows = coordinates(k, at, &sizes)?;
    let found = k.g().gather(best, at, 0)?;
    let mut parts = Vec::with_capacity(3);
    for row in [rows[0], rows[1], found] {
        parts.push(k.g().unsqueeze(row, 1)?);
    }
    let y = k.g().concat(&parts, 1)?;
    Ok(vec![PaddedValue::val(y, 0, count)])
}

/// The distinct values in ascending order, their first positions, the index of each element's
/// value, and the counts.
fn unique(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    if !k.attrs.flag("sorted", true)? {
        let text = "0 is not supported; values are always sorted";
        return Err(NodeErrorKind::attribute("sorted", text));
    }
    if k.attrs.int_opt("axis")?.is_some() && k.rank(x) != 1 {
        let text = "is not supported for more than one axis";
        return Err(NodeErrorKind::attribute("axis", text));
    }
    let y = k.g().unique(x)?;
    let count = y.port(4);
    let mut lists = [y.port(1), y.port(3), y.port(2)];
    for list in &mut lists {
        *list = k.g().cast(*list, DType::I64)?;
    }
    let [firsts, numbers, counts] = lists;
    Ok(vec![
        PaddedValue::val(y, 0, count),
        PaddedValue::val(firsts, 0, count),
        numbers.into(),
        PaddedValue::val(counts, 0, count),
    ])
}

/// The elements selected by a condition in the graph, along an axis or from the flattened tensor.
pub(super) fn compress(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    at: usize,
    keep: Value,
) -> NodeOutputs {
    let keep = k.g().cast(keep, DType::Bool)?;
    let (room, dims) = (k.dims(keep), k.dims(x));
    let fits = match (room.as_slice(), dims.get(at)) {
        ([n], Some(size)) => size.is_at_least(n),
        _ => false,
    };
    if !fits {
        let text = "must be a list no longer than the axis if its value is unknown at import time";
        return Err(NodeErrorKind::operand(1, text));
    }
    let (idx, count) = places(k.c, keep)?;
    let y = k.g().gather(x, idx, at)?;
    Ok(vec![PaddedValue::val(y, at, count)])
}
