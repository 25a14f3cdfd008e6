//! Operators that pad, or move elements in blocks.

use tercet_ir::ops::PadMode;
use tercet_ir::scalar::CompareFn;
use tercet_ir::{DType, Dim, Graph, Tensor, Value};

use super::attention::positions;
use super::shape::{product, reshaped};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axes, axis, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Pad", 2, pad),
    op("Trilu", 14, trilu),
    op("DepthToSpace", 1, depth_to_space),
    op("SpaceToDepth", 1, space_to_depth),
    op("ReverseSequence", 10, reverse_sequence),
    op("CenterCropPad", 18, center_crop_pad),
];

fn pad(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let rank = k.rank(x);
    let mode = pad_mode(k)?;
    let is_constant = mode == PadMode::Constant;
    let (pads, value, along) = match k.opset >= 11 {
        true => {
            // Exporters write a value for other modes too, which has no meaning there.
            let value = match is_constant && k.has(2) {
                true => k.float(2)?,
                false => 0.0,
            };
            (k.ints(1)?, value, k.ints_opt(3)?)
        }
        false => {
            let pads = k
                .attrs
                .ints_opt("pads")?
                .ok_or_else(|| NodeErrorKind::attribute("pads", "is required"))?;
            let value = k.attrs.float("value", 0.0)?;
            (pads.to_vec(), if is_constant { value } else { 0.0 }, None)
        }
    };
    let along = match along {
        Some(list) => axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * along.len() {
        return Err(NodeErrorKind::unsupported(format!(
            "{} pads for {} axes",
            pads.len(),
            along.len()
        )));
    }
    let (mut before, mut after) = (vec![0i64; rank], vec![0i64; rank]);
    for (i, a) in along.iter().enumerate() {
        (before[*a], after[*a]) = (pads[i], pads[along.len() + i]);
    }
    let x = periods(k, x, &mut before, &mut after, mode)?;
    one(padded(k.g(), x, &before, &after, mode, value)?)
}

fn pad_mode(k: &ImportNode<'_, '_>) -> Result<PadMode, NodeErrorKind> {
    match k.attrs.string("mode", "constant")?.as_str() {
        "constant" => Ok(PadMode::Constant),
        "reflect" => Ok(PadMode::Reflect),
        "edge" => Ok(PadMode::Edge),
        "wrap" => Ok(PadMode::Wrap),
        other => Err(NodeErrorKind::attribute(
            "mode",
            format!("`{other}` is not supported"),
        )),
    }
}

/// Pads axes that are shorter than their padding, by a gather: the axis is repeated, or mirrored
/// several times. Its pads become 0.
fn periods(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    before: &mut [i64],
    after: &mut [i64],
    mode: PadMode,
) -> Result<Value, NodeErrorKind> {
    let mut x = x;
    for at in 0..before.len() {
        let Some(n) = k.dims(x)[at].known().and_then(|n| i64::try_from(n).ok()) else {
            continue;
        };
        let (low, high) = (before[at], after[at]);
        // Negative pads crop first.
        let (first, last) = (low.min(0).saturating_neg(), n.saturating_add(high.min(0)));
        let left = last.saturating_sub(first);
        let most = low.max(high);
        let is_long = match mode {
            PadMode::Constant | PadMode::Edge => false,
            PadMode::Reflect => most >= left && most > 0,
            PadMode::Wrap => most > left,
        };
        if !is_long || left <= 0 {
            continue;
        }
        let total = left.saturating_add(low.max(0)).saturating_add(high.max(0));
        if !usize::try_from(total).is_ok_and(|n| k.c.spend(n)) {
            let text = format!("axis {at} has too many elements: {total}");
            return Err(NodeErrorKind::unsupported(text));
        }
        let period = match mode {
            PadMode::Reflect => (2 * (left - 1)).max(1),
            _ => left,
        };
        let place = |i: i64| {
            let own = (i - low.max(0)).rem_euclid(period);
            first + if own < left { own } else { period - own }
        };
        let places: Vec<i64> = (0..total).map(place).collect();
        let places = Tensor::from_slice(&[places.len()], &places)?;
        let places = k.g().constant(places)?;
        x = k.g().gather(x, places, at)?;
        (before[at], after[at]) = (0, 0);
    }
    Ok(x)
}

/// Pads before and after each axis; negative numbers crop.
pub(crate) fn padded(
    g: &mut Graph,
    x: Value,
    before: &[i64],
    after: &[i64],
    mode: PadMode,
    value: f64,
) -> Result<Value, NodeErrorKind> {
    let mut x = x;
    if before.iter().chain(after).any(|n| *n < 0) {
        let starts: Vec<i64> = before.iter().map(|n| n.saturating_neg().max(0)).collect();
        let ends: Vec<i64> = after
            .iter()
            .map(|n| if *n < 0 { *n } else { i64::MAX })
            .collect();
        x = g.slice(x, &starts, &ends, &vec![1; starts.len()])?;
    }
    let of = |list: &[i64]| -> Vec<usize> {
        list.iter()
            .map(|n| usize::try_from(*n).unwrap_or(0))
            .collect()
    };
    let (before, after) = (of(before), of(after));
    match before.iter().chain(&after).all(|n| *n == 0) {
        true => Ok(x),
        false => Ok(g.pad(x, &before, &after, mode, value)?),
    }
}

pub(super) fn trilu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let diagonal = if k.has(1) { k.int(1)? } else { 0 };
    let upper = k.attrs.flag("upper", true)?;
    one(k.g().trilu(x, upper, diagonal)?)
}

