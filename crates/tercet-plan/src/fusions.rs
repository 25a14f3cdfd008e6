//! What products take in: a norm that their rows come from, a gate or a sum that their results go to.
//!
//! Found on the legal graph before planning, where a product may have few rows. What is taken in gets no
//! place of its own: a norm is left to the products that read it, if nothing else does; a product to the
//! only node that reads it. Their family then emits one kernel where it has one that does all, else the
//! same steps as without, arm by arm. Results differ by the roundings that are saved.

use std::collections::{HashMap, HashSet};

use tercet_ir::ops::{AxisMap, Map, MapArg, Op};
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};
use tercet_ir::{DType, Dim, Graph, Node, NodeId, Value};

use crate::emit::View;

/// The most rows of a product that has kernels for few of them.
const FEW_ROWS: usize = 8;

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
}

/// What follows a product that is left to it.
#[derive(Clone, Debug)]
pub(crate) enum After {
    /// A gate.
    Gate(Gate),
    /// A sum with `with`, result `port` of the node.
    Sum { with: Value, port: u8 },
}

/// What of a graph may be left to what.
#[derive(Debug, Default)]
pub(crate) struct Fusions {
    /// By the node that a product is left to: the product, and what is done to it.
    after: HashMap<NodeId, (NodeId, After)>,
    /// Products that are left to another node.
    products: HashSet<NodeId>,
    /// Norms that are left to products.
    norms: HashSet<Value>,
}

impl Fusions {
    pub(crate) fn of(graph: &Graph) -> Fusions {
        let readers = Readers::of(graph);
        let mut found = Fusions::default();
        for (id, node) in graph.nodes() {
            match &node.op {
                Op::RmsNorm(_) if node.inputs.len() == 2 => {
                    let of = Value { node: id, port: 0 };
                    if readers.are_products(of) {
                        found.norms.insert(of);
                    }
                }
                Op::ResidualRmsNorm(_) if node.inputs.len() == 3 => {
                    let of = Value { node: id, port: 0 };
                    let sum =
                        sum_of_product(graph, &readers, id, [node.inputs[0], node.inputs[1]], 1);
                    if let Some(sum) = sum.filter(|_| readers.are_products(of)) {
                        found.norms.insert(of);
                        found.leave(id, sum);
                    }
                }
                Op::Binary(op) if op.f == BinaryFn::Add => {
                    let sum =
                        sum_of_product(graph, &readers, id, [node.inputs[0], node.inputs[1]], 0);
                    sum.into_iter().for_each(|sum| found.leave(id, sum));
                }
                Op::Map(map) => {
                    let fused = gate(graph, &readers, id, map).or_else(|| {
                        let operands = sum_of_map(node, map)?;
                        sum_of_product(graph, &readers, id, operands, 0)
                    });
                    fused.into_iter().for_each(|after| found.leave(id, after));
                }
                _ => {}
            }
        }
        found
    }

    fn leave(&mut self, to: NodeId, (product, after): (NodeId, After)) {
        self.products.insert(product);
        self.after.insert(to, (product, after));
    }

    /// True if the node is a product that another one takes in.
    pub(crate) fn is_left(&self, node: NodeId) -> bool {
        self.products.contains(&node)
    }

    /// True if the norm is left to products.
    pub(crate) fn is_norm(&self, of: Value) -> bool {
        self.norms.contains(&of)
    }

    /// The product that a node takes in, and what it does to it.
    pub(crate) fn taken_by(&self, node: NodeId) -> Option<&(NodeId, After)> {
        self.after.get(&node)
    }
}

/// Who reads what.
struct Readers<'g> {
    graph: &'g Graph,
    nodes: HashMap<Value, Vec<NodeId>>,
    uses: Vec<Vec<u32>>,
}

impl<'g> Readers<'g> {
    fn of(graph: &'g Graph) -> Readers<'g> {
        let mut nodes: HashMap<Value, Vec<NodeId>> = HashMap::new();
        for (id, node) in graph.nodes() {
            for v in &node.inputs {
                nodes.entry(*v).or_default().push(id);
            }
        }
        Readers {
            graph,
            nodes,
            uses: graph.use_counts(),
        }
    }

    /// The nodes that read a value, each as often as it does; none where it is also a result of the
    /// graph.
    fn all(&self, v: Value) -> &[NodeId] {
        let nodes = self.nodes.get(&v).map_or(&[][..], Vec::as_slice);
        let uses = self.uses[v.node.index()][v.port as usize] as usize;
        if uses == nodes.len() { nodes } else { &[] }
    }

    /// True if all that reads the value are products of it with matrices.
    fn are_products(&self, v: Value) -> bool {
        let nodes = self.all(v);
        let takes = |id: &NodeId| {
            let node = self.graph.node(*id);
            is_product(self.graph, node) && node.inputs[0] == v && !node.inputs[1..].contains(&v)
        };
        !nodes.is_empty() && nodes.iter().all(takes)
    }
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
    graph: &Graph,
    readers: &Readers<'_>,
    id: NodeId,
    [a, b]: [Value; 2],
    port: u8,
) -> Option<(NodeId, After)> {
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
            && readers.all(of) == [id]
    };
    let pairs = [(a, b), (b, a)];
    let (of, with) = pairs.into_iter().find(|(of, _)| takes(*of))?;
    Some((of.node, After::Sum { with, port }))
}

/// The product whose halves a map gates.
fn gate(graph: &Graph, readers: &Readers<'_>, id: NodeId, map: &Map) -> Option<(NodeId, After)> {
    let node = graph.node(id);
    let &[of, other] = node.inputs.as_slice() else {
        return None;
    };
    let product = graph.node(of.node);
    let is_one = of == other && readers.all(of) == [id, id];
    if !is_one || !is_product(graph, product) || !is_bare(product) {
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
    let has_kernel = crate::families::gemm_coop::ACTIVATIONS.contains(f);
    let is_gate = multiplies && are_halves && has_kernel && map.results == [1];
    let gate = Gate {
        f: *f,
        product: of.node,
        map: id,
    };
    is_gate.then_some((of.node, After::Gate(gate)))
}
