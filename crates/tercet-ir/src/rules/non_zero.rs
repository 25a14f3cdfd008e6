//! Decompositions of operators that list places: `NonZero` by a running sum and a search in it, and
//! `NonMaxSuppression` by a scan that takes the best box of every class in each step.

use tercet_tensor::{DType, Dim, Type};

use super::util::ValueResult;
use super::{LegalizeRule, RuleResult};
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::legalize::LegalizeBuilder;
use crate::ops::{
    Concat, CumSum, Gather, GatherElements, NonMaxSuppression, Op, OpKind, ReduceFn, Scan, ScanFn,
    SearchSorted, Sort,
};
use crate::scalar::{BinaryFn, CompareFn};
use crate::subgraph::SubGraph;

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "non_zero_as_search_in_running_sum",
        on: OpKind::NonZero,
        apply: non_zero,
    },
    LegalizeRule {
        name: "non_max_suppression_as_scan",
        on: OpKind::NonMaxSuppression,
        apply: non_max_suppression,
    },
];

/// The places of the true elements of a list.
struct NonZeroCoordinates {
    /// The index of each true element, then 0.
    at: Value,
    /// Whether an element of the list is such an index.
    is_valid: Value,
    /// The number of true elements, of rank 0.
    count: Value,
}

fn places(
    b: &mut LegalizeBuilder<'_>,
    keep: Value,
    n: &Dim,
) -> Result<NonZeroCoordinates, OpError> {
    let ones = b.cast(keep, DType::I32)?;
    let sums = CumSum {
        axis: 0,
        f: ScanFn::Sum,
        exclusive: false,
        reverse: false,
    };
    let sums = b.add(sums, &[ones])?;
    let numbers = b.iota(n, false)?;
    let (zero, one) = (b.scalar(DType::I32, 0.0)?, b.scalar(DType::I32, 1.0)?);
    // The element number k is the first one up to which the sum is k + 1.
    let wanted = b.binary(BinaryFn::Add, numbers, one)?;
    let found = b.add(SearchSorted { right: false }, &[sums, wanted])?;
    let count = b.reduce(ReduceFn::Sum, ones, &[0])?;
    let is_valid = b.compare(CompareFn::Lt, numbers, count)?;
    Ok(NonZeroCoordinates {
        at: b.select(is_valid, found, zero)?,
        is_valid,
        count: b.reshape(count, Vec::new())?,
    })
}

/// A size as `I32[]`.
fn size(b: &mut LegalizeBuilder<'_>, dim: &Dim) -> ValueResult {
    if let Some(n) = dim.known() {
        return b.scalar(DType::I32, n as f64);
    }
    let one = b.scalar(DType::I32, 1.0)?;
    let ones = b.expand(one, vec![dim.clone()])?;
    let sum = b.reduce(ReduceFn::Sum, ones, &[0])?;
    b.reshape(sum, Vec::new())
}

/// The coordinates of row-major indices in a tensor with these sizes, one list for each axis.
fn coordinates(
    b: &mut LegalizeBuilder<'_>,
    at: Value,
    sizes: &[Dim],
) -> Result<Vec<Value>, OpError> {
    let mut rest = at;
    let mut lists = Vec::with_capacity(sizes.len());
    for dim in sizes.iter().skip(1).rev() {
        let n = size(b, dim)?;
        let above = b.binary(BinaryFn::Div, rest, n)?;
        let whole = b.binary(BinaryFn::Mul, above, n)?;
        lists.push(b.binary(BinaryFn::Sub, rest, whole)?);
        rest = above;
    }
    if !sizes.is_empty() {
        lists.push(rest);
    }
    lists.reverse();
    Ok(lists)
}

/// The lists as columns.
fn columns(b: &mut LegalizeBuilder<'_>, lists: &[Value], n: &Dim) -> ValueResult {
    let column = |list: &Value| b.reshape(*list, vec![n.clone(), Dim::Known(1)]);
    let lists: Vec<Value> = lists.iter().map(column).collect::<Result<_, _>>()?;
    match lists.as_slice() {
        [one] => Ok(*one),
        lists => b.add(Concat { axis: 1 }, lists),
    }
}

