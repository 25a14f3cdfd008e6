//! Convolution of bytes as products: weights `[m, k]` by columns `[k, windows]`.
//!
//! A task has some windows, whose columns are made once as panels of 16 windows, and some channels of y. Of a tile, 6 channels by
//! 16 windows, or 4, all sums stay in registers.

use std::ops::Range;

use self::source::{Run, Source, elements, interleave};
use super::super::parallel::{self, SharedMut, Tasks, Threads};
use super::super::simd::SimdLevel;
use super::slab::{SLACK, Slab};
use super::{ByteCall, Codes, ConvShape, TASKS, finish, has_avx2};

/// Windows of a panel.
pub(super) const NR: usize = 16;
/// Channels of a tile at most.
pub(super) const MR: usize = 6;
/// Words of the columns of a task, about: most of a second-level cache.
const COLUMNS: usize = 80 << 10;
/// Panels of a task at most.
const MOST_PANELS: usize = 8;
/// Words of weights that are cheap to read again for other windows.
const FEW_WEIGHTS: usize = 48 << 10;
/// Rows of columns that are gathered together.
const STAGE: usize = 64;

/// What a word of columns holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Two elements of 16 bits, by as many weights.
    Pairs,
    /// Four bytes, by four weights that are at most 128: see [`super::quads`].
    #[cfg(target_arch = "x86_64")]
    Quads,
}

impl Form {
    pub(super) fn of(level: SimdLevel, weights: Codes) -> Form {
        #[cfg(target_arch = "x86_64")]
        if has_avx2(level) && super::quads::takes(weights) {
            return Form::Quads;
        }
        let _ = (level, weights);
        Form::Pairs
    }

    /// Elements of a word.
    pub(super) fn depth(self) -> usize {
        match self {
            Form::Pairs => 2,
            #[cfg(target_arch = "x86_64")]
            Form::Quads => 4,
        }
    }

    /// Channels of a tile.
    pub(super) fn rows(self) -> usize {
        match self {
            Form::Pairs => MR,
            #[cfg(target_arch = "x86_64")]
            Form::Quads => super::quads::ROWS,
        }
    }

    /// Words of columns of a window.
    fn steps(self, shape: &ConvShape) -> usize {
        shape.k().div_ceil(self.depth())
    }

    /// Words of weights of a channel, but for what [`super::quads`] has at their end.
    pub(super) fn words(self, shape: &ConvShape) -> usize {
        match self {
            Form::Pairs => self.steps(shape),
            #[cfg(target_arch = "x86_64")]
            Form::Quads => 2 * self.steps(shape),
        }
    }
}

/// How a convolution falls into tasks.
struct Plan {
    /// Panels of a task.
    panels: usize,
    /// Tasks side by side along the windows of an entry.
    blocks: usize,
    /// Tasks along the channels.
    chunks: usize,
    /// Channels of a task.
    rows: usize,
}

/// Panels of a task whose columns fit.
fn most_panels(form: Form, shape: &ConvShape) -> usize {
    let own = form.steps(shape).max(1) * NR;
    let all = shape.windows.count().div_ceil(NR).max(1);
    (COLUMNS / own).clamp(1, MOST_PANELS).min(all)
}

impl Plan {
    fn new(form: Form, shape: &ConvShape, threads: usize) -> Plan {
        let all = shape.windows.count().div_ceil(NR);
        let entries = shape.batch * shape.groups;
        let wanted = TASKS * threads;
        let mut panels = most_panels(form, shape);
        if shape.m * shape.k() / 2 <= FEW_WEIGHTS {
            panels = panels.min((all * entries).div_ceil(wanted)).max(1);
        }
        let blocks = all.div_ceil(panels);
        let tiles = shape.m.div_ceil(form.rows());
        let chunks = wanted
            .div_ceil(entries * blocks)
            .clamp(1, tiles.div_ceil(2).max(1));
        let rows = tiles.div_ceil(chunks) * form.rows();
        Plan {
            panels,
            blocks,
            chunks: shape.m.div_ceil(rows),
            rows,
        }
    }
}

/// Whether columns are the rows of x as they are.
fn reads_planes(shape: &ConvShape) -> bool {
    let w = &shape.windows;
    w.taps() == 1 && w.stride == [1; 3] && w.pad == [0; 3] && w.out == w.sizes
}

/// Whether columns are some elements of x.
fn takes_elements(shape: &ConvShape) -> bool {
    let w = &shape.windows;
    w.taps() == 1
        && w.pad == [0; 3]
        && [1, 2]
            .iter()
            .all(|&i| (w.out[i].max(1) - 1) * w.stride[i] < w.sizes[i].max(1))
}

