//! Int8 convolution as a GEMM with im2col: weights `[m, k]` times columns `[k, windows]`.
//!
//! A task computes some channels of y for some windows. The task packs the columns of its windows
//! once, into panels of 16 windows. All sums of a tile (6 or 4 channels by 16 windows) stay in
//! registers.

use std::ops::Range;

use self::source::{Int8PanelSource, Int8WindowRun, elements, interleave};
use super::super::parallel::{self, ClaimedTasks, KernelThreads, SharedMut};
use super::super::simd::SimdLevel;
#[cfg(target_arch = "aarch64")]
use super::super::{
    int_tiles_neon::{WordRows, pairs, quads},
    simd::SimdLevelKind,
};
use super::slab::{Int8Slab, SLACK};
use super::{ConvShape, Int8ConvArgs, Int8Encoding, TASKS, has_avx2, requantize};

/// Windows per panel.
pub(super) const NR: usize = 16;
/// Maximum channels per tile.
pub(super) const MR: usize = 6;
/// Approximate words of the columns of a task: most of an L2 cache.
const COLUMNS: usize = 80 << 10;
/// Maximum panels per task.
const MAX_PANELS: usize = 8;
/// Maximum words of weights that are cheap to read again for other windows.
const MAX_REREAD_WEIGHT_WORDS: usize = 48 << 10;
/// Rows of columns that are gathered together.
const STAGE: usize = 64;

/// Format of a 32-bit word of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Int8WordFormat {
    /// Two 16-bit elements, multiplied by two weights.
    Pairs,
    /// Four bytes, multiplied by four weights of magnitude at most 128: see [`super::maddubs`].
    #[cfg(target_arch = "x86_64")]
    Quads,
    /// Four signed bytes, multiplied by four weights of a signed byte. The weights of a channel are
    /// contiguous; their sum follows them.
    #[cfg(target_arch = "aarch64")]
    Bytes,
}

impl Int8WordFormat {
    pub(super) fn select(level: SimdLevel, weights: Int8Encoding) -> Int8WordFormat {
        #[cfg(target_arch = "x86_64")]
        if has_avx2(level) && super::maddubs::supports(weights) {
            return Int8WordFormat::Quads;
        }
        #[cfg(target_arch = "aarch64")]
        if level.dots && weights.zero == if weights.signed { 0 } else { 128 } {
            return Int8WordFormat::Bytes;
        }
        let _ = (level, weights);
        Int8WordFormat::Pairs
    }

    /// Elements per word.
    pub(super) fn depth(self) -> usize {
        match self {
            Int8WordFormat::Pairs => 2,
            #[cfg(target_arch = "x86_64")]
            Int8WordFormat::Quads => 4,
            #[cfg(target_arch = "aarch64")]
            Int8WordFormat::Bytes => 4,
        }
    }

    /// Channels per tile.
    pub(super) fn rows(self) -> usize {
        match self {
            Int8WordFormat::Pairs => MR,
            #[cfg(target_arch = "x86_64")]
            Int8WordFormat::Quads => super::maddubs::ROWS,
            #[cfg(target_arch = "aarch64")]
            Int8WordFormat::Bytes => MR,
        }
    }

    /// Words of columns per window.
    pub(super) fn steps(self, shape: &ConvShape) -> usize {
        match self {
            // Products of matrices take two words at once.
            #[cfg(target_arch = "aarch64")]
            Int8WordFormat::Bytes => 2 * shape.k().div_ceil(8),
            _ => shape.k().div_ceil(self.depth()),
        }
    }

    /// Words of weights per channel, without the trailer of [`super::maddubs`].
    pub(super) fn weight_words(self, shape: &ConvShape) -> usize {
        match self {
            Int8WordFormat::Pairs => self.steps(shape),
            #[cfg(target_arch = "x86_64")]
            Int8WordFormat::Quads => 2 * self.steps(shape),
            #[cfg(target_arch = "aarch64")]
            Int8WordFormat::Bytes => self.steps(shape) + 1,
        }
    }
}

/// Partition of a convolution into tasks.
struct Int8DensePlan {
    /// Panels per task.
    panels: usize,
    /// Number of tasks along the windows of a batch entry.
    blocks: usize,
    /// Number of tasks along the channels.
    chunks: usize,
    /// Channels per task.
    rows: usize,
}

