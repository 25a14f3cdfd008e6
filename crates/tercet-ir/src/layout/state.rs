//! Which states, and which values carried by loops, are updated in place.
//!
//! A `DynamicUpdateSlice` of a state that is also what the state is assigned writes into the state's
//! own memory, if nothing reads the old contents afterwards: a KV cache is never copied. So it is with an
//! argument that a loop carries and the result that it becomes.

use std::collections::{HashMap, HashSet};

use super::is_view;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Op, OpKind};

/// For each node that may write the state it reads, that state's leaf.
pub fn in_place_updates(graph: &Graph) -> HashMap<NodeId, NodeId> {
    let pairs = graph.assigns().iter().map(|a| (a.state, a.value));
    updates(graph, &pairs.collect::<Vec<_>>())
}

/// For each node that may write the argument it reads, that argument's leaf, in a graph whose first
/// `count` arguments become its first results.
pub fn in_place_carried(graph: &Graph, count: usize) -> HashMap<NodeId, NodeId> {
    let inputs = graph.nodes().filter(|(_, n)| n.op.kind() == OpKind::Input);
    let inputs = inputs.map(|(node, _)| Value { node, port: 0 });
    let pairs = inputs.zip(graph.outputs().iter().map(|o| o.value));
    updates(graph, &pairs.take(count).collect::<Vec<_>>())
}

/// Among pairs of a leaf and what takes its place, the updates that may write the leaf's memory.
fn updates(graph: &Graph, pairs: &[(Value, Value)]) -> HashMap<NodeId, NodeId> {
    let leaves: HashSet<Value> = pairs.iter().map(|(leaf, _)| *leaf).collect();
    let aliases = aliases(graph, &leaves);
    let candidates = pairs.iter().filter(|(leaf, value)| {
        let node = graph.node(value.node);
        is_update(&node.op) && node.inputs.first() == Some(leaf)
    });
    candidates
        .filter(|(leaf, value)| !old_is_read_later(graph, &aliases, leaf.node, value.node))
        .map(|(leaf, value)| (value.node, leaf.node))
        .collect()
}

fn is_update(op: &Op) -> bool {
    matches!(op, Op::DynamicUpdateSlice(_))
}

/// The leaf whose memory each value looks at, if any, through views.
fn aliases(graph: &Graph, leaves: &HashSet<Value>) -> HashMap<Value, NodeId> {
    let mut aliases = HashMap::new();
    for (id, node) in graph.nodes() {
        let value = Value { node: id, port: 0 };
        if leaves.contains(&value) {
            aliases.insert(value, id);
        } else if is_view(node.op.kind())
            && let Some(state) = node.inputs.first().and_then(|v| aliases.get(v)).copied()
        {
            aliases.insert(value, state);
        }
    }
    aliases
}

fn old_is_read_later(
    graph: &Graph,
    aliases: &HashMap<Value, NodeId>,
    state: NodeId,
    update: NodeId,
) -> bool {
    let is_old = |v: &Value| aliases.get(v) == Some(&state);
    // A view runs nothing: its memory is read where its own readers run.
    let by_node = graph.nodes().any(|(id, node)| {
        let reads = if id == update {
            node.inputs.iter().skip(1).any(is_old)
        } else {
            id > update && node.inputs.iter().any(is_old)
        };
        reads && !is_view(node.op.kind())
    });
    by_node || graph.results().any(|v| is_old(&v))
}
