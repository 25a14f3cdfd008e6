//! Depthwise convolution along long rows, vectorized over adjacent windows. This kernel supports
//! 3x3 and 5x5 windows with stride 1.
//!
//! A task copies a block of a channel with its padding ([`super::slab`]). Each loaded element is
//! used for all rows of the tile that contain it, and sums are written to y without a transpose.
//! The sums and their order are the same as in [`super::depthwise`].

#![allow(
    clippy::needless_range_loop,
    reason = "indices name rows and taps in several arrays at once"
)]

use super::super::gemm::GemmEpilogue;
use super::super::parallel::{self, KernelThreads, SharedMut};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::slab::{ConvWindowBlock, ConvWindowBlocks, SLACK};
use super::{ConvCall, ConvShape, ConvTaskArgs};

/// Approximate elements of a slab: half of an L1 cache.
const AREA: usize = 4096;
/// Rows per tile.
const ROWS: usize = 4;

/// True if this kernel supports the convolution; depends on the row length.
pub(super) fn supports(level: SimdLevel, shape: &ConvShape) -> bool {
    let w = &shape.windows;
    let near = w.stride == [1; 3] && w.dilation == [1; 3];
    near && matches!(w.kernel, [1, 3, 3] | [1, 5, 5]) && 4 * w.out[2] >= 7 * level.lanes()
}

/// Scratch floats per thread; monotonic in the sizes.
pub(super) fn scratch_len(shape: &ConvShape) -> usize {
    (ConvWindowBlocks::plane_bound(&shape.windows, AREA) + SLACK).next_multiple_of(16)
}

/// Runs the convolution, which [`supports`] must support, with weights packed by
/// [`super::depthwise::pack`].
pub(super) fn run(
    level: SimdLevel,
    threads: KernelThreads,
    call: &ConvCall<'_>,
    weights: &[f32],
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (w, channels) = (&call.shape.windows, call.shape.batch * call.shape.groups);
    let blocks = ConvWindowBlocks::new(w, AREA, w.count(), 1);
    let job = ConvTaskArgs {
        call,
        weights,
        blocks,
        y: SharedMut::new(y),
    };
    let (tasks, part) = (channels * blocks.count(), scratch_len(call.shape));
    parallel::for_each_with_scratch(threads, tasks, scratch, part, |task, slab| {
        run_task(level, &job, task, slab);
    });
}

simd_dispatch!(fn run_task(job: &ConvTaskArgs<'_>, task: usize, slab: &mut [f32]) = task_body);

/// Computes a block of one channel of x for all of its channels of y.
///
/// # Safety
/// Requires the instructions of `S`; no other task has this number.
#[inline(always)]
unsafe fn task_body<S: Simd>(job: &ConvTaskArgs<'_>, task: usize, slab: &mut [f32]) {
    let (call, blocks) = (job.call, &job.blocks);
    let (shape, w) = (call.shape, &call.shape.windows);
    let (channel, block) = (task / blocks.count(), blocks.get(task % blocks.count()));
    let group = channel % shape.groups;
    let x = &call.x[channel * w.plane()..][..w.plane()];
    blocks.fill::<S>(w, &block, x, 1, slab);
    for j in 0..shape.m {
        let bias = call.bias.map_or(0.0, |bias| bias[group * shape.m + j]);
        let (lanes, lane) = (group / S::LANES, group % S::LANES);
        let weights = &job.weights[(lanes * shape.m + j) * w.taps() * S::LANES + lane..];
        let start = (channel * shape.m + j) * w.count() + block.start(w);
        let y = job.y.slice(start, block.windows());
        match w.kernel[2] {
            3 => sums::<S, 3>(&block, slab, blocks.pitch(), weights, bias, y),
            _ => sums::<S, 5>(&block, slab, blocks.pitch(), weights, bias, y),
        }
        let epilogue = GemmEpilogue {
            activation: call.activation,
            ..GemmEpilogue::NONE
        };
        epilogue.apply::<S>(y, 0, 0);
    }
}

/// Computes a block for one channel of y.
///
/// # Safety
/// Requires the instructions of `S`; the slab is that of the block, with slack behind it.
#[inline(always)]
unsafe fn sums<S: Simd, const K: usize>(
    block: &ConvWindowBlock,
    slab: &[f32],
    pitch: usize,
    weights: &[f32],
    bias: f32,
    y: &mut [f32],
) {
    let mut taps = [[S::splat(0.0); K]; K];
    for (t, tap) in taps.as_flattened_mut().iter_mut().enumerate() {
        *tap = S::splat(weights[t * S::LANES]);
    }
    let (rows, cols) = (block.rows, block.cols);
    let seen = (rows + K - 1) * pitch;
    assert!(y.len() == rows * cols && cols + K - 1 <= pitch && seen + S::LANES <= slab.len());
    // No closures here: a closure that is not inlined is compiled without the level's target
    // features.
    let size = if rows < ROWS { 1 } else { ROWS };
    for first in (0..rows).step_by(size) {
        // The last tile of a block may overlap rows that are already done.
        let row = first.min(rows - size);
        let x = slab.as_ptr().add(row * pitch);
        let y = y.as_mut_ptr().add(row * cols);
        if size == ROWS {
            tile::<S, K, ROWS>(x, pitch, &taps, bias, cols, y);
        } else {
            tile::<S, K, 1>(x, pitch, &taps, bias, cols, y);
        }
    }
}

/// Computes `R` rows of `cols` windows; each iteration computes one vector of adjacent windows per
/// row.
///
/// # Safety
/// Requires the instructions of `S`. `x` has `R + K - 1` rows and one more vector; `y` has `R`
/// rows.
#[inline(always)]
unsafe fn tile<S: Simd, const K: usize, const R: usize>(
    x: *const f32,
    pitch: usize,
    taps: &[[S::V; K]; K],
    bias: f32,
    cols: usize,
    y: *mut f32,
) {
    let mut col = 0;
    while col < cols {
        let mut sums = [S::splat(bias); R];
        for i in 0..R + K - 1 {
            for j in 0..K {
                let x = S::load(x.add(i * pitch + col + j));
                for r in 0..R {
                    if r <= i && i < r + K {
                        sums[r] = S::fma(x, taps[i - r][j], sums[r]);
                    }
                }
            }
        }
        for r in 0..R {
            let to = y.add(r * cols + col);
            match cols - col >= S::LANES {
                true => S::store(to, sums[r]),
                false => S::store_n(to, sums[r], cols - col),
            }
        }
        col += S::LANES;
    }
}
