//! For one partition of a node's result: the operand regions that it needs, and the operator that
//! computes it.
//!
//! The functions below cover all operators that support partitions. All other operators need their
//! operands whole.

use std::ops::Range;

use tercet_ir::ops::{Expand, Gather, Map, Op, Slice};
use tercet_ir::{Dim, Graph, Node, Shape};

use super::range::{IndexRegion, full};

/// The operand regions that one partition of a node's results needs.
pub(super) struct OperandRegions {
    /// The operator to add to the rewritten graph, which computes the partition.
    pub(super) op: Op,
    /// For each operand: the region that the operator reads; `None` for the whole operand.
    pub(super) reads: Vec<Option<IndexRegion>>,
}

/// True for elementwise operators: each result element depends on one element per operand, at the
/// same index up to broadcasting.
fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Where(_)
            | Op::Fma(_)
            | Op::Clamp(_)
            | Op::Cast(_)
            | Op::Expand(_)
    )
}

/// Number of leading axes along which a node's results can be partitioned.
pub(super) fn axes(graph: &Graph, node: &Node) -> usize {
    let rank = node.outputs[0].rank();
    let of_operand = |at: usize| node.inputs.get(at).map_or(0, |v| graph.ty(*v).rank());
    let unchanged = |flags: &mut dyn Iterator<Item = bool>| flags.take_while(|same| *same).count();
    match &node.op {
        op if is_elementwise(op) => rank,
        Op::Map(_) | Op::Transpose(_) | Op::Slice(_) | Op::Gather(_) => rank,
        Op::Concat(o) => o.axis,
        Op::Pad(o) => {
            let padded = o.before.iter().zip(&o.after);
            unchanged(&mut padded.map(|(before, after)| *before == 0 && *after == 0))
        }
        Op::Tile(o) => unchanged(&mut o.reps.iter().map(|n| *n == 1)),
        Op::Roll(o) => unchanged(&mut o.shifts.iter().map(|n| *n == 0)),
        Op::GatherElements(o) => o.axis,
        Op::TopK(o) => o.axis,
        Op::Sort(o) => o.axis,
        Op::ArgMax(o) => o.axis,
        Op::ArgMin(o) => o.axis,
        Op::Softmax(o) => o.axis,
        Op::LogSoftmax(o) => o.axis,
        Op::CumSum(o) => o.axis,
        Op::LayerNorm(o) => o.axis,
        Op::Reduce(o) => o.axes.iter().copied().min().unwrap_or(rank),
        Op::MatMul(_) if of_operand(0) < 2 || of_operand(1) < 2 => 0,
        Op::RmsNorm(_)
        | Op::ResidualLayerNorm(_)
        | Op::ResidualRmsNorm(_)
        | Op::MatMul(_)
        | Op::Linear(_)
        | Op::DequantMatMul(_)
        | Op::Dequantize(_)
        | Op::OneHot(_) => rank - 1,
        Op::Fft(_) => rank - 2,
        Op::Trilu(_) => rank.saturating_sub(2),
        Op::Pool(_) => 2,
        Op::GroupNorm(_)
        | Op::LayerNorm2d(_)
        | Op::Conv(_)
        | Op::ConvTranspose(_)
        | Op::Im2Col(_)
        | Op::GroupedMatMul(_)
        | Op::DequantGroupedMatMul(_) => 1,
        Op::Attention(_) if node.inputs.len() == 3 => 1,
        _ => 0,
    }
}

/// The operand regions that a region of the results needs; the results are partitioned only along
/// the first [`axes`].
pub(super) fn demand(graph: &Graph, node: &Node, out: &IndexRegion) -> Option<OperandRegions> {
    let axes = axes(graph, node);
    let cut = out.get(..axes)?;
    let sizes = |at: usize| graph.ty(*node.inputs.get(at)?).shape.as_known();
    // Operand region with the same ranges as the result region on the partitioned leading axes, and
    // the full range on all other axes.
    let leading = |at: usize| {
        let sizes = sizes(at)?;
        let rest = full(sizes.get(axes..)?);
        Some(cut.iter().cloned().chain(rest).collect::<IndexRegion>())
    };
    let mut reads: Vec<Option<IndexRegion>> = vec![None; node.inputs.len()];
    let mut op = node.op.clone();
    match &node.op {
        same if is_elementwise(same) => {
            for (at, read) in reads.iter_mut().enumerate() {
                *read = Some(broadcast(&sizes(at)?, out)?);
            }
            if let Op::Expand(_) = op {
                op = Expand { shape: shape(out) }.into();
            }
        }
        Op::Map(map) => {
            let (part, regions) = map_demand(graph, node, map, out)?;
            op = part.into();
            reads = regions.into_iter().map(Some).collect();
        }
        Op::Transpose(o) => {
            let mut region = full(&sizes(0)?);
            for (axis, from) in o.perm.iter().enumerate() {
                *region.get_mut(*from)? = out[axis].clone();
            }
            reads[0] = Some(region);
        }
        Op::Slice(o) => {
            let (part, region) = slice_demand(o, &sizes(0)?, node, out)?;
            op = part.into();
            reads[0] = Some(region);
        }
        Op::Concat(_) => {
            for (at, read) in reads.iter_mut().enumerate() {
                *read = Some(leading(at)?);
            }
        }
        Op::Gather(o) => {
            let (data, index) = gather_demand(o, &sizes(0)?, sizes(1)?.len(), out);
            reads = vec![Some(data), Some(index)];
        }
        Op::MatMul(_) => {
            let (a, b) = matmul_demand(&sizes(0)?, &sizes(1)?, out)?;
            reads = vec![Some(a), Some(b)];
        }
        _ => {
            // Indices of the operands that are partitioned along the leading axes like the result;
            // the other operands are read whole.
            let along: &[usize] = match &node.op {
                Op::GatherElements(_) | Op::ResidualLayerNorm(_) | Op::ResidualRmsNorm(_) => {
                    &[0, 1]
                }
                Op::GroupedMatMul(_) | Op::DequantGroupedMatMul(_) => &[0, 2],
                Op::Attention(_) => &[0, 1, 2],
                _ => &[0],
            };
            for &at in along {
                reads[at] = Some(leading(at)?);
            }
        }
    }
    Some(OperandRegions { op, reads })
}

