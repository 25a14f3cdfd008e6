//! Packing: contractions of one operand with several weights become one contraction.
//!
//! Query, key and value projections read the same activations, as do both halves of a gated MLP.
//! The weights of matmuls with a common operand, which must be parameters, are concatenated;
//! executors compute values that depend only on parameters once. Each former result is a slice of
//! the packed one, which is a view.
//!
//! A group consists of nodes with the same operand, operator, attributes and weight storage. A
//! group may contain `MatMul` and `Linear` with `[K, N]` weights that are parameters, possibly
//! transposed or converted, and `DequantMatMul` of one scheme. Parameters are concatenated before
//! they are converted. The sum over K of each result is unchanged.

use std::collections::HashMap;

use tercet_tensor::DType;

use super::rewrite::{Rewriter, live_nodes, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Cast, Concat, Op, Slice, Transpose};

/// The common properties of a group's members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct QkvGroupKey {
    op: Op,
    x: Value,
    bias: Option<QkvLeafDType>,
    layout: QkvWeightLayout,
    weight: QkvLeafDType,
}

/// The dtype of a leaf and the dtype that it is converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct QkvLeafDType {
    dtype: DType,
    cast: Option<DType>,
}

/// The axis of a parameter that holds the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum QkvWeightLayout {
    /// `[K, N]`: outputs are columns.
    Columns,
    /// `[N, K]`, transposed before use: outputs are rows.
    TransposedRows,
    /// `[N, row_bytes]`, used directly: outputs are rows.
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
    let mut at: HashMap<QkvGroupKey, usize> = HashMap::new();
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

fn key(graph: &Graph, id: NodeId) -> Option<QkvGroupKey> {
    let node = graph.node(id);
    let (&x, &w) = (node.inputs.first()?, node.inputs.get(1)?);
    let weight = match &node.op {
        Op::MatMul(_) | Op::Linear(_) if graph.ty(w).rank() == 2 && graph.ty(x).rank() >= 2 => {
            weight(graph, w)?
        }
        Op::DequantMatMul(_) if is_param(graph, w) => QkvWeight {
            leaf: w,
            stored: stored(graph, w, None),
            layout: QkvWeightLayout::Rows,
        },
        _ => return None,
    };
    let bias = match node.inputs.get(2) {
        Some(&b) => Some(vector(graph, b)?.1),
        None => None,
    };
    Some(QkvGroupKey {
        op: node.op.clone(),
        x,
        bias,
        layout: weight.layout,
        weight: weight.stored,
    })
}

fn is_param(graph: &Graph, v: Value) -> bool {
    matches!(graph.node(v.node).op, Op::Param(_))
}

fn stored(graph: &Graph, leaf: Value, cast: Option<DType>) -> QkvLeafDType {
    let dtype = graph.ty(leaf).dtype;
    QkvLeafDType { dtype, cast }
}

/// A weight with the parameter that it is derived from.
struct QkvWeight {
    leaf: Value,
    stored: QkvLeafDType,
    layout: QkvWeightLayout,
}

/// The parameter of a weight, if the weight is the parameter itself, transposed, converted, or
/// both.
fn weight(graph: &Graph, w: Value) -> Option<QkvWeight> {
    let (mut leaf, mut layout, mut cast) = (w, QkvWeightLayout::Columns, None);
    while !is_param(graph, leaf) {
        let node = graph.node(leaf.node);
        leaf = match (&node.op, node.inputs.as_slice()) {
            (Op::Transpose(t), &[p]) if t.perm == [1, 0] && layout == QkvWeightLayout::Columns => {
                layout = QkvWeightLayout::TransposedRows;
                p
            }
            (Op::Cast(c), &[p]) if cast.is_none() => {
                cast = Some(c.to);
                p
            }
            (_, _) => return None,
        };
    }
    Some(QkvWeight {
        leaf,
        stored: stored(graph, leaf, cast),
        layout,
    })
}

/// The leaf of a bias, if the bias is the leaf itself or converted.
fn vector(graph: &Graph, b: Value) -> Option<(Value, QkvLeafDType)> {
    let is_leaf = |v: Value| matches!(graph.node(v.node).op, Op::Param(_) | Op::Const(_));
    if is_leaf(b) {
        return Some((b, stored(graph, b, None)));
    }
    let node = graph.node(b.node);
    match (&node.op, node.inputs.as_slice()) {
        (Op::Cast(c), &[p]) if is_leaf(p) => Some((p, stored(graph, p, Some(c.to)))),
        (_, _) => None,
    }
}

/// Concatenates leaves with the same storage.
fn join(
    rw: &mut Rewriter<'_>,
    axis: usize,
    leaves: &[Value],
    stored: QkvLeafDType,
) -> Result<Value, CompileError> {
    let all = rw.add(Concat { axis }, leaves)?;
    match stored.cast {
        Some(to) => rw.add(Cast { to }, &[all]),
        None => Ok(all),
    }
}

/// The packed contraction and its slices, which replace the members.
fn pack(rw: &mut Rewriter<'_>, members: &[NodeId]) -> Result<Vec<Value>, CompileError> {
    let graph = rw.old();
    let nodes: Vec<_> = members.iter().map(|m| graph.node(*m)).collect();
    let key = key(graph, members[0]).expect("invariant: members of a group have its key");
    let mut weights = Vec::with_capacity(nodes.len());
    let mut biases = Vec::new();
    for node in &nodes {
        let w = weight(graph, node.inputs[1]).map_or(node.inputs[1], |w| w.leaf);
        weights.push(rw.leaf(w)?);
        let bias = node.inputs.get(2).and_then(|b| vector(graph, *b));
        if let Some((b, _)) = bias {
            biases.push(rw.leaf(b)?);
        }
    }
    let x = rw.value(key.x);
    let w = match key.layout {
        QkvWeightLayout::Columns => join(rw, 1, &weights, key.weight)?,
        QkvWeightLayout::Rows => join(rw, 0, &weights, key.weight)?,
        QkvWeightLayout::TransposedRows => {
            let rows = join(rw, 0, &weights, key.weight)?;
            rw.add(Transpose { perm: vec![1, 0] }, &[rows])?
        }
    };
    let mut inputs = vec![x, w];
    if let Some(bias) = key.bias {
        inputs.push(join(rw, 0, &biases, bias)?);
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
