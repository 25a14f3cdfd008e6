//! `ArgMax` and `ArgMin`: vector kernels for rows and columns of F32, integer sort keys for all other cases.

use tercet_ir::{DType, Graph, Node, Op, OpKind};

use crate::args::KernelArgs;
use crate::kernels::arg_lines::arg_lines;
use crate::kernels::{SimdLevel, rows};
use crate::lower::elem::{AxisBlocks, for_element, parts};
use crate::lower::rank::SortKey;
use crate::lower::reference_eval::evaluate;
use crate::lower::{CpuKernel, LoweredNode, always, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    kernel("arg_max", OpKind::ArgMax, always, lower),
    kernel("arg_min", OpKind::ArgMin, always, lower),
];

/// Adjacent lines that are searched together.
const TILE: usize = 128;
/// Minimum elements that a parallel task reads.
const TASK: usize = 1 << 15;
/// Length of a row up to which its elements are compared one by one.
const SHORT: usize = 16;
/// Columns of a task of a large block.
const COLUMNS: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct ArgExtremeSearch {
    axis: usize,
    largest: bool,
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let search = match &node.op {
        Op::ArgMax(op) => ArgExtremeSearch {
            axis: op.axis,
            largest: true,
        },
        Op::ArgMin(op) => ArgExtremeSearch {
            axis: op.axis,
            largest: false,
        },
        _ => {
            unreachable!("invariant: the kernel table maps only `ArgMax` and `ArgMin` to this row")
        }
    };
    let op = node.op.clone();
    let dtype = graph.ty(node.inputs[0]).dtype;
    let lines = for_element!(dtype, lines);
    let level = SimdLevel::detect();
    LoweredNode {
        fallible: true,
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            let view = AxisBlocks::new(args.ins[0].shape(), search.axis);
            if view.outer * view.inner == 0 {
                return Ok(());
            }
            match (view.len, view.inner, dtype) {
                (0, _, _) => return evaluate(&op, args),
                (_, 1, DType::F32) => f32_rows(level, search.largest, view.len, args),
                (_, _, DType::F32) => f32_lines(level, search.largest, view, args),
                (_, _, _) => lines(search.largest, view, args),
            }
            Ok(())
        })
    }
}

fn f32_rows(level: SimdLevel, largest: bool, len: usize, args: &mut KernelArgs<'_>) {
    let x: &[f32] = args.ins[0].dense();
    let task = TASK.div_ceil(len);
    parts(
        args.parallel,
        args.outs[0].as_mut::<i32>(),
        task,
        |i, out| {
            if len <= SHORT {
                let rows = x[i * task * len..].chunks_exact(len);
                return out
                    .iter_mut()
                    .zip(rows)
                    .for_each(|(y, x)| *y = first_extreme(x, largest));
            }
            for (y, x) in out.iter_mut().zip(x[i * task * len..].chunks_exact(len)) {
                *y = match largest {
                    true => rows::argmax(level, x),
                    false => rows::argmin(level, x),
                } as i32;
            }
        },
    );
}

/// The place of the first element with the lowest sort key.
fn first_extreme(x: &[f32], largest: bool) -> i32 {
    let (mut best, mut place) = (u64::MAX, 0);
    for (i, x) in (0..).zip(x) {
        let rank = x.rank(largest);
        if rank < best {
            (best, place) = (rank, i);
        }
    }
    place
}

/// Lines along another axis than the last one. The columns of large blocks are distributed over threads.
fn f32_lines(level: SimdLevel, largest: bool, view: AxisBlocks, args: &mut KernelArgs<'_>) {
    let AxisBlocks {
        outer: _,
        len,
        inner,
    } = view;
    let x: &[f32] = args.ins[0].dense();
    let out = args.outs[0].as_mut::<i32>();
    if inner >= 2 * COLUMNS {
        for (x, out) in x.chunks_exact(inner * len).zip(out.chunks_exact_mut(inner)) {
            parts(args.parallel, out, COLUMNS, |i, out| {
                arg_lines(level, largest, inner, i * COLUMNS, x, out);
            });
        }
        return;
    }
    let task = TASK.div_ceil(len * inner);
    parts(args.parallel, out, task * inner, |i, out| {
        let blocks = x[i * task * inner * len..].chunks_exact(inner * len);
        for (x, out) in blocks.zip(out.chunks_exact_mut(inner)) {
            arg_lines(level, largest, inner, 0, x, out);
        }
    });
}

fn lines<T: SortKey>(largest: bool, view: AxisBlocks, args: &mut KernelArgs<'_>) {
    let AxisBlocks {
        outer: _,
        len,
        inner,
    } = view;
    let x: &[T] = args.ins[0].dense();
    let task = TASK.div_ceil(len * inner);
    parts(
        args.parallel,
        args.outs[0].as_mut::<i32>(),
        task * inner,
        |i, out| {
            let blocks = x[i * task * inner * len..].chunks_exact(inner * len);
            for (x, out) in blocks.zip(out.chunks_exact_mut(inner)) {
                match inner {
                    1 => block::<T, 1>(largest, inner, x, out),
                    _ => block::<T, TILE>(largest, inner, x, out),
                }
            }
        },
    );
}

/// Searches the lines of one outer index. The elements of a line have stride `inner`; `N` lines are
/// searched together.
fn block<T: SortKey, const N: usize>(largest: bool, inner: usize, x: &[T], out: &mut [i32]) {
    for (tile, out) in out.chunks_mut(N).enumerate() {
        let mut best = [u64::MAX; N];
        out.fill(0);
        for (i, row) in x.chunks_exact(inner).enumerate() {
            let row = &row[tile * N..][..out.len()];
            for ((y, best), x) in out.iter_mut().zip(&mut best).zip(row) {
                let rank = x.rank(largest);
                // On ties the first index wins.
                if rank < *best {
                    (*best, *y) = (rank, i as i32);
                }
            }
        }
    }
}
