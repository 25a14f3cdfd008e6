//! Packing: contractions of one operand with several weights become one contraction.
//!
//! Query, key and value projections read the same activations, as do the gate and the other half of
//! a gated MLP. Their weights, parameters all of them, are concatenated (executors compute what
//! depends on parameters only once), and each former result is a slice of the packed one, a view.
//!
//! Joined are nodes with the same operand, operator, attributes and kind of weights: `MatMul` and
//! `Linear` with `[K, N]` weights that are parameters or transposed parameters, and `DequantMatMul`
//! of one scheme. The sum over K of each result is as before.

use std::collections::HashMap;

use super::rewrite::{Rewriter, live_nodes, rebuild};
use crate::dtype::DType;
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Concat, Op, Slice, Transpose};

/// What members of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    op: Op,
    x: Value,
    with_bias: bool,
    layout: Layout,
    weight_dtype: DType,
}

/// Where the outputs are in a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Layout {
    /// `[K, N]`
    Columns,
    /// `[N, K]`, transposed before use.
    TransposedRows,
    /// `[N, row_bytes]`, as it is.
    Rows,
}

/// Packs every group.
pub(super) fn pack_qkv(graph: &Graph) -> Result<Graph, CompileError> {
    let live = live_nodes(graph);
    let groups = groups(graph);
    let first: HashMap<NodeId, &Vec<NodeId>> = groups
        .iter()
        .filter_map(|g| g.first().map(|id| (*id, g)))
        .collect();
    let mut packed: HashMap<NodeId, Value> = HashMap::new();
    rebuild(graph, |rw, id, _| {
        if !live[id.index()] {
            return Ok(());
        }
        if let Some(members) = first.get(&id) {
            for (&member, value) in members.iter().zip(pack(rw, members)?) {
                packed.insert(member, value);
            }
        }
        match packed.get(&id) {
            Some(&new) => {
                rw.bind(Value { node: id, port: 0 }, new);
                Ok(())
            }
            None => rw.copy(id),
        }
    })
}

/// The groups of two or more nodes that can be packed, each in order.
pub(super) fn groups(graph: &Graph) -> Vec<Vec<NodeId>> {
    let live = live_nodes(graph);
    let mut order: Vec<Vec<NodeId>> = Vec::new();
    let mut at: HashMap<Key, usize> = HashMap::new();
    for (id, _) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        if let Some(key) = key(graph, id) {
            let slot = *at.entry(key).or_insert_with(|| {
                order.push(Vec::new());
                order.len() - 1
            });
            order[slot].push(id);
        }
    }
    order.retain(|g| g.len() > 1);
    order
}

fn key(graph: &Graph, id: NodeId) -> Option<Key> {
    let node = graph.node(id);
    let (&x, &w) = (node.inputs.first()?, node.inputs.get(1)?);
    let layout = match &node.op {
        Op::MatMul(_) | Op::Linear(_) if graph.ty(w).rank() == 2 && graph.ty(x).rank() >= 2 => {
            match parameter(graph, w)? {
                p if p == w => Layout::Columns,
                _ => Layout::TransposedRows,
            }
        }
        Op::DequantMatMul(_) if is_param(graph, w) => Layout::Rows,
        _ => return None,
    };
    let bias = node.inputs.get(2);
    bias.is_none_or(|b| is_leaf(graph, *b)).then(|| Key {
        op: node.op.clone(),
        x,
        with_bias: bias.is_some(),
        layout,
        weight_dtype: graph.ty(w).dtype,
    })
}

fn is_param(graph: &Graph, v: Value) -> bool {
    matches!(graph.node(v.node).op, Op::Param(_))
}

fn is_leaf(graph: &Graph, v: Value) -> bool {
    matches!(graph.node(v.node).op, Op::Param(_) | Op::Const(_))
}

/// The parameter that a weight is, as it is or transposed.
fn parameter(graph: &Graph, w: Value) -> Option<Value> {
    if is_param(graph, w) {
        return Some(w);
    }
    let node = graph.node(w.node);
    match (&node.op, node.inputs.as_slice()) {
        (Op::Transpose(t), &[p]) if t.perm == [1, 0] && is_param(graph, p) => Some(p),
        (_, _) => None,
    }
}

/// The packed contraction, and its slices that stand for the members.
fn pack(rw: &mut Rewriter<'_>, members: &[NodeId]) -> Result<Vec<Value>, CompileError> {
    let graph = rw.old();
    let nodes: Vec<_> = members.iter().map(|m| graph.node(*m)).collect();
    let key = key(graph, members[0]).expect("invariant: members of a group have its key");
    let mut weights = Vec::with_capacity(nodes.len());
    let mut biases = Vec::new();
    for node in &nodes {
        let w = parameter(graph, node.inputs[1]).unwrap_or(node.inputs[1]);
        weights.push(rw.leaf(w)?);
        if let Some(&b) = node.inputs.get(2) {
            biases.push(rw.leaf(b)?);
        }
    }
    let x = rw.value(key.x);
    let w = match key.layout {
        Layout::Columns => rw.add(Concat { axis: 1 }, &weights)?,
        Layout::Rows => rw.add(Concat { axis: 0 }, &weights)?,
        Layout::TransposedRows => {
            let rows = rw.add(Concat { axis: 0 }, &weights)?;
            rw.add(Transpose { perm: vec![1, 0] }, &[rows])?
        }
    };
    let mut inputs = vec![x, w];
    if !biases.is_empty() {
        inputs.push(rw.add(Concat { axis: 0 }, &biases)?);
    }
    let all = rw.add(key.op, &inputs)?;
    let mut start = 0;
    let mut results = Vec::with_capacity(nodes.len());
    for node in nodes {
        let ty = &node.outputs[0];
        let last = ty.rank() - 1;
        let width = ty.shape[last]
            .known()
            .expect("invariant: sizes of parameters are known") as i64;
        let mut slice = Slice {
            starts: vec![0; ty.rank()],
            ends: vec![i64::MAX; ty.rank()],
            steps: vec![1; ty.rank()],
        };
        slice.starts[last] = start;
        slice.ends[last] = start + width;
        start += width;
        results.push(rw.add(slice, &[all])?);
    }
    Ok(results)
}
