//! Channels last: elementwise work between convolutions is moved behind transposes, so that an executor whose
//! convolutions write `[N, H, W, C]` in memory need not turn values around in between.
//!
//! Values keep their types `[N, C, H, W]`. A value that lies with its channels last is a transposed view, and what works on
//! such values works on the view of them that is dense: `f(x)` becomes `from_last(f(to_last(x)))`, where both
//! transposes are views that cancel in their layouts. No result changes by a bit.

use std::collections::HashSet;

use super::rewrite::{Rewriter, rebuild};
use crate::dim::Dim;
use crate::error::CompileError;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::ops::{AxisMap, Concat, IndexMap, Map, Op, Reduce, Transpose};
use crate::types::Shape;

/// `[N, C, H, W]` as `[N, H, W, C]`.
pub const TO_LAST: [usize; 4] = [0, 2, 3, 1];
/// `[N, H, W, C]` as `[N, C, H, W]`.
pub const FROM_LAST: [usize; 4] = [0, 3, 1, 2];

/// A graph whose convolutions can pass values on with their channels last.
#[derive(Debug)]
pub struct ChannelsLast {
    /// The graph.
    pub graph: Graph,
    /// The convolutions and pools whose results are best written so.
    pub nodes: HashSet<NodeId>,
}

/// Moves what stands between the convolutions and pools that `takes` says behind transposes; nothing where no two convolutions
/// gain by it.
///
/// # Errors
/// [`CompileError::Rewrite`] when a rewrite is refused, which is a bug.
pub fn channels_last(
    graph: &Graph,
    takes: &dyn Fn(&Graph, &Node) -> bool,
) -> Result<Option<ChannelsLast>, CompileError> {
    let chosen = chosen(graph, takes);
    if chosen.is_empty() {
        return Ok(None);
    }
    let last = carried(graph, &|id| chosen.contains(&id));
    let mut nodes = HashSet::new();
    let graph = rebuild(graph, |rw, id, node| {
        if !last[id.index()] {
            return rw.copy(id);
        }
        match &node.op {
            Op::Conv(_) | Op::Pool(_) => {
                rw.copy(id)?;
                nodes.insert(rw.value(Value { node: id, port: 0 }).node);
                Ok(())
            }
            Op::Slice(_) => rw.copy(id),
            Op::Map(map) => turned_map(rw, id, node, map, &last),
            op => turned(rw, id, node, op),
        }
    })?;
    Ok(Some(ChannelsLast { graph, nodes }))
}

/// The convolutions that read from another or are read by another, with what carries the layout between them, and the pools
/// among that.
fn chosen(graph: &Graph, takes: &dyn Fn(&Graph, &Node) -> bool) -> HashSet<NodeId> {
    let able: Vec<bool> = graph.nodes().map(|(_, n)| takes(graph, n)).collect();
    let is_conv = |id: NodeId| matches!(graph.node(id).op, Op::Conv(_)) && able[id.index()];
    let last = carried(graph, &|id| able[id.index()]);
    // Whether a convolution reads a value, through what carries the layout.
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

/// Which nodes give values with channels last, if convolutions and pools do as `makes` says.
fn carried(graph: &Graph, makes: &dyn Fn(NodeId) -> bool) -> Vec<bool> {
    let mut last = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        let is_last = |v: &Value| last[v.node.index()] && graph.ty(*v).rank() == 4;
        let carries = match &node.op {
            Op::Conv(_) => makes(id),
            Op::Pool(_) => makes(id) && is_last(&node.inputs[0]),
            op => node.inputs.iter().any(is_last) && carries(graph, node, op, &is_last),
        };
        last[id.index()] = carries;
    }
    last
}

/// Whether a node that reads values with channels last can work on them as they lie.
fn carries(graph: &Graph, node: &Node, op: &Op, is_last: &dyn Fn(&Value) -> bool) -> bool {
    let of_rank_4 = node.outputs.iter().all(|ty| ty.rank() == 4);
    let shape = |v: &Value| &graph.ty(*v).shape;
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Clamp(_) | Op::Where(_) | Op::Fma(_) | Op::Cast(_) => {
            let whole = |v: &Value| is_last(v) && *shape(v) == node.outputs[0].shape;
            let fits = |v: &Value| shape(v).rank() == 4 || is_one(shape(v));
            of_rank_4 && node.inputs.iter().any(whole) && node.inputs.iter().all(fits)
        }
        // Operands are read through index maps, whatever their rank.
        Op::Map(map) => of_rank_4 && map.shape.rank() == 4,
        Op::Concat(_) | Op::Slice(_) => of_rank_4,
        Op::Reduce(r) => {
            let left = TO_LAST.iter().filter(|axis| !r.axes.contains(axis));
            r.keep_dim || left.is_sorted()
        }
        _ => false,
    }
}

/// Whether a shape is one element of any rank.
fn is_one(shape: &Shape) -> bool {
    shape.iter().all(Dim::is_one)
}

/// Where an axis of `[N, C, H, W]` is in `[N, H, W, C]`.
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

fn turned(rw: &mut Rewriter<'_>, id: NodeId, node: &Node, op: &Op) -> Result<(), CompileError> {
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

/// A map whose axes are renamed; operands with channels last are read as they lie.
fn turned_map(
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
