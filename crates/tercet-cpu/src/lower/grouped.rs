//! `GroupedMatMul` of f32: the rows of each matrix are gathered and multiplied together.

use tercet_ir::{EvalError, Graph, Node, Support};

use crate::args::Args;
use crate::kernels::gemm::{Epilogue, MatView, gemm, gemm_scratch_len};
use crate::kernels::{SimdLevel, Threads};
use crate::lower::elem::{REALS, native_for};
use crate::lower::indexed::resolve;
use crate::lower::matmul::threads;
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
    let [x, w, expert] = [0, 1, 2].map(|i| args.ins[i]);
    let (m, k, n) = sizes(x.layout, w.layout);
    let experts = w.shape()[0];
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
    let steps = w.layout.strides();
    let y: &mut [f32] = args.outs[0].as_mut();
    for group in keys.chunk_by(|a, b| a >> 32 == b >> 32) {
        let count = group.len();
        for (key, row) in group.iter().zip(rows.chunks_exact_mut(k.max(1))) {
            let at = *key as u32 as usize * k;
            row.copy_from_slice(&from[at..at + k]);
        }
        let matrix = (group[0] >> 32) as usize * steps[0] as usize;
        let b = MatView {
            data: w.tail().get(matrix..).unwrap_or(&[]),
            rows: k,
            cols: n,
            row_stride: steps[1] as usize,
            col_stride: steps[2] as usize,
        };
        let a = MatView::row_major(&rows[..count * k], count, k);
        let sums = &mut sums[..count * n];
        let threads = threads(args.parallel);
        gemm(level, threads, a, b, sums, n, &Epilogue::NONE, scratch);
        for (key, row) in group.iter().zip(sums.chunks_exact(n)) {
            let at = *key as u32 as usize * n;
            y[at..at + n].copy_from_slice(row);
        }
    }
    Ok(())
}
