//! Transposed convolutions without overlap: a 1x1 convolution followed by depth-to-space. In
//! channels-last layout, all channels of a kernel tap are contiguous, so depth-to-space copies
//! contiguous runs.

use std::collections::HashMap;

use tercet_tensor::{Dim, Shape};

use super::super::rewrite::{Rewriter, ValueUses};
use super::{from_last, to_last};
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Op, Reshape, Transpose};

/// The permutation from `[N, O, tall, wide, H, W]` to `[N, O, H, tall, W, wide]`.
const SPREAD: [usize; 6] = [0, 1, 4, 2, 5, 3];

/// A 1x1 convolution with its depth-to-space nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DepthToSpaceConv {
    pub(super) conv: NodeId,
    /// The nodes between the convolution and the last node, in order.
    pub(super) between: [NodeId; 2],
    channels: usize,
    taps: [usize; 2],
}

/// All transposed convolutions of a graph that can be computed as a 1x1 convolution and
/// depth-to-space, keyed by their last node.
pub(super) fn spreads(graph: &Graph, uses: &ValueUses) -> HashMap<NodeId, DepthToSpaceConv> {
    let found = graph.nodes().filter_map(|(id, node)| {
        let (Op::Reshape(_), &[turned]) = (&node.op, node.inputs.as_slice()) else {
            return None;
        };
        Some((id, spread(graph, uses, id, turned)?))
    });
    found.collect()
}

fn spread(
    graph: &Graph,
    uses: &ValueUses,
    last: NodeId,
    turned: Value,
) -> Option<DepthToSpaceConv> {
    let read_by = |v: Value, by: NodeId| uses.readers_of(v).only() == Some(by);
    let Op::Transpose(t) = &graph.node(turned.node).op else {
        return None;
    };
    let split = graph.node(turned.node).inputs[0];
    let Op::Reshape(_) = &graph.node(split.node).op else {
        return None;
    };
    let conv = graph.node(split.node).inputs[0];
    let Op::Conv(o) = &graph.node(conv.node).op else {
        return None;
    };
    let alone = read_by(turned, last) && read_by(split, turned.node) && read_by(conv, split.node);
    let weights = graph.ty(graph.node(conv.node).inputs[1]).shape.as_known()?;
    let whole = Shape::clone(&graph.ty(conv).shape);
    let (parts, joined) = (&graph.ty(split).shape, &graph.node(last).outputs[0].shape);
    if !alone || t.perm != SPREAD || o.groups != 1 || weights.len() != 4 || joined.rank() != 4 {
        return None;
    }
    let known = |axis: usize| parts[axis].known();
    let (channels, taps) = (known(1)?, [known(2)?, known(3)?]);
    let same = parts[0] == whole[0] && parts[4] == whole[2] && parts[5] == whole[3];
    let size = |axis: usize, taps: usize| whole[axis].checked_mul(&Dim::Known(taps));
    let grown = joined[0] == whole[0]
        && joined[1] == Dim::Known(channels)
        && size(2, taps[0])? == joined[2]
        && size(3, taps[1])? == joined[3];
    (same && grown && weights[2..] == [1, 1]).then_some(DepthToSpaceConv {
        conv: conv.node,
        between: [split.node, turned.node],
        channels,
        taps,
    })
}

/// Reorders the rows of the weights or of the bias from channel-major to tap-major.
fn by_taps(rw: &mut Rewriter<'_>, s: &DepthToSpaceConv, v: Value) -> Result<Value, CompileError> {
    let whole = rw.new_graph().ty(v).shape.clone();
    let taps = Dim::Known(s.taps.iter().product());
    let rest: Vec<Dim> = whole.iter().skip(1).cloned().collect();
    let split: Shape = [Dim::Known(s.channels), taps]
        .into_iter()
        .chain(rest)
        .collect();
    let perm = [1, 0].into_iter().chain(2..split.rank()).collect();
    let v = rw.add(Reshape { shape: split }, &[v])?;
    let v = rw.add(Transpose { perm }, &[v])?;
    rw.add(Reshape { shape: whole }, &[v])
}

/// Rewrites to a convolution and depth-to-space in channels-last layout; returns both results.
pub(super) fn depth_to_space_conv(
    rw: &mut Rewriter<'_>,
    id: NodeId,
    s: &DepthToSpaceConv,
) -> Result<[Value; 2], CompileError> {
    let conv = rw.old().node(s.conv);
    let mut inputs = rw.values(&conv.inputs);
    rw.set_origin(s.conv);
    for v in &mut inputs[1..] {
        *v = by_taps(rw, s, *v)?;
    }
    let new = rw.add(conv.op.clone(), &inputs)?;
    let last = to_last(rw, new)?;
    let [n, h, w] = [0, 1, 2].map(|axis| rw.new_graph().ty(last).shape[axis].clone());
    let [tall, wide] = s.taps.map(Dim::Known);
    let channels = Dim::Known(s.channels);
    let shape: Shape = [n, h, w, tall, wide, channels].into_iter().collect();
    let split = rw.add(Reshape { shape }, &[last])?;
    rw.set_origin(id);
    let perm = vec![0, 1, 3, 2, 4, 5];
    let apart = rw.add(Transpose { perm }, &[split])?;
    let joined = &rw.old().node(id).outputs[0].shape;
    let shape: Shape = super::TO_LAST.iter().map(|&a| joined[a].clone()).collect();
    let whole = rw.add(Reshape { shape }, &[apart])?;
    Ok([new, from_last(rw, whole)?])
}