fn non_zero(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::NonZero(_), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let shape = b.shape(x);
    let Some(n) = shape.numel() else {
        return Ok(None);
    };
    let flat = b.reshape(x, vec![n.clone()])?;
    let keep = match b.dtype(x) {
        DType::Bool => flat,
        dtype => {
            let zero = b.scalar(dtype, 0.0)?;
            b.compare(CompareFn::Ne, flat, zero)?
        }
    };
    let found = places(b, keep, &n)?;
    let rows = match coordinates(b, found.at, &shape)? {
        lists if lists.is_empty() => {
            let row = b.reshape(found.at, vec![n, Dim::Known(1)])?;
            b.slice(row, 1, 0, 0, 1)?
        }
        lists => columns(b, &lists, &n)?,
    };
    Ok(Some(vec![rows, found.count]))
}

/// The position of a box that cannot be selected any more.
const GONE: f64 = i32::MAX as f64;

/// The boxes of each class in the order of selection.
struct RankedBoxes {
    /// Lower and upper corners and areas, each `[batches, classes, boxes]`.
    parts: Vec<Value>,
    /// The index of each box.
    order: Value,
    /// The positions of candidates, and [`GONE`] for other boxes.
    left: Value,
}

fn ranked(
    b: &mut LegalizeBuilder<'_>,
    op: &NonMaxSuppression,
    boxes: Value,
    scores: Value,
) -> Result<RankedBoxes, OpError> {
    let scores = b.widen(scores)?;
    let (dtype, shape) = (b.dtype(scores), b.shape(scores));
    let is_candidate = match op.score_threshold {
        Some(least) => {
            let least = b.scalar(dtype, least.0)?;
            b.compare(CompareFn::Gt, scores, least)?
        }
        None => b.compare(CompareFn::Eq, scores, scores)?,
    };
    // A NaN would come first.
    let lowest = b.scalar(dtype, f64::NEG_INFINITY)?;
    let scores = b.select(is_candidate, scores, lowest)?;
    let (axis, descending) = (2, true);
    let order = b.add_all(Sort { axis, descending }, &[scores])?[1];
    let is_candidate = b.cast(is_candidate, DType::I32)?;
    let is_candidate = b.add(GatherElements { axis }, &[is_candidate, order])?;
    let positions = b.iota(&shape[2], false)?;
    let positions = b.expand(positions, shape.clone())?;
    let (zero, gone) = (b.scalar(DType::I32, 0.0)?, b.scalar(DType::I32, GONE)?);
    let is_candidate = b.compare(CompareFn::Ne, is_candidate, zero)?;
    let left = b.select(is_candidate, positions, gone)?;
    let corners = corners(b, op, boxes)?;
    let mut parts = Vec::with_capacity(5);
    for corner in corners {
        let one_class = vec![shape[0].clone(), Dim::Known(1), shape[2].clone()];
        let corner = b.reshape(corner, one_class)?;
        let corner = b.expand(corner, shape.clone())?;
        parts.push(b.add(GatherElements { axis }, &[corner, order])?);
    }
    let height = b.binary(BinaryFn::Sub, parts[2], parts[0])?;
    let width = b.binary(BinaryFn::Sub, parts[3], parts[1])?;
    parts.push(b.binary(BinaryFn::Mul, height, width)?);
    Ok(RankedBoxes { parts, order, left })
}

/// The lower and upper corners `[batches, boxes]` of boxes.
fn corners(
    b: &mut LegalizeBuilder<'_>,
    op: &NonMaxSuppression,
    boxes: Value,
) -> Result<[Value; 4], OpError> {
    let boxes = b.widen(boxes)?;
    let shape = b.shape(boxes);
    let mut parts = [boxes; 4];
    for (i, part) in (0i64..).zip(&mut parts) {
        let own = b.slice(boxes, 2, i, i + 1, 1)?;
        *part = b.reshape(own, vec![shape[0].clone(), shape[1].clone()])?;
    }
    let half = b.scalar(b.dtype(boxes), 0.5)?;
    for axis in 0..2 {
        let (from, to) = (parts[axis], parts[axis + 2]);
        (parts[axis], parts[axis + 2]) = match op.is_centered {
            true => {
                let reach = b.binary(BinaryFn::Mul, to, half)?;
                let low = b.binary(BinaryFn::Sub, from, reach)?;
                (low, b.binary(BinaryFn::Add, from, reach)?)
            }
            false => {
                let low = b.binary(BinaryFn::Min, from, to)?;
                (low, b.binary(BinaryFn::Max, from, to)?)
            }
        };
    }
    Ok(parts)
}

