//! Epilogue fusion of matmuls and convolutions, and of residual sums with norms.
//!
//! - `MatMul(x, w [K, N])`, a weight bias `[N]` and an activation become `Linear`. The exception
//!   are matmuls that `pack_qkv` can join: they leave their activation to elementwise fusion,
//!   because one wide matmul gains more than the epilogue.
//! - `Conv` and an activation that kernels support become a `Conv` with that activation.
//! - `x + residual` and a norm over the last axis become `ResidualLayerNorm` or `ResidualRmsNorm`.
//!   The sum is the second result, for its other readers. A bias `[N]` of `x` is fused too.
//!
//! Fusion removes intermediate roundings, so results differ slightly from the unfused graph.

use std::collections::{HashMap, HashSet};

use tercet_tensor::{DType, Shape};

use super::pack_qkv;
use super::rewrite::{Rewriter, ValueUses, live_nodes, rebuild};
use super::view::is_weight;
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Conv, Linear, Op, Reshape, ResidualLayerNorm, ResidualRmsNorm};
use crate::scalar::{BinaryFn, UnaryFn};

/// The activations that a matmul epilogue supports.
const ACTIVATIONS: &[UnaryFn] = &[
    UnaryFn::Relu,
    UnaryFn::Sigmoid,
    UnaryFn::Tanh,
    UnaryFn::Gelu,
    UnaryFn::GeluTanh,
    UnaryFn::Silu,
    UnaryFn::Softplus,
];

/// The activations that a convolution epilogue supports.
const CONV_ACTIVATIONS: &[UnaryFn] = &[
    UnaryFn::Relu,
    UnaryFn::Relu6,
    UnaryFn::Sigmoid,
    UnaryFn::Tanh,
    UnaryFn::Gelu,
    UnaryFn::GeluTanh,
    UnaryFn::Silu,
];

/// Fuses matmuls and convolutions with their epilogues, then residual sums with their norms.
pub(super) fn fuse_epilogue(graph: &Graph) -> Result<Graph, CompileError> {
    fuse_residual_norms(&fuse_conv(&fuse_linear(graph)?)?)
}

/// Replaces an activation by a convolution with that activation, if nothing else reads the
/// convolution.
fn fuse_conv(graph: &Graph) -> Result<Graph, CompileError> {
    let (live, uses) = (live_nodes(graph), ValueUses::new(graph));
    rebuild(graph, |rw, id, node| {
        let (Op::Unary(u), &[x]) = (&node.op, node.inputs.as_slice()) else {
            return rw.copy(id);
        };
        let Op::Conv(conv) = &graph.node(x.node).op else {
            return rw.copy(id);
        };
        let ends = live[id.index()] && uses.readers_of(x).only() == Some(id);
        let is_float = matches!(node.outputs[0].dtype, DType::F32 | DType::F16 | DType::BF16);
        if !ends || !is_float || conv.activation.is_some() || !CONV_ACTIVATIONS.contains(&u.f) {
            return rw.copy(id);
        }
        let inputs = rw.values(&graph.node(x.node).inputs);
        let op = Conv {
            activation: Some(u.f),
            ..conv.clone()
        };
        rw.set_origin(x.node);
        let new = rw.add(op, &inputs)?;
        rw.bind(Value { node: id, port: 0 }, new);
        Ok(())
    })
}

/// A matmul with its absorbed epilogue.
struct EpilogueChain {
    operands: [Value; 2],
    bias: Option<Value>,
    activation: Option<UnaryFn>,
    /// The matmul node.
    head: NodeId,
    /// The node whose value the fused node replaces.
    last: NodeId,
}

