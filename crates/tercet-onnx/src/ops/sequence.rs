//! Sequences of tensors. The importer resolves at import time which tensors a sequence contains.

use std::rc::Rc;

use tercet_ir::{Dim, Tensor, Value};

use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axis, one};
use crate::error::NodeErrorKind;
use crate::val::{ImportedValue, ShapeElem};

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("SequenceConstruct", 11, |k| {
        Ok(vec![ImportedValue::Seq(Rc::new(k.ins.to_vec()))])
    })
    .without_folding(),
    op("SequenceEmpty", 11, empty).without_folding(),
    op("SequenceLength", 11, length).without_folding(),
    op("SequenceAt", 11, at).without_folding(),
    op("SequenceInsert", 11, insert).without_folding(),
    op("SequenceErase", 11, erase).without_folding(),
    op("ConcatFromSequence", 11, concat).without_folding(),
    op("SequenceMap", 17, map).without_folding(),
    op("SplitToSequence", 11, split).without_folding(),
    op("OptionalHasElement", 15, has_element).without_folding(),
    op("OptionalGetElement", 15, get_element).without_folding(),
    op("Optional", 15, optional).without_folding(),
];

fn optional(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    k.attrs.ignore(&["type"]);
    Ok(vec![k.val(0).clone()])
}

fn has_element(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    if let ImportedValue::Unsupported(why) = k.val(0) {
        return Err(NodeErrorKind::operand(0, why.to_string()));
    }
    Ok(vec![ImportedValue::known(Tensor::from_bools(
        &[],
        &[k.has(0)],
    )?)])
}

fn get_element(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    match k.has(0) {
        true => Ok(vec![k.val(0).clone()]),
        false => Err(NodeErrorKind::operand(0, "is missing")),
    }
}

fn list(k: &ImportNode<'_, '_>, index: usize) -> Result<Vec<ImportedValue>, NodeErrorKind> {
    match k.val(index) {
        ImportedValue::Seq(list) => Ok((**list).clone()),
        ImportedValue::Unsupported(why) => Err(NodeErrorKind::operand(index, why.to_string())),
        _ => Err(NodeErrorKind::operand(index, "is not a sequence")),
    }
}

fn seq(list: Vec<ImportedValue>) -> NodeOutputs {
    Ok(vec![ImportedValue::Seq(Rc::new(list))])
}

fn empty(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    k.attrs.ignore(&["dtype"]);
    seq(Vec::new())
}

fn length(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let n = list(k, 0)?.len();
    Ok(vec![ImportedValue::sizes(
        vec![ShapeElem::Int(n as i64)],
        true,
    )])
}

fn at(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let list = list(k, 0)?;
    let i = axis(k.int(1)?, list.len())?;
    Ok(vec![list[i].clone()])
}

fn insert(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let mut list = list(k, 0)?;
    let place = match k.has(2) {
        true => k.int(2)?,
        false => list.len() as i64,
    };
    let place = match place == list.len() as i64 {
        true => list.len(),
        false => axis(place, list.len())?,
    };
    list.insert(place, k.val(1).clone());
    seq(list)
}

fn erase(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let mut list = list(k, 0)?;
    let place = if k.has(1) { k.int(1)? } else { -1 };
    let place = axis(place, list.len())?;
    list.remove(place);
    seq(list)
}

/// Applies a subgraph to the elements of sequences at each index. Operands that are not sequences are
/// the same at all indices.
fn map(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let body = k.attrs.graph("body")?;
    let count = list(k, 0)?.len();
    let mut results = vec![Vec::with_capacity(count); body.output.len()];
    for i in 0..count {
        let own = |val: &ImportedValue| match val {
            ImportedValue::Seq(list) => list.get(i).cloned(),
            other => Some(other.clone()),
        };
        let arguments: Option<Vec<ImportedValue>> = k.ins.iter().map(own).collect();
        let arguments = arguments.ok_or_else(|| {
            NodeErrorKind::unsupported(format!("all sequences must have {count} elements"))
        })?;
        let found = k.c.inline(body, arguments, &format!("element {i}"))?;
        for (list, val) in results.iter_mut().zip(found) {
            list.push(val);
        }
    }
    let results = results.into_iter();
    Ok(results
        .map(|list| ImportedValue::Seq(Rc::new(list)))
        .collect())
}

fn concat(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let list = list(k, 0)?;
    let new = k.attrs.flag("new_axis", false)?;
    let mut parts = Vec::with_capacity(list.len());
    for val in &list {
        parts.push(k.c.place(val, 0)?);
    }
    let first: Value = *parts
        .first()
        .ok_or_else(|| NodeErrorKind::operand(0, "is an empty sequence"))?;
    let rank = k.rank(first) + usize::from(new);
    let place = k
        .attrs
        .int_opt("axis")?
        .ok_or_else(|| NodeErrorKind::attribute("axis", "is required"))?;
    let place = axis(place, rank)?;
    if new {
        for part in &mut parts {
            *part = k.g().unsqueeze(*part, place)?;
        }
    }
    one(k.g().concat(&parts, place)?)
}

fn split(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let rank = k.rank(x);
    let place = k.axis(0, rank)?;
    let keep = k.attrs.flag("keepdims", true)?;
    let n = k.size(x, place)?;
    if n > 1 << 16 {
        return Err(NodeErrorKind::unsupported(format!(
            "a sequence of {n} tensors is too long"
        )));
    }
    let (lens, drop) = match k.has(1) {
        false => (vec![1; n], !keep),
        true => {
            let given = k.const_operand(1)?;
            let sizes = crate::call::unsigned("split", &given.to_i64s())?;
            match (given.shape().is_empty(), sizes.as_slice()) {
                (true, [0]) => return Err(NodeErrorKind::operand(1, "is 0")),
                (true, [each]) => (
                    (0..n).step_by(*each).map(|i| (*each).min(n - i)).collect(),
                    false,
                ),
                _ => (sizes, false),
            }
        }
    };
    if lens.iter().try_fold(0usize, |n, len| n.checked_add(*len)) != Some(n) {
        return Err(NodeErrorKind::operand(
            1,
            format!("{lens:?} do not add up to {n} elements"),
        ));
    }
    let mut parts = Vec::with_capacity(lens.len());
    let mut start = 0;
    for len in lens {
        let mut part = k.g().narrow(x, place, start, len)?;
        if drop {
            let mut dims: Vec<Dim> = k.dims(part);
            dims.remove(place);
            part = reshaped(k.g(), part, &dims)?;
        }
        parts.push(ImportedValue::Graph(part));
        start += len;
    }
    seq(parts)
}
