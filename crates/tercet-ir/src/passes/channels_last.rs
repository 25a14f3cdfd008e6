//! Channels-last layout propagation. Some executors have convolutions that write `[N, H, W, C]`
//! (NHWC) in memory. The pass rewrites elementwise nodes between such convolutions, so that no
//! layout conversion is needed between them.
//!
//! Values keep their types `[N, C, H, W]`. A channels-last value is a transposed view of a dense
//! NHWC value, and nodes between convolutions compute on that dense view. `f(x)` becomes
//! `from_last(f(to_last(x)))`, and the two transposes cancel because they only change layouts.
//! Results are bitwise unchanged.

mod depth_to_space;

use std::collections::{HashMap, HashSet};

use depth_to_space::{DepthToSpaceConv, spreads};
use tercet_tensor::{Dim, Shape};

use super::rewrite::{Rewriter, ValueUses, live_nodes, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::ops::{AxisMap, Concat, IndexMap, Map, MapArg, Op, Reduce, Transpose};
use crate::scalar::{BinaryFn, ScalarOp, UnaryFn};

/// The permutation from `[N, C, H, W]` to `[N, H, W, C]`.
pub const TO_LAST: [usize; 4] = [0, 2, 3, 1];
/// The permutation from `[N, H, W, C]` to `[N, C, H, W]`.
pub const FROM_LAST: [usize; 4] = [0, 3, 1, 2];

/// A graph rewritten for channels-last convolutions.
///
/// ```
/// # use tercet_ir::{DType, Graph, OpKind, Type, ops::Window};
/// use tercet_ir::passes::{ChannelsLast, ChannelsLastSupport, channels_last};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [1, 8, 6, 6]))?;
/// # let w = g.param("w", Type::new(DType::F32, [8, 8, 3, 3]))?;
/// let a = g.conv(x, w, None, Window::new(2), 1)?;
/// let r = g.relu(a)?;
/// let y = g.conv(r, w, None, Window::new(2), 1)?;
/// g.output("y", y)?;
/// let last = |_: &Graph, node: &tercet_ir::Node| node.op.kind() == OpKind::Conv;
/// let support = ChannelsLastSupport { last: &last, sums: &|_, _| false };
/// let found: Option<ChannelsLast> = channels_last(&g, &support)?;
/// let rewritten = found.expect("two convolutions benefit");
/// assert_eq!((rewritten.nodes.len(), rewritten.sums.len()), (2, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ChannelsLast {
    /// The rewritten graph.
    pub graph: Graph,
    /// The convolutions and pools that should write channels-last results.
    pub nodes: HashSet<NodeId>,
    /// The residual sums that convolutions can compute in their epilogue, by convolution.
    pub sums: HashMap<NodeId, ConvResidualSum>,
}

/// A residual sum: the result of a convolution, which has no other readers, plus an earlier value.
///
/// ```
/// use tercet_ir::passes::{ChannelsLastSupport, ConvResidualSum, channels_last};
/// use tercet_ir::{DType, Graph, OpKind, Type, ops::Window, scalar::UnaryFn};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [1, 8, 6, 6]))?;
/// # let w = g.param("w", Type::new(DType::F32, [8, 8, 1, 1]))?;
/// let a = g.conv(x, w, None, Window::new(2), 1)?;
/// let b = g.conv(a, w, None, Window::new(2), 1)?;
/// let sum = g.plus(b, a)?;
/// g.output("y", sum)?;
/// let is_conv = |_: &Graph, node: &tercet_ir::Node| node.op.kind() == OpKind::Conv;
/// let support = ChannelsLastSupport { last: &is_conv, sums: &is_conv };
/// let rewritten = channels_last(&g, &support)?.expect("two convolutions benefit");
/// let sums: Vec<&ConvResidualSum> = rewritten.sums.values().collect();
/// assert_eq!((sums.len(), sums[0].activation), (1, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ConvResidualSum {
    /// The node that adds.
    pub node: NodeId,
    /// The value that is added to the convolution's result.
    pub to: Value,
    /// The activation applied to the sum.
    pub activation: Option<UnaryFn>,
}