/// Bytes of the slab of a task.
fn slab_len(form: Form, shape: &ConvShape) -> usize {
    if reads_planes(shape) {
        return 0;
    }
    let w = &shape.windows;
    if takes_elements(shape) {
        return shape.channels * most_panels(form, shape) * NR + SLACK;
    }
    let rows = (most_panels(form, shape) * NR).div_ceil(w.out[2].max(1)) + 1;
    let slab = Slab::new(w, 0, rows.min(w.out[1]));
    shape.channels * slab.channel() + SLACK
}

/// Words of scratch memory of a thread.
pub(super) fn part_len(form: Form, shape: &ConvShape) -> usize {
    let columns = most_panels(form, shape) * form.steps(shape) * NR;
    (columns + slab_len(form, shape).div_ceil(4)).next_multiple_of(16)
}

pub(super) fn run(
    (level, form): (SimdLevel, Form),
    threads: Threads,
    call: &ByteCall<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let plan = Plan::new(form, shape, threads.count());
    let tasks = shape.batch * shape.groups * plan.blocks * plan.chunks;
    let part = part_len(form, shape);
    let job = Job {
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

/// Channels of a panel.
pub(super) struct Block<'a> {
    /// The channels of y, of all groups.
    pub(super) channels: Range<usize>,
    /// Windows of the panel.
    pub(super) width: usize,
    /// The weights of the channels, but for what [`super::quads`] has at their end.
    pub(super) a: &'a [i32],
    /// The columns.
    pub(super) b: &'a [i32],
}

struct Job<'a> {
    level: SimdLevel,
    form: Form,
    call: &'a ByteCall<'a>,
    weights: &'a [i32],
    plan: Plan,
    y: SharedMut<u8>,
}