fn fuse_linear(graph: &Graph) -> Result<Graph, CompileError> {
    let (live, uses) = (live_nodes(graph), ValueUses::new(graph));
    let packable: HashSet<NodeId> = pack_qkv::groups(graph).into_iter().flatten().collect();
    let mut chains: HashMap<NodeId, EpilogueChain> = HashMap::new();
    let mut absorbed: HashSet<NodeId> = HashSet::new();
    for (id, _) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        if let Some((chain, members)) = chain_from(graph, &uses, id, packable.contains(&id)) {
            absorbed.extend(members);
            chains.insert(chain.last, chain);
        }
    }
    rebuild(graph, |rw, id, node| {
        if let Some(chain) = chains.get(&id) {
            let mut inputs = rw.values(&chain.operands);
            if let Some(bias) = chain.bias {
                let shape = last_dim(graph, bias);
                let bias = rw.value(bias);
                inputs.push(as_shape(rw, bias, shape)?);
            }
            let activation = chain.activation;
            rw.set_origin(chain.head);
            let new = rw.add(Linear { activation }, &inputs)?;
            rw.bind(Value { node: id, port: 0 }, new);
            return Ok(());
        }
        let skip = absorbed.contains(&id) || !live[id.index()];
        debug_assert!(!skip || node.outputs.len() == 1 || !live[id.index()]);
        if skip { Ok(()) } else { rw.copy(id) }
    })
}

/// The chain that begins at a matmul, with the nodes that it absorbs.
fn chain_from(
    graph: &Graph,
    uses: &ValueUses,
    head: NodeId,
    packable: bool,
) -> Option<(EpilogueChain, Vec<NodeId>)> {
    let node = graph.node(head);
    let (operands, mut bias) = match (&node.op, node.inputs.as_slice()) {
        (Op::MatMul(_), &[x, w]) if graph.ty(w).rank() == 2 && graph.ty(x).rank() >= 2 => {
            ([x, w], None)
        }
        (Op::Linear(l), &[x, w]) if l.activation.is_none() => ([x, w], None),
        (Op::Linear(l), &[x, w, b]) if l.activation.is_none() => ([x, w], Some(b)),
        (_, _) => return None,
    };
    if !node.outputs[0].dtype.is_float() {
        return None;
    }
    let mut members = vec![head];
    let mut last = Value {
        node: head,
        port: 0,
    };
    if bias.is_none()
        && let Some((next, b)) = bias_add(graph, uses, last)
    {
        bias = Some(b);
        members.push(next);
        last.node = next;
    }
    let mut activation = None;
    if !packable
        && let Some(next) = uses.readers_of(last).only()
        && let Op::Unary(u) = &graph.node(next).op
        && ACTIVATIONS.contains(&u.f)
    {
        activation = Some(u.f);
        members.push(next);
        last.node = next;
    }
    members.pop();
    let chain = EpilogueChain {
        operands,
        bias,
        activation,
        head,
        last: last.node,
    };
    (last.node != head).then_some((chain, members))
}

/// The only reader of `v`, if it adds a weight along the last axis, and that weight.
fn bias_add(graph: &Graph, uses: &ValueUses, v: Value) -> Option<(NodeId, Value)> {
    let next = uses.readers_of(v).only()?;
    let other = add_operand(graph, next, v)?;
    let same = graph.node(next).outputs[0] == *graph.ty(v);
    (same && is_bias_of(graph, other, v)).then_some((next, other))
}

/// The other operand of the sum `node`, one of whose operands is `v`.
fn add_operand(graph: &Graph, node: NodeId, v: Value) -> Option<Value> {
    let node = graph.node(node);
    match (&node.op, node.inputs.as_slice()) {
        (Op::Binary(b), &[l, r]) if b.f == BinaryFn::Add && l == v => Some(r),
        (Op::Binary(b), &[l, r]) if b.f == BinaryFn::Add && r == v => Some(l),
        (_, _) => None,
    }
}

/// True for a weight of shape `[.., 1, N]` for values of shape `[.., N]`.
fn is_bias_of(graph: &Graph, bias: Value, v: Value) -> bool {
    let (bias_shape, shape) = (&graph.ty(bias).shape, &graph.ty(v).shape);
    let Some((last, ones)) = bias_shape.split_last() else {
        return false;
    };
    ones.iter().all(|d| d.is_one())
        && shape.last() == Some(last)
        && shape.rank() >= bias_shape.rank()
        && is_weight(graph, bias)
}

/// The shape of the last axis alone.
fn last_dim(graph: &Graph, v: Value) -> Shape {
    graph.ty(v).shape.last().cloned().into_iter().collect()
}

fn as_shape(rw: &mut Rewriter<'_>, v: Value, shape: Shape) -> Result<Value, CompileError> {
    if rw.new_graph().ty(v).shape == shape {
        return Ok(v);
    }
    rw.add(Reshape { shape }, &[v])
}

