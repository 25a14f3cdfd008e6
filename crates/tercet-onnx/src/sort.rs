//! Topological sort of nodes. The ONNX standard requires sorted nodes, but some files do not have
//! them.
//!
//! Independent nodes keep the order of the file. The implementation is not recursive, so depth
//! costs no stack.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::proto::{GraphProto, NodeProto};

/// Maximum nesting depth of subgraphs.
pub(crate) const MAX_NESTING: usize = 16;

/// Collects every name that a node reads, including in its subgraphs.
pub(crate) fn reads<'m>(node: &'m NodeProto, depth: usize, found: &mut HashSet<&'m str>) {
    found.extend(
        node.input
            .iter()
            .filter(|n| !n.is_empty())
            .map(String::as_str),
    );
    for graph in node.attribute.iter().filter_map(|a| a.g.as_ref()) {
        graph_reads(graph, depth + 1, found);
    }
}

/// Collects every name that a subgraph reads from enclosing graphs. The subgraph's own names hide
/// outer ones: TensorFlow and Paddle files use a node's output name inside its subgraph again.
pub(crate) fn graph_reads<'m>(graph: &'m GraphProto, depth: usize, found: &mut HashSet<&'m str>) {
    if depth > MAX_NESTING {
        return;
    }
    let mut inner = HashSet::new();
    graph.node.iter().for_each(|n| reads(n, depth, &mut inner));
    inner.extend(graph.output.iter().filter_map(|o| o.name.as_deref()));
    let outputs = graph.node.iter().flat_map(|n| &n.output);
    for name in outputs {
        inner.remove(name.as_str());
    }
    let inputs = graph.input.iter().filter_map(|i| i.name.as_deref());
    let tensors = graph.initializer.iter().filter_map(|t| t.name.as_deref());
    let sparse = graph.sparse_initializer.iter();
    let sparse = sparse.filter_map(|s| s.values.as_ref()?.name.as_deref());
    for name in inputs.chain(tensors).chain(sparse) {
        inner.remove(name);
    }
    found.extend(inner);
}

/// The indices of nodes in topological order.
///
/// # Errors
/// A name that two nodes define, or the names of a cycle.
pub(crate) fn order(nodes: &[NodeProto]) -> Result<Vec<usize>, String> {
    let mut giver: HashMap<&str, usize> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        for name in node.output.iter().filter(|n| !n.is_empty()) {
            if giver.insert(name, i).is_some() {
                return Err(format!("two nodes define `{name}`"));
            }
        }
    }
    let mut waits = vec![0usize; nodes.len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        let mut names = HashSet::new();
        reads(node, 0, &mut names);
        let froms: HashSet<usize> = names.iter().filter_map(|n| giver.get(n).copied()).collect();
        waits[i] = froms.len();
        froms.into_iter().for_each(|from| users[from].push(i));
    }
    let ready = (0..nodes.len()).filter(|i| waits[*i] == 0).map(Reverse);
    let mut ready: BinaryHeap<Reverse<usize>> = ready.collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &user in &users[i] {
            waits[user] -= 1;
            if waits[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    if order.len() == nodes.len() {
        return Ok(order);
    }
    let stuck = (0..nodes.len()).filter(|i| waits[*i] > 0).take(5);
    let stuck: Vec<&str> = stuck
        .filter_map(|i| nodes[i].output.first())
        .map(String::as_str)
        .collect();
    Err(format!("the nodes form a cycle through {stuck:?}"))
}