/// Number of panels of a task whose columns fit in the cache.
fn max_panels(form: Int8WordFormat, shape: &ConvShape) -> usize {
    let own = form.steps(shape).max(1) * NR;
    let all = shape.windows.count().div_ceil(NR).max(1);
    (COLUMNS / own).clamp(1, MAX_PANELS).min(all)
}

impl Int8DensePlan {
    fn new(form: Int8WordFormat, shape: &ConvShape, threads: usize) -> Int8DensePlan {
        let all = shape.windows.count().div_ceil(NR);
        let entries = shape.batch * shape.groups;
        let wanted = TASKS * threads;
        let mut panels = max_panels(form, shape);
        if shape.m * shape.k() / 2 <= MAX_REREAD_WEIGHT_WORDS {
            panels = panels.min((all * entries).div_ceil(wanted)).max(1);
        }
        let blocks = all.div_ceil(panels);
        let tiles = shape.m.div_ceil(form.rows());
        let chunks = wanted
            .div_ceil(entries * blocks)
            .clamp(1, tiles.div_ceil(2).max(1));
        let rows = tiles.div_ceil(chunks) * form.rows();
        Int8DensePlan {
            panels,
            blocks,
            chunks: shape.m.div_ceil(rows),
            rows,
        }
    }
}

/// True if the matrix of columns is x itself (1x1 windows without stride or padding).
fn reads_planes(shape: &ConvShape) -> bool {
    let w = &shape.windows;
    w.taps() == 1 && w.stride == [1; 3] && w.pad == [0; 3] && w.out == w.sizes
}

/// True if every column element is an element of x: one tap, no padding.
fn takes_elements(shape: &ConvShape) -> bool {
    let w = &shape.windows;
    w.taps() == 1
        && w.pad == [0; 3]
        && [1, 2]
            .iter()
            .all(|&i| (w.out[i].max(1) - 1) * w.stride[i] < w.sizes[i].max(1))
}

/// Slab bytes of a task.
fn slab_len(form: Int8WordFormat, shape: &ConvShape) -> usize {
    if reads_planes(shape) {
        return 0;
    }
    let w = &shape.windows;
    if takes_elements(shape) {
        return shape.channels * max_panels(form, shape) * NR + SLACK;
    }
    let rows = (max_panels(form, shape) * NR).div_ceil(w.out[2].max(1)) + 1;
    let slab = Int8Slab::new(w, 0, rows.min(w.out[1]));
    shape.channels * slab.channel() + SLACK
}

/// Scratch words per thread.
pub(super) fn part_len(form: Int8WordFormat, shape: &ConvShape) -> usize {
    let columns = max_panels(form, shape) * form.steps(shape) * NR;
    (columns + slab_len(form, shape).div_ceil(4)).next_multiple_of(16)
}

pub(super) fn run(
    (level, form): (SimdLevel, Int8WordFormat),
    threads: KernelThreads,
    call: &Int8ConvArgs<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let plan = Int8DensePlan::new(form, shape, threads.count());
    let tasks = shape.batch * shape.groups * plan.blocks * plan.chunks;
    let part = part_len(form, shape);
    let job = Int8DenseTaskArgs {
        level,
        form,
        call,
        weights,
        plan,
        y: SharedMut::new(y),
    };
    parallel::for_workers(threads, tasks, scratch, part, |tasks, part| {
        job.run(tasks, part);
    });
}

/// Channels to multiply with a panel.
pub(super) struct Int8ChannelBlock<'a> {
    /// Channels of y, counted over all groups.
    pub(super) channels: Range<usize>,
    /// Number of windows of the panel.
    pub(super) width: usize,
    /// Weights of the channels, without the trailer of [`super::maddubs`].
    pub(super) a: &'a [i32],
    /// Columns of the panel.
    pub(super) b: &'a [i32],
}

struct Int8DenseTaskArgs<'a> {
    level: SimdLevel,
    form: Int8WordFormat,
    call: &'a Int8ConvArgs<'a>,
    weights: &'a [i32],
    plan: Int8DensePlan,
    y: SharedMut<u8>,
}

