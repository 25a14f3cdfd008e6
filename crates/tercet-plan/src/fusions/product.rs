//! What matrix products take in: a norm that their rows come from, a gate or a sum that their results go to.
//!
//! Looked for where a product may have few rows. A norm is deferred to the products that read it, if nothing else
//! does; a product to the only node that reads it. Results differ by the roundings that are saved.

use std::collections::HashSet;

use tercet_ir::ops::{AxisMap, Map, MapArg, Op};
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};
use tercet_ir::{DType, Dim, Graph, Node, NodeId, Value};

use super::dataflow::{Dataflow, first};
use super::{Fusions, Group};
use crate::caps::FEW_ROWS;
use crate::emit::View;
use crate::families::matmul;

/// An RMS norm that is left to the products that read it.
#[derive(Clone, Debug)]
pub(crate) struct RowNorm {
    /// Its result.
    pub(crate) of: Value,
    pub(crate) x: View,
    pub(crate) gain: View,
    pub(crate) eps: f32,
}

/// `f(first) * second` of the halves of the columns of a product.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) f: UnaryFn,
    pub(crate) product: NodeId,
    /// The map that says so.
    pub(crate) map: NodeId,
    /// A product has it as rows.
    pub(crate) is_rows: bool,
}

/// What follows a product that is left to it.
#[derive(Clone, Debug)]
pub(crate) enum Epilogue {
    /// A gate.
    Gate(Gate),
    /// A sum with `with`, result `port` of the node.
    Sum { with: Value, port: u8 },
}

/// A matrix product and what is emitted with it.
#[derive(Clone, Debug)]
pub(crate) struct FusedProduct {
    pub(crate) product: NodeId,
    /// The result of the RMS norm that its rows are.
    pub(crate) norm: Option<Value>,
    pub(crate) epilogue: Option<Epilogue>,
}

/// Finds the products of a graph that take something in.
pub(super) fn find(flow: &Dataflow<'_>, found: &mut Fusions) {
    let graph = flow.graph;
    // Results of norms that products take in.
    let mut norms = HashSet::new();
    for (id, node) in graph.nodes() {
        let of = first(id);
        let operands = || [node.inputs[0], node.inputs[1]];
        let fused = match &node.op {
            Op::RmsNorm(_) if node.inputs.len() == 2 => {
                if are_products(flow, of) && may_wait(flow, id) {
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
                found.take_in(id, id, Some(node.inputs[0]), None);
            }
            continue;
        };
        let rows = graph.node(product).inputs[0];
        let norm = norms.contains(&rows).then_some(rows);
        found.groups.remove(&product);
        found.deferred.insert(product);
        found.take_in(id, product, norm, Some(epilogue));
    }
}

impl Fusions {
    fn take_in(
        &mut self,
        last: NodeId,
        product: NodeId,
        norm: Option<Value>,
        epilogue: Option<Epilogue>,
    ) {
        let group = FusedProduct {
            product,
            norm,
            epilogue,
        };
        self.groups.insert(last, Group::Product(group));
    }
}

/// True if the node may be emitted later than it stands: it is a step of every run, and reads what stays.
fn may_wait(flow: &Dataflow<'_>, id: NodeId) -> bool {
    !flow.is_constant(id) && !flow.are_overwritten(&flow.graph.node(id).inputs)
}

/// True if all that reads the value are products of it with matrices.
fn are_products(flow: &Dataflow<'_>, v: Value) -> bool {
    let nodes = flow.readers(v);
    let takes = |id: &NodeId| {
        let node = flow.graph.node(*id);
        is_product(flow.graph, node) && node.inputs[0] == v && !node.inputs[1..].contains(&v)
    };
    !nodes.is_empty() && nodes.iter().all(takes)
}

/// True for a product of rows, which may be few, with one matrix of weights.
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
    is_rows && some && x.dtype.is_float() && rows.is_none_or(|rows| rows <= FEW_ROWS)
}

/// True for a product that applies nothing to its sums.
fn is_bare(node: &Node) -> bool {
    match &node.op {
        Op::Linear(op) => op.activation.is_none() && node.inputs.len() == 2,
        _ => true,
    }
}

/// The operands of a map that adds them as they are.
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

/// The product that a sum of two operands of one type takes in.
fn sum_of_product(
    flow: &Dataflow<'_>,
    id: NodeId,
    [a, b]: [Value; 2],
    port: u8,
) -> Option<(NodeId, Epilogue)> {
    let graph = flow.graph;
    let ty = graph.ty(Value { node: id, port });
    if graph.ty(a) != ty || graph.ty(b) != ty {
        return None;
    }
    let takes = |of: Value| {
        let node = graph.node(of.node);
        // Sums are added in the dtype of the left operand.
        is_product(graph, node)
            && is_bare(node)
            && graph.ty(node.inputs[0]).dtype == ty.dtype
            && flow.is_only_reader(id, of)
            && may_wait(flow, of.node)
    };
    let pairs = [(a, b), (b, a)];
    let (of, with) = pairs.into_iter().find(|(of, _)| takes(*of))?;
    Some((of.node, Epilogue::Sum { with, port }))
}

/// The product whose halves a map gates.
fn gate(flow: &Dataflow<'_>, id: NodeId, map: &Map) -> Option<(NodeId, Epilogue)> {
    let graph = flow.graph;
    let node = graph.node(id);
    let &[of, other] = node.inputs.as_slice() else {
        return None;
    };
    let product = graph.node(of.node);
    let is_one = of == other && flow.readers(of) == [id, id];
    if !is_one || !is_product(graph, product) || !is_bare(product) || !may_wait(flow, of.node) {
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
        let (last, lead) = axes.split_last().expect("invariant: a product has axes");
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
    let gate = Gate {
        f: *f,
        product: of.node,
        map: id,
        is_rows: flow.all_readers(first(id)).iter().any(|reader| {
            let reader = graph.node(*reader);
            is_product(graph, reader) && reader.inputs[0] == first(id)
        }),
    };
    is_gate.then_some((of.node, Epilogue::Gate(gate)))
}