/// One step: takes the first box that is left of each class, and removes it and the boxes that it
/// covers. The results are the boxes that are left, and the position of the one that was taken.
fn step(left: &Type, part: &Type, most: f64) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let left = g.input("left", left.clone())?;
    g.input("step", Type::new(DType::I32, [0usize; 0]))?;
    let mut parts = [left; 5];
    for (i, value) in parts.iter_mut().enumerate() {
        *value = g.input(&format!("part{i}"), part.clone())?;
    }
    let first = g.reduce(ReduceFn::Min, left, &[2], true)?;
    let (zero, gone) = (g.scalar(DType::I32, 0.0)?, g.scalar(DType::I32, GONE)?);
    let is_gone = g.compare(CompareFn::Eq, first, gone)?;
    let at = g.where_(is_gone, zero, first)?;
    let mut own = parts;
    for value in &mut own {
        *value = g.gather_elements(*value, at, 2)?;
    }
    let none = g.scalar(part.dtype, 0.0)?;
    let mut common = None;
    for axis in 0..2 {
        let low = g.max(own[axis], parts[axis])?;
        let high = g.min(own[axis + 2], parts[axis + 2])?;
        let side = g.sub(high, low)?;
        let side = g.max(side, none)?;
        common = Some(match common {
            Some(other) => g.mul(other, side)?,
            None => side,
        });
    }
    let common = common.unwrap_or(none);
    let sum = g.plus(own[4], parts[4])?;
    let union = g.sub(sum, common)?;
    let ratio = g.div(common, union)?;
    let overlaps = g.compare(CompareFn::Gt, common, none)?;
    let ratio = g.where_(overlaps, ratio, none)?;
    let most = g.scalar(part.dtype, most)?;
    let covered = g.compare(CompareFn::Gt, ratio, most)?;
    let rest = g.where_(covered, gone, left)?;
    let is_own = g.compare(CompareFn::Eq, left, first)?;
    let rest = g.where_(is_own, gone, rest)?;
    g.output("left", rest)?;
    g.output("first", first)?;
    Ok(g)
}

fn non_max_suppression(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::NonMaxSuppression(op), &[boxes, scores]) = (op, inputs) else {
        return Ok(None);
    };
    let shape = b.shape(scores);
    let most = Dim::Known(op.max_boxes);
    let sizes = [shape[0].clone(), shape[1].clone(), most.clone()];
    let n = sizes
        .iter()
        .try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    let Some(n) = n else { return Ok(None) };
    let zero = b.scalar(DType::I32, 0.0)?;
    if op.max_boxes == 0 || shape[2] == Dim::Known(0) {
        let rows = b.expand(zero, vec![n, Dim::Known(3)])?;
        return Ok(Some(vec![rows, zero]));
    }
    let ranked = ranked(b, op, boxes, scores)?;
    let body = step(b.ty(ranked.left), b.ty(ranked.parts[0]), op.iou_threshold.0)?;
    let scan = Scan {
        body: SubGraph::new(body),
        carried: 1,
        scanned: 1,
        reverse: vec![false],
        reverse_results: vec![false],
    };
    let steps = b.expand(zero, vec![most])?;
    let operands: Vec<Value> = [ranked.left, steps]
        .into_iter()
        .chain(ranked.parts)
        .collect();
    let first = b.add_all(scan, &operands)?[1];
    // From `[max_boxes, batches, classes, 1]` to boxes of each class.
    let first = b.transpose(first, &[1, 2, 0, 3])?;
    let first = b.reshape(first, sizes.to_vec())?;
    let gone = b.scalar(DType::I32, GONE)?;
    let is_taken = b.compare(CompareFn::Ne, first, gone)?;
    let at = b.select(is_taken, first, zero)?;
    let taken = b.add(GatherElements { axis: 2 }, &[ranked.order, at])?;
    let [taken, is_taken] = [taken, is_taken].map(|list| b.reshape(list, vec![n.clone()]));
    let found = places(b, is_taken?, &n)?;
    let numbers = coordinates(b, found.at, &sizes)?;
    let boxes = b.add(Gather { axis: 0 }, &[taken?, found.at])?;
    let boxes = b.select(found.is_valid, boxes, zero)?;
    let rows = columns(b, &[numbers[0], numbers[1], boxes], &n)?;
    Ok(Some(vec![rows, found.count]))
}