impl Int8DenseTaskArgs<'_> {
    /// Runs tasks; consecutive tasks with the same windows share columns.
    fn run(&self, tasks: ClaimedTasks<'_>, part: &mut [i32]) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let len = max_panels(self.form, shape) * self.form.steps(shape) * NR;
        let (columns, slab) = part.split_at_mut(len);
        let slab: &mut [u8] = bytemuck::cast_slice_mut(slab);
        let mut made = None;
        for task in tasks {
            let (chunk, place) = (task % plan.chunks, task / plan.chunks);
            let (entry, block) = (place / plan.blocks, place % plan.blocks);
            let first = block * plan.panels * NR;
            let end = (first + plan.panels * NR).min(shape.windows.count());
            if made.replace(place) != Some(place) {
                self.columns(entry, first, end, slab, columns);
            }
            self.multiply(entry, chunk, first, end, columns);
        }
    }

    /// Packs the columns of windows `first..end` of a batch entry as panels.
    fn columns(
        &self,
        entry: usize,
        first: usize,
        end: usize,
        slab: &mut [u8],
        columns: &mut [i32],
    ) {
        let (shape, codes) = (self.call.shape, self.call.codes);
        let w = &shape.windows;
        let own = shape.channels * w.plane();
        let x = &self.call.x[entry * own..][..own];
        let panel_len = self.form.steps(shape) * NR;
        if reads_planes(shape) {
            let from = &x[first..];
            return self.planes(from, w.plane(), end - first, columns);
        }
        if takes_elements(shape) {
            let count = end - first;
            for (c, to) in slab[..shape.channels * count]
                .chunks_exact_mut(count)
                .enumerate()
            {
                let plane = &x[c * w.plane()..][..w.plane()];
                elements(w, plane, first, to);
            }
            return self.planes(slab, count, count, columns);
        }
        let panels = columns.chunks_exact_mut(panel_len.max(1));
        let firsts = (first..end).step_by(NR);
        let (top, bottom) = (first / w.out[2], (end - 1) / w.out[2] + 1);
        let lies = Int8Slab::new(w, top, bottom);
        let pad = codes.zero as u8;
        for c in 0..shape.channels {
            let plane = &x[c * w.plane()..][..w.plane()];
            let to = &mut slab[c * lies.channel()..][..lies.channel()];
            match has_avx2(self.level) && w.stride[2] == 2 {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the level has AVX2.
                true => unsafe { lies.fill_stride2(w, plane, pad, to) },
                _ => lies.fill(w, plane, pad, to, |x| x),
            }
        }
        let bytes = &slab[..shape.channels * lies.channel() + SLACK];
        for (at, panel) in firsts.zip(panels) {
            let mut runs = [Int8WindowRun { from: 0, to: 0 }; NR];
            let (mut count, mut window) = (0, at);
            let stop = end.min(at + NR);
            while window < stop {
                let (row, col) = (window / w.out[2], window % w.out[2]);
                runs[count] = Int8WindowRun {
                    from: lies.window_row(w, row) + col,
                    to: window - at,
                };
                count += 1;
                window += w.out[2] - col;
            }
            let source = Int8PanelSource {
                bytes,
                runs: &runs[..count],
                last: NR,
            };
            let taps = || {
                let [_, height, width] = w.kernel;
                (0..height).flat_map(move |ty| (0..width).map(move |tx| lies.tap(w, ty, tx)))
            };
            let offsets =
                (0..shape.channels).flat_map(|c| taps().map(move |tap| c * lies.channel() + tap));
            self.panel(&source, offsets, panel);
        }
    }

    /// Packs `count` windows of planes with distance `apart` into panels.
    fn planes(&self, from: &[u8], apart: usize, count: usize, columns: &mut [i32]) {
        let shape = self.call.shape;
        let panel_len = self.form.steps(shape) * NR;
        #[cfg(target_arch = "x86_64")]
        if has_avx2(self.level) {
            let codes = self.call.codes;
            for (p, low) in (0..shape.channels).step_by(self.form.depth()).enumerate() {
                let of = |c: usize| (c < shape.channels).then(|| &from[c * apart..]);
                let to = &mut columns[p * NR..];
                // SAFETY: the level has AVX2.
                unsafe {
                    match self.form {
                        Int8WordFormat::Pairs => {
                            let codes = (codes.flip(), codes.flipped_zero());
                            let low_row = &from[low * apart..];
                            super::channel_pairs::panels(
                                low_row,
                                of(low + 1),
                                count,
                                codes,
                                to,
                                panel_len,
                            );
                        }
                        Int8WordFormat::Quads => {
                            let rows = [0, 1, 2, 3].map(|i| of(low + i));
                            super::maddubs::panels(rows, count, codes, to, panel_len);
                        }
                    }
                }
            }
            return;
        }
        let panels = columns.chunks_exact_mut(panel_len.max(1));
        for (at, panel) in (0..count).step_by(NR).zip(panels) {
            let source = Int8PanelSource {
                bytes: from,
                runs: &[Int8WindowRun { from: at, to: 0 }],
                last: NR.min(count - at),
            };
            self.panel(&source, (0..shape.channels).map(|c| c * apart), panel);
        }
    }

    /// Packs the rows of a panel from these offsets of the source as words.
    fn panel(
        &self,
        source: &Int8PanelSource<'_>,
        offsets: impl Iterator<Item = usize>,
        panel: &mut [i32],
    ) {
        let codes = self.call.codes;
        let depth = self.form.depth();
        let mut stage = [0u8; (STAGE + 1) * NR];
        let mut offsets = offsets;
        for panel in panel.chunks_mut(STAGE / depth * NR) {
            let rows = panel.len() / NR * depth;
            let mut made = 0;
            for offset in offsets.by_ref().take(rows) {
                source.gather(offset, &mut stage[made * NR..]);
                made += 1;
            }
            // Padding of the last word: the corresponding weights are zero.
            stage[made * NR..rows.max(made) * NR].fill(0);
            match self.form {
                Int8WordFormat::Pairs => {
                    let (flip, zero) = (codes.flip(), codes.flipped_zero());
                    interleave(self.level, &stage, flip, zero, panel);
                }
                // SAFETY: words of four bytes are only used with AVX2.
                #[cfg(target_arch = "x86_64")]
                Int8WordFormat::Quads => unsafe {
                    super::maddubs::interleave(&stage, codes, panel)
                },
                #[cfg(target_arch = "aarch64")]
                Int8WordFormat::Bytes => source::interleave_bytes(&stage, codes.flip(), panel),
            }
        }
    }

    /// Computes some channels of the windows `first..end`.
    fn multiply(&self, entry: usize, chunk: usize, first: usize, end: usize, columns: &[i32]) {
        let (shape, plan, form) = (self.call.shape, &self.plan, self.form);
        let (steps, words) = (form.steps(shape), form.weight_words(shape));
        let group = entry % shape.groups;
        let rows = chunk * plan.rows..shape.m.min((chunk + 1) * plan.rows);
        // Large weights are read once: all panels follow each block of channels. Small weights are
        // read again for each panel.
        let together = match rows.len() * words <= MAX_REREAD_WEIGHT_WORDS {
            true => rows.len(),
            false => form.rows(),
        };
        for row in rows.clone().step_by(together) {
            let count = together.min(rows.end - row);
            let channel = group * shape.m + row;
            for (panel, at) in (first..end).step_by(NR).enumerate() {
                let block = Int8ChannelBlock {
                    channels: channel..channel + count,
                    width: NR.min(end - at),
                    a: &self.weights[channel * words..][..count * words],
                    b: &columns[panel * steps * NR..][..steps * NR],
                };
                let y = self
                    .y
                    .from((entry * shape.m + row) * shape.windows.count() + at);
                match form {
                    Int8WordFormat::Pairs => self.tiles(&block, y),
                    #[cfg(target_arch = "aarch64")]
                    Int8WordFormat::Bytes => self.tiles(&block, y),
                    #[cfg(target_arch = "x86_64")]
                    Int8WordFormat::Quads => {
                        let of = super::maddubs::MaddubsChannels::new(shape);
                        let ends = super::maddubs::MaddubsTrailer::new(&of, self.weights);
                        // SAFETY: words of four bytes are only used with AVX2; each task writes
                        // only its channels of its windows, all within y.
                        unsafe { super::maddubs::channels(self.call, &block, ends, y.ptr()) };
                    }
                }
            }
        }
    }

    /// Computes the channels of a panel; `y` is the first window of the first channel.
    fn tiles(&self, block: &Int8ChannelBlock<'_>, y: SharedMut<u8>) {
        let Range { start, end } = block.channels;
        let words = block.a.len() / (end - start);
        for first in (start..end).step_by(MR) {
            let channels = first..end.min(first + MR);
            let a = &block.a[(first - start) * words..][..channels.len() * words];
            let mut bytes = [[0; NR]; MR];
            self.tile(channels.clone(), block.width, a, block.b, &mut bytes);
            for (channel, bytes) in channels.zip(&bytes) {
                let to = (channel - start) * self.call.shape.windows.count();
                // SAFETY: each task writes only its channels of its windows, all within y.
                let y = unsafe { y.slice(to, block.width) };
                y.copy_from_slice(&bytes[..block.width]);
            }
        }
    }

    /// Computes the output bytes of a tile.
    fn tile(
        &self,
        channels: Range<usize>,
        width: usize,
        a: &[i32],
        b: &[i32],
        bytes: &mut [[u8; NR]; MR],
    ) {
        let rows = channels.len();
        if has_avx2(self.level) {
            #[cfg(target_arch = "x86_64")]
            {
                assert_eq!(a.len() * NR, b.len() * rows);
                let tile = match (rows, width > NR / 2) {
                    (1, false) => avx2::tile::<1, 1>,
                    (2, false) => avx2::tile::<2, 1>,
                    (3, false) => avx2::tile::<3, 1>,
                    (4, false) => avx2::tile::<4, 1>,
                    (5, false) => avx2::tile::<5, 1>,
                    (_, false) => avx2::tile::<6, 1>,
                    (1, true) => avx2::tile::<1, 2>,
                    (2, true) => avx2::tile::<2, 2>,
                    (3, true) => avx2::tile::<3, 2>,
                    (4, true) => avx2::tile::<4, 2>,
                    (5, true) => avx2::tile::<5, 2>,
                    (_, true) => avx2::tile::<6, 2>,
                };
                // SAFETY: the level has AVX2; rows and columns have the same depth.
                unsafe { tile(a, b, (&self.call.finish, channels.start), bytes) };
            }
            return;
        }
        let _ = width;
        let sums = self.sums(rows, a, b);
        for (r, (bytes, sums)) in bytes.iter_mut().zip(&sums).take(rows).enumerate() {
            let channel = requantize::RequantizeChannel::new(&self.call.finish, channels.start + r);
            bytes
                .iter_mut()
                .zip(sums)
                .for_each(|(y, sum)| *y = channel.byte(*sum));
        }
    }
}

