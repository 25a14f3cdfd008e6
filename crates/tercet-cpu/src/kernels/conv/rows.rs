//! Convolution of one channel of x for each channel of y along long rows: vectors of neighbouring windows, from
//! windows of 3x3 or 5x5 taps one or two apart.
//!
//! A task copies a block of a channel with its padding ([`super::slab`]); where windows are two apart, even
//! and odd columns are then parted, so that what a tap reads of neighbouring windows lies side by side. An
//! element that is loaded counts for all rows of a tile that see it, and sums go to y as they are: nothing is
//! transposed. The sums are those of [`super::depthwise`], in the same order.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name rows and taps in several arrays at once"
)]

use super::super::gemm::Epilogue;
use super::super::parallel::{self, SharedMut, Threads};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::slab::{Block, Blocks, SLACK};
use super::{Call, ConvShape};

/// Elements of a slab, about: half of a first-level cache.
const AREA: usize = 4096;
/// Rows of a tile.
const ROWS: usize = 4;

/// Whether this kernel takes a convolution; it depends on how long rows are.
pub(super) fn takes(level: SimdLevel, shape: &ConvShape) -> bool {
    let w = &shape.windows;
    let near = matches!(w.stride, [1, 1, 1] | [1, 2, 2]) && w.dilation == [1; 3];
    near && matches!(w.kernel, [1, 3, 3] | [1, 5, 5]) && 4 * w.out[2] >= 7 * level.lanes()
}

/// Floats of scratch of each thread; it grows with the sizes.
pub(super) fn scratch_len(shape: &ConvShape) -> usize {
    3 * slab_len(Blocks::plane_bound(&shape.windows, AREA))
}

/// Floats that a slab of `plane` elements takes; parted, rows of at least three vectors take less than twice
/// as many.
fn slab_len(plane: usize) -> usize {
    (plane + SLACK).next_multiple_of(16)
}

/// What the tasks of a call share.
struct Job<'a> {
    call: &'a Call<'a>,
    /// As [`super::depthwise::pack`] writes them.
    weights: &'a [f32],
    blocks: Blocks,
    y: SharedMut<f32>,
}

/// The convolution, if [`takes`] says so.
pub(super) fn run(
    level: SimdLevel,
    threads: Threads,
    call: &Call<'_>,
    weights: &[f32],
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (w, channels) = (&call.shape.windows, call.shape.batch * call.shape.groups);
    let blocks = Blocks::new(w, AREA, w.count(), 1);
    let job = Job {
        call,
        weights,
        blocks,
        y: SharedMut::new(y),
    };
    let (tasks, part) = (channels * blocks.count(), scratch_len(call.shape));
    parallel::for_each_with_scratch(threads, tasks, scratch, part, |task, scratch| {
        run_task(level, &job, task, scratch);
    });
}

