//! Winograd convolution F(2 x 2, 3 x 3) (Lavin and Gray, 2016) in exact integers, for 3 x 3
//! windows.
//!
//! A tile of 2 x 2 windows reads 4 x 4 elements `d`. Let `u = (2 G) g (2 G)^T` for weights `g`, and
//! `v = B^T d B`; both are 16-bit integers. Then `A^T (u v) A` is four times the sums of the
//! windows, with 16 products instead of 36. Nothing is rounded. Sums have 32 bits, and the limit of
//! [`MAX_CHANNELS`] channels keeps four times a sum within them.
//!
//! A task computes some channels of y for a rectangle of tiles; these channels share one
//! computation of `v`. A word contains two channels.

use super::super::parallel::{self, ClaimedTasks, KernelThreads, SharedMut};
use super::channel_pairs::{ChannelPairRow, PaddedRowPart, SLACK};
use super::{ConvShape, Int8ConvArgs, Int8Encoding, TASKS, pair, requantize};

/// Tiles per panel.
const NR: usize = 16;
/// Channels of y that are computed together.
const MR: usize = 6;
/// Elements of a transformed tile.
const POINTS: usize = 16;
/// Approximate words of `v` per tile element in a task; all 16 elements fill half of an L2 cache.
const PLANE: usize = 4096;
/// Maximum tiles per task.
const MAX_TILES: usize = 128;
/// Minimum channels of x. With fewer channels, the transforms cost more than the saved products.
const MIN_CHANNELS_FOR_WINOGRAD: usize = 12;
/// Maximum channels of x: the sum of `4 * 9 * 255 * 255` per channel fits in 31 bits.
const MAX_CHANNELS: usize = 896;
/// True if this algorithm supports the convolution (with AVX2); independent of the sizes of x.
pub(super) fn supports(shape: &ConvShape) -> bool {
    let w = &shape.windows;
    let square = w.kernel[1..] == [3, 3] && w.stride[1..] == [1, 1] && w.dilation[1..] == [1, 1];
    square
        && (MIN_CHANNELS_FOR_WINOGRAD..=MAX_CHANNELS).contains(&shape.channels)
        && shape.m >= MIN_CHANNELS_FOR_WINOGRAD
}

fn pairs(shape: &ConvShape) -> usize {
    shape.channels.div_ceil(2)
}

/// Words of packed weights.
pub(super) fn packed_len(shape: &ConvShape) -> usize {
    shape.groups * shape.m * pairs(shape) * POINTS
}

/// Number of channels of x whose weights are transformed together; two channels form a word.
const TRANSFORM_CHANNELS: usize = 16;

/// Computes `(2 G) g (2 G)^T` for each of [`TRANSFORM_CHANNELS`] channels.
fn transform_weights(g: &[[i16; TRANSFORM_CHANNELS]; 9]) -> [[i16; TRANSFORM_CHANNELS]; POINTS] {
    let mut all = [[0; TRANSFORM_CHANNELS]; POINTS];
    for lane in 0..TRANSFORM_CHANNELS {
        let four = |a: i16, b: i16, c: i16| [2 * a, a + b + c, a - b + c, 2 * c];
        let columns: [[i16; 4]; 3] =
            std::array::from_fn(|j| four(g[j][lane], g[3 + j][lane], g[6 + j][lane]));
        for i in 0..4 {
            let row = four(columns[0][i], columns[1][i], columns[2][i]);
            for (j, x) in row.into_iter().enumerate() {
                all[4 * i + j][lane] = x;
            }
        }
    }
    all
}

/// Packs weights `[groups m, channels, 3, 3]`. The order is: blocks of [`MR`] channels of y,
/// points, pairs of channels of x.
pub(super) fn pack(shape: &ConvShape, codes: Int8Encoding, w: &[u8], out: &mut [i32]) {
    let (m, channels, pairs) = (shape.m, shape.channels, pairs(shape));
    let own = (m * pairs * POINTS).max(1);
    let groups = out[..packed_len(shape)].chunks_exact_mut(own);
    for (group, out) in groups.enumerate() {
        for (block, out) in out.chunks_mut(MR * pairs * POINTS).enumerate() {
            let rows = (m - block * MR).min(MR);
            for row in 0..rows {
                let channel = group * m + block * MR + row;
                let own = &w[channel * channels * 9..][..channels * 9];
                for (i, own) in own.chunks(TRANSFORM_CHANNELS * 9).enumerate() {
                    let mut taps = [[0; TRANSFORM_CHANNELS]; 9];
                    for (c, own) in own.chunks_exact(9).enumerate() {
                        for (taps, byte) in taps.iter_mut().zip(own) {
                            taps[c] = codes.value(*byte);
                        }
                    }
                    let first = i * TRANSFORM_CHANNELS / 2;
                    for (point, words) in transform_weights(&taps).iter().enumerate() {
                        let to = (point * pairs + first) * rows + row;
                        let to = out[to..].iter_mut().step_by(rows).take(pairs - first);
                        for (to, word) in to.zip(words.as_chunks::<2>().0) {
                            *to = pair(word[0], word[1]);
                        }
                    }
                }
            }
        }
    }
}

