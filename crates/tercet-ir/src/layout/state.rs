//! In-place updates of states and of values that loops carry.
//!
//! An update can write into the state's memory if the update is assigned to the state and nothing
//! reads the old contents afterwards. These operators support it:
//!
//! - `DynamicUpdateSlice` of the state, so a KV cache is never copied.
//! - `ScatterNd` that replaces slices.
//! - `Map` that reads each element of the state at the index that it writes, so an optimizer holds
//!   each weight once.
//! - The final states of a scan, which reads the initial states once, head by head.
//! - The final rows of a causal convolution, which reads the previous rows first.
//!
//! The result of a loop body can likewise be written into the memory of the argument that it
//! replaces.

use std::collections::{HashMap, HashSet};

use tercet_tensor::DType;

use super::is_view;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::ops::{Op, OpKind, ScatterReduce};

/// Maps each value that may overwrite the state that its node reads to the leaf of that state.
pub fn in_place_updates(graph: &Graph) -> HashMap<Value, NodeId> {
    let pairs = graph.assigns().iter().map(|a| (a.state, a.value));
    updates(graph, &pairs.collect::<Vec<_>>())
}

/// As [`in_place_updates`], for the argument leaves of a graph whose first `count` arguments become
/// its first results.
pub fn in_place_carried(graph: &Graph, count: usize) -> HashMap<Value, NodeId> {
    let inputs = graph.nodes().filter(|(_, n)| n.op.kind() == OpKind::Input);
    let inputs = inputs.map(|(node, _)| Value { node, port: 0 });
    let pairs = inputs.zip(graph.outputs().iter().map(|o| o.value));
    updates(graph, &pairs.take(count).collect::<Vec<_>>())
}

/// `pairs` are leaves and the values that replace them. Returns the replacements that may be
/// written into the memory of their leaf.
fn updates(graph: &Graph, pairs: &[(Value, Value)]) -> HashMap<Value, NodeId> {
    let leaves: HashSet<Value> = pairs.iter().map(|(leaf, _)| *leaf).collect();
    let aliases = aliases(graph, &leaves);
    let mut taken = HashSet::new();
    let candidates = pairs.iter().filter(|(leaf, value)| {
        is_update(graph, *leaf, *value)
            && !old_is_read_later(graph, &aliases, *leaf, value.node)
            && taken.insert(*value)
    });
    candidates
        .map(|(leaf, value)| (*value, leaf.node))
        .collect()
}

/// True if the node of `value` never reads an element of `leaf` after writing it.
fn is_update(graph: &Graph, leaf: Value, value: Value) -> bool {
    let node = graph.node(value.node);
    match &node.op {
        Op::DynamicUpdateSlice(_) => node.inputs.first() == Some(&leaf),
        Op::ScatterNd(op) => {
            op.reduce == ScatterReduce::Replace && node.inputs.first() == Some(&leaf)
        }
        Op::Map(map) => {
            let same = graph.ty(leaf) == graph.ty(value);
            let mut reads = reads_of(node, leaf).peekable();
            let rank = map.shape.len();
            same && reads.peek().is_some() && reads.all(|i| map.inputs[i].is_identity(rank))
        }
        Op::CausalConv(_) => {
            // The kernels read the previous rows before they write.
            let same = graph.ty(leaf) == graph.ty(value);
            same && value.port == 1 && reads_of(node, leaf).all(|i| i == 3)
        }
        Op::SelectiveScan(_) | Op::Mamba2(_) => {
            // Only F32 kernels read each state element before they write it.
            let same = graph.ty(leaf) == graph.ty(value) && graph.ty(value).dtype == DType::F32;
            same && value.port == 1 && reads_of(node, leaf).all(|i| i == 5)
        }
        _ => false,
    }
}

/// The operand indices at which a node reads this value.
fn reads_of(node: &Node, value: Value) -> impl Iterator<Item = usize> {
    let operands = node.inputs.iter().enumerate();
    operands.filter(move |(_, v)| **v == value).map(|(i, _)| i)
}

/// The leaf whose memory each value aliases through views, if any.
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
    leaf: Value,
    update: NodeId,
) -> bool {
    let is_old = |v: &Value| aliases.get(v) == Some(&leaf.node);
    // A view reads nothing itself; its users read the memory of the leaf when they run.
    let by_node = graph.nodes().any(|(id, node)| {
        let reads = if id == update {
            // `is_update` has checked how the update itself reads the leaf. The update must not
            // also read the leaf through a view; a window update must read the leaf exactly once.
            let through_views = node.inputs.iter().any(|v| is_old(v) && *v != leaf);
            let twice = matches!(node.op, Op::DynamicUpdateSlice(_) | Op::ScatterNd(_))
                && node.inputs.iter().skip(1).any(|v| *v == leaf);
            through_views || twice
        } else {
            id > update && node.inputs.iter().any(is_old)
        };
        reads && !is_view(node.op.kind())
    });
    by_node || graph.results().any(|v| is_old(&v))
}
