//! Windows of 3 x 3, four at a time: Winograd's F(2 x 2, 3 x 3) (Lavin and Gray, 2016) in integers.
//!
//! A tile of 2 x 2 windows reads 4 x 4 elements `d`. With `u = (2 G) g (2 G)^T` of weights `g` and `v = B^T d B`, both whole numbers of 16
//! bits, `A^T (u v) A` is four times the sums of the windows, from 16 products where there were 36. Nothing is rounded: sums are of
//! 32 bits, and [`MOST`] channels keep four times a sum within them.
//!
//! A task has a rectangle of tiles, for which `v` is made once, and some channels. Channels lie two by two in words, as everywhere here.

use super::super::parallel::{self, SharedMut, Tasks, Threads};
use super::pairs::{Part, Rows, SLACK};
use super::{ByteCall, Codes, ConvShape, TASKS, finish, pair};

/// Tiles of a panel.
const NR: usize = 16;
/// Channels of y that are computed together.
const MR: usize = 6;
/// Elements of a tile.
const POINTS: usize = 16;
/// Words of `v` of one element of a task, about: all 16 fill half of a second-level cache.
const PLANE: usize = 4096;
/// Tiles of a task at most.
const MOST_TILES: usize = 128;
/// Channels of x below which making `v` and reading the results costs more than the products that are saved.
const FEW: usize = 12;
/// Channels of x at most: `4 * 9 * 255 * 255` of each fit 31 bits.
const MOST: usize = 896;
/// Whether a convolution is computed by tiles, where there is AVX2; sizes of x make no difference.
pub(super) fn takes(shape: &ConvShape) -> bool {
    let w = &shape.windows;
    let square = w.kernel[1..] == [3, 3] && w.stride[1..] == [1, 1] && w.dilation[1..] == [1, 1];
    square && (FEW..=MOST).contains(&shape.channels) && shape.m >= FEW
}

fn pairs(shape: &ConvShape) -> usize {
    shape.channels.div_ceil(2)
}

/// Words of packed weights.
pub(super) fn packed_len(shape: &ConvShape) -> usize {
    shape.groups * shape.m * pairs(shape) * POINTS
}

/// Channels whose weights are turned together, half of them words.
const TURNED: usize = 16;

