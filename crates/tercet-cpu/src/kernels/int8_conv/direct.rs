//! Direct int8 convolution without im2col: adjacent windows read their taps in place from rows of
//! x. A word of such a row contains the elements of two channels.
//!
//! A task computes some channels of a rectangle of windows, and converts the required rows of x
//! once. All sums of a tile (6 channels by 16 windows of a row) stay in registers.

use super::super::conv::ConvWindowAxes;
use super::super::parallel::{self, ClaimedTasks, KernelThreads, SharedMut};
use super::channel_pairs::{ChannelPairRow, PaddedRowPart, SLACK};
use super::{ConvShape, Int8ConvArgs, Int8Encoding, TASKS, pair};

/// Windows per panel.
const NR: usize = 16;
/// Channels per tile.
const MR: usize = 6;
/// Approximate words of the rows of a task: half of an L2 cache.
const SLAB: usize = 64 << 10;
/// Maximum words of weights that are cheap to read again for other windows.
const MAX_REREAD_WEIGHT_WORDS: usize = 40 << 10;

/// Maximum channels of x: with more channels, the elements that a panel reads do not stay in the L1
/// cache.
const MAX_CHANNELS: usize = 64;

/// True if this algorithm supports the convolution (with AVX2); independent of the sizes of x.
pub(super) fn supports(shape: &ConvShape) -> bool {
    shape.windows.stride[2] <= 2
        && shape.windows.taps() > 1
        && (2..=MAX_CHANNELS).contains(&shape.channels)
}

fn pairs(shape: &ConvShape) -> usize {
    shape.channels.div_ceil(2)
}

fn steps(shape: &ConvShape) -> usize {
    pairs(shape) * shape.windows.taps()
}

/// Words of packed weights.
pub(super) fn packed_len(shape: &ConvShape) -> usize {
    shape.groups * shape.m * steps(shape)
}

/// Packs weights `[groups m, channels, taps]`. The order is: blocks of [`MR`] channels of y, pairs
/// of channels of x, taps.
pub(super) fn pack(shape: &ConvShape, codes: Int8Encoding, w: &[u8], out: &mut [i32]) {
    let (taps, channels, steps) = (shape.windows.taps(), shape.channels, steps(shape));
    let at = |row: usize, c: usize, tap: usize| match c < channels {
        true => codes.value(w[(row * channels + c) * taps + tap]),
        false => 0,
    };
    for group in 0..shape.groups {
        let out = &mut out[group * shape.m * steps..][..shape.m * steps];
        for (block, out) in out.chunks_mut((MR * steps).max(1)).enumerate() {
            let rows = (shape.m - block * MR).min(MR);
            let first = group * shape.m + block * MR;
            for (step, out) in out.chunks_exact_mut(rows).enumerate() {
                let (p, tap) = (step / taps, step % taps);
                for (r, out) in out.iter_mut().enumerate() {
                    let row = first + r;
                    *out = pair(at(row, 2 * p, tap), at(row, 2 * p + 1, tap));
                }
            }
        }
    }
}

/// Partition of a convolution into tasks, and the layout of their rows of x.
#[derive(Clone, Copy, Debug)]
struct Int8DirectPlan {
    windows: ConvWindowAxes,
    /// Windows per task along both axes.
    task_windows: [usize; 2],
    /// Number of tasks along each of the two axes.
    cuts: [usize; 2],
    /// Number of tasks along the channels of y, and channels per task.
    chunks: usize,
    rows: usize,
    /// True if each panel is multiplied by all weights before the next panel, so weights are read
    /// once per panel.
    one_panel_each: bool,
}

