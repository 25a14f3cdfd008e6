//! `Resize`: interpolates across rows of the operand, then along the row.
//!
//! The source elements of each result element are computed when the graph is compiled, or in each
//! run if a size is a symbol. Linear and cubic modes compute a weighted sum of operand rows first,
//! then sums along it.
#![allow(unsafe_code, reason = "tasks write disjoint rows of the result")]

use bytemuck::Pod;
use smallvec::SmallVec;
use tercet_ir::ops::{Op, Resize, ResizeMode, ResizeTaps};
use tercet_ir::{Graph, Node, OpKind, Support};

use crate::args::{KernelArgs, KernelView};
use crate::kernels::parallel::{KernelThreads, SharedMut, for_each_with_scratch};
use crate::kernels::{SimdLevel, resize};
use crate::lower::elem::{REALS, native_for, parts};
use crate::lower::{
    CpuKernel, KernelScratchFn, LoweredNode, floats_mut, kernel, missing, through_f32,
};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    kernel("resize", OpKind::Resize, supports_moves, lower),
    through_f32("resize", OpKind::Resize, supports_sums, lower),
];

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
type ResizeWeightedRows = SmallVec<[(usize, f64); 16]>;

/// Interpolation taps of each axis; `None` for an axis whose size does not change.
struct ResizePlan {
    taps: Vec<Option<ResizeTaps>>,
    /// The weights along a row, as floats.
    weights: Vec<f32>,
}

impl ResizePlan {
    fn new(op: &Resize, from: &[usize], to: &[usize]) -> ResizePlan {
        let axes = op.axes_in_run(from, to);
        let taps = (0..from.len()).map(|axis| {
            let changed = axes.contains(&axis);
            changed.then(|| op.taps(axis, from[axis], to[axis]))
        });
        let taps: Vec<Option<ResizeTaps>> = taps.collect();
        let along = taps.last().and_then(Option::as_ref);
        let weights = along.map(|taps| taps.weights.iter().map(|w| *w as f32).collect());
        ResizePlan {
            weights: weights.unwrap_or_default(),
            taps,
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
                    let known = rows.len();
                    for t in 1..taps.count {
                        let (shift, factor) = (taps.index(at, t) * stride, taps.weight(at, t));
                        for i in 0..known {
                            let (row, weight) = rows[i];
                            rows.push((row + shift, weight * factor));
                        }
                    }
                    let (shift, factor) = (taps.index(at, 0) * stride, taps.weight(at, 0));
                    for (row, weight) in &mut rows[..known] {
                        (*row, *weight) = (*row + shift, *weight * factor);
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
    let level = SimdLevel::detect();
    LoweredNode {
        fallible: fixed.is_none(),
        // A row of the operand per thread, for the sum of rows.
        scratch: (!nearest).then(|| -> KernelScratchFn {
            Box::new(|layouts, threads| {
                let n = layouts[0].shape().last().copied().unwrap_or(1);
                threads.max(1) * n * size_of::<f32>()
            })
        }),
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
                (false, _) => sums(level, plan, args),
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
        // The operand's row of the row of the result before.
        let mut before = None;
        for j in 0..y.len() / m {
            let rows = plan.rows(x.shape(), shape, i * each + j);
            let row = rows.first().map_or(0, |(row, _)| *row);
            if before.replace(row) == Some(row) {
                y.copy_within((j - 1) * m..j * m, j * m);
                continue;
            }
            let (y, from) = (&mut y[j * m..][..m], &from[row * n..][..n]);
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

fn sums(level: SimdLevel, plan: &ResizePlan, args: &mut KernelArgs<'_>) {
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
    let (rows, tasks) = (y.len() / m, (y.len() / m).div_ceil(each));
    let y = SharedMut::new(y);
    let threads = KernelThreads::parallel(args.parallel);
    for_each_with_scratch(threads, tasks, floats_mut(args.scratch), n, |task, sum| {
        for row in task * each..rows.min((task + 1) * each) {
            // SAFETY: each row of the result belongs to one task.
            let y = unsafe { y.slice(row * m, m) };
            let rows = plan.rows(x.shape(), shape, row);
            let weighted = rows
                .iter()
                .map(|&(row, weight)| (&from[row * n..][..n], weight as f32));
            let weighted: SmallVec<[(&[f32], f32); 16]> = weighted.collect();
            match plan.taps.last() {
                Some(Some(taps)) => {
                    let row = match weighted.as_slice() {
                        &[(row, 1.0)] => row,
                        rows => {
                            resize::sum_rows(level, rows, sum);
                            &*sum
                        }
                    };
                    resize::along(level, taps.count, &taps.indices, &plan.weights, row, y);
                }
                _ => resize::sum_rows(level, &weighted, y),
            }
        }
    });
}
