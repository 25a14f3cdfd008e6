//! The reverse pass from outputs to requested values.

use std::collections::{HashMap, HashSet};

use crate::graph::{Graph, NodeId, Value};
use crate::scalar::BinaryFn;

use super::GradientKind;
use super::error::{GradError, GradientBreak, NoGradient};
use super::recompute::RecomputedNodes;
use super::vjp::Vjp;

/// The result of a reverse pass: cotangents of the requested values in order, the
/// non-differentiable nodes, and the nodes whose rule returned no cotangent (zero derivative).
#[derive(Debug)]
pub(super) struct ReversePassResult {
    pub(super) cotangents: Vec<Option<Value>>,
    pub(super) breaks: Vec<GradientBreak>,
    pub(super) flat: Vec<NodeId>,
}

/// The values, among the nodes from `from` on, that have a derivative with respect to `wanted`.
/// Derivatives end at operators with zero derivative, at integers and at booleans.
pub(super) fn active(graph: &Graph, from: usize, wanted: &[Value]) -> HashSet<Value> {
    let mut active: HashSet<Value> = wanted.iter().copied().collect();
    for (id, node) in graph.nodes().skip(from) {
        if matches!(node.op.kind().gradient(), GradientKind::Zero(_))
            || !node.inputs.iter().any(|v| active.contains(v))
        {
            continue;
        }
        for (port, ty) in (0..).zip(&node.outputs) {
            if ty.dtype.is_float() {
                active.insert(Value { node: id, port });
            }
        }
    }
    active
}

/// Propagates the cotangents of outputs back to the requested values through the nodes from `from`
/// on, and appends the necessary nodes. Forward nodes marked `cheap` are recomputed. A
/// non-differentiable node is recorded and passes zeros, so that further such nodes are recorded
/// too.
///
/// # Errors
/// [`GradError::Rule`] when a rule builds an invalid node.
pub(super) fn reverse_pass(
    graph: &mut Graph,
    from: usize,
    outputs: &[(Value, Value)],
    wanted: &[Value],
    cheap: Vec<bool>,
) -> Result<ReversePassResult, GradError> {
    let active = active(graph, from, wanted);
    let mut forward = RecomputedNodes::new(graph, from, cheap);
    let (mut severed, mut flat) = (Vec::new(), Vec::new());
    let mut cotangents: HashMap<Value, Value> = HashMap::new();
    let last = outputs.iter().map(|(v, _)| v.node.index() + 1).max();
    for &(value, cotangent) in outputs {
        if active.contains(&value) {
            gather(graph, &mut cotangents, value, cotangent)
                .map_err(|e| GradError::rule(value.node, "add", e))?;
        }
    }
    for index in (from..last.unwrap_or(from)).rev() {
        let id = NodeId(index as u32);
        let node = graph.node(id);
        let ports = node.outputs.len() as u8;
        let of_results: Vec<Option<Value>> = (0..ports)
            .map(|port| cotangents.get(&Value { node: id, port }).copied())
            .collect();
        let of_operands: Vec<bool> = node.inputs.iter().map(|v| active.contains(v)).collect();
        let is_active = |port| active.contains(&Value { node: id, port });
        let passes = (0..ports).any(is_active) && of_operands.contains(&true);
        if !passes || of_results.iter().all(Option::is_none) {
            continue;
        }
        let (op, inputs) = (node.op.clone(), node.inputs.clone());
        let fail = |e| GradError::rule(id, op.name(), e);
        let mut operands = Vec::with_capacity(inputs.len());
        for input in inputs {
            operands.push(forward.value(graph, input).map_err(fail)?);
        }
        let result = forward.value(graph, Value { node: id, port: 0 });
        let read = (operands, result.map_err(fail)?.node);
        let mut v = Vjp::new(graph, id, read, of_results, of_operands);
        match op.vjp(&mut v) {
            Ok(()) => {}
            Err(NoGradient::InvalidNode(e)) => return Err(fail(e)),
            Err(NoGradient::Unsupported(reason)) => {
                let op = op.name();
                severed.push(GradientBreak {
                    node: id,
                    op,
                    reason,
                });
                v.accumulate_zeros().map_err(fail)?;
            }
        }
        let given = v.finish();
        if given.is_empty() {
            flat.push(id);
        }
        for (value, cotangent) in given {
            gather(graph, &mut cotangents, value, cotangent).map_err(fail)?;
        }
    }
    let cotangents = wanted.iter().map(|v| cotangents.get(v).copied()).collect();
    Ok(ReversePassResult {
        cotangents,
        breaks: severed,
        flat,
    })
}

/// Adds to the cotangent of a value.
fn gather(
    graph: &mut Graph,
    cotangents: &mut HashMap<Value, Value>,
    value: Value,
    cotangent: Value,
) -> Result<(), crate::OpError> {
    let sum = match cotangents.get(&value) {
        Some(&so_far) => graph.binary(BinaryFn::Add, so_far, cotangent)?,
        None => cotangent,
    };
    cotangents.insert(value, sum);
    Ok(())
}
