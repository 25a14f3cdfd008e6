//! Loops whose end depends on data: a `While` of the graph.
//!
//! The `While` carries the iteration, the last iteration, the condition and the values of the file.
//! Stacked results need a maximum number of iterations: they are carried in buffers of that many
//! rows, and the number of iterations is their valid size.

use tercet_ir::ops::ScatterReduce;
use tercet_ir::scalar::CompareFn;
use tercet_ir::{DType, Dim, Graph, Tensor, Type, Value};

use super::captured;
use crate::call::{ImportNode, NodeOutputs};
use crate::error::NodeErrorKind;
use crate::padded_value::PaddedValue;
use crate::val::ImportedValue;

/// Maximum iterations of a run; a loop that needs more is an error of the run.
const MAX_TURNS: u64 = 1 << 31;
/// The last iteration of a loop without a maximum.
const FOREVER: i64 = i32::MAX as i64;
/// Maximum rows of a stacked result.
const MAX_ROWS: i64 = 1 << 16;
/// The carried values before those of the file: iteration, last iteration, condition.
const OWN: usize = 3;

/// The operands of a loop.
struct LoopOperands {
    /// The maximum number of iterations, if it is known.
    most: Option<i64>,
    /// The initial values that the graph carries.
    carried: Vec<Value>,
}

fn operands(k: &mut ImportNode<'_, '_>) -> Result<LoopOperands, NodeErrorKind> {
    let most = match k.val(0) {
        ImportedValue::ConstTensor(_) => Some(k.int(0)?),
        _ => None,
    };
    let last = match k.opt(0)? {
        // A larger maximum becomes `FOREVER`, because GPUs compute I64 as I32.
        Some(_) if most.is_some_and(|n| n >= FOREVER) => k.g().constant(Tensor::scalar(FOREVER))?,
        Some(value) => super::reshaped(k.g(), value, &[])?,
        None => k.g().constant(Tensor::scalar(FOREVER))?,
    };
    let last = crate::emulated_dtypes::cast_to(k.g(), last, DType::I64)?;
    let goes_on = match k.opt(1)? {
        Some(value) => super::reshaped(k.g(), value, &[])?,
        None => k.g().constant(Tensor::from_bools(&[], &[true])?)?,
    };
    let first = k.g().constant(Tensor::scalar(0i64))?;
    let mut carried = vec![first, last, goes_on];
    for index in 2..k.ins.len() {
        carried.push(k.x(index)?);
    }
    Ok(LoopOperands { most, carried })
}