/// Partition of a convolution into tasks.
#[derive(Clone, Copy, Debug)]
struct Int8WinogradPlan {
    /// Number of tiles along both axes.
    tiles: [usize; 2],
    /// Tiles per task along both axes.
    task_tiles: [usize; 2],
    /// Number of tasks along both axes.
    cuts: [usize; 2],
    /// Number of tasks along the channels of y, and channels per task.
    chunks: usize,
    rows: usize,
}

impl Int8WinogradPlan {
    fn new(shape: &ConvShape, threads: usize) -> Int8WinogradPlan {
        let [_, height, width] = shape.windows.out;
        let tiles = [height.div_ceil(2).max(1), width.div_ceil(2).max(1)];
        let most = (PLANE / pairs(shape)).clamp(NR, MAX_TILES);
        let entries = shape.batch * shape.groups;
        let wanted = (TASKS * threads).div_ceil(entries.max(1));
        let columns = tiles[1].div_ceil(tiles[1].div_ceil(most));
        let full = (most / columns).clamp(1, tiles[0]);
        // Rows of tiles are split evenly; into more parts if threads need more tasks and each task
        // keeps two panels.
        let few = (2 * NR).div_ceil(columns).min(full);
        let rows = tiles[0].div_ceil(wanted).clamp(few, full);
        let rows = tiles[0].div_ceil(tiles[0].div_ceil(rows));
        let own = [rows, columns];
        let cuts = [0, 1].map(|axis| tiles[axis].div_ceil(own[axis]));
        let blocks = shape.m.div_ceil(MR);
        let chunks = wanted
            .div_ceil(cuts[0] * cuts[1])
            .clamp(1, blocks.div_ceil(2).max(1));
        let rows = blocks.div_ceil(chunks) * MR;
        Int8WinogradPlan {
            tiles,
            task_tiles: own,
            cuts,
            chunks: shape.m.div_ceil(rows),
            rows,
        }
    }

    /// Stride in words between pairs of channels of `v`: an odd number of cache lines, so that
    /// accesses are spread over all cache sets.
    fn lead(&self) -> usize {
        ((self.task_tiles[0] * self.task_tiles[1] + SLACK).div_ceil(NR) | 1) * NR
    }

    /// Panels per task.
    fn panels(&self) -> usize {
        (self.task_tiles[0] * self.task_tiles[1]).div_ceil(NR)
    }

    /// Words of the elements of a row of x at even positions, or at odd positions.
    fn half(&self) -> usize {
        self.task_tiles[1] + 1 + SLACK
    }

    /// Words of the rows of x that a task reads, for a pair of channels.
    fn slab_len(&self) -> usize {
        (2 * self.task_tiles[0] + 2) * 2 * self.half()
    }

    fn sums_len(&self) -> usize {
        POINTS * self.panels() * MR * NR
    }
}

/// Scratch words per thread, for `threads` threads.
pub(super) fn part_len(threads: usize, shape: &ConvShape) -> usize {
    let plan = Int8WinogradPlan::new(shape, threads);
    let len = POINTS * pairs(shape) * plan.lead() + plan.sums_len() + plan.slab_len();
    len.next_multiple_of(16)
}

pub(super) fn run(
    threads: KernelThreads,
    call: &Int8ConvArgs<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let plan = Int8WinogradPlan::new(shape, threads.count());
    let tasks = shape.batch * shape.groups * plan.cuts[0] * plan.cuts[1] * plan.chunks;
    let part = part_len(threads.count(), shape);
    let job = Int8WinogradTaskArgs {
        call,
        weights,
        plan,
        y: SharedMut::new(y),
    };
    parallel::for_workers(threads, tasks, scratch, part, |tasks, part| {
        job.run(tasks, part);
    });
}

struct Int8WinogradTaskArgs<'a> {
    call: &'a Int8ConvArgs<'a>,
    weights: &'a [i32],
    plan: Int8WinogradPlan,
    y: SharedMut<u8>,
}

/// Tiles of a task.
#[derive(Clone, Copy, Debug)]
struct Int8WinogradArea {
    /// Index of the first tile along both axes.
    first: [usize; 2],
    /// Number of tiles along both axes.
    count: [usize; 2],
}

impl Int8WinogradArea {
    fn tiles(&self) -> usize {
        self.count[0] * self.count[1]
    }
}

