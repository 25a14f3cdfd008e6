//! Prologue and epilogue fusion for matmuls: an RMS norm that computes their left operand, and a
//! gate or sum that reads their result.
//!
//! Only matmuls that may have few rows are fused. An RMS norm is fused into the matmuls that read
//! it, if it has no other readers. A matmul is fused into the gate or sum that reads it, if it has
//! no other readers. Fused kernels skip some roundings, so their results differ slightly from
//! unfused ones.

use std::collections::HashSet;

use tercet_ir::ops::{AxisMap, Map, MapArg, Op};
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};
use tercet_ir::{DType, Dim, Graph, Node, NodeId, Value};

use super::dataflow::{UseDefGraph, first};
use super::{FusionGroup, Fusions};
use crate::caps::MAX_SKINNY_ROWS;
use crate::emit::SlotView;
use crate::lowerings::matmul;

/// An RMS norm that is computed by the kernels of the matmuls that read it.
#[derive(Clone, Debug)]
pub(crate) struct NormPrologue {
    /// The value that the norm computes.
    pub(crate) of: Value,
    pub(crate) x: SlotView,
    pub(crate) gain: SlotView,
    pub(crate) eps: f32,
}

/// A gate `f(first) * second`, where `first` and `second` are the left and the right half of a
/// matmul's columns.
#[derive(Clone, Debug)]
pub(crate) struct GluEpilogue {
    pub(crate) f: UnaryFn,
    pub(crate) product: NodeId,
    /// The `Map` node that computes the gate.
    pub(crate) map: NodeId,
    /// True if another matmul reads the gated result as its left operand.
    pub(crate) is_rows: bool,
}

/// The node that is fused into a matmul as its epilogue.
#[derive(Clone, Debug)]
pub(crate) enum FusedEpilogue {
    /// A gate.
    Gate(GluEpilogue),
    /// The sum of the matmul's result and the residual `with`; the sum is result `port` of its
    /// node.
    Sum { with: Value, port: u8 },
}

/// A matmul with its fused prologue and epilogue.
#[derive(Clone, Debug)]
pub(crate) struct FusedMatMul {
    pub(crate) product: NodeId,
    /// The RMS norm that computes the left operand, if it is fused.
    pub(crate) norm: Option<Value>,
    pub(crate) epilogue: Option<FusedEpilogue>,
}

/// Finds matmuls with a fusible prologue or epilogue.
pub(super) fn find(flow: &UseDefGraph<'_>, found: &mut Fusions) {
    let graph = flow.graph;
    // Results of the RMS norms that are fused into matmuls.
    let mut norms = HashSet::new();
    for (id, node) in graph.nodes() {
        let of = first(id);
        let operands = || [node.inputs[0], node.inputs[1]];
        let fused = match &node.op {
            Op::RmsNorm(_) if node.inputs.len() == 2 => {
                if are_products(flow, of) && can_defer(flow, id) {
                    norms.insert(of);
                    found.deferred.insert(id);
                }
                None
            }
            Op::ResidualRmsNorm(_) if node.inputs.len() == 3 => {
                let sum = sum_of_product(flow, id, operands(), 1);
                let sum = sum.filter(|_| are_products(flow, of));
                let sum = sum.filter(|_| !flow.are_overwritten(&node.inputs[2..]));
                norms.extend(sum.is_some().then_some(of));
                sum
            }
            Op::Binary(op) if op.f == BinaryFn::Add => sum_of_product(flow, id, operands(), 0),
            Op::Map(map) => gate(flow, id, map).or_else(|| {
                let operands = sum_of_map(node, map)?;
                sum_of_product(flow, id, operands, 0)
            }),
            _ => None,
        };
        let Some((product, epilogue)) = fused else {
            if is_product(graph, node) && norms.contains(&node.inputs[0]) {
                found.absorb(id, id, Some(node.inputs[0]), None);
            }
            continue;
        };
        let rows = graph.node(product).inputs[0];
        let norm = norms.contains(&rows).then_some(rows);
        found.groups.remove(&product);
        found.deferred.insert(product);
        found.absorb(id, product, norm, Some(epilogue));
    }
}

impl Fusions {
    fn absorb(
        &mut self,
        last: NodeId,
        product: NodeId,
        norm: Option<Value>,
        epilogue: Option<FusedEpilogue>,
    ) {
        let group = FusedMatMul {
            product,
            norm,
            epilogue,
        };
        self.groups.insert(last, FusionGroup::MatMul(group));
    }
}

/// True if the node may be emitted later: it executes in each run, and no in-place update
/// overwrites its operands.
fn can_defer(flow: &UseDefGraph<'_>, id: NodeId) -> bool {
    !flow.is_constant(id) && !flow.are_overwritten(&flow.graph.node(id).inputs)
}

/// True if all readers of the value are matmuls that use it only as their left operand.
fn are_products(flow: &UseDefGraph<'_>, v: Value) -> bool {
    let nodes = flow.readers(v);
    let takes = |id: &NodeId| {
        let node = flow.graph.node(*id);
        is_product(flow.graph, node) && node.inputs[0] == v && !node.inputs[1..].contains(&v)
    };
    !nodes.is_empty() && nodes.iter().all(takes)
}