/// The channels-last capabilities of an executor.
///
/// ```
/// use tercet_ir::passes::{ChannelsLastSupport, channels_last};
/// use tercet_ir::{DType, Graph, OpKind, Type};
/// let support = ChannelsLastSupport {
///     last: &|_, node| matches!(node.op.kind(), OpKind::Conv | OpKind::Pool),
///     sums: &|_, node| node.op.kind() == OpKind::Conv,
/// };
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [1, 8, 6, 6]))?;
/// g.output("y", x)?;
/// assert!(channels_last(&g, &support)?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ChannelsLastSupport<'a> {
    /// Whether the executor can write the channels-last result of this convolution or pool.
    pub last: &'a dyn Fn(&Graph, &Node) -> bool,
    /// Whether the executor can also add a residual in the epilogue.
    pub sums: &'a dyn Fn(&Graph, &Node) -> bool,
}

/// Rewrites the nodes between convolutions and pools that `able` supports to compute on
/// channels-last views. Returns `None` if fewer than two convolutions benefit.
///
/// # Errors
/// [`CompileError::Rewrite`] when a rewritten node is invalid, which is a bug.
pub fn channels_last(
    graph: &Graph,
    able: &ChannelsLastSupport<'_>,
) -> Result<Option<ChannelsLast>, CompileError> {
    let uses = ValueUses::new(graph);
    let spread = spreads(graph, &uses);
    let chosen = chosen(graph, able.last, &spread);
    if chosen.is_empty() {
        return Ok(None);
    }
    let last = carried(graph, &spread, &|id| chosen.contains(&id));
    let made = spread.values().filter(|s| chosen.contains(&s.conv));
    let later: HashSet<NodeId> = made
        .flat_map(|s| [s.conv, s.between[0], s.between[1]])
        .collect();
    let of_convs = sums(graph, &uses, &chosen, &last, able.sums);
    let summed: HashMap<NodeId, NodeId> = of_convs.iter().map(|(c, s)| (s.node, *c)).collect();
    let mut nodes = HashSet::new();
    let mut sums = HashMap::new();
    let graph = rebuild(graph, |rw, id, node| {
        if later.contains(&id) {
            return Ok(());
        }
        if !last[id.index()] {
            return rw.copy(id);
        }
        if let Some(s) = spread.get(&id) {
            let [conv, whole] = depth_to_space::depth_to_space_conv(rw, id, s)?;
            nodes.insert(conv.node);
            rw.bind(Value { node: id, port: 0 }, whole);
            return Ok(());
        }
        if let Some(conv) = summed.get(&id) {
            rw.copy(id)?;
            let (of, new) = (|node| rw.value(Value { node, port: 0 }), of_convs[conv]);
            let sum = ConvResidualSum {
                node: of(id).node,
                to: rw.value(new.to),
                ..new
            };
            sums.insert(of(*conv).node, sum);
            return Ok(());
        }
        match &node.op {
            Op::Conv(_) | Op::Pool(_) => {
                rw.copy(id)?;
                nodes.insert(rw.value(Value { node: id, port: 0 }).node);
                Ok(())
            }
            Op::Slice(_) => rw.copy(id),
            Op::Map(map) => transpose_map(rw, id, node, map, &last),
            op => transpose_node(rw, id, node, op),
        }
    })?;
    Ok(Some(ChannelsLast { graph, nodes, sums }))
}

/// The residual sums that selected convolutions can compute. If both operands are convolutions, the
/// later one computes the sum.
fn sums(
    graph: &Graph,
    uses: &ValueUses,
    chosen: &HashSet<NodeId>,
    last: &[bool],
    able: &dyn Fn(&Graph, &Node) -> bool,
) -> HashMap<NodeId, ConvResidualSum> {
    let live = live_nodes(graph);
    let mut sums = HashMap::new();
    for (id, node) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        let Some(activation) = added(node) else {
            continue;
        };
        let (&[a, b], shape) = (node.inputs.as_slice(), &node.outputs[0].shape) else {
            continue;
        };
        let same = |v: Value| graph.ty(v).shape == *shape && last[v.node.index()];
        let (to, conv) = if a.node < b.node { (a, b) } else { (b, a) };
        let of_conv = graph.node(conv.node);
        let Op::Conv(o) = &of_conv.op else { continue };
        let alone = uses.readers_of(conv).only() == Some(id) && a != b;
        let takes = chosen.contains(&conv.node) && able(graph, of_conv) && o.activation.is_none();
        if alone && takes && same(to) && same(conv) && last[id.index()] {
            let node = id;
            sums.insert(
                conv.node,
                ConvResidualSum {
                    node,
                    to,
                    activation,
                },
            );
        }
    }
    sums
}