/// A residual sum and its norm.
struct ResidualNorm {
    op: Op,
    /// The operands `x` and `residual`.
    sum_of: [Value; 2],
    /// `gamma`, and `beta` of a layer norm.
    weights: Vec<Value>,
    bias: Option<Value>,
    norm: NodeId,
    /// The absorbed sum `x + bias`.
    inner: Option<NodeId>,
}

fn fuse_residual_norms(graph: &Graph) -> Result<Graph, CompileError> {
    let (live, uses) = (live_nodes(graph), ValueUses::new(graph));
    let mut by_sum: HashMap<NodeId, ResidualNorm> = HashMap::new();
    for (id, _) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        if let Some((sum, fused)) = residual_norm(graph, &uses, id) {
            by_sum.entry(sum).or_insert(fused);
        }
    }
    let dropped: HashSet<NodeId> = by_sum
        .values()
        .flat_map(|f| [f.norm].into_iter().chain(f.inner))
        .collect();
    rebuild(graph, |rw, id, _| {
        if let Some(fused) = by_sum.get(&id) {
            let mut inputs = rw.values(&fused.sum_of);
            for &w in &fused.weights {
                inputs.push(rw.leaf(w)?);
            }
            if let Some(bias) = fused.bias {
                let shape = last_dim(graph, bias);
                let bias = rw.value(bias);
                inputs.push(as_shape(rw, bias, shape)?);
            }
            rw.set_origin(fused.norm);
            let new = rw.add(fused.op.clone(), &inputs)?;
            let norm = Value {
                node: fused.norm,
                port: 0,
            };
            rw.bind(norm, new);
            rw.bind(Value { node: id, port: 0 }, new.port(1));
            return Ok(());
        }
        match dropped.contains(&id) || !live[id.index()] {
            true => Ok(()),
            false => rw.copy(id),
        }
    })
}

/// The sum that a norm reads, with the fused replacement of both. The weights must depend only on
/// leaves, because the fused node takes the position of the sum.
fn residual_norm(graph: &Graph, uses: &ValueUses, id: NodeId) -> Option<(NodeId, ResidualNorm)> {
    let node = graph.node(id);
    let (op, sum, weights): (Op, Value, &[Value]) = match (&node.op, node.inputs.as_slice()) {
        (Op::LayerNorm(n), [x, weights @ ..])
            if n.axis + 1 == node.outputs[0].rank() && weights.len() == 2 =>
        {
            (ResidualLayerNorm { eps: n.eps }.into(), *x, weights)
        }
        (Op::RmsNorm(n), [x, weights @ ..]) if weights.len() == 1 => {
            (ResidualRmsNorm { eps: n.eps }.into(), *x, weights)
        }
        (_, _) => return None,
    };
    let Op::Binary(add) = &graph.node(sum.node).op else {
        return None;
    };
    let &[mut x, mut residual] = graph.node(sum.node).inputs.as_slice() else {
        return None;
    };
    let full = graph.ty(x) == graph.ty(sum) && graph.ty(residual) == graph.ty(sum);
    if add.f != BinaryFn::Add || !full || !weights.iter().all(|w| is_weight(graph, *w)) {
        return None;
    }
    let mut fused_bias = None;
    for operand in [x, residual] {
        if uses.readers_of(operand).only() == Some(sum.node)
            && let Some((y, b)) = biased(graph, operand)
        {
            residual = if operand == x { residual } else { x };
            x = y;
            fused_bias = Some((b, operand.node));
            break;
        }
    }
    let fused = ResidualNorm {
        op,
        sum_of: [x, residual],
        weights: weights.to_vec(),
        bias: fused_bias.map(|(b, _)| b),
        norm: id,
        inner: fused_bias.map(|(_, inner)| inner),
    };
    Some((sum.node, fused))
}

/// `y` and `b` of a value `y + b` whose `b` is a weight along the last axis.
fn biased(graph: &Graph, v: Value) -> Option<(Value, Value)> {
    let &[l, r] = graph.node(v.node).inputs.as_slice() else {
        return None;
    };
    [(l, r), (r, l)].into_iter().find(|&(y, b)| {
        add_operand(graph, v.node, y) == Some(b)
            && graph.ty(y) == graph.ty(v)
            && is_bias_of(graph, b, v)
    })
}