/// Imports a loop as a `While`.
pub(super) fn import(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let body = k.attrs.graph("body")?;
    let LoopOperands { most, mut carried } = operands(k)?;
    let values = carried.len() - OWN;
    if body.output.len() < 1 + values {
        return Err(NodeErrorKind::attribute("body", "has too few results"));
    }
    let stacked = body.output.len() - 1 - values;
    let captures = k.c.captures(&[body]);
    let mut types: Vec<Type> = carried.iter().map(|v| k.ty(*v)).collect();
    let rows = match stacked {
        0 => None,
        _ => {
            let rows = most.filter(|n| (0..=MAX_ROWS).contains(n));
            let rows = rows.and_then(|n| usize::try_from(n).ok());
            Some(rows.ok_or_else(|| unknown_rows(k))?)
        }
    };
    // The arguments of the file's body are iteration, condition and values. The last iteration
    // follows the values, and then the buffers.
    let order = |list: &[Type]| -> Vec<Type> {
        let (own, rest) = list.split_at(OWN);
        let mut all = vec![own[0].clone(), own[2].clone()];
        all.extend_from_slice(rest);
        all.push(own[1].clone());
        all
    };
    if let Some(rows) = rows {
        // The types of the stacked results are those of one iteration.
        let mut parts = Vec::new();
        let probe =
            k.c.sub_graph_with(body, &order(&types), &captures, "body", |g, _, results| {
                let own = results.get(1 + values..).unwrap_or(&[]);
                parts.extend(own.iter().map(|v| g.ty(*v).clone()));
                Ok(results)
            })?;
        if probe.is_none() {
            return Ok(vec![ImportedValue::Failed; k.node.output.len()]);
        }
        for part in parts {
            let mut dims = vec![Dim::Known(rows)];
            dims.extend(part.shape.iter().cloned());
            let zero = k.c.scalar(part.dtype, 0.0)?;
            let buffer = k.g().expand(zero, dims)?;
            types.push(k.ty(buffer));
            carried.push(buffer);
        }
    }
    let mut arguments = order(&types[..OWN + values]);
    arguments.extend_from_slice(&types[OWN + values..]);
    let turned =
        k.c.sub_graph_with(body, &arguments, &captures, "body", |g, own, results| {
            next(g, own, &results, values)
        })?;
    let Some(turned) = turned else {
        return Ok(vec![ImportedValue::Failed; k.node.output.len()]);
    };
    let mut first = vec![carried[0], carried[2]];
    first.extend_from_slice(&carried[OWN..OWN + values]);
    first.push(carried[1]);
    first.extend_from_slice(&carried[OWN + values..]);
    let captures = captured(&captures);
    let all: Vec<Type> = first.iter().chain(&captures).map(|v| k.ty(*v)).collect();
    let cond = condition(&all, 2 + values)?;
    let max_iter = most.and_then(|n| u64::try_from(n).ok());
    let max_iter = max_iter.unwrap_or(MAX_TURNS).min(MAX_TURNS);
    let y = k
        .g()
        .while_loop(&first, &captures, cond, turned, max_iter)?;
    let mut results: Vec<ImportedValue> =
        (0..values).map(|i| y.port((2 + i) as u8).into()).collect();
    if stacked > 0 {
        let count = k.g().cast(y.port(0), DType::I32)?;
        let buffers = (0..stacked).map(|i| y.port((3 + values + i) as u8));
        results.extend(buffers.map(|v| PaddedValue::val(v, 0, count)));
    }
    Ok(results)
}

/// The error for stacked results without a maximum size.
fn unknown_rows(k: &ImportNode<'_, '_>) -> NodeErrorKind {
    match k.const_operand(0) {
        // If the maximum number of iterations depends on model inputs, report these, because their
        // values make it constant.
        Err(reason) if reason.needs_inputs() => reason,
        _ => NodeErrorKind::unsupported(format!(
            "a loop with stacked results needs a constant maximum of at most {MAX_ROWS} iterations"
        )),
    }
}

/// The condition graph: the iteration is below the last one, and the condition of the file holds.
fn condition(types: &[Type], last: usize) -> Result<Graph, NodeErrorKind> {
    let mut g = Graph::new();
    let mut own = Vec::with_capacity(types.len());
    for (i, ty) in types.iter().enumerate() {
        own.push(g.input(&format!("argument{i}"), ty.clone())?);
    }
    let below = g.compare(CompareFn::Lt, own[0], own[last])?;
    let both = g.binary(tercet_ir::scalar::BinaryFn::And, below, own[1])?;
    g.output("goes_on", both)?;
    Ok(g)
}

/// The next carried values: iteration, condition, values, last iteration, buffers.
fn next(
    g: &mut Graph,
    own: &[Value],
    results: &[Value],
    values: usize,
) -> Result<Vec<Value>, NodeErrorKind> {
    let one = g.constant(Tensor::scalar(1i64))?;
    let at = own[0];
    let goes_on = g.reshape(results[0], Vec::<Dim>::new())?;
    let mut all = vec![g.plus(at, one)?, goes_on];
    all.extend_from_slice(&results[1..=values]);
    all.push(own[2 + values]);
    let place = g.reshape(at, [1usize, 1])?;
    for (row, buffer) in results[1 + values..].iter().zip(&own[3 + values..]) {
        let row = g.unsqueeze(*row, 0)?;
        all.push(g.scatter_nd(*buffer, place, row, ScatterReduce::Replace)?);
    }
    Ok(all)
}