impl Int8DirectPlan {
    fn new(shape: &ConvShape, threads: usize) -> Int8DirectPlan {
        let mut windows = shape.windows;
        // 1x1 windows with stride 1 are the elements of x, so the plane is treated as a single row.
        if windows.taps() == 1 && windows.stride == [1; 3] && windows.sizes == windows.out {
            windows.sizes = [1, 1, windows.plane()];
            windows.out = windows.sizes;
        }
        let [_, height, width] = windows.out;
        let pairs = pairs(shape).max(1);
        let few = shape.m * steps(shape) <= MAX_REREAD_WEIGHT_WORDS;
        let wanted = (TASKS * threads).div_ceil(shape.batch * shape.groups);
        let mut plan = Int8DirectPlan {
            windows,
            task_windows: [1, width],
            cuts: [1; 2],
            chunks: 1,
            rows: 0,
            one_panel_each: few,
        };
        let most = SLAB / (pairs * plan.lines() * windows.stride[2]) / NR * NR;
        let mut cuts = width.div_ceil(most.max(NR));
        if few && height < wanted {
            let more = wanted.div_ceil(height).min(width.div_ceil(2 * NR));
            cuts = cuts.max(more);
        }
        plan.task_windows[1] = width.div_ceil(cuts).next_multiple_of(NR).min(width);
        plan.cuts[1] = width.div_ceil(plan.task_windows[1]);
        let lines = SLAB / (pairs * plan.row());
        let more = lines.saturating_sub(plan.lines()) / plan.line_step();
        let mut rows = (1 + more).min(height);
        if few {
            rows = rows.min(height.div_ceil(wanted.div_ceil(plan.cuts[1])));
        }
        plan.task_windows[0] = height.div_ceil(height.div_ceil(rows));
        plan.cuts[0] = height.div_ceil(plan.task_windows[0]);
        let tiles = shape.m.div_ceil(MR);
        let chunks = wanted
            .div_ceil(plan.cuts[0] * plan.cuts[1])
            .clamp(1, tiles.div_ceil(2).max(1));
        plan.rows = tiles.div_ceil(chunks) * MR;
        plan.chunks = shape.m.div_ceil(plan.rows.max(1));
        plan
    }

    /// Distance in lines between adjacent rows of windows. If a window covers one row of x, rows
    /// that no window reads are not stored as lines, so the distance is 1.
    fn line_step(&self) -> usize {
        match self.windows.kernel[1] {
            1 => 1,
            _ => self.windows.stride[1],
        }
    }

    /// Lines that the windows of a task read.
    fn lines(&self) -> usize {
        let w = &self.windows;
        (self.task_windows[0] - 1) * self.line_step() + (w.kernel[1].max(1) - 1) * w.dilation[1] + 1
    }

    /// Positions of a line that `windows` windows of a row read.
    fn places(&self, windows: usize) -> usize {
        let w = &self.windows;
        (windows - 1) * w.stride[2] + (w.kernel[2].max(1) - 1) * w.dilation[2] + 1
    }

    fn phase(&self) -> usize {
        self.places(self.task_windows[1])
            .div_ceil(self.windows.stride[2])
            + SLACK
    }

    /// Words per line.
    fn row(&self) -> usize {
        self.phase() * self.windows.stride[2]
    }

    /// Stride in words between pairs of channels: an odd number of cache lines, so that accesses
    /// are spread over all cache sets.
    fn lead(&self) -> usize {
        ((self.lines() * self.row()).div_ceil(NR) | 1) * NR
    }
}

/// Scratch words per thread, for `threads` threads.
pub(super) fn part_len(threads: usize, shape: &ConvShape) -> usize {
    let plan = Int8DirectPlan::new(shape, threads);
    (steps(shape) + pairs(shape) * plan.lead()).next_multiple_of(16)
}

pub(super) fn run(
    threads: KernelThreads,
    call: &Int8ConvArgs<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let plan = Int8DirectPlan::new(shape, threads.count());
    let tasks = shape.batch * shape.groups * plan.cuts[0] * plan.cuts[1] * plan.chunks;
    let part = part_len(threads.count(), shape);
    let job = Int8DirectTaskArgs {
        call,
        weights,
        plan,
        y: SharedMut::new(y),
    };
    parallel::for_workers(threads, tasks, scratch, part, |tasks, part| {
        job.run(tasks, part);
    });
}

struct Int8DirectTaskArgs<'a> {
    call: &'a Int8ConvArgs<'a>,
    weights: &'a [i32],
    plan: Int8DirectPlan,
    y: SharedMut<u8>,
}

