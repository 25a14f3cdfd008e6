//! Which states are updated in place.
//!
//! A `DynamicUpdateSlice` of a state that is also what the state is assigned writes into the state's
//! own memory, if nothing reads the old contents afterwards: a KV cache is never copied.

use std::collections::HashMap;

use super::is_view;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::Op;

/// For each node that may write the state it reads, that state's leaf.
pub fn in_place_updates(graph: &Graph) -> HashMap<NodeId, NodeId> {
    let aliases = aliases(graph);
    let candidates = graph.assigns().iter().filter(|a| {
        let node = graph.node(a.value.node);
        is_update(&node.op) && node.inputs.first() == Some(&a.state)
    });
    candidates
        .filter(|a| !old_is_read_later(graph, &aliases, a.state.node, a.value.node))
        .map(|a| (a.value.node, a.state.node))
        .collect()
}

fn is_update(op: &Op) -> bool {
    matches!(op, Op::DynamicUpdateSlice(_))
}

/// The state whose memory each value looks at, if any, through views.
fn aliases(graph: &Graph) -> HashMap<Value, NodeId> {
    let mut aliases = HashMap::new();
    for (id, node) in graph.nodes() {
        let value = Value { node: id, port: 0 };
        if matches!(node.op, Op::State(_)) {
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
