//! Depthwise convolution (one channel of x per channel of y), vectorized over channels.
//!
//! A task copies a block of as many channels as a vector has lanes, with padding. The copy is
//! transposed, so that each element of the slab is a vector ([`super::slab`]). With channels in the
//! lanes, neither short rows, strides nor padding waste lanes. Long rows use [`super::rows`]
//! instead, without a transpose.

use super::super::parallel::{self, KernelThreads, SharedMut};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::slab::{ConvWindowBlocks, SLACK};
use super::sums::{self, ConvChannelPanel, ConvOutputChannels, MAX_ACCUMULATORS};
use super::{ConvCall, ConvShape, ConvTaskArgs, TASKS, rows, tile};

/// Approximate elements of a slab; as vectors they stay in the L2 cache.
const AREA: usize = 1536;
/// Maximum windows per task.
const MAX_WINDOWS: usize = 1024;
/// Minimum windows per task when tasks are split.
const MIN_TASK_WINDOWS: usize = 128;

fn area(shape: &ConvShape) -> usize {
    AREA / shape.windows.kernel[0].max(1)
}

/// Floats of all packed weights.
pub(super) fn packed_len(level: SimdLevel, shape: &ConvShape) -> usize {
    shape.groups.next_multiple_of(level.lanes()) * shape.m * shape.windows.taps()
}

/// Packs weights for [`run`] as `[groups of lanes][m][taps][lanes]`.
pub(super) fn pack(level: SimdLevel, shape: &ConvShape, w: &[f32], out: &mut [f32]) {
    let (lanes, taps) = (level.lanes(), shape.windows.taps());
    let panels = out[..packed_len(level, shape)].chunks_exact_mut(taps * lanes);
    for (i, out) in panels.enumerate() {
        let (first, j) = (i / shape.m * lanes, i % shape.m);
        for (t, out) in out.chunks_exact_mut(lanes).enumerate() {
            for (lane, out) in out.iter_mut().enumerate() {
                let from = w.get(((first + lane) * shape.m + j) * taps + t);
                *out = from.copied().unwrap_or(0.0);
            }
        }
    }
}

/// Scratch floats per thread; monotonic in the sizes.
pub(super) fn scratch_len(level: SimdLevel, shape: &ConvShape) -> usize {
    let plane = ConvWindowBlocks::plane_bound(&shape.windows, area(shape));
    let windows = shape.windows.count().min(MAX_WINDOWS);
    let own = slab_len(plane, level.lanes()) + windows * level.lanes();
    own.max(rows::scratch_len(shape))
}

/// Floats of a slab of `plane` vectors.
fn slab_len(plane: usize, lanes: usize) -> usize {
    (plane * lanes + SLACK).next_multiple_of(16)
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
    if rows::supports(level, shape) {
        return rows::run(level, threads, call, weights, y, scratch);
    }
    let parts = shape.batch * shape.groups.div_ceil(level.lanes());
    let most = parts * shape.windows.count() / (TASKS * threads.count());
    let most = most.clamp(MIN_TASK_WINDOWS, MAX_WINDOWS);
    let blocks = ConvWindowBlocks::new(&shape.windows, area(shape), most, 1);
    let job = ConvTaskArgs {
        call,
        weights,
        blocks,
        y: SharedMut::new(y),
    };
    let (tasks, part) = (parts * blocks.count(), scratch_len(level, shape));
    parallel::for_each_with_scratch(threads, tasks, scratch, part, |task, part| {
        run_task(level, &job, task, part);
    });
}

simd_dispatch!(fn run_task(job: &ConvTaskArgs<'_>, task: usize, part: &mut [f32]) = task_body);

/// Computes a block of some channels of a batch entry.
///
/// # Safety
/// Requires the instructions of `S`; no other task has this number.
#[inline(always)]
unsafe fn task_body<S: Simd>(job: &ConvTaskArgs<'_>, task: usize, part: &mut [f32]) {
    let call = job.call;
    let shape = call.shape;
    let (w, blocks) = (&shape.windows, &job.blocks);
    let parts = shape.groups.div_ceil(S::LANES);
    let (block, task) = (blocks.get(task % blocks.count()), task / blocks.count());
    let (entry, lanes) = (task / parts, task % parts);
    let first = lanes * S::LANES;
    let count = S::LANES.min(shape.groups - first);
    let (slab, sums) = part.split_at_mut(slab_len(blocks.plane(), S::LANES));
    let x = &call.x[(entry * shape.groups + first) * w.plane()..][..count * w.plane()];
    blocks.fill_lanes::<S>(w, &block, x, slab);
    let panel_len = w.taps() * S::LANES;
    for j in 0..shape.m {
        let mut start = [0.0; MAX_ACCUMULATORS];
        if let Some(bias) = call.bias {
            let from = bias[first * shape.m + j..].iter().step_by(shape.m);
            let to = start[..S::LANES].iter_mut();
            to.zip(from).for_each(|(to, from)| *to = *from);
        }
        let panel = ConvChannelPanel {
            channels: 1,
            weights: &job.weights[(lanes * shape.m + j) * panel_len..][..panel_len],
            nr: S::LANES,
            lanes: S::LANES,
            tile: tile::depthwise,
            vectors: 1,
            start,
        };
        sums::compute::<S>(w, blocks, &block, &panel, slab, sums);
        let channels = ConvOutputChannels {
            first: (entry * shape.groups + first) * shape.m + j,
            step: shape.m,
            count,
        };
        sums::finish::<S>(call, &block, &channels, S::LANES, sums, job.y);
    }
}