impl Int8WinogradTaskArgs<'_> {
    /// Runs tasks; consecutive tasks with the same tiles share `v`.
    fn run(&self, tasks: ClaimedTasks<'_>, part: &mut [i32]) {
        let plan = &self.plan;
        let (v, rest) = part.split_at_mut(POINTS * pairs(self.call.shape) * plan.lead());
        let (sums, slab) = rest.split_at_mut(plan.sums_len());
        let mut made = None;
        for task in tasks {
            let (chunk, place) = (task % plan.chunks, task / plan.chunks);
            let (entry, block) = (
                place / (plan.cuts[0] * plan.cuts[1]),
                place % (plan.cuts[0] * plan.cuts[1]),
            );
            let first = [block / plan.cuts[1], block % plan.cuts[1]];
            let first = [0, 1].map(|axis| first[axis] * plan.task_tiles[axis]);
            let count =
                [0, 1].map(|axis| plan.task_tiles[axis].min(plan.tiles[axis] - first[axis]));
            let area = Int8WinogradArea { first, count };
            if made.replace(place) != Some(place) {
                self.points(entry, area, slab, v);
            }
            self.channels(entry, chunk, area, v, sums);
        }
    }

    /// Computes `v` for some tiles of a batch entry.
    fn points(&self, entry: usize, area: Int8WinogradArea, slab: &mut [i32], v: &mut [i32]) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let (w, pairs, lead) = (&shape.windows, pairs(shape), plan.lead());
        let x = &self.call.x[entry * shape.channels * w.plane()..];
        let rows = ChannelPairRow {
            x,
            channels: shape.channels,
            windows: w,
            codes: self.call.codes,
        };
        let reads = PaddedRowPart {
            begin: 2 * area.first[1],
            count: 2 * area.count[1] + 2,
            stride: 2,
            phase: plan.half(),
        };
        for p in 0..pairs {
            for i in 0..2 * area.count[0] + 2 {
                let to = &mut slab[2 * i * plan.half()..];
                // SAFETY: this algorithm is only used with AVX2.
                unsafe { rows.write(p, 2 * area.first[0] + i, reads, to) };
            }
            for i in 0..area.count[0] {
                let rows = &slab[4 * i * plan.half()..][..8 * plan.half()];
                let at = p * lead + i * area.count[1];
                // SAFETY: this algorithm is only used with AVX2; rows and points have slack.
                unsafe {
                    avx2::points(rows, plan.half(), area.count[1], &mut v[at..], pairs * lead);
                }
            }
        }
    }

    /// Computes some channels of some tiles.
    fn channels(
        &self,
        entry: usize,
        chunk: usize,
        area: Int8WinogradArea,
        v: &[i32],
        sums: &mut [i32],
    ) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let (pairs, lead) = (pairs(shape), plan.lead());
        let group = entry % shape.groups;
        let own = shape.m * pairs * POINTS;
        let weights = &self.weights[group * own..][..own];
        let tiles = area.tiles();
        let panels = tiles.div_ceil(NR);
        let rows = chunk * plan.rows..shape.m.min((chunk + 1) * plan.rows);
        for row in rows.clone().step_by(MR) {
            let count = MR.min(rows.end - row);
            let u = &weights[row * pairs * POINTS..][..count * pairs * POINTS];
            for point in 0..POINTS {
                let u = &u[point * count * pairs..][..count * pairs];
                for panel in 0..panels {
                    let b = &v[point * pairs * lead + panel * NR..][..(pairs - 1) * lead + NR];
                    let to = &mut sums[(point * panels + panel) * MR * NR..][..MR * NR];
                    let wide = tiles - panel * NR > NR / 2;
                    // SAFETY: this algorithm is only used with AVX2; `b` has the same number of
                    // steps as `u` per channel.
                    unsafe { avx2::product(count, wide, u, b, lead, to) };
                }
            }
            for r in 0..count {
                self.store(entry, row + r, r, area, sums);
            }
        }
    }

    /// Writes the windows of one channel, which has index `r` in `sums`.
    fn store(&self, entry: usize, row: usize, r: usize, area: Int8WinogradArea, sums: &[i32]) {
        let shape = self.call.shape;
        let [_, height, width] = shape.windows.out;
        let group = entry % shape.groups;
        let channel = requantize::RequantizeChannel::new(&self.call.finish, group * shape.m + row);
        let own = (entry * shape.m + row) * height * width;
        let (tiles, columns) = (area.tiles(), area.count[1]);
        let step = tiles.div_ceil(NR) * MR * NR;
        for first in (0..tiles).step_by(NR / 2) {
            let at = (first / NR * MR + r) * NR + first % NR;
            let mut bytes = [[0; NR]; 2];
            // SAFETY: this algorithm is only used with AVX2, and each point has sums of eight
            // tiles.
            unsafe { avx2::windows(&sums[at..], step, &channel, &mut bytes) };
            let (mut tile, end) = (first, tiles.min(first + NR / 2));
            while tile < end {
                let (i, j) = (tile / columns, tile % columns);
                let run = (columns - j).min(end - tile);
                let (y, x) = (2 * (area.first[0] + i), 2 * (area.first[1] + j));
                let count = (2 * run).min(width - x);
                for (k, bytes) in bytes.iter().enumerate().take(height - y) {
                    let from = &bytes[2 * (tile - first)..];
                    // SAFETY: only the tiles of this task write these rows of these channels of y.
                    let to = unsafe { self.y.slice(own + (y + k) * width + x, count) };
                    match count {
                        NR => to.copy_from_slice(&from[..NR]),
                        _ => to.copy_from_slice(&from[..count]),
                    }
                }
                tile += run;
            }
        }
    }
}

#[path = "winograd_avx2.rs"]
mod avx2;