/// Reshapes to `split`, transposes by `perm`, and reshapes to `joined`.
fn rearranged(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    split: &[Dim],
    perm: &[usize],
    joined: &[Dim],
) -> NodeOutputs {
    let y = reshaped(k.g(), x, split)?;
    let y = k.g().transpose(y, perm)?;
    one(reshaped(k.g(), y, joined)?)
}

fn block(k: &ImportNode<'_, '_>, x: Value) -> Result<(Vec<Dim>, usize), NodeErrorKind> {
    let block = usize::try_from(k.attrs.int("blocksize", 0)?)
        .ok()
        .filter(|b| (1..=1 << 16).contains(b));
    let block = block
        .ok_or_else(|| NodeErrorKind::attribute("blocksize", "must be between 1 and 65536"))?;
    let dims = k.dims(x);
    match dims.len() {
        4 => Ok((dims, block)),
        _ => Err(NodeErrorKind::operand(0, "must have four axes")),
    }
}

/// The quotient of `dim` and a constant.
fn divided(dim: &Dim, by: usize) -> Result<Dim, NodeErrorKind> {
    let quotient = dim.div_exact(&Dim::Known(by));
    quotient.ok_or_else(|| NodeErrorKind::unsupported(format!("{dim} is not a multiple of {by}")))
}

fn times(dim: &Dim, by: usize) -> Result<Dim, NodeErrorKind> {
    product(&[dim.clone(), Dim::Known(by)])
}

fn depth_to_space(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (d, b) = block(k, x)?;
    let c = divided(&d[1], b * b)?;
    let joined = [d[0].clone(), c.clone(), times(&d[2], b)?, times(&d[3], b)?];
    let known = Dim::Known(b);
    match k.attrs.string("mode", "DCR")?.as_str() {
        "DCR" => {
            let split = [
                d[0].clone(),
                known.clone(),
                known,
                c,
                d[2].clone(),
                d[3].clone(),
            ];
            rearranged(k, x, &split, &[0, 3, 4, 1, 5, 2], &joined)
        }
        "CRD" => {
            let split = [
                d[0].clone(),
                c,
                known.clone(),
                known,
                d[2].clone(),
                d[3].clone(),
            ];
            rearranged(k, x, &split, &[0, 1, 4, 2, 5, 3], &joined)
        }
        other => Err(NodeErrorKind::attribute(
            "mode",
            format!("expected DCR or CRD, found `{other}`"),
        )),
    }
}

fn space_to_depth(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (d, b) = block(k, x)?;
    let (h, w, known) = (divided(&d[2], b)?, divided(&d[3], b)?, Dim::Known(b));
    let split = [
        d[0].clone(),
        d[1].clone(),
        h.clone(),
        known.clone(),
        w.clone(),
        known,
    ];
    let joined = [d[0].clone(), times(&d[1], b * b)?, h, w];
    match k.attrs.string("mode", "DCR")?.as_str() {
        "DCR" => rearranged(k, x, &split, &[0, 3, 5, 1, 2, 4], &joined),
        "CRD" => rearranged(k, x, &split, &[0, 1, 3, 5, 2, 4], &joined),
        other => Err(NodeErrorKind::attribute(
            "mode",
            format!("expected DCR or CRD, found `{other}`"),
        )),
    }
}

/// Reverses the first `len` elements of each sequence: index `t < len` becomes `len - 1 - t`.
fn reverse_sequence(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, lens) = (k.x(0)?, k.x(1)?);
    let batch = axis(k.attrs.int("batch_axis", 1)?, 2)?;
    let time = axis(k.attrs.int("time_axis", 0)?, 2)?;
    if batch == time {
        return Err(NodeErrorKind::attribute(
            "time_axis",
            "must not be the batch axis",
        ));
    }
    let dims = k.dims(x);
    let steps = dims[time].clone();
    let at = positions(k, &steps)?;
    let g = k.g();
    let at = reshaped(g, at, &[steps, Dim::Known(1)])?;
    let lens = g.cast(lens, DType::I64)?;
    let lens = reshaped(g, lens, &[Dim::Known(1), dims[batch].clone()])?;
    let one_ = g.scalar(DType::I64, 1.0)?;
    let last = g.sub(lens, one_)?;
    let mirrored = g.sub(last, at)?;
    let inside = g.compare(CompareFn::Lt, at, lens)?;
    let mut idx = g.where_(inside, mirrored, at)?;
    if time == 1 {
        idx = g.transpose(idx, &[1, 0])?;
    }
    let mut wide: Vec<Dim> = dims[..2].to_vec();
    wide.resize(dims.len(), Dim::Known(1));
    let idx = reshaped(g, idx, &wide)?;
    let idx = g.expand(idx, dims)?;
    one(g.gather_elements(x, idx, time)?)
}

fn center_crop_pad(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let rank = k.rank(x);
    let target = k.ints(1)?;
    let along = match k.attrs.ints_opt("axes")? {
        Some(list) => axes(list, rank)?,
        None => (0..rank).collect(),
    };
    if along.len() != target.len() {
        return Err(NodeErrorKind::operand(
            1,
            format!("has {} sizes for {} axes", target.len(), along.len()),
        ));
    }
    let (mut before, mut after) = (vec![0i64; rank], vec![0i64; rank]);
    for (a, to) in along.into_iter().zip(target) {
        let from = k.size(x, a)? as i64;
        let more = to.saturating_sub(from);
        // An odd element is cropped or added at the end.
        before[a] = more / 2;
        after[a] = more - before[a];
    }
    one(padded(k.g(), x, &before, &after, PadMode::Constant, 0.0)?)
}