/// `(2 G) g (2 G)^T` of each of [`TURNED`] channels.
fn of_weights(g: &[[i16; TURNED]; 9]) -> [[i16; TURNED]; POINTS] {
    let mut all = [[0; TURNED]; POINTS];
    for lane in 0..TURNED {
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

/// Packs weights `[groups m, channels, 3, 3]`: of each block of [`MR`] channels, the words of a point of all pairs of channels.
pub(super) fn pack(shape: &ConvShape, codes: Codes, w: &[u8], out: &mut [i32]) {
    let (m, channels, pairs) = (shape.m, shape.channels, pairs(shape));
    let own = (m * pairs * POINTS).max(1);
    let groups = out[..packed_len(shape)].chunks_exact_mut(own);
    for (group, out) in groups.enumerate() {
        for (block, out) in out.chunks_mut(MR * pairs * POINTS).enumerate() {
            let rows = (m - block * MR).min(MR);
            for row in 0..rows {
                let channel = group * m + block * MR + row;
                let own = &w[channel * channels * 9..][..channels * 9];
                for (i, own) in own.chunks(TURNED * 9).enumerate() {
                    let mut taps = [[0; TURNED]; 9];
                    for (c, own) in own.chunks_exact(9).enumerate() {
                        for (taps, byte) in taps.iter_mut().zip(own) {
                            taps[c] = codes.value(*byte);
                        }
                    }
                    let first = i * TURNED / 2;
                    for (point, words) in of_weights(&taps).iter().enumerate() {
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

/// How a convolution falls into tasks.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Tiles along both axes.
    tiles: [usize; 2],
    /// Tiles of a task along both axes.
    own: [usize; 2],
    /// Tasks along both axes.
    cuts: [usize; 2],
    /// Tasks along the channels of y, and the channels of each.
    chunks: usize,
    rows: usize,
}

impl Plan {
    fn new(shape: &ConvShape, threads: usize) -> Plan {
        let [_, height, width] = shape.windows.out;
        let tiles = [height.div_ceil(2).max(1), width.div_ceil(2).max(1)];
        let most = (PLANE / pairs(shape)).clamp(NR, MOST_TILES);
        let entries = shape.batch * shape.groups;
        let wanted = (TASKS * threads).div_ceil(entries.max(1));
        let columns = tiles[1].div_ceil(tiles[1].div_ceil(most));
        let full = (most / columns).clamp(1, tiles[0]);
        // Rows are cut evenly, and further for more tasks as long as each has some panels.
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
        Plan {
            tiles,
            own,
            cuts,
            chunks: shape.m.div_ceil(rows),
            rows,
        }
    }

    /// Words from one pair of channels of `v` to the next: an odd number of lines, so that they lie in all sets of a cache.
    fn lead(&self) -> usize {
        ((self.own[0] * self.own[1] + SLACK).div_ceil(NR) | 1) * NR
    }

    /// Panels of a task.
    fn panels(&self) -> usize {
        (self.own[0] * self.own[1]).div_ceil(NR)
    }

    /// Words of half a row of x: the elements at even places, or those at odd ones.
    fn half(&self) -> usize {
        self.own[1] + 1 + SLACK
    }

    /// Words of the rows of a pair of channels.
    fn slab_len(&self) -> usize {
        (2 * self.own[0] + 2) * 2 * self.half()
    }

    fn sums_len(&self) -> usize {
        POINTS * self.panels() * MR * NR
    }
}

/// Words of scratch memory of a thread, of so many.
pub(super) fn part_len(threads: usize, shape: &ConvShape) -> usize {
    let plan = Plan::new(shape, threads);
    let len = POINTS * pairs(shape) * plan.lead() + plan.sums_len() + plan.slab_len();
    len.next_multiple_of(16)
}

pub(super) fn run(
    threads: Threads,
    call: &ByteCall<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let plan = Plan::new(shape, threads.count());
    let tasks = shape.batch * shape.groups * plan.cuts[0] * plan.cuts[1] * plan.chunks;
    let part = part_len(threads.count(), shape);
    let job = Job {
        call,
        weights,
        plan,
        y: SharedMut::new(y),
    };
    parallel::for_workers(threads, tasks, scratch, part, |tasks, part| {
        job.run(tasks, part);
    });
}

struct Job<'a> {
    call: &'a ByteCall<'a>,
    weights: &'a [i32],
    plan: Plan,
    y: SharedMut<u8>,
}

/// The tiles of a task.
#[derive(Clone, Copy, Debug)]
struct Area {
    /// The first one, along both axes.
    first: [usize; 2],
    /// How many, along both axes.
    count: [usize; 2],
}

impl Area {
    fn tiles(&self) -> usize {
        self.count[0] * self.count[1]
    }
}

impl Job<'_> {
    /// Tasks of the same tiles follow each other, and share `v`.
    fn run(&self, tasks: Tasks<'_>, part: &mut [i32]) {
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
            let first = [0, 1].map(|axis| first[axis] * plan.own[axis]);
            let count = [0, 1].map(|axis| plan.own[axis].min(plan.tiles[axis] - first[axis]));
            let area = Area { first, count };
            if made.replace(place) != Some(place) {
                self.points(entry, area, slab, v);
            }
            self.channels(entry, chunk, area, v, sums);
        }
    }

    /// `v` of some tiles of an entry.
    fn points(&self, entry: usize, area: Area, slab: &mut [i32], v: &mut [i32]) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let (w, pairs, lead) = (&shape.windows, pairs(shape), plan.lead());
        let x = &self.call.x[entry * shape.channels * w.plane()..];
        let rows = Rows {
            x,
            channels: shape.channels,
            windows: w,
            codes: self.call.codes,
        };
        let reads = Part {
            begin: 2 * area.first[1],
            count: 2 * area.count[1] + 2,
            stride: 2,
            phase: plan.half(),
        };
        for p in 0..pairs {
            for i in 0..2 * area.count[0] + 2 {
                let to = &mut slab[2 * i * plan.half()..];
                // SAFETY: there is AVX2 where tiles are taken.
                unsafe { rows.write(p, 2 * area.first[0] + i, reads, to) };
            }
            for i in 0..area.count[0] {
                let rows = &slab[4 * i * plan.half()..][..8 * plan.half()];
                let at = p * lead + i * area.count[1];
                // SAFETY: there is AVX2 where tiles are taken; rows and points have slack.
                unsafe {
                    avx2::points(rows, plan.half(), area.count[1], &mut v[at..], pairs * lead);
                }
            }
        }
    }

    /// Some channels of some tiles.
    fn channels(&self, entry: usize, chunk: usize, area: Area, v: &[i32], sums: &mut [i32]) {
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
                    // SAFETY: there is AVX2 where tiles are taken; `b` has as many steps as `u` has for each channel.
                    unsafe { avx2::product(count, wide, u, b, lead, to) };
                }
            }
            for r in 0..count {
                self.store(entry, row + r, r, area, sums);
            }
        }
    }

    /// Writes the windows of one channel, number `r` of those in `sums`.
    fn store(&self, entry: usize, row: usize, r: usize, area: Area, sums: &[i32]) {
        let shape = self.call.shape;
        let [_, height, width] = shape.windows.out;
        let group = entry % shape.groups;
        let channel = finish::Channel::new(&self.call.finish, group * shape.m + row);
        let own = (entry * shape.m + row) * height * width;
        let (tiles, columns) = (area.tiles(), area.count[1]);
        let step = tiles.div_ceil(NR) * MR * NR;
        for first in (0..tiles).step_by(NR / 2) {
            let at = (first / NR * MR + r) * NR + first % NR;
            let mut bytes = [[0; NR]; 2];
            // SAFETY: there is AVX2 where tiles are taken, and sums of eight tiles at each point.
            unsafe { avx2::windows(&sums[at..], step, &channel, &mut bytes) };
            let (mut tile, end) = (first, tiles.min(first + NR / 2));
            while tile < end {
                let (i, j) = (tile / columns, tile % columns);
                let run = (columns - j).min(end - tile);
                let (y, x) = (2 * (area.first[0] + i), 2 * (area.first[1] + j));
                let count = (2 * run).min(width - x);
                for (k, bytes) in bytes.iter().enumerate().take(height - y) {
                    let from = &bytes[2 * (tile - first)..];
                    // SAFETY: these rows of these channels of y are of this task's tiles alone.
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

#[path = "tiles_avx2.rs"]
mod avx2;
