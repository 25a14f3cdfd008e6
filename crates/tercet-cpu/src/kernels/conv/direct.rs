//! Convolution with channels of y side by side in vectors.
//!
//! The transpose of the usual product: rows are windows, columns are channels, whose weights lie in packed
//! panels as those of any product. An element of the left side is read where the window has it, in a slab of x
//! ([`super::slab`]), so that no matrix of columns is made, and no lane is lost where rows of windows are short.
//! Sums stay in `[windows, channels of a panel]` until they are whole; then they are finished and
//! transposed into y.

use super::super::gemm::{self, MatView};
use super::super::parallel::{self, SharedMut, Tasks, Threads};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::slab::{Block, Blocks, SLACK};
use super::sums::{self, Channels, MOST_SUMS, Panel};
use super::{Call, ConvShape, Job, TASKS, tile};

/// Floats of a slab, about: half of a second-level cache.
const SLAB: usize = 128 << 10;
/// Windows of a task at most: their sums for a panel stay in the second-level cache.
const MOST_WINDOWS: usize = 512;
/// Windows below which tasks are not cut further.
const FEW_WINDOWS: usize = 32;

/// Elements of a slab for each channel and tap of depth, about.
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
    threads: Threads,
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

/// Floats of scratch of each thread; it grows with the sizes.
pub(super) fn scratch_len(level: SimdLevel, shape: &ConvShape) -> usize {
    let nr = gemm::packed_b_len(level, 1, 1);
    let plane = Blocks::plane_bound(&shape.windows, area(shape));
    let windows = shape.windows.count().min(MOST_WINDOWS);
    slab_len(shape.channels * plane) + windows * nr
}

/// Floats that a slab of `len` takes.
fn slab_len(len: usize) -> usize {
    (len + SLACK).next_multiple_of(16)
}

/// The convolution, from weights packed by [`pack`].
pub(super) fn run(
    level: SimdLevel,
    threads: Threads,
    call: &Call<'_>,
    weights: &[f32],
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let shape = call.shape;
    let (entries, count) = (shape.batch * shape.groups, threads.count());
    let most = entries * shape.windows.count() / (TASKS * count);
    let most = most.clamp(FEW_WINDOWS, MOST_WINDOWS);
    let blocks = Blocks::new(&shape.windows, area(shape), most, count);
    let panels = shape.m.div_ceil(gemm::packed_b_len(level, 1, 1));
    let job = Job {
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

simd_dispatch!(fn run_tasks(job: &Job<'_>, tasks: Tasks<'_>, part: &mut [f32]) = tasks_body);

/// Blocks of windows, a panel of channels each: those of a block follow each other, and share its slab.
///
/// # Safety
/// Needs the instructions of `S`; no other worker has these tasks.
#[inline(always)]
unsafe fn tasks_body<S: Simd>(job: &Job<'_>, tasks: Tasks<'_>, part: &mut [f32]) {
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

/// The windows of a block of an entry for a panel of channels.
///
/// # Safety
/// As [`tasks_body`].
#[inline(always)]
unsafe fn run_panel<S: Simd>(
    job: &Job<'_>,
    entry: usize,
    panel: usize,
    block: &Block,
    slab: &[f32],
    sums: &mut [f32],
) {
    let (call, shape) = (job.call, job.call.shape);
    let nr = S::TILE_VECTORS * S::LANES;
    let (group, first) = (entry % shape.groups, panel * nr);
    let count = nr.min(shape.m - first);
    let mut start = [0.0; MOST_SUMS];
    if let Some(bias) = call.bias {
        start[..count].copy_from_slice(&bias[group * shape.m + first..][..count]);
    }
    let weights = &job.weights[group * group_len(SimdLevel(S::LEVEL), shape)..];
    let panel = Panel {
        channels: shape.channels,
        weights: &weights[panel * shape.k() * nr..][..shape.k() * nr],
        nr,
        lanes: 1,
        tile: tile::dense,
        vectors: count.div_ceil(S::LANES),
        start,
    };
    sums::compute::<S>(&shape.windows, &job.blocks, block, &panel, slab, sums);
    let channels = Channels {
        first: entry * shape.m + first,
        step: 1,
        count,
    };
    sums::finish::<S>(call, block, &channels, nr, sums, job.y);
}
