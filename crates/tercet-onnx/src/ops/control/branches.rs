//! Branches on a condition of the data. Both branches become subgraphs with results of the same
//! types: a result with a data-dependent size, or with a size that differs between the branches, is
//! padded to the greater size.

use std::rc::Rc;

use tercet_ir::ops::PadMode;
use tercet_ir::{DType, Dim, Graph, Value};

use super::captured;
use crate::call::ImportNode;
use crate::ctx::{GraphLevel, ImportCtx};
use crate::elem::Narrow;
use crate::error::NodeErrorKind;
use crate::padded_value::PaddedValue;
use crate::proto::GraphProto;
use crate::val::ImportedValue;

/// An imported branch: its graph under construction, and its results in it.
struct ImportedBranch {
    level: GraphLevel,
    results: Vec<BranchResult>,
}

/// A result of a branch.
struct BranchResult {
    value: Value,
    narrow: Option<Narrow>,
    dims: Vec<Dim>,
    /// The axis of data-dependent size and its valid size.
    padded: Option<(usize, Value)>,
}

/// The common form of a result of both branches.
struct CommonResult {
    narrow: Option<Narrow>,
    /// The axis of data-dependent size, with the maximum.
    padded: Option<(usize, Dim)>,
}

/// Imports both branches; `None` if a node of one failed, which is already reported.
pub(super) fn import<'m>(
    k: &mut ImportNode<'_, 'm>,
    pred: Value,
    [yes, no]: [&'m GraphProto; 2],
) -> Result<Option<Vec<ImportedValue>>, NodeErrorKind> {
    let captures = k.c.captures(&[yes, no]);
    if yes.output.len() != no.output.len() {
        let reason = "has another number of results than the other branch";
        return Err(NodeErrorKind::attribute("else_branch", reason));
    }
    let yes = branch(k.c, yes, &captures, "then")?;
    let no = branch(k.c, no, &captures, "else")?;
    let (Some(yes), Some(no)) = (yes, no) else {
        return Ok(None);
    };
    let pairs = yes.results.iter().zip(&no.results);
    let common: Result<Vec<CommonResult>, NodeErrorKind> =
        pairs.map(|(a, b)| common(a, b)).collect();
    let common = common?;
    let (yes, no) = (finished(k.c, yes, &common)?, finished(k.c, no, &common)?);
    let first = k.g().if_else(pred, &captured(&captures), yes, no)?;
    let mut results = Vec::with_capacity(common.len());
    let mut port = 0u8;
    for own in common {
        let value = first.port(port);
        let val = match own.padded {
            Some((axis, _)) => {
                port += 1;
                PaddedValue::val(value, axis, first.port(port))
            }
            None => value.into(),
        };
        port += 1;
        results.push(match own.narrow {
            Some(narrow) => ImportedValue::Narrow(narrow, Rc::new(val)),
            None => val,
        });
    }
    Ok(Some(results))
}

/// Imports a branch without its outputs.
fn branch<'m>(
    c: &mut ImportCtx<'m>,
    graph: &'m GraphProto,
    captures: &[(&'m str, ImportedValue)],
    what: &str,
) -> Result<Option<ImportedBranch>, NodeErrorKind> {
    let results = c.open_sub_graph(graph, captures, what);
    let made = match results {
        Ok(Some(results)) => {
            let list = results.iter().enumerate();
            let list: Result<Vec<BranchResult>, NodeErrorKind> =
                list.map(|(i, val)| result(c, val, i)).collect();
            list.map(Some)
        }
        Ok(None) => Ok(None),
        Err(reason) => Err(reason),
    };
    let level = c.pop_whole_level();
    Ok(made?.map(|results| ImportedBranch { level, results }))
}

fn result(
    c: &mut ImportCtx<'_>,
    val: &ImportedValue,
    index: usize,
) -> Result<BranchResult, NodeErrorKind> {
    let (val, narrow) = match val {
        ImportedValue::Narrow(narrow, inner) => (&**inner, Some(*narrow)),
        other => (other, None),
    };
    let (value, padded) = match val {
        ImportedValue::Bounded(own) => (own.value, Some((own.axis, own.count))),
        other => (c.place(other, index)?, None),
    };
    Ok(BranchResult {
        value,
        narrow,
        dims: c.dims(value),
        padded,
    })
}

/// The greater one of two sizes.
fn greater(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a.is_at_least(b), b.is_at_least(a)) {
        (true, _) => Some(a.clone()),
        (_, true) => Some(b.clone()),
        (false, false) => None,
    }
}

fn common(a: &BranchResult, b: &BranchResult) -> Result<CommonResult, NodeErrorKind> {
    let differ = || {
        let text = "the branches have results of shapes or dtypes that differ";
        NodeErrorKind::unsupported(text)
    };
    if a.narrow != b.narrow || a.dims.len() != b.dims.len() {
        return Err(differ());
    }
    let mut axes: Vec<usize> = (0..a.dims.len())
        .filter(|i| a.dims[*i] != b.dims[*i])
        .collect();
    axes.extend([a, b].iter().filter_map(|r| Some(r.padded.as_ref()?.0)));
    axes.sort_unstable();
    axes.dedup();
    let padded = match axes.as_slice() {
        [] => None,
        [axis] => Some((
            *axis,
            greater(&a.dims[*axis], &b.dims[*axis]).ok_or_else(differ)?,
        )),
        _ => return Err(differ()),
    };
    Ok(CommonResult {
        narrow: a.narrow,
        padded,
    })
}

/// The graph of a branch with results of the common form.
fn finished(
    c: &mut ImportCtx<'_>,
    branch: ImportedBranch,
    common: &[CommonResult],
) -> Result<Graph, NodeErrorKind> {
    c.levels.push(branch.level);
    let made = outputs(c, &branch.results, common);
    let graph = c.pop_level();
    made.map(|()| graph)
}

fn outputs(
    c: &mut ImportCtx<'_>,
    results: &[BranchResult],
    common: &[CommonResult],
) -> Result<(), NodeErrorKind> {
    for (i, (own, common)) in results.iter().zip(common).enumerate() {
        let mut value = own.value;
        if let Some((axis, room)) = &common.padded {
            let size = &own.dims[*axis];
            let more = room.checked_sub(size).and_then(|more| more.known());
            let more = more.ok_or_else(|| {
                let text = "the branches have results of symbolic sizes that differ";
                NodeErrorKind::unsupported(text)
            })?;
            if more > 0 {
                let mut after = vec![0; own.dims.len()];
                after[*axis] = more;
                let before = vec![0; own.dims.len()];
                value = c.g().pad(value, &before, &after, PadMode::Constant, 0.0)?;
            }
            let count = match own.padded {
                Some((_, count)) => count,
                None => {
                    let elem = crate::val::ShapeElem::from_dim(size);
                    let size = c.place(&ImportedValue::sizes(vec![elem], true), i)?;
                    c.g().cast(size, DType::I32)?
                }
            };
            c.g().output(&format!("result{i}"), value)?;
            c.g().output(&format!("count{i}"), count)?;
        } else {
            c.g().output(&format!("result{i}"), value)?;
        }
    }
    Ok(())
}