fn shape(region: &IndexRegion) -> Shape {
    let sizes: Vec<usize> = region.iter().map(Range::len).collect();
    Shape::known(&sizes)
}

/// The region of a broadcast operand that an elementwise operator reads for a region of the result.
fn broadcast(sizes: &[usize], out: &[Range<usize>]) -> Option<IndexRegion> {
    let missing = out.len().checked_sub(sizes.len())?;
    let axis = |(n, r): (&usize, &Range<usize>)| match n {
        1 => 0..1,
        _ => r.clone(),
    };
    Some(sizes.iter().zip(&out[missing..]).map(axis).collect())
}

/// The regions of the data and of the indices (with `rank` axes) that a gather reads for a region
/// of its result.
fn gather_demand(
    gather: &Gather,
    sizes: &[usize],
    rank: usize,
    out: &IndexRegion,
) -> (IndexRegion, IndexRegion) {
    let mut data = full(sizes);
    for (axis, range) in data.iter_mut().enumerate() {
        match axis.cmp(&gather.axis) {
            std::cmp::Ordering::Less => *range = out[axis].clone(),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => *range = out[axis + rank - 1].clone(),
        }
    }
    (data, out[gather.axis..gather.axis + rank].to_vec())
}

/// Operand regions that a matmul reads for a region of its result: the region's rows of the left
/// operand and the whole right operand, for the region's batches.
fn matmul_demand(
    a: &[usize],
    b: &[usize],
    out: &IndexRegion,
) -> Option<(IndexRegion, IndexRegion)> {
    let row = out.len() - 2;
    let batch = &out[..row];
    let (left, right) = (a.split_at(a.len() - 2), b.split_at(b.len() - 2));
    let mut a = broadcast(left.0, batch)?;
    a.extend([out[row].clone(), 0..left.1[1]]);
    let mut b = broadcast(right.0, batch)?;
    b.extend(full(right.1));
    Some((a, b))
}

/// The `Map` operator that computes a region of a map's results, with the operand regions that it
/// reads.
fn map_demand(
    graph: &Graph,
    node: &Node,
    map: &Map,
    out: &IndexRegion,
) -> Option<(Map, Vec<IndexRegion>)> {
    let mut part = Map {
        shape: shape(out),
        ..map.clone()
    };
    let whole = node.outputs[0].shape.as_known()?;
    let mut regions = Vec::with_capacity(map.inputs.len());
    for (v, index) in node.inputs.iter().zip(&mut part.inputs) {
        let mut region = full(&graph.ty(*v).shape.as_known()?);
        for (range, along) in region.iter_mut().zip(&mut index.axes) {
            let Some(from) = along.from else {
                continue;
            };
            let taken = &out[from];
            if *taken == (0..whole[from]) {
                continue;
            }
            if along.shift != 0 {
                return None;
            }
            let at = |i: usize| usize::try_from(along.start + along.step * i as i64).ok();
            let (a, b) = (at(taken.start)?, at(taken.end - 1)?);
            *range = a.min(b)..a.max(b) + 1;
            along.start = (a - range.start) as i64;
        }
        regions.push(region);
    }
    Some((part, regions))
}

/// The `Slice` operator that computes a region of a slice's result, with the smallest operand
/// region that contains the elements it reads.
fn slice_demand(
    slice: &Slice,
    sizes: &[usize],
    node: &Node,
    out: &IndexRegion,
) -> Option<(Slice, IndexRegion)> {
    let expected = node.outputs[0].shape.as_known()?;
    let taken = slice.axes(sizes, &expected).ok()?;
    let mut part = slice.clone();
    let mut region = IndexRegion::with_capacity(sizes.len());
    for (axis, (taken, out)) in taken.iter().zip(out).enumerate() {
        let (a, b) = (taken.index(out.start), taken.index(out.end - 1));
        region.push(a.min(b)..a.max(b) + 1);
        let forward = taken.step > 0;
        part.starts[axis] = if forward { 0 } else { i64::MAX };
        part.ends[axis] = if forward { i64::MAX } else { i64::MIN };
    }
    Some((part, region))
}

/// True for a concatenation whose axes before the concatenation axis all have size 1, so that each
/// operand is a contiguous range of the result.
pub(super) fn is_contiguous_concat(node: &Node) -> bool {
    let Op::Concat(concat) = &node.op else {
        return false;
    };
    let before = &node.outputs[0].shape[..concat.axis];
    before.iter().all(Dim::is_one)
}
