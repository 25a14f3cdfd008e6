//! Few rows of an axis: what computes its rows one by one computes those alone that are read.
//!
//! A model that tells something by one token, as encoders with a class token do, reads one row of each text at its end, and
//! computes all rows of its last layer. The slice or gather that takes few rows moves up, through products, norms,
//! elementwise functions and the queries of attention whose mask does not count positions, to where all rows are needed:
//! there, each value that is read is taken from. It moves only through values whose readers all want the same rows, and only where a
//! product or an attention becomes smaller.

mod taken;
mod through;

use std::collections::HashMap;

use self::taken::Taken;
use self::through::{first_of, is_heavy, narrowed, rows_of};
use super::rewrite::{Rewriter, live_nodes, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};

/// What readers want of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Rows(Taken),
}

/// What is wanted of every value that is read.
type Demand = HashMap<Value, Wanted>;

/// Moves what takes few rows up.
pub(super) fn few_rows(graph: &Graph) -> Result<Graph, CompileError> {
    let mut roots: HashMap<NodeId, Taken> = graph
        .nodes()
        .filter_map(|(id, node)| Some((id, Taken::by(graph, node)?)))
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

/// What is wanted of values, where these nodes take few rows.
fn demand(graph: &Graph, roots: &HashMap<NodeId, Taken>) -> Demand {
    let live = live_nodes(graph);
    let mut demand: Demand = graph.results().map(|v| (v, Wanted::All)).collect();
    for (id, node) in graph.nodes().rev().filter(|(id, _)| live[id.index()]) {
        let rows = match roots.get(&id) {
            Some(taken) => Some((taken.clone(), first_of(node, taken.axis()))),
            None => rows_wanted(graph, &demand, id),
        };
        for (at, v) in node.inputs.iter().enumerate() {
            let own = rows.as_ref().and_then(|(taken, axes)| {
                let axis = axes.get(at).copied().flatten()?;
                Some(Wanted::Rows(taken.on(axis)))
            });
            let wanted = own.unwrap_or(Wanted::All);
            let known = demand.entry(*v).or_insert_with(|| wanted.clone());
            if *known != wanted {
                *known = Wanted::All;
            }
        }
    }
    demand
}

/// The rows that alone are wanted of a node's result, and the axis of each operand along which it needs those alone; none where
/// it is computed whole.
fn rows_wanted(graph: &Graph, demand: &Demand, id: NodeId) -> Option<(Taken, Vec<Option<usize>>)> {
    match demand.get(&Value { node: id, port: 0 }) {
        Some(Wanted::Rows(taken)) => {
            let axes = rows_of(graph, graph.node(id), taken)?;
            Some((taken.clone(), axes))
        }
        Some(Wanted::All) | None => None,
    }
}

/// For each node, whether taking few rows of its result saves a product or an attention.
fn heavy(graph: &Graph, demand: &Demand) -> Vec<bool> {
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

/// The graph in which these nodes take rows of operands instead of results.
fn move_up(graph: &Graph, roots: &HashMap<NodeId, Taken>) -> Result<Graph, CompileError> {
    let (live, demand) = (live_nodes(graph), demand(graph, roots));
    // Rows of values, by the value: of one that is narrowed there is nothing else.
    let mut own: HashMap<Value, Value> = HashMap::new();
    let mut cut: HashMap<(Value, Taken), Value> = HashMap::new();
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
        rw.stand_for(id);
        let new = rw.add(narrowed(node, &taken), &inputs)?;
        own.insert(result, new);
        Ok(())
    })
}

/// These rows of an old value.
fn rows(
    rw: &mut Rewriter<'_>,
    of: Value,
    taken: Taken,
    own: &HashMap<Value, Value>,
    cut: &mut HashMap<(Value, Taken), Value>,
) -> Result<Value, CompileError> {
    if let Some(rows) = own.get(&of) {
        return Ok(*rows);
    }
    let key = (of, taken);
    if let Some(rows) = cut.get(&key) {
        return Ok(*rows);
    }
    let whole = rw.value(of);
    let rows = key.1.of(rw, whole)?;
    cut.insert(key, rows);
    Ok(rows)
}