/// True for a matmul by a single weight matrix whose left operand may have few rows.
fn is_product(graph: &Graph, node: &Node) -> bool {
    let [x, w, ..] = node.inputs[..] else {
        return false;
    };
    let x = graph.ty(x);
    let is_rows = match &node.op {
        Op::DequantMatMul(_) => true,
        Op::MatMul(_) | Op::Linear(_) => graph.ty(w).rank() == 2 && x.rank() >= 2,
        _ => false,
    };
    let lead = x.shape.iter().take(x.rank().saturating_sub(1));
    let rows = lead
        .map(Dim::known)
        .try_fold(1usize, |n, d| n.checked_mul(d?));
    let some = !x.shape.contains(&Dim::Known(0)) && !node.outputs[0].shape.contains(&Dim::Known(0));
    is_rows && some && x.dtype.is_float() && rows.is_none_or(|rows| rows <= MAX_SKINNY_ROWS)
}

/// True for a matmul node without bias and activation, so that an epilogue can be fused into it.
fn has_no_epilogue(node: &Node) -> bool {
    match &node.op {
        Op::Linear(op) => op.activation.is_none() && node.inputs.len() == 2,
        _ => true,
    }
}

/// The two operands of a map that only adds them elementwise; `None` for other maps.
fn sum_of_map(node: &Node, map: &Map) -> Option<[Value; 2]> {
    let ([step], [a, b]) = (map.body.as_slice(), node.inputs.as_slice()) else {
        return None;
    };
    let rank = map.shape.rank();
    let operands = [MapArg::Input(0), MapArg::Input(1)];
    let is_sum = step.op == ScalarOp::Binary(BinaryFn::Add)
        && (step.args == operands || step.args.iter().rev().eq(&operands));
    let are_whole = map.inputs.iter().all(|i| i.is_identity(rank));
    (is_sum && are_whole && map.results == [0]).then_some([*a, *b])
}

/// The matmul that computes one operand of this sum of two values of one type, if the sum can be
/// fused into it as epilogue.
fn sum_of_product(
    flow: &UseDefGraph<'_>,
    id: NodeId,
    [a, b]: [Value; 2],
    port: u8,
) -> Option<(NodeId, FusedEpilogue)> {
    let graph = flow.graph;
    let ty = graph.ty(Value { node: id, port });
    if graph.ty(a) != ty || graph.ty(b) != ty {
        return None;
    }
    let takes = |of: Value| {
        let node = graph.node(of.node);
        // The fused kernel adds the residual in the dtype of the matmul's left operand.
        is_product(graph, node)
            && has_no_epilogue(node)
            && graph.ty(node.inputs[0]).dtype == ty.dtype
            && flow.is_only_reader(id, of)
            && can_defer(flow, of.node)
    };
    let pairs = [(a, b), (b, a)];
    let (of, with) = pairs.into_iter().find(|(of, _)| takes(*of))?;
    Some((of.node, FusedEpilogue::Sum { with, port }))
}

/// The matmul whose column halves are the operands of a gate, if this map computes a gate.
fn gate(flow: &UseDefGraph<'_>, id: NodeId, map: &Map) -> Option<(NodeId, FusedEpilogue)> {
    let graph = flow.graph;
    let node = graph.node(id);
    let &[of, other] = node.inputs.as_slice() else {
        return None;
    };
    let product = graph.node(of.node);
    let is_one = of == other && flow.readers(of) == [id, id];
    if !is_one
        || !is_product(graph, product)
        || !has_no_epilogue(product)
        || !can_defer(flow, of.node)
    {
        return None;
    }
    let ty = graph.ty(of);
    let n = ty.shape.last()?.known()?;
    let half = Dim::Known(n / 2);
    let fits = n % 2 == 0 && (ty.dtype == DType::F32 || n % 4 == 0);
    if !fits || map.shape.last() != Some(&half) || map.shape.rank() != ty.rank() {
        return None;
    }
    let [of_gate, product_of_both] = map.body.as_slice() else {
        return None;
    };
    let (ScalarOp::Unary(f), [MapArg::Input(gated)]) = (&of_gate.op, of_gate.args.as_slice())
    else {
        return None;
    };
    let second = MapArg::Input(1 - gated);
    let args = product_of_both.args.as_slice();
    let multiplies = product_of_both.op == ScalarOp::Binary(BinaryFn::Mul)
        && (args == [MapArg::Step(0), second] || args == [second, MapArg::Step(0)]);
    let starts = [0, n / 2].map(|n| n as i64);
    let halves = [*gated, 1 - gated].into_iter().zip(starts);
    let are_halves = halves.into_iter().all(|(input, start)| {
        let axes = &map.inputs[input].axes;
        let (last, lead) = axes.split_last().expect("invariant: a matmul has axes");
        let whole = lead.iter().enumerate().all(|(axis, at)| {
            let stays = ty.shape[axis].is_one() && *at == AxisMap::constant(0);
            stays || *at == AxisMap::axis(axis)
        });
        whole
            && *last
                == AxisMap {
                    start,
                    ..AxisMap::axis(lead.len())
                }
    });
    let has_kernel = matmul::has_gate(*f);
    let is_gate = multiplies && are_halves && has_kernel && map.results == [1];
    let gate = GluEpilogue {
        f: *f,
        product: of.node,
        map: id,
        is_rows: flow.all_readers(first(id)).iter().any(|reader| {
            let reader = graph.node(*reader);
            is_product(graph, reader) && reader.inputs[0] == first(id)
        }),
    };
    is_gate.then_some((of.node, FusedEpilogue::Gate(gate)))
}
