//! `Resize`: interpolates across rows of the operand, then along the row.
//!
//! The source elements of each result element are computed when the graph is compiled, or in each
//! run if a size is a symbol. Linear and cubic modes compute weighted sums of operand rows.

use bytemuck::Pod;
use smallvec::SmallVec;
use tercet_ir::ops::{Op, Resize, ResizeMode, ResizeTaps};
use tercet_ir::{Graph, Node, Support};

use crate::args::{KernelArgs, KernelView};
use crate::lower::elem::{REALS, native_for, parts};
use crate::lower::{LoweredNode, missing};

/// Minimum elements of a parallel task.
const TASK: usize = 1 << 12;

/// Nearest mode copies elements of any dtype.
pub(crate) fn supports_moves(_: &Graph, node: &Node) -> Support {
    match &node.op {
        Op::Resize(o) if o.mode == ResizeMode::Nearest => Support::Native,
        _ => missing("this kernel supports only nearest mode"),
    }
}

/// Linear and cubic modes support floats; narrow floats are widened first.
pub(crate) fn supports_sums(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

/// Operand rows with their weights: up to four along each of up to three axes.
type ResizeWeightedRows = SmallVec<[(usize, f64); 64]>;

/// Interpolation taps of each axis; `None` for an axis whose size does not change.
struct ResizePlan {
    taps: Vec<Option<ResizeTaps>>,
}

impl ResizePlan {
    fn new(op: &Resize, from: &[usize], to: &[usize]) -> ResizePlan {
        let axes = op.axes_in_run(from, to);
        let taps = (0..from.len()).map(|axis| {
            let changed = axes.contains(&axis);
            changed.then(|| op.taps(axis, from[axis], to[axis]))
        });
        ResizePlan {
            taps: taps.collect(),
        }
    }

    /// Operand rows, with weights, from which a row of the result is computed.
    fn rows(&self, from: &[usize], to: &[usize], row: usize) -> ResizeWeightedRows {
        let mut rows = ResizeWeightedRows::new();
        rows.push((0, 1.0));
        let outer = to.len() - 1;
        let (mut rest, mut stride) = (row, 1);
        for axis in (0..outer).rev() {
            let at = rest % to[axis];
            rest /= to[axis];
            match &self.taps[axis] {
                None => rows.iter_mut().for_each(|(row, _)| *row += at * stride),
                Some(taps) => {
                    let before = std::mem::take(&mut rows);
                    for (row, weight) in before {
                        rows.extend((0..taps.count).map(|t| {
                            let row = row + taps.index(at, t) * stride;
                            (row, weight * taps.weight(at, t))
                        }));
                    }
                }
            }
            stride *= from[axis];
        }
        rows.retain(|(_, weight)| *weight != 0.0);
        rows
    }
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Resize(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    let from = graph.ty(node.inputs[0]).shape.as_known();
    let sizes = from.zip(op.sizes.as_known());
    let fixed = sizes.map(|(from, to)| ResizePlan::new(op, &from, &to));
    let op = op.clone();
    let nearest = op.mode == ResizeMode::Nearest;
    let size = node.outputs[0].dtype.size_bytes();
    LoweredNode {
        fallible: fixed.is_none(),
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            let of_run;
            let plan = match &fixed {
                Some(plan) => plan,
                None => {
                    let (from, to) = (args.ins[0].shape(), args.outs[0].shape());
                    op.check_run(from, to)?;
                    of_run = ResizePlan::new(&op, from, to);
                    &of_run
                }
            };
            match (nearest, size) {
                (false, _) => sums(plan, args),
                (true, 1) => moved::<u8>(plan, args),
                (true, 2) => moved::<u16>(plan, args),
                (true, 4) => moved::<u32>(plan, args),
                (true, _) => moved::<u64>(plan, args),
            }
            Ok(())
        })
    }
}

/// Row lengths of the operand and of the result.
fn lengths(x: &KernelView<'_>, to: &[usize]) -> (usize, usize) {
    let last = |shape: &[usize]| shape.last().copied().unwrap_or(1);
    (last(x.shape()), last(to))
}

fn moved<T: Pod + Send + Sync>(plan: &ResizePlan, args: &mut KernelArgs<'_>) {
    let (x, out) = (args.ins[0], &mut args.outs[0]);
    let shape = out.layout.shape();
    if out.layout.numel() == 0 {
        return;
    }
    let from: &[T] = bytemuck::cast_slice(x.dense_bytes());
    let y: &mut [T] = bytemuck::cast_slice_mut(out.bytes);
    if shape.is_empty() {
        return y.copy_from_slice(from);
    }
    let (n, m) = lengths(&x, shape);
    let each = TASK.div_ceil(m);
    parts(args.parallel, y, each * m, |i, y| {
        for (j, y) in y.chunks_exact_mut(m).enumerate() {
            let rows = plan.rows(x.shape(), shape, i * each + j);
            let row = rows.first().map_or(0, |(row, _)| *row);
            let from = &from[row * n..][..n];
            match plan.taps.last() {
                Some(Some(taps)) => {
                    for (y, at) in y.iter_mut().zip(&taps.indices) {
                        *y = from[*at as usize];
                    }
                }
                _ => y.copy_from_slice(from),
            }
        }
    });
}

fn sums(plan: &ResizePlan, args: &mut KernelArgs<'_>) {
    let (x, out) = (args.ins[0], &mut args.outs[0]);
    let shape = out.layout.shape();
    if out.layout.numel() == 0 {
        return;
    }
    let from: &[f32] = x.dense();
    let y: &mut [f32] = bytemuck::cast_slice_mut(out.bytes);
    if shape.is_empty() {
        return y.copy_from_slice(from);
    }
    let (n, m) = lengths(&x, shape);
    let each = TASK.div_ceil(m);
    parts(args.parallel, y, each * m, |i, y| {
        for (j, y) in y.chunks_exact_mut(m).enumerate() {
            y.fill(0.0);
            for &(row, weight) in &plan.rows(x.shape(), shape, i * each + j) {
                let (row, weight) = (&from[row * n..][..n], weight as f32);
                match plan.taps.last() {
                    Some(Some(taps)) => along(taps, row, weight, y),
                    _ => y.iter_mut().zip(row).for_each(|(y, x)| *y += weight * x),
                }
            }
        }
    });
}

/// Interpolates along a row, and adds the result times `weight` to `y`.
fn along(taps: &ResizeTaps, row: &[f32], weight: f32, y: &mut [f32]) {
    let indices = taps.indices.chunks_exact(taps.count);
    let weights = taps.weights.chunks_exact(taps.count);
    for (y, (indices, weights)) in y.iter_mut().zip(indices.zip(weights)) {
        for (at, w) in indices.iter().zip(weights) {
            if *w != 0.0 {
                *y += weight * *w as f32 * row[*at as usize];
            }
        }
    }
}
