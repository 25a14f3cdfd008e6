//! Hoists row slices and gathers above row-wise operators, so that only the rows that are read are
//! computed.
//!
//! For example, an encoder with a class token reads one row of each sequence at its end, but its
//! last layer computes all rows. The pass moves the slice or gather up through matmuls, norms and
//! elementwise functions. The selection also moves through the queries of an attention whose mask
//! does not depend on positions. The selection stops at values that need all rows. All readers of a
//! value must need the same rows, and a matmul or an attention must become smaller.

mod row_selection;
mod row_wise_ops;

use std::collections::HashMap;

use self::row_selection::RowSelection;
use self::row_wise_ops::{is_heavy, narrowed, rows_of, rows_of_first_operand};
use super::rewrite::{Rewriter, live_nodes, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};

/// The rows of a value that its readers need.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RowDemand {
    All,
    Rows(RowSelection),
}

/// The required rows of every value that is read.
type RowDemands = HashMap<Value, RowDemand>;

/// Moves row slices and gathers up.
pub(super) fn hoist_slices(graph: &Graph) -> Result<Graph, CompileError> {
    let mut roots: HashMap<NodeId, RowSelection> = graph
        .nodes()
        .filter_map(|(id, node)| Some((id, RowSelection::by(graph, node)?)))
        .collect();
    if roots.is_empty() {
        return Ok(graph.clone());
    }
    let demand = demand(graph, &roots);
    let heavy = heavy(graph, &demand);
    roots.retain(|id, _| heavy[graph.node(*id).inputs[0].node.index()]);
    if roots.is_empty() {
        return Ok(graph.clone());
    }
    move_up(graph, &roots)
}

/// The required rows of all values; `roots` are the nodes that select few rows.
fn demand(graph: &Graph, roots: &HashMap<NodeId, RowSelection>) -> RowDemands {
    let live = live_nodes(graph);
    let mut demand: RowDemands = graph.results().map(|v| (v, RowDemand::All)).collect();
    for (id, node) in graph.nodes().rev().filter(|(id, _)| live[id.index()]) {
        let rows = match roots.get(&id) {
            Some(taken) => Some((taken.clone(), rows_of_first_operand(node, taken.axis()))),
            None => rows_wanted(graph, &demand, id),
        };
        for (at, v) in node.inputs.iter().enumerate() {
            let own = rows.as_ref().and_then(|(taken, axes)| {
                let axis = axes.get(at).copied().flatten()?;
                Some(RowDemand::Rows(taken.on(axis)))
            });
            let wanted = own.unwrap_or(RowDemand::All);
            let known = demand.entry(*v).or_insert_with(|| wanted.clone());
            if *known != wanted {
                *known = RowDemand::All;
            }
        }
    }
    demand
}

/// The only rows of a node's result that are needed, and the axis of each operand along which the
/// node needs only those rows. `None` if the whole result is computed.
fn rows_wanted(
    graph: &Graph,
    demand: &RowDemands,
    id: NodeId,
) -> Option<(RowSelection, Vec<Option<usize>>)> {
    match demand.get(&Value { node: id, port: 0 }) {
        Some(RowDemand::Rows(taken)) => {
            let axes = rows_of(graph, graph.node(id), taken)?;
            Some((taken.clone(), axes))
        }
        Some(RowDemand::All) | None => None,
    }
}

/// For each node, whether computing only few rows of its result makes a matmul or an attention
/// smaller.
fn heavy(graph: &Graph, demand: &RowDemands) -> Vec<bool> {
    let mut heavy = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        if let Some((_, axes)) = rows_wanted(graph, demand, id) {
            let mut rows = node.inputs.iter().zip(axes).filter(|(_, a)| a.is_some());
            let before = rows.any(|(v, _)| heavy[v.node.index()]);
            heavy[id.index()] = is_heavy(&node.op) || before;
        }
    }
    heavy
}

/// The graph with the row selections `roots` applied to operands instead of results.
fn move_up(graph: &Graph, roots: &HashMap<NodeId, RowSelection>) -> Result<Graph, CompileError> {
    let (live, demand) = (live_nodes(graph), demand(graph, roots));
    // The selected rows of each narrowed value, whose full form does not exist in the new graph.
    let mut own: HashMap<Value, Value> = HashMap::new();
    let mut cut: HashMap<(Value, RowSelection), Value> = HashMap::new();
    rebuild(graph, |rw, id, node| {
        if !live[id.index()] {
            return Ok(());
        }
        let result = Value { node: id, port: 0 };
        if let Some(taken) = roots.get(&id) {
            let from = node.inputs[0];
            let Some(&rows) = own.get(&from) else {
                return rw.copy(id);
            };
            let new = taken.as_result(rw, rows, &node.outputs[0])?;
            rw.bind(result, new);
            return Ok(());
        }
        let Some((taken, axes)) = rows_wanted(graph, &demand, id) else {
            return rw.copy(id);
        };
        let mut inputs = Vec::with_capacity(axes.len());
        for (v, axis) in node.inputs.iter().zip(axes) {
            inputs.push(match axis {
                Some(axis) => rows(rw, *v, taken.on(axis), &own, &mut cut)?,
                None => rw.value(*v),
            });
        }
        rw.set_origin(id);
        let new = rw.add(narrowed(node, &taken), &inputs)?;
        own.insert(result, new);
        Ok(())
    })
}

/// Adds the node that selects these rows of a value of the old graph.
fn rows(
    rw: &mut Rewriter<'_>,
    of: Value,
    taken: RowSelection,
    own: &HashMap<Value, Value>,
    cut: &mut HashMap<(Value, RowSelection), Value>,
) -> Result<Value, CompileError> {
    if let Some(rows) = own.get(&of) {
        return Ok(*rows);
    }
    let key = (of, taken);
    if let Some(rows) = cut.get(&key) {
        return Ok(*rows);
    }
    let whole = rw.value(of);
    let rows = key.1.apply(rw, whole)?;
    cut.insert(key, rows);
    Ok(rows)
}
