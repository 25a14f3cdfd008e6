//! Operators with data-dependent selection: nonzero elements, masked elements, and non-maximum
//! suppression.

use tercet_ir::ops::NonMaxSuppression;
use tercet_ir::{DType, Dim, Tensor, Value};

use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs};
use crate::error::NodeErrorKind;
use crate::padded_value::{PaddedValue, places};
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("NonZero", 9, non_zero).without_folding(),
    op("NonMaxSuppression", 10, non_max_suppression).without_folding(),
    op("Unique", 11, unique).without_folding(),
];

/// The coordinates of the nonzero elements, `[rank, N]`.
fn non_zero(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    if let ImportedValue::ConstTensor(known) = k.val(0) {
        return known_non_zero(&known.tensor);
    }
    let x = k.x(0)?;
    let x = match k.rank(x) {
        0 => reshaped(k.g(), x, &[Dim::Known(1)])?,
        _ => x,
    };
    let rows = k.g().non_zero(x)?;
    let count = rows.port(1);
    let columns = k.g().transpose(rows, &[1, 0])?;
    let y = k.g().cast(columns, DType::I64)?;
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

/// Non-maximum suppression: the boxes of each class by descending score, without boxes that overlap
/// with a better one. The result rows are batch, class and box.
fn non_max_suppression(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (boxes, scores) = (k.x(0)?, k.x(1)?);
    let most = match k.has(2) {
        true => usize::try_from(k.int(2)?).unwrap_or(0),
        false => 0,
    };
    let is_centered = match k.attrs.int("center_point_box", 0)? {
        0 => false,
        1 => true,
        other => {
            let text = format!("{other} is not supported");
            return Err(NodeErrorKind::attribute("center_point_box", text));
        }
    };
    let iou_threshold = if k.has(3) { k.float(3)? } else { 0.0 };
    let score_threshold = match k.has(4) {
        true => Some(k.float(4)?.into()),
        false => None,
    };
    let dims = k.dims(scores);
    if dims.len() != 3 || k.rank(boxes) != 3 || k.size(boxes, 2)? != 4 {
        let text = "expected boxes `[B, S, 4]` and scores `[B, C, S]`";
        return Err(NodeErrorKind::unsupported(text));
    }
    let max_boxes = dims[2].known().map_or(most, |n| n.min(most));
    if max_boxes == 0 {
        let none = Tensor::from_slice::<i64>(&[0, 3], &[])?;
        return Ok(vec![ImportedValue::known(none)]);
    }
    let op = NonMaxSuppression {
        max_boxes,
        iou_threshold: iou_threshold.into(),
        score_threshold,
        is_centered,
    };
    let rows = k.g().non_max_suppression(boxes, scores, op)?;
    let count = rows.port(1);
    let rows = k.g().cast(rows, DType::I64)?;
    Ok(vec![PaddedValue::val(rows, 0, count)])
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
