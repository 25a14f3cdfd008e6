//! NHWC depthwise convolution, vectorized over adjacent channels.
//!
//! A task copies a block of a few channel vectors, with padding. Each vector has its own contiguous
//! slab, so addresses are constants, and rows a power of two apart do not conflict in the cache.
//! Adjacent windows of a row are computed together. A task has several vectors, because a memory
//! page contains only a few adjacent elements of one vector.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name windows and taps in several arrays at once"
)]

use super::super::super::parallel::{self, KernelThreads};
use super::super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::super::slab::{ConvWindowBlock, ConvWindowBlocks, SLACK};
use super::super::{ConvShape, ConvWindowAxes, TASKS};
use super::NhwcConvTaskArgs;

/// Approximate elements of a slab of one vector; slabs stay in the L2 cache.
const AREA: usize = 1024;
/// Number of adjacent channels that a task computes, for large (`SOME`) and for small images
/// (`MANY`).
const SOME: usize = 16;
const MANY: usize = 32;
/// Number of elements of x from which an image counts as large.
const LARGE: usize = 400;
/// Maximum windows per task.
const MAX_WINDOWS: usize = 1024;
/// Minimum windows per task when tasks are split.
const MIN_TASK_WINDOWS: usize = 196;
/// Adjacent windows of a row that are computed together. The feature maps of 224-pixel images have
/// widths that are multiples of this number.
const SIDE: usize = 7;

/// Packs weights as `[groups / lanes][taps][lanes]`.
pub(super) fn pack(level: SimdLevel, shape: &ConvShape, w: &[f32], out: &mut [f32]) {
    let (lanes, taps) = (level.lanes(), shape.windows.taps());
    assert_eq!(shape.groups % lanes, 0);
    for (i, out) in out.chunks_exact_mut(taps * lanes).enumerate() {
        for (t, out) in out.chunks_exact_mut(lanes).enumerate() {
            for (lane, out) in out.iter_mut().enumerate() {
                *out = w[(i * lanes + lane) * taps + t];
            }
        }
    }
}

/// Floats of a slab of `plane` vectors.
fn slab_len(plane: usize, lanes: usize) -> usize {
    (plane * lanes + SLACK).next_multiple_of(16)
}

/// Scratch floats per thread; monotonic in the sizes.
pub(super) fn scratch_len(level: SimdLevel, shape: &ConvShape) -> usize {
    let plane = ConvWindowBlocks::plane_bound(&shape.windows, AREA);
    let windows = shape.windows.count().min(MAX_WINDOWS);
    let own = slab_len(plane, level.lanes()) + windows * level.lanes();
    // Assume a small image, which has more vectors per task.
    let vectors = MANY / level.lanes();
    (vectors * own).next_multiple_of(16)
}

/// Channel vectors per task.
fn vectors(level: SimdLevel, shape: &ConvShape) -> usize {
    let floats = match shape.windows.plane() >= LARGE {
        true => SOME,
        false => MANY,
    };
    floats / level.lanes()
}

/// Runs the convolution.
pub(super) fn run(
    level: SimdLevel,
    threads: KernelThreads,
    job: &NhwcConvTaskArgs<'_>,
    scratch: &mut [f32],
) {
    let shape = job.shape;
    assert!(shape.channels == 1 && shape.m == 1 && shape.groups.is_multiple_of(level.lanes()));
    let side = vectors(level, shape);
    let parts = shape.batch * (shape.groups / level.lanes()).div_ceil(side);
    let most = parts * shape.windows.count() / (TASKS * threads.count());
    let most = most.clamp(MIN_TASK_WINDOWS, MAX_WINDOWS);
    let blocks = ConvWindowBlocks::new(&shape.windows, AREA, most, 1);
    let (tasks, part) = (parts * blocks.count(), scratch_len(level, shape));
    parallel::for_each_with_scratch(threads, tasks, scratch, part, |task, part| {
        run_task(level, job, &blocks, side, task, part);
    });
}

