//! `Pool`: planes are distributed over threads. Narrow floats are pooled in f32.

use tercet_ir::ops::{Op, Pool};
use tercet_ir::{DType, Graph, Node, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::SimdLevel;
use crate::kernels::conv::ConvWindowAxes;
use crate::kernels::pool::{PoolElem, PoolWindows};
use crate::lower::conv::ConvWindowParams;
use crate::lower::elem::{native_for, parts};
use crate::lower::{CpuKernel, LoweredNode, through_f32};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[through_f32("pool", OpKind::Pool, supports, lower)];

/// Minimum elements of a parallel task.
const TASK: usize = 1 << 13;

/// Every dtype except narrow floats, which are widened first.
const DTYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::I16,
    DType::I8,
    DType::U8,
];

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(DTYPES, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Pool(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    let level = SimdLevel::detect();
    let (op, frame) = (op.clone(), ConvWindowParams::new(&op.window()));
    let run = match graph.ty(node.inputs[0]).dtype {
        DType::F64 => run::<f64>,
        DType::I32 => run::<i32>,
        DType::U32 => run::<u32>,
        DType::I64 => run::<i64>,
        DType::I16 => run::<i16>,
        DType::I8 => run::<i8>,
        DType::U8 => run::<u8>,
        DType::F32 | DType::F16 | DType::BF16 | DType::Bool => run::<f32>,
    };
    LoweredNode {
        work: |layouts| {
            let numel = layouts.iter().map(tercet_ir::layout::Layout::numel);
            4 * numel.max().unwrap_or(0)
        },
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            run(level, &op, &frame, args);
            Ok(())
        })
    }
}

fn run<T: PoolElem>(
    level: SimdLevel,
    op: &Pool,
    frame: &ConvWindowParams,
    args: &mut KernelArgs<'_>,
) {
    let (x, out) = (args.ins[0], &mut args.outs[0]);
    let w = frame.windows(&x.shape()[2..], &op.kernel, &out.shape()[2..]);
    let (count, plane) = (w.count(), w.plane());
    let windows = windows(op, frame, &w);
    if out.layout.numel() == 0 {
        return;
    }
    let x: &[T] = x.dense();
    let planes = TASK.div_ceil(count * w.taps().min(64));
    parts(
        args.parallel,
        out.as_mut(),
        planes * count,
        |i, y: &mut [T]| {
            let x = &x[i * planes * plane..][..y.len() / count * plane];
            T::pool_planes(level, &windows, x, y);
        },
    );
}

fn windows(op: &Pool, frame: &ConvWindowParams, axes: &ConvWindowAxes) -> PoolWindows {
    PoolWindows {
        f: op.f,
        axes: *axes,
        pad_after: frame.pad_after,
        count_include_pad: op.count_include_pad,
    }
}

/// Number of taps of a window along an axis by which the sum is divided for the mean.
pub(super) fn taps_of(
    op: &Pool,
    frame: &ConvWindowParams,
    w: &ConvWindowAxes,
    axis: usize,
    out: usize,
) -> usize {
    windows(op, frame, w).taps(axis, out)
}
