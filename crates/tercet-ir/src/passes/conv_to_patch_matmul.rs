//! Rewrites convolutions with adjacent, non-overlapping windows to patch matmuls (ViT patch
//! embedding).
//!
//! Image models begin with windows that cover the image without overlap, and read the result as one
//! row per window. A convolution computes all windows of a channel first, so its result must be
//! transposed. Transposing the patches before the matmul instead gives one matmul with many rows
//! and no transpose after it. The sums are the same, in the same order.

use std::collections::{HashMap, HashSet};

use tercet_tensor::{Dim, Shape};

use super::rewrite::{Rewriter, ValueUses, live_nodes, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Cast, Conv, Linear, Op, Reshape, Transpose};

/// A two-dimensional convolution and the reshape and transpose of its result.
struct PatchConv {
    x: Value,
    weight: Value,
    bias: Option<Value>,
    /// The convolution node.
    head: NodeId,
    /// The cast of the input `x`; the rewrite casts the transposed patches instead.
    cast: Option<Cast>,
    /// Batch size and number of channels.
    before: [Dim; 2],
    /// The number of windows along both axes, and their sizes.
    windows: [usize; 2],
    sides: [usize; 2],
    outputs: Dim,
    /// The absorbed nodes, which only lead to the rows.
    inner: Vec<NodeId>,
}

/// Rewrites convolutions with adjacent, non-overlapping windows to patch matmuls.
pub(super) fn patches(graph: &Graph) -> Result<Graph, CompileError> {
    let (live, uses) = (live_nodes(graph), ValueUses::new(graph));
    let found = graph.nodes().filter(|(id, _)| live[id.index()]);
    let found = found.filter_map(|(id, _)| Some((id, found_at(graph, &uses, id)?)));
    let found: HashMap<NodeId, PatchConv> = found.collect();
    if found.is_empty() {
        return Ok(graph.clone());
    }
    let inner = found.values().flat_map(|p| p.inner.iter().copied());
    let inner: HashSet<NodeId> = inner.collect();
    rebuild(graph, |rw, id, _| {
        if let Some(patches) = found.get(&id) {
            rw.set_origin(patches.head);
            let rows = patches.product(rw)?;
            rw.bind(Value { node: id, port: 0 }, rows);
            return Ok(());
        }
        match inner.contains(&id) || !live[id.index()] {
            true => Ok(()),
            false => rw.copy(id),
        }
    })
}

/// The convolution whose result this node reshapes to rows.
fn found_at(graph: &Graph, uses: &ValueUses, id: NodeId) -> Option<PatchConv> {
    let only = |v: Value, reader: NodeId| uses.readers_of(v).only() == Some(reader);
    let turn = graph.node(id);
    let (Op::Transpose(t), &[flat]) = (&turn.op, turn.inputs.as_slice()) else {
        return None;
    };
    let reshape = graph.node(flat.node);
    let (Op::Reshape(_), &[y]) = (&reshape.op, reshape.inputs.as_slice()) else {
        return None;
    };
    let node = graph.node(y.node);
    let (Op::Conv(conv), &[x, weight, ref bias @ ..]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let is_read_so = t.perm == [0, 2, 1] && only(flat, id) && only(y, flat.node);
    let (whole, taps) = (&graph.ty(x).shape, &graph.ty(weight).shape);
    if !is_read_so || whole.rank() != 4 {
        return None;
    }
    let known = |shape: &Shape, axis: usize| shape[axis].known();
    let sides = [known(taps, 2)?, known(taps, 3)?];
    let sizes = [known(whole, 2)?, known(whole, 3)?];
    let windows = [sizes[0] / sides[0].max(1), sizes[1] / sides[1].max(1)];
    let [_, outputs, places] = &graph.ty(flat).shape[..] else {
        return None;
    };
    let tiles = lie_side_by_side(conv, sides)
        && (0..2).all(|i| windows[i] > 0 && windows[i] * sides[i] == sizes[i])
        && *outputs == taps[0]
        && *places == Dim::Known(windows[0] * windows[1]);
    let (mut x, mut cast, mut inner) = (x, None, vec![flat.node, y.node]);
    let own = graph.node(x.node);
    if let (Op::Cast(to), &[wide]) = (&own.op, own.inputs.as_slice())
        && only(x, y.node)
    {
        inner.push(x.node);
        (x, cast) = (wide, Some(to.clone()));
    }
    tiles.then(|| PatchConv {
        x,
        weight,
        bias: bias.first().copied(),
        head: y.node,
        cast,
        before: [whole[0].clone(), whole[1].clone()],
        windows,
        sides,
        outputs: outputs.clone(),
        inner,
    })
}

/// Whether windows of these sizes cover the image exactly once, in an ungrouped convolution.
fn lie_side_by_side(conv: &Conv, sides: [usize; 2]) -> bool {
    let none = |pads: &[usize]| pads.iter().all(|pad| *pad == 0);
    let plain = conv.groups == 1 && conv.activation.is_none();
    // Convolutions with 1x1 windows are already matmuls over columns and read images without
    // rearrangement.
    let wide = sides[0] * sides[1] > 1;
    let dense = conv.dilation.iter().all(|d| *d == 1);
    plain
        && wide
        && dense
        && conv.stride == sides
        && none(&conv.pad_before)
        && none(&conv.pad_after)
}

impl PatchConv {
    /// Computes the rows with a matmul.
    fn product(&self, rw: &mut Rewriter<'_>) -> Result<Value, CompileError> {
        let [batch, channels] = &self.before;
        let ([rows, columns], [height, width]) = (self.windows, self.sides);
        let reshaped = |rw: &mut Rewriter<'_>, x, dims: &[Dim]| {
            let shape = dims.to_vec().into();
            rw.add(Reshape { shape }, &[x])
        };
        let known = Dim::Known;
        let cut = [
            batch.clone(),
            channels.clone(),
            known(rows),
            known(height),
            known(columns),
            known(width),
        ];
        let x = rw.value(self.x);
        let mut x = reshaped(rw, x, &cut)?;
        let perm = vec![0, 2, 4, 1, 3, 5];
        x = rw.add(Transpose { perm }, &[x])?;
        if let Some(cast) = &self.cast {
            x = rw.add(cast.clone(), &[x])?;
        }
        let taps = channels.checked_mul(&known(height * width));
        let Some(taps) = taps else {
            unreachable!("invariant: the sizes of weights are known");
        };
        x = reshaped(rw, x, &[batch.clone(), known(rows * columns), taps.clone()])?;
        let weight = rw.leaf(self.weight)?;
        let weight = reshaped(rw, weight, &[self.outputs.clone(), taps])?;
        let weight = rw.add(Transpose { perm: vec![1, 0] }, &[weight])?;
        let mut inputs = vec![x, weight];
        if let Some(bias) = self.bias {
            inputs.push(rw.leaf(bias)?);
        }
        rw.add(Linear { activation: None }, &inputs)
    }
}
