//! `LogSoftmax` of F32, F16 and BF16: three passes over a line, in blocks that stay in cache.
//!
//! Along the last axis a line is read block by block. Along another axis a tile of adjacent lines
//! is read row by row. The order of summation depends only on the shape.

use tercet_ir::{DType, Graph, Node, Op, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::columns::{ColumnReduction, fold_all, fold_row};
use crate::kernels::{SimdLevel, rows, vmath};
use crate::lower::elem::{AxisBlocks, BUFFER, ComputeF32, REALS, for_real, native_for, parts};
use crate::lower::{CpuKernel, LoweredNode, kernel};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] =
    &[kernel("log_softmax", OpKind::LogSoftmax, supports, lower)];

/// Adjacent lines that are processed together.
const TILE: usize = 256;
/// Minimum elements of a parallel task.
const TASK: usize = 1 << 14;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::LogSoftmax(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `LogSoftmax` to this row")
    };
    let run = for_real!(graph.ty(node.inputs[0]).dtype, run);
    let axis = op.axis;
    let level = SimdLevel::detect();
    LoweredNode {
        work: |layouts| layouts.iter().map(Layout::numel).max().unwrap_or(0) * 8,
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            let view = AxisBlocks::new(args.ins[0].shape(), axis);
            run(level, view, args);
            Ok(())
        })
    }
}

fn run<T: ComputeF32>(level: SimdLevel, view: AxisBlocks, args: &mut KernelArgs<'_>) {
    let AxisBlocks { outer, len, inner } = view;
    let block = len * inner;
    if outer * block == 0 {
        return;
    }
    let x: &[T] = args.ins[0].dense();
    let out = args.outs[0].as_mut::<T>();
    let blocks = TASK.div_ceil(block);
    parts(args.parallel, out, blocks * block, |i, out| {
        let x = &x[i * blocks * block..][..out.len()];
        if T::DTYPE == DType::F32 && inner == 1 && len <= BUFFER {
            let (x, out) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
            return rows::log_softmax(level, x, len, out);
        }
        let mut buffers = [[0.0; BUFFER]; 3];
        for (x, out) in x.chunks_exact(block).zip(out.chunks_exact_mut(block)) {
            if inner == 1 {
                line(level, x, out, &mut buffers);
            } else {
                columns(level, inner, x, out);
            }
        }
    });
}

/// Processes a line along the last axis. The contents of the buffers are arbitrary.
fn line<T: ComputeF32>(
    level: SimdLevel,
    x: &[T],
    out: &mut [T],
    [wide, y, e]: &mut [[f32; BUFFER]; 3],
) {
    let mut max = f32::NEG_INFINITY;
    for x in x.chunks(BUFFER) {
        let most = fold_all(level, ColumnReduction::Max, T::widen(level, x, wide));
        max = if most.is_nan() || most > max {
            most
        } else {
            max
        };
        if max.is_nan() {
            break;
        }
    }
    if max == f32::NEG_INFINITY {
        y.fill(max);
        out.chunks_mut(BUFFER)
            .for_each(|out| T::narrow(level, &y[..out.len()], out));
        return;
    }
    let mut sum = 0f64;
    for x in x.chunks(BUFFER) {
        let x = T::widen(level, x, wide);
        sum += f64::from(rows::exp_sum(level, x, max, &mut e[..x.len()]));
    }
    let log = sum.ln() as f32;
    for (x, out) in x.chunks(BUFFER).zip(out.chunks_mut(BUFFER)) {
        let x = T::widen(level, x, wide);
        let y = &mut y[..x.len()];
        y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - max) - log);
        T::narrow(level, y, out);
    }
}

/// Processes the lines of one outer index; their elements have stride `inner`.
fn columns<T: ComputeF32>(level: SimdLevel, inner: usize, x: &[T], out: &mut [T]) {
    let len = x.len() / inner;
    let (mut wide, mut y, mut e) = ([0.0; TILE], [0.0; TILE], [0.0; TILE]);
    for first in (0..inner).step_by(TILE) {
        let n = TILE.min(inner - first);
        let (y, e) = (&mut y[..n], &mut e[..n]);
        let row = |i: usize| &x[i * inner + first..][..n];
        let (mut max, mut sum) = ([f32::NEG_INFINITY; TILE], [0f64; TILE]);
        for i in 0..len {
            fold_row(
                level,
                ColumnReduction::Max,
                &mut max[..n],
                T::widen(level, row(i), &mut wide),
            );
        }
        for i in 0..len {
            let x = T::widen(level, row(i), &mut wide);
            y.iter_mut()
                .zip(x)
                .zip(&max)
                .for_each(|((y, x), m)| *y = x - m);
            vmath::exp(level, y, e);
            sum.iter_mut()
                .zip(&*e)
                .for_each(|(s, e)| *s += f64::from(*e));
        }
        for i in 0..len {
            let x = T::widen(level, row(i), &mut wide);
            let known = max.iter().zip(&sum);
            for ((y, x), (max, sum)) in y.iter_mut().zip(x).zip(known) {
                *y = match *max == f32::NEG_INFINITY {
                    true => *max,
                    false => (x - max) - sum.ln() as f32,
                };
            }
            T::narrow(level, y, &mut out[i * inner + first..][..n]);
        }
    }
}
