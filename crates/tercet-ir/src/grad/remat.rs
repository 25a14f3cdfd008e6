//! Rematerialization of cheap elementwise values. If gradients read a value anyway, elementwise
//! values derived from it are recomputed instead of saved.
//!
//! Gradients are first built without rematerialization, which shows which values they read. Results
//! of operators that are not elementwise stay saved; so does a large value from which alone an
//! elementwise value is computed.

use std::collections::{BTreeSet, HashSet};

use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Op, OpKind};

/// Minimum number of elements for which recomputing a value is profitable.
const LARGE: usize = 1 << 14;

/// The nodes before `before` that gradients recompute. The nodes from `before` on compute the
/// gradients, whose results are `cotangents`.
pub(super) fn cheap(graph: &Graph, before: usize, cotangents: &[Value]) -> Vec<bool> {
    let read = read(graph, before, cotangents);
    let elementwise = elementwise(graph, before);
    let mut kept: HashSet<Value> = HashSet::new();
    for &value in &read {
        match elementwise[value.node.index()] {
            false => {
                kept.insert(value);
            }
            true => {
                let roots = roots(graph, value.node, &elementwise);
                if let (Some(&root), 1) = (roots.first(), roots.len())
                    && bytes(graph, root) <= bytes(graph, value)
                {
                    kept.insert(root);
                }
            }
        }
    }
    // Nodes are decided in order: a node that is not recomputed is saved, and later nodes can be
    // recomputed from it.
    let mut again = elementwise;
    for index in 0..before {
        if again[index] {
            let id = NodeId(index as u32);
            again[index] = (roots(graph, id, &again).iter()).all(|root| kept.contains(root));
            let value = Value { node: id, port: 0 };
            if !again[index] && read.contains(&value) {
                kept.insert(value);
            }
        }
    }
    again
}

/// The forward values that live gradient nodes read.
fn read(graph: &Graph, before: usize, cotangents: &[Value]) -> BTreeSet<Value> {
    let mut read = BTreeSet::new();
    let mut live = vec![false; graph.len()];
    cotangents.iter().for_each(|v| live[v.node.index()] = true);
    let nodes: Vec<_> = graph.nodes().skip(before).collect();
    for (id, node) in nodes.into_iter().rev() {
        if !live[id.index()] {
            continue;
        }
        for &input in &node.inputs {
            live[input.node.index()] = true;
            if input.node.index() < before {
                read.insert(input);
            }
        }
    }
    read
}

/// For each node, whether it is large and elementwise, or a large view or broadcast.
fn elementwise(graph: &Graph, before: usize) -> Vec<bool> {
    let nodes = graph.nodes().take(before);
    let is = nodes.map(|(id, node)| {
        let kind = matches!(
            node.op,
            Op::Unary(_)
                | Op::Binary(_)
                | Op::Compare(_)
                | Op::Where(_)
                | Op::Fma(_)
                | Op::Clamp(_)
                | Op::Cast(_)
                | Op::Expand(_)
                | Op::Reshape(_)
        );
        kind && is_large(graph, Value { node: id, port: 0 })
    });
    is.collect()
}

/// The large values from which an elementwise node is computed, following other recomputed nodes.
fn roots(graph: &Graph, id: NodeId, again: &[bool]) -> BTreeSet<Value> {
    let (mut roots, mut seen) = (BTreeSet::new(), HashSet::new());
    let mut open = vec![id];
    while let Some(id) = open.pop() {
        for &input in &graph.node(id).inputs {
            let node = graph.node(input.node);
            if again[input.node.index()] {
                if seen.insert(input.node) {
                    open.push(input.node);
                }
            } else if is_large(graph, input) && !is_leaf(node.op.kind()) {
                roots.insert(input);
            }
        }
    }
    roots
}

/// Leaves always remain in memory.
fn is_leaf(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Const | OpKind::Input | OpKind::Param | OpKind::State
    )
}

/// Whether recomputed nodes read this value through a checkpoint, which prevents merging them with
/// the original nodes.
pub(super) fn is_marked(graph: &Graph, value: Value) -> bool {
    is_large(graph, value) && !is_leaf(graph.node(value.node).op.kind())
}

fn is_large(graph: &Graph, value: Value) -> bool {
    let numel = graph.ty(value).shape.numel();
    numel.is_none_or(|n| n.known().is_none_or(|n| n >= LARGE))
}

/// Size of a value in bytes, or 0 if it is unknown.
fn bytes(graph: &Graph, value: Value) -> usize {
    let ty = graph.ty(value);
    let numel = ty.shape.numel().and_then(|n| n.known());
    numel.map_or(0, |n| n.saturating_mul(ty.dtype.size_bytes()))
}
