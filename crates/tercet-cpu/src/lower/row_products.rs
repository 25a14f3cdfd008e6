//! `MatMul` of F64 and of integers other than I32, in their own type, and of I32 with few rows.
#![allow(unsafe_code, reason = "tasks write disjoint columns of the result")]

use tercet_ir::layout::Layout;
use tercet_ir::{DType, Element, Graph, Node, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::parallel::{SharedMut, for_each};
use crate::kernels::row_products::{COLUMNS, ROWS, RowProductElem};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::native_for;
use crate::lower::int_matmul::{joined, places};
use crate::lower::{CpuKernel, LoweredNode, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("row_products", OpKind::MatMul, supports, lower)];

/// Multiply-adds of a task.
const TASK: usize = 1 << 16;

fn supports(graph: &Graph, node: &Node) -> Support {
    let dtypes = [DType::F64, DType::I64, DType::U32, DType::I8, DType::U8];
    native_for(&dtypes, graph.ty(node.inputs[0]).dtype)
}

fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let run = match graph.ty(node.inputs[0]).dtype {
        DType::I64 => run::<i64>,
        DType::U32 => run::<u32>,
        DType::I8 => run::<i8>,
        DType::U8 => run::<u8>,
        DType::F64
        | DType::F32
        | DType::F16
        | DType::BF16
        | DType::I32
        | DType::I16
        | DType::Bool => run::<f64>,
    };
    let level = SimdLevel::detect();
    LoweredNode {
        work: |layouts| {
            let k = layouts[0].shape().last().copied().unwrap_or(1);
            layouts.last().map_or(0, Layout::numel) * k / 4
        },
        ..LoweredNode::new(2, move |args: &mut KernelArgs<'_>| {
            run(level, args);
            Ok(())
        })
    }
}

fn run<T: RowProductElem + Element>(level: SimdLevel, args: &mut KernelArgs<'_>) {
    let (a, b) = (args.ins[0], args.ins[1]);
    let threads = KernelThreads::parallel(args.parallel);
    let y = args.outs[0].as_mut::<T>();
    products(
        level,
        threads,
        [a.shape(), b.shape()],
        a.dense(),
        b.dense(),
        y,
    );
}

/// Computes the products of matrices of these shapes, whose leading axes broadcast. Blocks of rows
/// and columns are distributed over threads.
pub(super) fn products<T: RowProductElem>(
    level: SimdLevel,
    threads: KernelThreads,
    [a_shape, b_shape]: [&[usize]; 2],
    a: &[T],
    b: &[T],
    y: &mut [T],
) {
    let shape = joined(a_shape, b_shape);
    let (m, k, n) = (shape.m, shape.k, shape.n);
    if k == 0 || y.is_empty() {
        return y.fill(T::ZERO);
    }
    let (blocks, matrices) = (n.div_ceil(COLUMNS), y.len() / (m * n));
    // The rows of a block follow each other, so its columns of B stay in the cache.
    let count = matrices * blocks * m;
    let together = (TASK / (k * COLUMNS)).max(1);
    let out = SharedMut::new(y);
    for_each(threads, count.div_ceil(together), |task| {
        let mut at = task * together;
        let end = count.min(at + together);
        while at < end {
            let (matrix, row) = (at / (blocks * m), at % m);
            let first = at / m % blocks * COLUMNS;
            let [at_a, at_b] = places(a_shape, b_shape, matrix);
            let (a, b) = (&a[(at_a * m + row) * k..], &b[at_b * k * n..][..k * n]);
            let width = COLUMNS.min(n - first);
            // SAFETY: each task writes its own blocks of rows, all within the result.
            let part = |row: usize| unsafe { out.slice((matrix * m + row) * n + first, width) };
            if width == COLUMNS && row + ROWS <= m && at + ROWS <= end {
                let y = std::array::from_fn(|i| part(row + i));
                T::row_block(level, n, first, &a[..ROWS * k], b, y);
                at += ROWS;
            } else {
                T::row_product(level, n, first, &a[..k], b, part(row));
                at += 1;
            }
        }
    });
}