/// Windows of a task.
#[derive(Clone, Copy, Debug)]
struct Int8DirectArea {
    /// Row and column of the first output that the task computes.
    first: [usize; 2],
    /// Number of output rows and columns.
    count: [usize; 2],
}

impl Int8DirectTaskArgs<'_> {
    /// Runs tasks; consecutive tasks with the same windows share the rows of x.
    fn run(&self, tasks: ClaimedTasks<'_>, part: &mut [i32]) {
        let plan = &self.plan;
        let (offsets, slab) = part.split_at_mut(steps(self.call.shape));
        self.offsets(offsets);
        let mut made = None;
        for task in tasks {
            let (chunk, place) = (task % plan.chunks, task / plan.chunks);
            let blocks = plan.cuts[0] * plan.cuts[1];
            let (entry, block) = (place / blocks, place % blocks);
            let first = [block / plan.cuts[1], block % plan.cuts[1]];
            let first = [0, 1].map(|axis| first[axis] * plan.task_windows[axis]);
            let out = [plan.windows.out[1], plan.windows.out[2]];
            let count = [0, 1].map(|axis| plan.task_windows[axis].min(out[axis] - first[axis]));
            let area = Int8DirectArea { first, count };
            if made.replace(place) != Some(place) {
                self.fill(entry, area, slab);
            }
            self.channels(entry, chunk, area, offsets, slab);
        }
    }

    /// Computes, for each step of the sum, the offset of its words from the start of a window.
    fn offsets(&self, offsets: &mut [i32]) {
        let (w, plan) = (&self.plan.windows, &self.plan);
        let taps = w.taps();
        for (i, offset) in offsets.iter_mut().enumerate() {
            let (p, [_, ty, tx]) = (i / taps, w.tap(i % taps));
            let x = tx * w.dilation[2];
            let phase = x % w.stride[2] * plan.phase() + x / w.stride[2];
            *offset = (p * plan.lead() + ty * w.dilation[1] * plan.row() + phase) as i32;
        }
    }

    /// Converts the rows of x that some windows of a batch entry read.
    fn fill(&self, entry: usize, area: Int8DirectArea, slab: &mut [i32]) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let w = &plan.windows;
        let rows = ChannelPairRow {
            x: &self.call.x[entry * shape.channels * w.plane()..],
            channels: shape.channels,
            windows: w,
            codes: self.call.codes,
        };
        let part = PaddedRowPart {
            begin: area.first[1] * w.stride[2],
            count: plan.places(area.count[1]),
            stride: w.stride[2],
            phase: plan.phase(),
        };
        let step = plan.line_step();
        let lines = (area.count[0] - 1) * step + plan.lines() - (plan.task_windows[0] - 1) * step;
        // Distance between lines, in rows of x.
        let apart = w.stride[1] / step;
        for p in 0..pairs(shape) {
            let to = &mut slab[p * plan.lead()..];
            for i in 0..lines {
                let at = area.first[0] * w.stride[1] + i * apart;
                // SAFETY: this algorithm is only used with AVX2.
                unsafe { rows.write(p, at, part, &mut to[i * plan.row()..]) };
            }
        }
    }

    /// Computes some channels of some windows.
    fn channels(
        &self,
        entry: usize,
        chunk: usize,
        area: Int8DirectArea,
        offsets: &[i32],
        slab: &[i32],
    ) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let own = shape.m * offsets.len();
        let weights = &self.weights[entry % shape.groups * own..][..own];
        let rows = chunk * plan.rows..shape.m.min((chunk + 1) * plan.rows);
        let tiles = rows.len().div_ceil(MR);
        let wide = area.count[1].div_ceil(NR);
        let panels = area.count[0] * wide;
        let reach = offsets.iter().max().map_or(0, |last| *last as usize + NR);
        let steps = (offsets, reach);
        for i in 0..tiles * panels {
            let (tile, panel) = match plan.one_panel_each {
                true => (i % tiles, i / tiles),
                false => (i / panels, i % panels),
            };
            let row = rows.start + tile * MR;
            let count = MR.min(rows.end - row);
            let (line, col) = (panel / wide, panel % wide * NR);
            let width = NR.min(area.count[1] - col);
            let a = &weights[row * offsets.len()..][..count * offsets.len()];
            let b = &slab[line * plan.line_step() * plan.row() + col..];
            let first = entry % shape.groups * shape.m + row;
            let finish = (&self.call.finish, first);
            let mut bytes = [[0; NR]; MR];
            // SAFETY: this algorithm is only used with AVX2; the reach is computed from the
            // offsets.
            unsafe { avx2::tile(count, width > NR / 2, a, b, steps, finish, &mut bytes) };
            let at = (area.first[0] + line) * plan.windows.out[2] + area.first[1] + col;
            for (r, bytes) in bytes[..count].iter().enumerate() {
                let to = (entry * shape.m + row + r) * plan.windows.count() + at;
                // SAFETY: each task writes only its channels of its windows, all within y.
                let y = unsafe { self.y.slice(to, width) };
                match width {
                    NR => y.copy_from_slice(bytes),
                    _ => y.copy_from_slice(&bytes[..width]),
                }
            }
        }
    }
}

