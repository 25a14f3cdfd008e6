//! `Sample` of F32, F16 and BF16, in scratch memory. The kernel sums in the same order as the
//! reference and draws the same tokens.

use tercet_ir::ops::Sample;
use tercet_ir::{DType, EvalError, Graph, Node, Op, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::parallel::{DisjointChunks, for_each_part};
use crate::kernels::rows::max_ignoring_nan;
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::{BUFFER, ComputeF32, REALS, for_real, native_for};
use crate::lower::rank::SortKey;
use crate::lower::reference_eval::evaluate;
use crate::lower::top_k::{keys_of, lowest};
use crate::lower::{CpuKernel, LoweredNode, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("sample", OpKind::Sample, supports, lower)];

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Sample(sample) = &node.op else {
        unreachable!("invariant: the kernel table maps only `Sample` to this row")
    };
    let (op, sample) = (node.op.clone(), sample.clone());
    let run = for_real!(graph.ty(node.inputs[0]).dtype, run);
    let level = SimdLevel::detect();
    LoweredNode {
        fallible: true,
        // Scratch memory per row: a sort key and a cumulative sum for each logit.
        scratch: Some(Box::new(|layouts, threads| {
            layouts[0]
                .shape()
                .last()
                .map_or(0, |n| n * 2 * size_of::<u64>() * threads.max(1))
        })),
        work: |layouts| layouts[0].numel() * 8,
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            let vocab = args.ins[0].shape().last().copied().unwrap_or(0);
            match (args.outs[0].layout.numel(), vocab) {
                (0, _) => Ok(()),
                (_, 0) => evaluate(&op, args),
                (_, _) => run(level, &sample, vocab, args),
            }
        })
    }
}

fn run<T: ComputeF32 + SortKey>(
    level: SimdLevel,
    sample: &Sample,
    vocab: usize,
    args: &mut KernelArgs<'_>,
) -> Result<(), EvalError> {
    let stream = args.ctx.random.stream(sample.seed, sample.stream);
    let x: &[T] = args.ins[0].dense();
    let out = args.outs[0].as_mut::<i32>();
    let scratch: &mut [u64] = keys_of(args.scratch);
    let workers = match args.parallel {
        true => (scratch.len() / (2 * vocab)).min(out.len()),
        false => 1,
    };
    let rows = out.len().div_ceil(workers);
    let draw = |first: usize, out: &mut [i32], scratch: &mut [u64]| {
        let (keys, running) = scratch.split_at_mut(vocab);
        let running = bytemuck::cast_slice_mut(running);
        for (row, y) in (first..).zip(out) {
            let unit = stream.unit(DType::F32, row as u64);
            let logits = &x[row * vocab..][..vocab];
            *y = sample_row(level, sample, logits, unit, keys, running) as i32;
        }
    };
    if workers == 1 {
        draw(0, out, &mut scratch[..2 * vocab]);
        return Ok(());
    }
    let work = (
        DisjointChunks::new(out, rows),
        DisjointChunks::new(scratch, 2 * vocab),
    );
    for_each_part(KernelThreads::Pool, work, |i, (out, scratch)| {
        draw(i * rows, out, scratch)
    });
    Ok(())
}

/// Draws an index from a row with `unit` in `[0, 1)`, by the same rule as [`Sample::sample_index`].
fn sample_row<T: ComputeF32 + SortKey>(
    level: SimdLevel,
    sample: &Sample,
    logits: &[T],
    unit: f64,
    keys: &mut [u64],
    running: &mut [f64],
) -> usize {
    let (max, greatest) = greatest(level, logits);
    if sample.temperature.0 == 0.0 || max == f32::NEG_INFINITY {
        return greatest;
    }
    let last = f32::NEG_INFINITY.rank(true);
    for (i, (key, x)) in keys.iter_mut().zip(logits).enumerate() {
        let x = x.wide();
        let rank = if x.is_nan() { last } else { x.rank(true) };
        *key = rank << 32 | i as u64;
    }
    let k = match sample.top_k {
        0 => logits.len(),
        k => k.min(logits.len()),
    };
    let order = lowest(keys, k);
    let index = |key: u64| key as u32 as usize;
    let weight = |key: u64| {
        let x = logits[index(key)].wide();
        match x == max {
            true => 1.0, // infinity minus infinity is NaN
            false if x.is_nan() => 0.0,
            false => ((f64::from(x) - f64::from(max)) / sample.temperature.0).exp(),
        }
    };
    let running = &mut running[..k];
    let mut total = 0.0;
    for (sum, &key) in running.iter_mut().zip(&*order) {
        total += weight(key);
        *sum = total;
    }
    let needed = sample.top_p.0 * total;
    let kept = running
        .iter()
        .position(|&r| r >= needed)
        .map_or(k, |i| i + 1);
    let threshold = unit * running[kept - 1];
    let drawn = running[..kept].iter().position(|&r| r > threshold);
    index(order[drawn.unwrap_or(kept - 1)])
}

/// Maximum logit and its first index; NaN counts as `-inf`.
fn greatest<T: ComputeF32>(level: SimdLevel, logits: &[T]) -> (f32, usize) {
    let mut buffer = [0.0; BUFFER];
    let (mut max, mut block) = (f32::NEG_INFINITY, 0);
    for (i, x) in logits.chunks(BUFFER).enumerate() {
        let most = max_ignoring_nan(T::widen(level, x, &mut buffer));
        if most > max {
            (max, block) = (most, i);
        }
    }
    if max == f32::NEG_INFINITY {
        return (max, 0);
    }
    let first = block * BUFFER;
    let at = logits[first..].iter().position(|x| x.wide() == max);
    (max, first + at.unwrap_or(0))
}