simd_dispatch!(
    fn run_task(job: &NhwcConvTaskArgs<'_>, blocks: &ConvWindowBlocks, side: usize, task: usize, part: &mut [f32]) = task_body
);

/// Computes one block of windows for `side` adjacent channel vectors of a batch entry.
///
/// # Safety
/// Requires the instructions of `S`; no other task has this number.
#[inline(always)]
unsafe fn task_body<S: Simd>(
    job: &NhwcConvTaskArgs<'_>,
    blocks: &ConvWindowBlocks,
    side: usize,
    task: usize,
    part: &mut [f32],
) {
    let (shape, w) = (job.shape, &job.shape.windows);
    let all = shape.groups / S::LANES;
    let groups = all.div_ceil(side);
    let (group, place) = (task % groups, task / groups);
    let (entry, block) = (place / blocks.count(), blocks.get(place % blocks.count()));
    let (first, count) = (group * side, side.min(all - group * side));
    let own = slab_len(blocks.plane(), S::LANES);
    let (slabs, sums) = part.split_at_mut(side * own);
    let x = &job.x[entry * job.strides[0] + first * S::LANES..];
    let [_, row, column] = job.strides;
    blocks.fill_vectors::<S>(w, &block, x, [row, column], count, slabs, own);
    let step = block.windows() * S::LANES;
    let sums = &mut sums[..count * step];
    for v in 0..count {
        let vector = first + v;
        let bias = match job.bias {
            Some(bias) => S::load(bias[vector * S::LANES..][..S::LANES].as_ptr()),
            None => S::splat(0.0),
        };
        let weights = &job.weights[vector * w.taps() * S::LANES..][..w.taps() * S::LANES];
        let (slab, sums) = (&slabs[v * own..][..own], &mut sums[v * step..][..step]);
        compute::<S>(w, blocks, &block, slab, weights, bias, sums);
    }
    job.epilogue.apply::<S>(sums, 0, 0);
    let start = entry * w.count() + block.start(w);
    let y = job.y.ptr().add(start * shape.groups + first * S::LANES);
    for i in 0..block.windows() {
        for v in 0..count {
            let sum = S::load(sums.as_ptr().add(v * step + i * S::LANES));
            S::store(y.add(i * shape.groups + v * S::LANES), sum);
        }
    }
}

/// Computes a block for one channel vector.
///
/// # Safety
/// Requires the instructions of `S`; the slab is that of the block.
#[inline(always)]
unsafe fn compute<S: Simd>(
    w: &ConvWindowAxes,
    blocks: &ConvWindowBlocks,
    block: &ConvWindowBlock,
    slab: &[f32],
    weights: &[f32],
    bias: S::V,
    sums: &mut [f32],
) {
    let pitch = blocks.pitch();
    // No closures here: a closure that is not inlined is compiled without the level's target
    // features.
    match (w.kernel, w.stride, w.dilation) {
        ([1, 3, 3], [_, 1, 1], [_, 1, 1]) => {
            near::<S, 3, 1>(block, pitch, slab, weights, bias, sums);
        }
        ([1, 3, 3], [_, 2, 2], [_, 1, 1]) => {
            near::<S, 3, 2>(block, pitch, slab, weights, bias, sums);
        }
        ([1, 5, 5], [_, 1, 1], [_, 1, 1]) => {
            near::<S, 5, 1>(block, pitch, slab, weights, bias, sums);
        }
        ([1, 5, 5], [_, 2, 2], [_, 1, 1]) => {
            near::<S, 5, 2>(block, pitch, slab, weights, bias, sums);
        }
        _ => any::<S>(w, blocks, block, slab, weights, bias, sums),
    }
}

/// Computes a block of windows with `K` taps along both axes and stride `ST`.
///
/// # Safety
/// The CPU must support the instructions of `S`. `slab` must hold the input rows that the windows of
/// `block` read.
#[inline(always)]
unsafe fn near<S: Simd, const K: usize, const ST: usize>(
    block: &ConvWindowBlock,
    pitch: usize,
    slab: &[f32],
    weights: &[f32],
    bias: S::V,
    sums: &mut [f32],
) {
    let (rows, cols) = (block.rows, block.cols);
    let seen = ((rows - 1) * ST + K) * pitch;
    assert!((cols - 1) * ST + K <= pitch && seen * S::LANES <= slab.len());
    assert!(weights.len() >= K * K * S::LANES && sums.len() >= rows * cols * S::LANES);
    for row in 0..rows {
        let x = slab.as_ptr().add(row * ST * pitch * S::LANES);
        let to = sums.as_mut_ptr().add(row * cols * S::LANES);
        if cols < SIDE {
            for col in 0..cols {
                let (x, to) = (x.add(col * ST * S::LANES), to.add(col * S::LANES));
                side::<S, K, ST, 1>(x, pitch, weights.as_ptr(), bias, to);
            }
            continue;
        }
        for col in (0..cols).step_by(SIDE) {
            // The last group of a row may overlap windows that are already done.
            let col = col.min(cols - SIDE);
            let (x, to) = (x.add(col * ST * S::LANES), to.add(col * S::LANES));
            side::<S, K, ST, SIDE>(x, pitch, weights.as_ptr(), bias, to);
        }
    }
}

/// Computes `R` adjacent windows.
///
/// # Safety
/// Same as [`near`].
#[inline(always)]
unsafe fn side<S: Simd, const K: usize, const ST: usize, const R: usize>(
    x: *const f32,
    pitch: usize,
    weights: *const f32,
    bias: S::V,
    to: *mut f32,
) {
    let mut sums = [bias; R];
    for i in 0..K {
        let row = x.add(i * pitch * S::LANES);
        for t in 0..K {
            let tap = S::load(weights.add((i * K + t) * S::LANES));
            for r in 0..R {
                let x = S::load(row.add((r * ST + t) * S::LANES));
                sums[r] = S::fma(x, tap, sums[r]);
            }
        }
    }
    for r in 0..R {
        S::store(to.add(r * S::LANES), sums[r]);
    }
}

/// Computes a block of any windows.
///
/// # Safety
/// Same as [`near`].
#[inline(always)]
unsafe fn any<S: Simd>(
    w: &ConvWindowAxes,
    blocks: &ConvWindowBlocks,
    block: &ConvWindowBlock,
    slab: &[f32],
    weights: &[f32],
    bias: S::V,
    sums: &mut [f32],
) {
    let [below, right] = blocks.steps(w);
    for (i, to) in sums.chunks_exact_mut(S::LANES).enumerate() {
        let at = i / block.cols * below + i % block.cols * right;
        let mut sum = bias;
        for (t, tap) in weights.chunks_exact(S::LANES).enumerate() {
            let at = (at + blocks.tap(w, w.tap(t))) * S::LANES;
            let x = S::load(slab[at..][..S::LANES].as_ptr());
            sum = S::fma(x, S::load(tap.as_ptr()), sum);
        }
        S::store(to.as_mut_ptr(), sum);
    }
}