impl Job<'_> {
    /// Tasks of the same windows follow each other, and share columns.
    fn run(&self, tasks: Tasks<'_>, part: &mut [i32]) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let len = most_panels(self.form, shape) * self.form.steps(shape) * NR;
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

    /// The columns of windows `first..end` of an entry as panels.
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
        let lies = Slab::new(w, top, bottom);
        let pad = codes.zero as u8;
        for c in 0..shape.channels {
            let plane = &x[c * w.plane()..][..w.plane()];
            let to = &mut slab[c * lies.channel()..][..lies.channel()];
            match has_avx2(self.level) && w.stride[2] == 2 {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the level has AVX2.
                true => unsafe { lies.fill_halves(w, plane, pad, to) },
                _ => lies.fill(w, plane, pad, to, |x| x),
            }
        }
        let bytes = &slab[..shape.channels * lies.channel() + SLACK];
        for (at, panel) in firsts.zip(panels) {
            let mut runs = [Run { from: 0, to: 0 }; NR];
            let (mut count, mut window) = (0, at);
            let stop = end.min(at + NR);
            while window < stop {
                let (row, col) = (window / w.out[2], window % w.out[2]);
                runs[count] = Run {
                    from: lies.window_row(w, row) + col,
                    to: window - at,
                };
                count += 1;
                window += w.out[2] - col;
            }
            let source = Source {
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

    /// Panels of `count` windows of planes that lie `apart`.
    fn planes(&self, from: &[u8], apart: usize, count: usize, columns: &mut [i32]) {
        let (shape, codes) = (self.call.shape, self.call.codes);
        let panel_len = self.form.steps(shape) * NR;
        if has_avx2(self.level) {
            #[cfg(target_arch = "x86_64")]
            for (p, low) in (0..shape.channels).step_by(self.form.depth()).enumerate() {
                let of = |c: usize| (c < shape.channels).then(|| &from[c * apart..]);
                let to = &mut columns[p * NR..];
                // SAFETY: the level has AVX2.
                unsafe {
                    match self.form {
                        Form::Pairs => {
                            let codes = (codes.flip(), codes.flipped_zero());
                            let low_row = &from[low * apart..];
                            super::pairs::panels(low_row, of(low + 1), count, codes, to, panel_len);
                        }
                        Form::Quads => {
                            let rows = [0, 1, 2, 3].map(|i| of(low + i));
                            super::quads::panels(rows, count, codes, to, panel_len);
                        }
                    }
                }
            }
            return;
        }
        let panels = columns.chunks_exact_mut(panel_len.max(1));
        for (at, panel) in (0..count).step_by(NR).zip(panels) {
            let source = Source {
                bytes: from,
                runs: &[Run { from: at, to: 0 }],
                last: NR.min(count - at),
            };
            self.panel(&source, (0..shape.channels).map(|c| c * apart), panel);
        }
    }

    /// The rows of a panel, at these offsets of the source, as words.
    fn panel(&self, source: &Source<'_>, offsets: impl Iterator<Item = usize>, panel: &mut [i32]) {
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
            // The last word: the weights beside these rows are zeros.
            stage[made * NR..rows.max(made) * NR].fill(0);
            match self.form {
                Form::Pairs => {
                    let (flip, zero) = (codes.flip(), codes.flipped_zero());
                    interleave(self.level, &stage, flip, zero, panel);
                }
                // SAFETY: there is AVX2 where words have four bytes.
                #[cfg(target_arch = "x86_64")]
                Form::Quads => unsafe { super::quads::interleave(&stage, codes, panel) },
            }
        }
    }

    /// Some channels of the windows `first..end`.
    fn multiply(&self, entry: usize, chunk: usize, first: usize, end: usize, columns: &[i32]) {
        let (shape, plan, form) = (self.call.shape, &self.plan, self.form);
        let (steps, words) = (form.steps(shape), form.words(shape));
        let group = entry % shape.groups;
        let rows = chunk * plan.rows..shape.m.min((chunk + 1) * plan.rows);
        // Weights that are many pass by once for all panels.
        let together = match rows.len() * words <= FEW_WEIGHTS {
            true => rows.len(),
            false => form.rows(),
        };
        for row in rows.clone().step_by(together) {
            let count = together.min(rows.end - row);
            let channel = group * shape.m + row;
            for (panel, at) in (first..end).step_by(NR).enumerate() {
                let block = Block {
                    channels: channel..channel + count,
                    width: NR.min(end - at),
                    a: &self.weights[channel * words..][..count * words],
                    b: &columns[panel * steps * NR..][..steps * NR],
                };
                let y = self
                    .y
                    .from((entry * shape.m + row) * shape.windows.count() + at);
                match form {
                    Form::Pairs => self.tiles(&block, y),
                    #[cfg(target_arch = "x86_64")]
                    Form::Quads => {
                        let of = super::quads::Channels::of(shape);
                        let ends = super::quads::Ends::of(&of, self.weights);
                        // SAFETY: there is AVX2 where words have four bytes; a task has its channels of its windows to
                        // itself, all within y.
                        unsafe { super::quads::channels(self.call, &block, ends, y.ptr()) };
                    }
                }
            }
        }
    }

    /// Channels of a panel; `y` is the first window of the first.
    fn tiles(&self, block: &Block<'_>, y: SharedMut<u8>) {
        let Range { start, end } = block.channels;
        let words = block.a.len() / (end - start);
        for first in (start..end).step_by(MR) {
            let channels = first..end.min(first + MR);
            let a = &block.a[(first - start) * words..][..channels.len() * words];
            let mut bytes = [[0; NR]; MR];
            self.tile(channels.clone(), block.width, a, block.b, &mut bytes);
            for (channel, bytes) in channels.zip(&bytes) {
                let to = (channel - start) * self.call.shape.windows.count();
                // SAFETY: a task has its channels of its windows to itself, all within y.
                let y = unsafe { y.slice(to, block.width) };
                y.copy_from_slice(&bytes[..block.width]);
            }
        }
    }

    /// The bytes of a tile.
    fn tile(
        &self,
        channels: Range<usize>,
        width: usize,
        a: &[i32],
        b: &[i32],
        bytes: &mut [[u8; NR]; MR],
    ) {
        let rows = channels.len();
        assert_eq!(a.len() * NR, b.len() * rows);
        if has_avx2(self.level) {
            #[cfg(target_arch = "x86_64")]
            {
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
                // SAFETY: the level has AVX2; rows and columns are as deep as each other.
                unsafe { tile(a, b, (&self.call.finish, channels.start), bytes) };
            }
            return;
        }
        let mut sums = [[0i32; NR]; MR];
        for (a, b) in a.chunks_exact(rows).zip(b.chunks_exact(NR)) {
            for (sums, a) in sums.iter_mut().zip(a) {
                let (low, high) = (i32::from(*a as i16), a >> 16);
                for (sum, b) in sums.iter_mut().zip(b) {
                    let both = (low * i32::from(*b as i16)).wrapping_add(high * (b >> 16));
                    *sum = sum.wrapping_add(both);
                }
            }
        }
        for (r, (bytes, sums)) in bytes.iter_mut().zip(&sums).take(rows).enumerate() {
            let channel = finish::Channel::new(&self.call.finish, channels.start + r);
            bytes
                .iter_mut()
                .zip(sums)
                .for_each(|(y, sum)| *y = channel.byte(*sum));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[path = "dense_avx2.rs"]
mod avx2;

#[path = "dense_source.rs"]
mod source;