simd_dispatch!(fn run_task(job: &Job<'_>, task: usize, scratch: &mut [f32]) = task_body);

/// A block of a channel of x, for all of its channels of y.
///
/// # Safety
/// Needs the instructions of `S`; no other task has this number.
#[inline(always)]
unsafe fn task_body<S: Simd>(job: &Job<'_>, task: usize, scratch: &mut [f32]) {
    let (call, blocks) = (job.call, &job.blocks);
    let (shape, w) = (call.shape, &call.shape.windows);
    let (channel, block) = (task / blocks.count(), blocks.get(task % blocks.count()));
    let group = channel % shape.groups;
    let x = &call.x[channel * w.plane()..][..w.plane()];
    let (slab, parted) = scratch.split_at_mut(slab_len(blocks.plane()));
    blocks.fill::<S>(w, &block, x, 1, slab);
    let seen = match w.stride[2] {
        1 => Seen {
            data: slab,
            row: blocks.pitch(),
            odd: 0,
        },
        _ => part::<S>(slab, blocks.pitch(), blocks.plane(), parted),
    };
    for j in 0..shape.m {
        let bias = call.bias.map_or(0.0, |bias| bias[group * shape.m + j]);
        let (lanes, lane) = (group / S::LANES, group % S::LANES);
        let weights = &job.weights[(lanes * shape.m + j) * w.taps() * S::LANES + lane..];
        let start = (channel * shape.m + j) * w.count() + block.start(w);
        let y = job.y.slice(start, block.windows());
        match (w.kernel[2], w.stride[2]) {
            (3, 1) => sums::<S, 3, 1>(&block, &seen, weights, bias, y),
            (3, _) => sums::<S, 3, 2>(&block, &seen, weights, bias, y),
            (_, 1) => sums::<S, 5, 1>(&block, &seen, weights, bias, y),
            (_, _) => sums::<S, 5, 2>(&block, &seen, weights, bias, y),
        }
        let epilogue = Epilogue {
            activation: call.activation,
            ..Epilogue::NONE
        };
        epilogue.apply::<S>(y, 0, 0);
    }
}

/// The elements that the windows of a block see, and at least two vectors after them.
struct Seen<'a> {
    data: &'a [f32],
    /// From one row to the next.
    row: usize,
    /// From even columns to odd ones, where they are parted.
    odd: usize,
}

/// Parts the columns of each row of a slab: even ones, then odd ones.
///
/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn part<'a, S: Simd>(
    slab: &[f32],
    pitch: usize,
    plane: usize,
    to: &'a mut [f32],
) -> Seen<'a> {
    let pairs = pitch.div_ceil(2 * S::LANES);
    let odd = pairs * S::LANES;
    let (rows, row) = (plane / pitch.max(1), 2 * odd);
    assert!(slab.len() >= plane + 2 * S::LANES && to.len() >= rows * row + 2 * S::LANES);
    for i in 0..rows {
        let (from, to) = (slab.as_ptr().add(i * pitch), to.as_mut_ptr().add(i * row));
        for at in (0..odd).step_by(S::LANES) {
            let from = from.add(2 * at);
            let [even, uneven] = S::part(S::load(from), S::load(from.add(S::LANES)));
            S::store(to.add(at), even);
            S::store(to.add(odd + at), uneven);
        }
    }
    Seen { data: to, row, odd }
}

/// The sums of a block for one channel of y.
///
/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn sums<S: Simd, const K: usize, const STRIDE: usize>(
    block: &Block,
    seen: &Seen<'_>,
    weights: &[f32],
    bias: f32,
    y: &mut [f32],
) {
    let mut taps = [[S::splat(0.0); K]; K];
    for (t, tap) in taps.as_flattened_mut().iter_mut().enumerate() {
        *tap = S::splat(weights[t * S::LANES]);
    }
    let (rows, cols) = (block.rows, block.cols);
    let last = (rows - 1) * STRIDE + K;
    assert!(y.len() == rows * cols && last * seen.row + 2 * S::LANES <= seen.data.len());
    let mut tile = |row: usize, all: bool| {
        let x = Seen {
            data: &seen.data[row * STRIDE * seen.row..],
            ..*seen
        };
        let y = &mut y[row * cols..];
        match all {
            true => tile::<S, K, STRIDE, ROWS>(&x, &taps, bias, cols, y),
            false => tile::<S, K, STRIDE, 1>(&x, &taps, bias, cols, y),
        }
    };
    match rows < ROWS {
        true => (0..rows).for_each(|row| tile(row, false)),
        // The last rows of a block may be some that are done already.
        false => {
            let first = (0..rows).step_by(ROWS);
            first.for_each(|row| tile(row.min(rows - ROWS), true));
        }
    }
}

/// `R` rows of `cols` windows, a vector of each at a time.
///
/// # Safety
/// Needs the instructions of `S`; x has the rows that the windows see and two vectors more, y has `R` rows.
#[inline(always)]
unsafe fn tile<S: Simd, const K: usize, const STRIDE: usize, const R: usize>(
    x: &Seen<'_>,
    taps: &[[S::V; K]; K],
    bias: f32,
    cols: usize,
    y: &mut [f32],
) {
    for col in (0..cols).step_by(S::LANES) {
        let mut sums = [S::splat(bias); R];
        for i in 0..(R - 1) * STRIDE + K {
            for j in 0..K {
                let at = i * x.row + j % STRIDE * x.odd + col + j / STRIDE;
                let x = S::load(x.data.as_ptr().add(at));
                for r in 0..R {
                    if r * STRIDE <= i && i < r * STRIDE + K {
                        sums[r] = S::fma(x, taps[i - r * STRIDE][j], sums[r]);
                    }
                }
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            let to = y.as_mut_ptr().add(r * cols + col);
            match cols - col >= S::LANES {
                true => S::store(to, sum),
                false => S::store_n(to, sum, cols - col),
            }
        }
    }
}
