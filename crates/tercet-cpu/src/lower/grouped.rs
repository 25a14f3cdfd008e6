//! `GroupedMatMul` and `DequantGroupedMatMul` of f32: the rows of each matrix are gathered and multiplied
//! together.

use tercet_ir::{EvalError, Graph, Node, Op, Scheme, Support};

use crate::args::Args;
use crate::kernels::gemm::{Epilogue, MatView, gemm, gemm_scratch_len};
use crate::kernels::quant::{Arrangement, QuantView, quant_matmul, quant_matmul_scratch_len};
use crate::kernels::{SimdLevel, Threads};
use crate::lower::elem::{REALS, native_for};
use crate::lower::indexed::resolve;
use crate::lower::top_k::keys_of;
use crate::lower::{Accept, Lowered, floats_mut, indices};
use tercet_ir::layout::Layout;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

/// Rows, depth and columns.
fn sizes(x: &Layout, w: &Layout) -> (usize, usize, usize) {
    (x.shape()[0], x.shape()[1], w.shape()[2])
}

pub(crate) fn lower(_: &Graph, node: &Node) -> Lowered {
    let level = SimdLevel::detect();
    Lowered {
        accepts: vec![Accept::Dense, Accept::Matrix, Accept::Dense],
        fallible: true,
        scratch: Some(Box::new(move |layouts, _| {
            let (m, k, n) = sizes(&layouts[0], &layouts[1]);
            let packed = gemm_scratch_len(level, Threads::Serial, m, n, k);
            m * size_of::<u64>() + 4 * (m * (k + n) + packed)
        })),
        work: |layouts| {
            let (m, k, n) = sizes(&layouts[0], &layouts[1]);
            m * k * n / 16
        },
        ..Lowered::new(node.inputs.len(), move |args: &mut Args<'_>| {
            run(level, args)
        })
    }
}

fn run(level: SimdLevel, args: &mut Args<'_>) -> Result<(), EvalError> {
    let (x, w) = (args.ins[0], args.ins[1]);
    let threads = Threads::parallel(args.parallel);
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
        gemm(level, threads, a, b, sums, n, &Epilogue::NONE, scratch);
    })
}

/// `DequantGroupedMatMul` of f32 activations: the weights of matrices that no row names stay packed.
pub(crate) fn lower_dequant(_: &Graph, node: &Node) -> Lowered {
    let Op::DequantGroupedMatMul(op) = &node.op else {
        unreachable!("invariant: the table gives this kernel one operator")
    };
    let (scheme, level) = (op.scheme, SimdLevel::detect());
    Lowered {
        accepts: vec![Accept::Dense; 3],
        fallible: true,
        scratch: Some(Box::new(move |layouts, threads| {
            let (m, k, n) = packed_sizes(&layouts[0], &layouts[1]);
            // Few and many rows take different paths: room for either.
            let of = |m| quant_matmul_scratch_len(level, Threads::Serial, m, k);
            m * size_of::<u64>() + 4 * (m * (k + n) + threads * of(1).max(of(m)))
        })),
        work: |layouts| {
            let (m, k, n) = packed_sizes(&layouts[0], &layouts[1]);
            m * k * n / 4
        },
        ..Lowered::new(node.inputs.len(), move |args: &mut Args<'_>| {
            run_packed(level, scheme, args)
        })
    }
}

/// Rows, depth and columns where weights are `[E, N, row]`.
fn packed_sizes(x: &Layout, w: &Layout) -> (usize, usize, usize) {
    (x.shape()[0], x.shape()[1], w.shape()[1])
}

fn run_packed(level: SimdLevel, scheme: Scheme, args: &mut Args<'_>) -> Result<(), EvalError> {
    let (x, w) = (args.ins[0], args.ins[1]);
    let threads = Threads::parallel(args.parallel);
    let (_, k, n) = packed_sizes(x.layout, w.layout);
    let len = n * (k / scheme.block_len()) * scheme.block_bytes();
    by_matrix(args, w.shape()[0], n, |at, a, sums, scratch| {
        let w = QuantView {
            scheme,
            bytes: &w.dense_bytes()[at * len..][..len],
            n,
            k,
            arrangement: Arrangement::Rows,
        };
        quant_matmul(level, threads, a, w, sums, n, &Epilogue::NONE, scratch);
    })
}

/// Gathers the rows of each of `experts` matrices, multiplies them with it by `product` (its number, the
/// rows, their `n` results each, what is left of the scratch memory), and puts the results in their places.
fn by_matrix(
    args: &mut Args<'_>,
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
