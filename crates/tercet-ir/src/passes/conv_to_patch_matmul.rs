//! Convolutions whose windows lie side by side, and whose result is read as rows: products of patches.
//!
//! Models of pictures begin with windows that neither overlap nor leave anything out, and read what these give as one row for
//! each window: a convolution gives all windows of a channel first, which are turned then. Patches that are turned before are the
//! rows of one product, with many rows and nothing to turn behind it. The sums are the same, in the same order.

use std::collections::{HashMap, HashSet};

use super::rewrite::{Rewriter, Uses, live_nodes, rebuild};
use crate::dim::Dim;
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Cast, Conv, Linear, Op, Reshape, Transpose};
use crate::types::Shape;

/// A convolution in two axes and how its result is read.
struct Patches {
    x: Value,
    weight: Value,
    bias: Option<Value>,
    /// The convolution.
    head: NodeId,
    /// The conversion before it, which comes after patches are turned.
    cast: Option<Cast>,
    /// Batch entries and channels.
    before: [Dim; 2],
    /// Windows along both axes, and their sides.
    windows: [usize; 2],
    sides: [usize; 2],
    outputs: Dim,
    /// What only leads to the rows.
    inner: Vec<NodeId>,
}

/// Makes products of such convolutions.
pub(super) fn patches(graph: &Graph) -> Result<Graph, CompileError> {
    let (live, uses) = (live_nodes(graph), Uses::of(graph));
    let found = graph.nodes().filter(|(id, _)| live[id.index()]);
    let found = found.filter_map(|(id, _)| Some((id, found_at(graph, &uses, id)?)));
    let found: HashMap<NodeId, Patches> = found.collect();
    if found.is_empty() {
        return Ok(graph.clone());
    }
    let inner = found.values().flat_map(|p| p.inner.iter().copied());
    let inner: HashSet<NodeId> = inner.collect();
    rebuild(graph, |rw, id, _| {
        if let Some(patches) = found.get(&id) {
            rw.stand_for(patches.head);
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

/// The convolution whose result this node turns to rows.
fn found_at(graph: &Graph, uses: &Uses, id: NodeId) -> Option<Patches> {
    let only = |v: Value, reader: NodeId| uses.of_value(v).only() == Some(reader);
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
    tiles.then(|| Patches {
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

/// Whether windows of these sides cover the plane once, each channel of the result from all channels.
fn lie_side_by_side(conv: &Conv, sides: [usize; 2]) -> bool {
    let none = |pads: &[usize]| pads.iter().all(|pad| *pad == 0);
    let plain = conv.groups == 1 && conv.activation.is_none();
    // Windows of one element are products of columns, which read pictures as they are.
    let wide = sides[0] * sides[1] > 1;
    let dense = conv.dilation.iter().all(|d| *d == 1);
    plain
        && wide
        && dense
        && conv.stride == sides
        && none(&conv.pad_before)
        && none(&conv.pad_after)
}

impl Patches {
    /// The rows, as a product.
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