/// The activation of the sum, if a node adds two operands of its shape.
fn added(node: &Node) -> Option<Option<UnaryFn>> {
    match &node.op {
        Op::Binary(b) if b.f == BinaryFn::Add => Some(None),
        Op::Map(map)
            if map.results == [map.body.len().wrapping_sub(1)] && node.inputs.len() == 2 =>
        {
            let whole = map.inputs.iter().all(|i| i.is_identity(map.shape.rank()));
            let [sum, rest @ ..] = map.body.as_slice() else {
                return None;
            };
            let adds = sum.op == ScalarOp::Binary(BinaryFn::Add)
                && matches!(sum.args.as_slice(), [MapArg::Input(i), MapArg::Input(j)] if i != j);
            let after = match rest {
                [] => None,
                [step] if step.args == [MapArg::Step(0)] => match step.op {
                    ScalarOp::Unary(UnaryFn::Relu) => Some(UnaryFn::Relu),
                    _ => return None,
                },
                _ => return None,
            };
            (whole && adds).then_some(after)
        }
        _ => None,
    }
}

/// The convolutions that read from or are read by another one through nodes that propagate the
/// layout, and the pools between them.
fn chosen(
    graph: &Graph,
    takes: &dyn Fn(&Graph, &Node) -> bool,
    spread: &HashMap<NodeId, DepthToSpaceConv>,
) -> HashSet<NodeId> {
    let able: Vec<bool> = graph.nodes().map(|(_, n)| takes(graph, n)).collect();
    let is_conv = |id: NodeId| matches!(graph.node(id).op, Op::Conv(_)) && able[id.index()];
    let last = carried(graph, spread, &|id| able[id.index()]);
    // Whether a convolution reads a value, directly or through nodes that propagate the layout.
    let mut leads = vec![false; graph.len()];
    for (id, node) in graph.nodes().rev() {
        let passes_on = match &node.op {
            Op::Conv(_) => is_conv(id),
            _ => leads[id.index()] && last[id.index()],
        };
        if passes_on {
            let read = match &node.op {
                Op::Conv(_) => &node.inputs[..1],
                _ => &node.inputs[..],
            };
            read.iter().for_each(|v| leads[v.node.index()] = true);
        }
    }
    let mut chosen = HashSet::new();
    for (id, node) in graph.nodes() {
        let fed = || node.inputs.first().is_some_and(|x| last[x.node.index()]);
        let counts = match &node.op {
            Op::Conv(_) => leads[id.index()] || fed(),
            Op::Pool(_) => fed(),
            _ => false,
        };
        if able[id.index()] && counts {
            chosen.insert(id);
        }
    }
    let convs = chosen.iter().filter(|id| is_conv(**id)).count();
    if convs < 2 {
        chosen.clear();
    }
    chosen
}

/// The nodes with channels-last results, if the convolutions and pools selected by `makes` write
/// them.
fn carried(
    graph: &Graph,
    spread: &HashMap<NodeId, DepthToSpaceConv>,
    makes: &dyn Fn(NodeId) -> bool,
) -> Vec<bool> {
    let mut last = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        let is_last = |v: &Value| last[v.node.index()] && graph.ty(*v).rank() == 4;
        let carries = match &node.op {
            Op::Conv(_) => makes(id),
            Op::Pool(_) => makes(id) && is_last(&node.inputs[0]),
            Op::Reshape(_) => spread.get(&id).is_some_and(|s| makes(s.conv)),
            op => node.inputs.iter().any(is_last) && carries(graph, node, op, &is_last),
        };
        last[id.index()] = carries;
    }
    last
}

