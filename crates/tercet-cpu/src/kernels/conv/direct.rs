//! Direct convolution, vectorized over the output channels.
//!
//! The direct convolution is the transpose of the usual im2col GEMM: rows are windows, columns are
//! channels, and weights are packed into panels like any B matrix. The kernel reads each window in
//! place from a slab of x ([`super::slab`]). So the direct convolution needs no im2col matrix, and
//! short window rows waste no lanes. Sums stay in `[windows, channels of a panel]` until they are
//! complete. Then the epilogue is applied to the sums, and they are transposed into y.

use super::super::gemm::{self, MatView};
use super::super::parallel::{self, ClaimedTasks, KernelThreads, SharedMut};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::slab::{ConvWindowBlock, ConvWindowBlocks, SLACK};
use super::sums::{self, ConvChannelPanel, ConvOutputChannels, MAX_ACCUMULATORS};
use super::{ConvCall, ConvShape, ConvTaskArgs, TASKS, tile};

/// Approximate floats of a slab: half of an L2 cache.
const SLAB: usize = 128 << 10;
/// Maximum windows per task; their sums for one panel stay in the L2 cache.
const MAX_WINDOWS: usize = 512;
/// Minimum windows per task when tasks are split.
const MIN_TASK_WINDOWS: usize = 32;

/// Approximate elements of a slab per channel and depth tap.
fn area(shape: &ConvShape) -> usize {
    SLAB / (shape.channels * shape.windows.kernel[0]).max(1)
}

/// Floats of the packed weights of a group.
fn group_len(level: SimdLevel, shape: &ConvShape) -> usize {
    gemm::packed_b_len(level, shape.k(), shape.m)
}

/// Floats of all packed weights.
pub(super) fn packed_len(level: SimdLevel, shape: &ConvShape) -> usize {
    shape.groups * group_len(level, shape)
}

/// Packs weights for [`run`].
pub(super) fn pack(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &ConvShape,
    w: &[f32],
    out: &mut [f32],
) {
    let (k, m) = (shape.k(), shape.m);
    let (own, packed) = (m * k, group_len(level, shape));
    for group in 0..shape.groups {
        let w = MatView::row_major(&w[group * own..][..own], m, k);
        let out = &mut out[group * packed..][..packed];
        gemm::pack_b(level, threads, w.transposed(), out);
    }
}

/// Scratch floats per thread; monotonic in the sizes.
pub(super) fn scratch_len(level: SimdLevel, shape: &ConvShape) -> usize {
    let nr = gemm::packed_b_len(level, 1, 1);
    let plane = ConvWindowBlocks::plane_bound(&shape.windows, area(shape));
    let windows = shape.windows.count().min(MAX_WINDOWS);
    slab_len(shape.channels * plane) + windows * nr
}

/// Floats of a slab of length `len`, including slack.
fn slab_len(len: usize) -> usize {
    (len + SLACK).next_multiple_of(16)
}

/// Runs the convolution with weights packed by [`pack`].
pub(super) fn run(
    level: SimdLevel,
    threads: KernelThreads,
    call: &ConvCall<'_>,
    weights: &[f32],
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let shape = call.shape;
    let (entries, count) = (shape.batch * shape.groups, threads.count());
    let most = entries * shape.windows.count() / (TASKS * count);
    let most = most.clamp(MIN_TASK_WINDOWS, MAX_WINDOWS);
    let blocks = ConvWindowBlocks::new(&shape.windows, area(shape), most, count);
    let panels = shape.m.div_ceil(gemm::packed_b_len(level, 1, 1));
    let job = ConvTaskArgs {
        call,
        weights,
        blocks,
        y: SharedMut::new(y),
    };
    let tasks = entries * blocks.count() * panels;
    let part = scratch_len(level, shape);
    parallel::for_workers(threads, tasks, scratch, part, |tasks, part| {
        run_tasks(level, &job, tasks, part);
    });
}

simd_dispatch!(fn run_tasks(job: &ConvTaskArgs<'_>, tasks: ClaimedTasks<'_>, part: &mut [f32]) = tasks_body);

/// Runs tasks of one window block and one channel panel each. Consecutive tasks of the same block
/// share its slab.
///
/// # Safety
/// Requires the instructions of `S`; no other worker has these tasks.
#[inline(always)]
unsafe fn tasks_body<S: Simd>(job: &ConvTaskArgs<'_>, tasks: ClaimedTasks<'_>, part: &mut [f32]) {
    let call = job.call;
    let (shape, blocks) = (call.shape, &job.blocks);
    let w = &shape.windows;
    let (slab, sums) = part.split_at_mut(slab_len(shape.channels * blocks.plane()));
    let panels = shape.m.div_ceil(S::TILE_VECTORS * S::LANES);
    let mut filled = None;
    for task in tasks {
        let (panel, place) = (task % panels, task / panels);
        let (entry, block) = (place / blocks.count(), blocks.get(place % blocks.count()));
        if filled.replace(place) != Some(place) {
            let x = &call.x[entry * shape.channels * w.plane()..];
            blocks.fill::<S>(w, &block, x, shape.channels, slab);
        }
        run_panel::<S>(job, entry, panel, &block, slab, sums);
    }
}

/// Computes the windows of a block of a batch entry for a panel of channels.
///
/// # Safety
/// Same as [`tasks_body`].
#[inline(always)]
unsafe fn run_panel<S: Simd>(
    job: &ConvTaskArgs<'_>,
    entry: usize,
    panel: usize,
    block: &ConvWindowBlock,
    slab: &[f32],
    sums: &mut [f32],
) {
    let (call, shape) = (job.call, job.call.shape);
    let nr = S::TILE_VECTORS * S::LANES;
    let (group, first) = (entry % shape.groups, panel * nr);
    let count = nr.min(shape.m - first);
    let mut start = [0.0; MAX_ACCUMULATORS];
    if let Some(bias) = call.bias {
        start[..count].copy_from_slice(&bias[group * shape.m + first..][..count]);
    }
    let weights = &job.weights[group * group_len(SimdLevel::of(S::LEVEL), shape)..];
    let panel = ConvChannelPanel {
        channels: shape.channels,
        weights: &weights[panel * shape.k() * nr..][..shape.k() * nr],
        nr,
        lanes: 1,
        tile: tile::dense,
        vectors: count.div_ceil(S::LANES),
        start,
    };
    sums::compute::<S>(&shape.windows, &job.blocks, block, &panel, slab, sums);
    let channels = ConvOutputChannels {
        first: entry * shape.m + first,
        step: 1,
        count,
    };
    sums::finish::<S>(call, block, &channels, nr, sums, job.y);
}
