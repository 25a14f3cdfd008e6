//! Gather, scatter and related operators.

use tercet_ir::ops::ScatterReduce;
use tercet_ir::scalar::CompareFn;
use tercet_ir::{DType, Dim, Tensor};

use super::reduce::last_to;
use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axis, one};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Gather", 1, gather),
    op("GatherElements", 11, gather_elements),
    op("GatherND", 11, gather_nd),
    op("ScatterElements", 11, scatter_elements),
    op("Scatter", 9, scatter_elements).until(10),
    op("ScatterND", 11, scatter_nd),
    op("OneHot", 9, one_hot),
    op("Compress", 9, compress),
    op("ArrayFeatureExtractor", 1, array_feature_extractor).in_domain("ai.onnx.ml"),
];

fn gather(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, idx) = (k.x(0)?, k.x(1)?);
    let at = k.axis(0, k.rank(x))?;
    one(k.g().gather(x, idx, at)?)
}

fn gather_elements(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, idx) = (k.x(0)?, k.x(1)?);
    let at = k.axis(0, k.rank(x))?;
    one(k.g().gather_elements(x, idx, at)?)
}

pub(super) fn gather_nd(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, idx) = (k.x(0)?, k.x(1)?);
    let batch = k.attrs.int("batch_dims", 0)?;
    let batch = usize::try_from(batch)
        .map_err(|_| NodeErrorKind::attribute("batch_dims", "is negative"))?;
    one(k.g().gather_nd(x, idx, batch)?)
}

fn reduction(k: &ImportNode<'_, '_>) -> Result<ScatterReduce, NodeErrorKind> {
    match k.attrs.string("reduction", "none")?.as_str() {
        "none" => Ok(ScatterReduce::Replace),
        "add" => Ok(ScatterReduce::Add),
        "mul" => Ok(ScatterReduce::Mul),
        "max" => Ok(ScatterReduce::Max),
        "min" => Ok(ScatterReduce::Min),
        other => Err(NodeErrorKind::attribute(
            "reduction",
            format!("`{other}` is not supported"),
        )),
    }
}

fn scatter_elements(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, idx, updates) = (k.x(0)?, k.x(1)?, k.x(2)?);
    let (at, reduce) = (k.axis(0, k.rank(x))?, reduction(k)?);
    one(k.g().scatter_elements(x, idx, updates, at, reduce)?)
}

fn scatter_nd(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, idx, updates) = (k.x(0)?, k.x(1)?, k.x(2)?);
    let reduce = reduction(k)?;
    one(k.g().scatter_nd(x, idx, updates, reduce)?)
}

/// Imports `OneHot` as a comparison of indices, because an invalid index must give a row of
/// off-values.
fn one_hot(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    const MAX_ONE_HOT_LEN: i64 = 1 << 22;
    let (idx, values) = (k.x(0)?, k.x(2)?);
    let depth = k.int(1)?;
    if !(1..=MAX_ONE_HOT_LEN).contains(&depth) {
        return Err(NodeErrorKind::operand(
            1,
            format!("a depth of {depth} is not supported"),
        ));
    }
    if !k.c.spend(depth as usize) {
        return Err(NodeErrorKind::operand(
            1,
            format!("a depth of {depth} is too large"),
        ));
    }
    let rank = k.rank(idx);
    let at = k.axis(-1, rank + 1)?;
    let numbers: Vec<i64> = (0..depth).collect();
    let mut dims = k.dims(idx);
    dims.push(Dim::Known(1));
    let g = k.g();
    let places = g.constant(Tensor::from_slice(&[depth as usize], &numbers)?)?;
    let idx = g.cast(idx, DType::I64)?;
    let (zero, depth) = (
        g.scalar(DType::I64, 0.0)?,
        g.scalar(DType::I64, depth as f64)?,
    );
    let below = g.compare(CompareFn::Lt, idx, zero)?;
    let from_start = g.plus(idx, depth)?;
    let idx = g.where_(below, from_start, idx)?;
    let idx = reshaped(g, idx, &dims)?;
    let hit = g.compare(CompareFn::Eq, idx, places)?;
    let (off, on) = (g.narrow(values, 0, 0, 1)?, g.narrow(values, 0, 1, 1)?);
    let y = g.where_(hit, on, off)?;
    one(g.transpose(y, &last_to(rank + 1, at))?)
}

/// The elements selected by a condition. A constant condition gives a result of exact size,
/// otherwise a padded result.
fn compress(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (x, at) = match k.attrs.int_opt("axis")? {
        Some(a) => (x, axis(a, k.rank(x))?),
        None => {
            let n = super::shape::product(&k.dims(x))?;
            (reshaped(k.g(), x, &[n])?, 0)
        }
    };
    if let ImportedValue::Graph(keep) = k.val(1) {
        let keep = *keep;
        return super::data_dependent::compress(k, x, at, keep);
    }
    let keep = k.ints(1)?;
    let picked: Vec<i64> = (0i64..)
        .zip(&keep)
        .filter(|(_, c)| **c != 0)
        .map(|(i, _)| i)
        .collect();
    let idx = k
        .g()
        .constant(Tensor::from_slice(&[picked.len()], &picked)?)?;
    one(k.g().gather(x, idx, at)?)
}

/// Selects elements of the last axis; the result for a vector is a row.
fn array_feature_extractor(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, idx) = (k.x(0)?, k.x(1)?);
    let x = match k.rank(x) {
        1 => k.g().unsqueeze(x, 0)?,
        _ => x,
    };
    let rank = k.rank(x);
    let n = super::shape::product(&k.dims(idx))?;
    let idx = reshaped(k.g(), idx, &[n])?;
    one(k.g().gather(x, idx, rank.saturating_sub(1))?)
}