/// Whether a node that reads channels-last values can compute on them without a layout conversion.
fn carries(graph: &Graph, node: &Node, op: &Op, is_last: &dyn Fn(&Value) -> bool) -> bool {
    let of_rank_4 = node.outputs.iter().all(|ty| ty.rank() == 4);
    let shape = |v: &Value| &graph.ty(*v).shape;
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Clamp(_) | Op::Where(_) | Op::Fma(_) | Op::Cast(_) => {
            let whole = |v: &Value| is_last(v) && *shape(v) == node.outputs[0].shape;
            let fits = |v: &Value| shape(v).rank() == 4 || is_one(shape(v));
            of_rank_4 && node.inputs.iter().any(whole) && node.inputs.iter().all(fits)
        }
        // A map reads operands of any rank through index maps.
        Op::Map(map) => of_rank_4 && map.shape.rank() == 4,
        Op::Concat(_) | Op::Slice(_) => of_rank_4,
        Op::Reduce(r) => {
            let left = TO_LAST.iter().filter(|axis| !r.axes.contains(axis));
            r.keep_dim || left.is_sorted()
        }
        _ => false,
    }
}

/// Whether a shape has exactly one element, at any rank.
fn is_one(shape: &Shape) -> bool {
    shape.iter().all(Dim::is_one)
}

/// The position in `[N, H, W, C]` of an axis of `[N, C, H, W]`.
fn moved(axis: usize) -> usize {
    FROM_LAST[axis]
}

fn to_last(rw: &mut Rewriter<'_>, v: Value) -> Result<Value, CompileError> {
    let perm = TO_LAST.to_vec();
    rw.add(Transpose { perm }, &[v])
}

fn from_last(rw: &mut Rewriter<'_>, v: Value) -> Result<Value, CompileError> {
    let perm = FROM_LAST.to_vec();
    rw.add(Transpose { perm }, &[v])
}

fn transpose_node(
    rw: &mut Rewriter<'_>,
    id: NodeId,
    node: &Node,
    op: &Op,
) -> Result<(), CompileError> {
    let mut inputs = rw.values(&node.inputs);
    for v in &mut inputs {
        if rw.new_graph().ty(*v).rank() == 4 {
            *v = to_last(rw, *v)?;
        }
    }
    let op: Op = match op {
        Op::Concat(c) => Concat {
            axis: moved(c.axis),
        }
        .into(),
        Op::Reduce(r) => {
            let mut axes: Vec<usize> = r.axes.iter().map(|axis| moved(*axis)).collect();
            axes.sort_unstable();
            Reduce { axes, ..r.clone() }.into()
        }
        op => op.clone(),
    };
    let mut new = rw.add(op, &inputs)?;
    if node.outputs[0].rank() == 4 {
        new = from_last(rw, new)?;
    }
    rw.bind(Value { node: id, port: 0 }, new);
    Ok(())
}

/// A map with renamed axes that reads channels-last operands directly.
fn transpose_map(
    rw: &mut Rewriter<'_>,
    id: NodeId,
    node: &Node,
    map: &Map,
    last: &[bool],
) -> Result<(), CompileError> {
    let mut inputs = rw.values(&node.inputs);
    let renamed = |axis: &AxisMap| AxisMap {
        from: axis.from.map(moved),
        ..*axis
    };
    let mut maps = Vec::with_capacity(map.inputs.len());
    for ((old, v), index) in node.inputs.iter().zip(&mut inputs).zip(&map.inputs) {
        let axes: Vec<AxisMap> = index.axes.iter().map(renamed).collect();
        let is_last = last[old.node.index()] && axes.len() == 4;
        let axes = match is_last {
            true => {
                *v = to_last(rw, *v)?;
                TO_LAST.iter().map(|&axis| axes[axis]).collect()
            }
            false => axes,
        };
        maps.push(IndexMap { axes });
    }
    let shape: Shape = TO_LAST.iter().map(|&a| map.shape[a].clone()).collect();
    let new = Map {
        shape,
        inputs: maps,
        ..map.clone()
    };
    let first = rw.add(new, &inputs)?;
    for port in 0..node.outputs.len() as u8 {
        let turned = from_last(rw, first.port(port))?;
        rw.bind(Value { node: id, port }, turned);
    }
    Ok(())
}