mod avx2 {
    use std::arch::x86_64::{
        _mm_storeu_si128, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setzero_si256,
    };

    use super::super::Requantize;
    use super::super::requantize::avx2::RequantizeVectors;
    use super::{MR, NR};

    /// Computes the output bytes of up to 6 channels for 16 or 8 windows; `reach` is the maximum
    /// offset plus 16.
    ///
    /// # Safety
    /// The machine has AVX2, and `reach` has that value.
    ///
    /// # Panics
    /// If there are fewer weights than offsets for each channel, or `b` is shorter than the reach.
    pub(super) unsafe fn tile(
        channels: usize,
        wide: bool,
        a: &[i32],
        b: &[i32],
        (offsets, reach): (&[i32], usize),
        finish: (&Requantize<'_>, usize),
        bytes: &mut [[u8; NR]; MR],
    ) {
        assert!(a.len() == channels * offsets.len() && b.len() >= reach);
        let function = match (channels, wide) {
            (1, false) => sums::<1, 1>,
            (2, false) => sums::<2, 1>,
            (3, false) => sums::<3, 1>,
            (4, false) => sums::<4, 1>,
            (5, false) => sums::<5, 1>,
            (_, false) => sums::<6, 1>,
            (1, true) => sums::<1, 2>,
            (2, true) => sums::<2, 2>,
            (3, true) => sums::<3, 2>,
            (4, true) => sums::<4, 2>,
            (5, true) => sums::<5, 2>,
            (_, true) => sums::<6, 2>,
        };
        function(a.as_ptr(), b.as_ptr(), offsets, finish, bytes);
    }

    /// # Safety
    /// The machine has AVX2. `a` has `R` words for each offset, and `b` has `8 V` words from each
    /// offset on.
    #[target_feature(enable = "avx2")]
    unsafe fn sums<const R: usize, const V: usize>(
        mut a: *const i32,
        b: *const i32,
        offsets: &[i32],
        (finish, channel): (&Requantize<'_>, usize),
        bytes: &mut [[u8; NR]; MR],
    ) {
        let mut sums = [[_mm256_setzero_si256(); V]; R];
        for offset in offsets {
            let b = b.add(*offset as usize);
            let mut columns = [_mm256_setzero_si256(); V];
            for (v, columns) in columns.iter_mut().enumerate() {
                *columns = _mm256_loadu_si256(b.add(8 * v).cast());
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = _mm256_set1_epi32(*a.add(r));
                for (sum, columns) in sums.iter_mut().zip(&columns) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(weight, *columns));
                }
            }
            a = a.add(R);
        }
        let mut vectors = RequantizeVectors::from_requantize(finish);
        for (r, sums) in sums.iter().enumerate() {
            vectors.set_channel(finish, channel + r);
            let (first, last) = (sums[0], sums[V - 1]);
            // `low` has the sums of windows 0 to 3 and 8 to 11, `high` the others.
            let low = _mm256_permute2x128_si256::<0x20>(first, last);
            let high = _mm256_permute2x128_si256::<0x31>(first, last);
            let packed = vectors.bytes(low, high);
            _mm_storeu_si128(bytes[r].as_mut_ptr().cast(), packed);
        }
    }
}