impl Int8DenseTaskArgs<'_> {
    /// Sums of a tile of `rows` channels.
    fn sums(&self, rows: usize, a: &[i32], b: &[i32]) -> [[i32; NR]; MR] {
        let mut sums = [[0i32; NR]; MR];
        #[cfg(target_arch = "aarch64")]
        if self.level.kind == SimdLevelKind::Neon {
            self.neon_sums(rows, a, b, &mut sums);
            return sums;
        }
        assert_eq!(a.len() * NR, b.len() * rows);
        for (a, b) in a.chunks_exact(rows).zip(b.chunks_exact(NR)) {
            for (sums, a) in sums.iter_mut().zip(a) {
                let (low, high) = (i32::from(*a as i16), a >> 16);
                for (sum, b) in sums.iter_mut().zip(b) {
                    let both = (low * i32::from(*b as i16)).wrapping_add(high * (b >> 16));
                    *sum = sum.wrapping_add(both);
                }
            }
        }
        sums
    }

    #[cfg(target_arch = "aarch64")]
    fn neon_sums(&self, rows: usize, a: &[i32], b: &[i32], sums: &mut [[i32; NR]; MR]) {
        let steps = b.len() / NR;
        let own = a.len() / rows;
        assert!(rows <= MR && a.len() == own * rows);
        let to = sums.as_mut_ptr().cast();
        match self.form {
            Int8WordFormat::Pairs => {
                assert!(own == steps);
                let (a, row, step) = (a.as_ptr(), 1, rows);
                // SAFETY: rows and columns have the same depth.
                unsafe { pairs(rows, WordRows { a, row, step }, b.as_ptr(), steps, to) };
            }
            Int8WordFormat::Bytes => {
                assert!(own == steps + 1 && steps.is_multiple_of(2) && self.level.dots);
                let words = WordRows {
                    a: a.as_ptr(),
                    row: own,
                    step: 1,
                };
                // SAFETY: rows and columns have the same depth, and the level is of this machine.
                unsafe { quads(self.level.matrices, rows, words, b.as_ptr(), steps, to) };
                // Columns are 128 below the unsigned byte, and the zero point was not subtracted.
                let shift = 128 - i32::from(self.call.codes.flipped_zero());
                for (sums, a) in sums.iter_mut().zip(a.chunks_exact(own)) {
                    let whole = shift.wrapping_mul(a[steps]);
                    sums.iter_mut()
                        .for_each(|sum| *sum = sum.wrapping_add(whole));
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[path = "dense_avx2.rs"]
mod avx2;

#[path = "dense_source.rs"]
mod source;
