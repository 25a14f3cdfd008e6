//! `GroupedMatMul` and `DequantGroupedMatMul` in f32: the rows of each expert are gathered and
//! multiplied together.

use tercet_ir::{EvalError, Graph, Node, Op, OpKind, Scheme, Support};

use crate::args::KernelArgs;
use crate::kernels::gemm::{GemmEpilogue, MatView, gemm, gemm_scratch_len};
use crate::kernels::quant::{QuantRowLayout, QuantView, quant_matmul, quant_matmul_scratch_len};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::{REALS, native_for};
use crate::lower::indexed::resolve;
use crate::lower::top_k::keys_of;
use crate::lower::{AcceptedLayout, CpuKernel, LoweredNode, floats_mut, indices, through_f32};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    through_f32("grouped_matmul", OpKind::GroupedMatMul, supports, lower),
    through_f32(
        "quant_grouped_matmul",
        OpKind::DequantGroupedMatMul,
        supports,
        lower_dequant,
    ),
];

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

/// Sizes `(m, k, n)`.
fn sizes(x: &Layout, w: &Layout) -> (usize, usize, usize) {
    (x.shape()[0], x.shape()[1], w.shape()[2])
}

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let level = SimdLevel::detect();
    LoweredNode {
        accepts: vec![
            AcceptedLayout::Dense,
            AcceptedLayout::Matrix,
            AcceptedLayout::Dense,
        ],
        fallible: true,
        scratch: Some(Box::new(move |layouts, _| {
            let (m, k, n) = sizes(&layouts[0], &layouts[1]);
            let packed = gemm_scratch_len(level, KernelThreads::Serial, m, n, k);
            m * size_of::<u64>() + 4 * (m * (k + n) + packed)
        })),
        work: |layouts| {
            let (m, k, n) = sizes(&layouts[0], &layouts[1]);
            m * k * n / 16
        },
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            run(level, args)
        })
    }
}

fn run(level: SimdLevel, args: &mut KernelArgs<'_>) -> Result<(), EvalError> {
    let (x, w) = (args.ins[0], args.ins[1]);
    let threads = KernelThreads::parallel(args.parallel);
    let (_, k, n) = sizes(x.layout, w.layout);
    let steps = w.layout.strides();
    by_matrix(args, w.shape()[0], n, |at, a, sums, scratch| {
        let b = MatView {
            data: w.tail().get(at * steps[0] as usize..).unwrap_or(&[]),
            rows: k,
            cols: n,
            row_stride: steps[1] as usize,
            col_stride: steps[2] as usize,
        };
        gemm(level, threads, a, b, sums, n, &GemmEpilogue::NONE, scratch);
    })
}

/// Lowers `DequantGroupedMatMul` of f32 activations. Weights of experts without rows are never
/// decoded.
pub(crate) fn lower_dequant(_: &Graph, node: &Node) -> LoweredNode {
    let Op::DequantGroupedMatMul(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    let (scheme, level) = (op.scheme, SimdLevel::detect());
    LoweredNode {
        accepts: vec![AcceptedLayout::Dense; 3],
        fallible: true,
        scratch: Some(Box::new(move |layouts, threads| {
            let (m, k, n) = packed_sizes(&layouts[0], &layouts[1]);
            // The kernels for few and for many rows need different scratch memory; this size
            // suffices for both.
            let of = |m| quant_matmul_scratch_len(level, KernelThreads::Serial, m, k);
            m * size_of::<u64>() + 4 * (m * (k + n) + threads * of(1).max(of(m)))
        })),
        work: |layouts| {
            let (m, k, n) = packed_sizes(&layouts[0], &layouts[1]);
            m * k * n / 4
        },
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            run_packed(level, scheme, args)
        })
    }
}

/// Sizes `(m, k, n)` for weights of shape `[E, N, row]`.
fn packed_sizes(x: &Layout, w: &Layout) -> (usize, usize, usize) {
    (x.shape()[0], x.shape()[1], w.shape()[1])
}

fn run_packed(
    level: SimdLevel,
    scheme: Scheme,
    args: &mut KernelArgs<'_>,
) -> Result<(), EvalError> {
    let (x, w) = (args.ins[0], args.ins[1]);
    let threads = KernelThreads::parallel(args.parallel);
    let (_, k, n) = packed_sizes(x.layout, w.layout);
    let len = n * (k / scheme.block_len()) * scheme.block_bytes();
    by_matrix(args, w.shape()[0], n, |at, a, sums, scratch| {
        let w = QuantView {
            scheme,
            bytes: &w.dense_bytes()[at * len..][..len],
            n,
            k,
            arrangement: QuantRowLayout::Rows,
        };
        quant_matmul(level, threads, a, w, sums, n, &GemmEpilogue::NONE, scratch);
    })
}

/// Gathers the rows of each of `experts` matrices, multiplies them, and scatters the results back.
/// For each expert, `product` gets its index, the gathered rows, the memory of their results of `n`
/// columns, and the remaining scratch memory.
fn by_matrix(
    args: &mut KernelArgs<'_>,
    experts: usize,
    n: usize,
    mut product: impl FnMut(usize, MatView<'_>, &mut [f32], &mut [f32]),
) -> Result<(), EvalError> {
    let (x, expert) = (args.ins[0], args.ins[2]);
    let (m, k) = (x.shape()[0], x.shape()[1]);
    let (keys, floats) = args.scratch.split_at_mut(m * size_of::<u64>());
    let keys: &mut [u64] = keys_of(keys);
    for (row, (index, key)) in indices(&expert).zip(keys.iter_mut()).enumerate() {
        *key = (resolve(index, experts)? as u64) << 32 | row as u64;
    }
    if m * n == 0 {
        return Ok(());
    }
    keys.sort_unstable();
    let (rows, floats) = floats_mut(floats).split_at_mut(m * k);
    let (sums, scratch) = floats.split_at_mut(m * n);
    let from: &[f32] = x.dense();
    let y: &mut [f32] = args.outs[0].as_mut();
    for group in keys.chunk_by(|a, b| a >> 32 == b >> 32) {
        let count = group.len();
        for (key, row) in group.iter().zip(rows.chunks_exact_mut(k.max(1))) {
            let at = *key as u32 as usize * k;
            row.copy_from_slice(&from[at..at + k]);
        }
        let a = MatView::row_major(&rows[..count * k], count, k);
        let sums = &mut sums[..count * n];
        product((group[0] >> 32) as usize, a, sums, scratch);
        for (key, row) in group.iter().zip(sums.chunks_exact(n)) {
            let at = *key as u32 as usize * n;
            y[at..at + n].copy_from_slice(row);
        }
    }
    Ok(())
}
