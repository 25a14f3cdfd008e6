//! Resolves views of operands: which data movement an elementwise operator can absorb as an index
//! map instead of a copy.

use tercet_tensor::{Dim, Shape};

use super::rewrite::ValueUses;
use crate::graph::{Graph, Value};
use crate::ops::{AxisMap, Op, Slice};

/// The indexed access to an operand of an elementwise region.
#[derive(Clone, Debug)]
pub(super) struct OperandAccess {
    /// The source value.
    pub(super) source: Value,
    /// For each axis of the source, the index as a function of an index of the region's shape.
    pub(super) axes: Vec<AxisMap>,
    /// Whether a view was absorbed, beyond the operator's broadcasting.
    pub(super) absorbed: bool,
}

/// Follows `v`, an operand that broadcasts to `out`, through views to their source.
pub(super) fn read_through(
    graph: &Graph,
    uses: &ValueUses,
    v: Value,
    out: &Shape,
) -> OperandAccess {
    let from = &graph.ty(v).shape;
    let missing = out.rank() - from.rank();
    let mut read = OperandAccess {
        source: v,
        axes: (0..from.rank())
            .map(|i| match from[i].is_one() {
                true => AxisMap::constant(0),
                false => AxisMap::axis(i + missing),
            })
            .collect(),
        absorbed: false,
    };
    while let Some((source, axes)) = through(graph, uses, &read) {
        read = OperandAccess {
            source,
            axes,
            absorbed: true,
        };
    }
    // The index along an axis of size 1 is always 0: as a constant, or as the index of a result
    // axis of size 1. The latter is used if possible, so that an operand of the result's shape has
    // the identity map.
    let own = &graph.ty(read.source).shape;
    if own.rank() == out.rank() {
        for (i, axis) in read.axes.iter_mut().enumerate() {
            if own[i].is_one() && out[i].is_one() {
                *axis = AxisMap::axis(i);
            }
        }
    }
    read
}

/// Resolves one view, if `read.source` is a view.
fn through(graph: &Graph, uses: &ValueUses, read: &OperandAccess) -> Option<(Value, Vec<AxisMap>)> {
    let node = graph.node(read.source.node);
    let &x = node.inputs.first()?;
    let (x_shape, y_shape) = (&graph.ty(x).shape, &node.outputs[0].shape);
    let axes = match &node.op {
        // Reading across rows costs more than reading along them. Absorbing a transpose is only
        // profitable if the transposed tensor is then not needed at all.
        Op::Transpose(t) => {
            uses.readers_of(read.source).only()?;
            let mut axes = read.axes.clone();
            for (&from, axis) in t.perm.iter().zip(&read.axes) {
                axes[from] = *axis;
            }
            axes
        }
        Op::Expand(_) => {
            let missing = y_shape.rank() - x_shape.rank();
            x_shape
                .iter()
                .zip(&read.axes[missing..])
                .map(|(d, axis)| match d.is_one() {
                    true => AxisMap::constant(0),
                    false => *axis,
                })
                .collect()
        }
        // An empty slice has no first index.
        Op::Slice(s) if !y_shape.contains(&Dim::Known(0)) => {
            let axis = |i: usize| -> Option<AxisMap> {
                if is_full_slice(s, i, &x_shape[i]) {
                    return Some(read.axes[i]);
                }
                let (start, step) = (first_index(s, i, x_shape[i].known()?), s.steps[i]);
                let AxisMap { from, .. } = read.axes[i];
                Some(AxisMap {
                    from,
                    start: start.checked_add(step.checked_mul(read.axes[i].start)?)?,
                    step: step.checked_mul(read.axes[i].step)?,
                    shift: read.axes[i].shift,
                })
            };
            (0..x_shape.rank()).map(axis).collect::<Option<Vec<_>>>()?
        }
        // A map reads repeated elements from the operand, if no other node needs the repetitions.
        Op::Resize(r) => {
            uses.readers_of(read.source).only()?;
            let axis = |i: usize| -> Option<AxisMap> {
                let shift = r.index_shift(i, &x_shape[i], &y_shape[i])?;
                match read.axes[i] {
                    own if shift == 0 => Some(own),
                    AxisMap {
                        from: None, start, ..
                    } => Some(AxisMap::constant(start >> shift)),
                    AxisMap {
                        start: 0,
                        step: 1,
                        shift: before,
                        from,
                    } => Some(AxisMap {
                        from,
                        start: 0,
                        step: 1,
                        shift: before.checked_add(shift)?,
                    }),
                    _ => None,
                }
            };
            (0..x_shape.rank()).map(axis).collect::<Option<Vec<_>>>()?
        }
        Op::Reshape(_) => {
            let kept =
                |s: &Shape| -> Vec<Dim> { s.iter().filter(|d| !d.is_one()).cloned().collect() };
            if kept(x_shape) != kept(y_shape) {
                return None;
            }
            let mut kept_axes = (y_shape.iter().zip(&read.axes))
                .filter(|(d, _)| !d.is_one())
                .map(|(_, axis)| *axis);
            let axis = |d: &Dim| match d.is_one() {
                true => Some(AxisMap::constant(0)),
                false => kept_axes.next(),
            };
            x_shape.iter().map(axis).collect::<Option<Vec<_>>>()?
        }
        _ => return None,
    };
    Some((x, axes))
}

/// True for parameters, constants, and values that only move or convert their data.
pub(super) fn is_weight(graph: &Graph, mut v: Value) -> bool {
    loop {
        let node = graph.node(v.node);
        v = match (&node.op, node.inputs.as_slice()) {
            (Op::Param(_) | Op::Const(_), _) => return true,
            (
                Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Expand(_) | Op::Cast(_),
                &[x],
            ) => x,
            (_, _) => return false,
        };
    }
}

/// True if a slice takes a whole axis in order.
pub(super) fn is_full_slice(slice: &Slice, axis: usize, n: &Dim) -> bool {
    let past = |end: i64| n.known().is_some_and(|n| end >= n as i64);
    let end = slice.ends[axis];
    slice.starts[axis] == 0 && slice.steps[axis] == 1 && (end == i64::MAX || past(end))
}

/// The first index that a slice takes of an axis of size `n`, if any. Negative starts count from
/// the end; others are clamped.
pub(super) fn first_index(slice: &Slice, axis: usize, n: usize) -> i64 {
    let n = n as i64;
    let start = slice.starts[axis];
    let start = if start < 0 {
        start.saturating_add(n)
    } else {
        start
    };
    match slice.steps[axis] > 0 {
        true => start.clamp(0, n),
        false => start.clamp(-1, n - 1),
    }
}

/// Start, end and step of a slice with `count` elements from `start` on.
pub(crate) fn known_range(start: i64, step: i64, count: usize) -> (i64, i64, i64) {
    match count {
        0 => return (0, 0, 1),
        1 => return (start, start + 1, 1),
        _ => {}
    }
    let last = start + step * (count as i64 - 1);
    let end = match step > 0 {
        true => last + 1,
        // An end of -1 would count from the end of the axis.
        false if last == 0 => i64::MIN,
        false => last - 1,
    };
    (start, end, step)
}
