//! Convolution of bytes as products: weights `[m, k]` by columns `[k, windows]`.
//!
//! A task has some windows, whose columns are made once as panels of 16 windows, and some channels of y. Of a tile, 6 channels by
//! 16 windows, all sums stay in registers.

use super::super::conv::Windows;
use super::super::parallel::{self, SharedMut, Tasks, Threads};
use super::super::simd::SimdLevel;
use super::slab::{SLACK, Slab};
use super::{ByteCall, ConvShape, TASKS, finish, has_avx2};

/// Windows of a panel.
const NR: usize = 16;
/// Channels of a tile.
pub(super) const MR: usize = 6;
/// Words of the columns of a task, about: most of a second-level cache.
const COLUMNS: usize = 80 << 10;
/// Panels of a task at most.
const MOST_PANELS: usize = 8;
/// Words of weights that are cheap to read again for other windows.
const FEW_WEIGHTS: usize = 48 << 10;
/// Pairs along the depth that are multiplied at a time: their columns stay in a first-level cache for all channels.
const DEPTH: usize = 256;
/// Rows of columns that are gathered together.
const STAGE: usize = 64;

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
fn most_panels(shape: &ConvShape) -> usize {
    let own = shape.k().div_ceil(2).max(1) * NR;
    let all = shape.windows.count().div_ceil(NR).max(1);
    (COLUMNS / own).clamp(1, MOST_PANELS).min(all)
}

impl Plan {
    fn new(shape: &ConvShape, threads: usize) -> Plan {
        let all = shape.windows.count().div_ceil(NR);
        let entries = shape.batch * shape.groups;
        let wanted = TASKS * threads;
        let mut panels = most_panels(shape);
        if shape.m * shape.k() / 2 <= FEW_WEIGHTS {
            panels = panels.min((all * entries).div_ceil(wanted)).max(1);
        }
        let blocks = all.div_ceil(panels);
        let tiles = shape.m.div_ceil(MR);
        let chunks = wanted
            .div_ceil(entries * blocks)
            .clamp(1, tiles.div_ceil(2).max(1));
        let rows = tiles.div_ceil(chunks) * MR;
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
fn slab_len(shape: &ConvShape) -> usize {
    if reads_planes(shape) {
        return 0;
    }
    let w = &shape.windows;
    if takes_elements(shape) {
        return shape.channels * most_panels(shape) * NR + SLACK;
    }
    let rows = (most_panels(shape) * NR).div_ceil(w.out[2].max(1)) + 1;
    let slab = Slab::new(w, 0, rows.min(w.out[1]));
    shape.channels * slab.channel() + SLACK
}

/// Words of the sums of a panel between one part of the depth and the next.
fn sums_len(shape: &ConvShape) -> usize {
    match shape.k().div_ceil(2) > DEPTH {
        true => shape.m.next_multiple_of(MR) * NR,
        false => 0,
    }
}

/// Words of scratch memory of a thread.
pub(super) fn part_len(shape: &ConvShape) -> usize {
    let columns = most_panels(shape) * shape.k().div_ceil(2) * NR;
    (columns + sums_len(shape) + slab_len(shape).div_ceil(4)).next_multiple_of(16)
}

pub(super) fn run(
    level: SimdLevel,
    threads: Threads,
    call: &ByteCall<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let plan = Plan::new(shape, threads.count());
    let tasks = shape.batch * shape.groups * plan.blocks * plan.chunks;
    let job = Job {
        level,
        call,
        weights,
        plan,
        y: SharedMut::new(y),
    };
    parallel::for_workers(threads, tasks, scratch, part_len(shape), |tasks, part| {
        job.run(tasks, part);
    });
}

struct Job<'a> {
    level: SimdLevel,
    call: &'a ByteCall<'a>,
    weights: &'a [i32],
    plan: Plan,
    y: SharedMut<u8>,
}

impl Job<'_> {
    /// Tasks of the same windows follow each other, and share columns.
    fn run(&self, tasks: Tasks<'_>, part: &mut [i32]) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let len = most_panels(shape) * shape.k().div_ceil(2) * NR;
        let (columns, rest) = part.split_at_mut(len);
        let (sums, slab) = rest.split_at_mut(sums_len(shape));
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
            self.multiply(entry, chunk, first, end, columns, sums);
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
        let panel_len = shape.k().div_ceil(2) * NR;
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
            lies.fill(w, plane, pad, to, |x| x);
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
        let panel_len = shape.k().div_ceil(2) * NR;
        if has_avx2(self.level) {
            // SAFETY: the level has AVX2.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                let (low, high) = (0..shape.channels, 1..shape.channels);
                for (p, low) in low.step_by(2).enumerate() {
                    let of = |c: usize| &from[c * apart..];
                    let high = high.contains(&(low + 1)).then(|| of(low + 1));
                    let codes = (codes.flip(), codes.flipped_zero());
                    let to = &mut columns[p * NR..];
                    super::pairs::panels(of(low), high, count, codes, to, panel_len);
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

    /// The rows of a panel, at these offsets of the source, as pairs.
    fn panel(&self, source: &Source<'_>, offsets: impl Iterator<Item = usize>, panel: &mut [i32]) {
        let codes = self.call.codes;
        let (flip, zero) = (codes.flip(), codes.flipped_zero());
        let mut stage = [0u8; (STAGE + 1) * NR];
        let mut offsets = offsets;
        for panel in panel.chunks_mut(STAGE / 2 * NR) {
            let rows = panel.len() / NR * 2;
            let mut made = 0;
            for offset in offsets.by_ref().take(rows) {
                source.gather(offset, &mut stage[made * NR..]);
                made += 1;
            }
            // An odd depth: the weights beside this row are zeros.
            stage[made * NR..rows.max(made) * NR].fill(0);
            interleave(self.level, &stage, flip, zero, panel);
        }
    }

    /// Some channels of the windows `first..end`.
    fn multiply(
        &self,
        entry: usize,
        chunk: usize,
        first: usize,
        end: usize,
        columns: &[i32],
        sums: &mut [i32],
    ) {
        let (shape, plan) = (self.call.shape, &self.plan);
        let (pairs, windows) = (shape.k().div_ceil(2), shape.windows.count());
        let group = entry % shape.groups;
        let weights = &self.weights[group * shape.m * pairs..][..shape.m * pairs];
        let rows = chunk * plan.rows..shape.m.min((chunk + 1) * plan.rows);
        for (i, at) in (first..end).step_by(NR).enumerate() {
            let b = &columns[i * pairs * NR..][..pairs * NR];
            let width = NR.min(end - at);
            let parts = pairs.div_ceil(DEPTH).max(1);
            for part in 0..parts {
                let depth = part * DEPTH..pairs.min((part + 1) * DEPTH);
                let b = &b[depth.start * NR..depth.end * NR];
                for row in rows.clone().step_by(MR) {
                    let count = MR.min(rows.end - row);
                    let a = &weights[row * pairs..][..count * pairs];
                    let a = &a[depth.start * count..depth.end * count];
                    let carried = match parts {
                        1 => &mut [][..],
                        _ => &mut sums[(row - rows.start) * NR..][..MR * NR],
                    };
                    let stage = Stage {
                        begins: part == 0,
                        ends: part + 1 == parts,
                    };
                    let channels = group * shape.m + row..group * shape.m + row + count;
                    let mut bytes = [[0; NR]; MR];
                    self.tile(channels, width, [a, b], stage, carried, &mut bytes);
                    if !stage.ends {
                        continue;
                    }
                    for (r, bytes) in bytes[..count].iter().enumerate() {
                        let to = (entry * shape.m + row + r) * windows + at;
                        // SAFETY: a task has its channels of its windows to itself, all within y.
                        let y = unsafe { self.y.slice(to, width) };
                        match width {
                            NR => y.copy_from_slice(bytes),
                            _ => y.copy_from_slice(&bytes[..width]),
                        }
                    }
                }
            }
        }
    }

    /// The bytes of a tile at the last stage; between stages its sums are in `carried`.
    fn tile(
        &self,
        channels: std::ops::Range<usize>,
        width: usize,
        [a, b]: [&[i32]; 2],
        stage: Stage,
        carried: &mut [i32],
        bytes: &mut [[u8; NR]; MR],
    ) {
        let rows = channels.len();
        assert_eq!(a.len() * NR, b.len() * rows);
        assert!(stage.begins && stage.ends || carried.len() >= MR * NR);
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
                // SAFETY: the level has AVX2; rows and columns are as deep as each other, and there is room for sums.
                unsafe {
                    tile(
                        a,
                        b,
                        stage,
                        carried,
                        (&self.call.finish, channels.start),
                        bytes,
                    )
                };
            }
            return;
        }
        let mut sums = [[0i32; NR]; MR];
        if !stage.begins {
            for (sums, carried) in sums.iter_mut().zip(carried.chunks_exact(NR)) {
                sums.copy_from_slice(carried);
            }
        }
        for (a, b) in a.chunks_exact(rows).zip(b.chunks_exact(NR)) {
            for (sums, a) in sums.iter_mut().zip(a) {
                let (low, high) = (i32::from(*a as i16), a >> 16);
                for (sum, b) in sums.iter_mut().zip(b) {
                    let both = (low * i32::from(*b as i16)).wrapping_add(high * (b >> 16));
                    *sum = sum.wrapping_add(both);
                }
            }
        }
        if !stage.ends {
            for (sums, carried) in sums.iter().zip(carried.chunks_exact_mut(NR)) {
                carried.copy_from_slice(sums);
            }
            return;
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

/// Which part of the depth is multiplied.
#[derive(Clone, Copy, Debug)]
struct Stage {
    begins: bool,
    ends: bool,
}

/// What some windows of one tap read, in their order.
fn elements(w: &Windows, plane: &[u8], first: usize, to: &mut [u8]) {
    let (mut window, mut rest) = (first, to);
    while !rest.is_empty() {
        let (row, col) = (window / w.out[2], window % w.out[2]);
        let count = rest.len().min(w.out[2] - col);
        let (own, more) = rest.split_at_mut(count);
        let from = &plane[row * w.stride[1] * w.sizes[2] + col * w.stride[2]..];
        match w.stride[2] {
            2 => {
                let last = count - 1;
                let pairs = own[..last].iter_mut().zip(from.chunks_exact(2));
                pairs.for_each(|(y, x)| *y = x[0]);
                own[last] = from[2 * last];
            }
            stride => {
                let elements = own.iter_mut().zip(from.iter().step_by(stride));
                elements.for_each(|(y, x)| *y = *x);
            }
        }
        (window, rest) = (window + count, more);
    }
}

/// Where the windows of a panel lie one after the other.
#[derive(Clone, Copy)]
struct Run {
    from: usize,
    /// The first window, within the panel.
    to: usize,
}

/// What rows of a panel are gathered from.
struct Source<'a> {
    bytes: &'a [u8],
    runs: &'a [Run],
    /// Elements that may be read of the last run, at least as many as it has windows.
    last: usize,
}

impl Source<'_> {
    /// Writes the bytes at an offset, run by run: each whole, what comes after it over what it has too much.
    #[inline(always)]
    fn gather(&self, offset: usize, to: &mut [u8]) {
        if let [run] = self.runs {
            let from = &self.bytes[offset + run.from..];
            match self.last {
                NR => to[..NR].copy_from_slice(&from[..NR]),
                last => to[..last].copy_from_slice(&from[..last]),
            }
            return;
        }
        for run in self.runs {
            let from = &self.bytes[offset + run.from..][..NR];
            to[run.to..][..NR].copy_from_slice(from);
        }
    }
}

/// Rows of bytes, two by two, as words of pairs.
fn interleave(level: SimdLevel, stage: &[u8], flip: u8, zero: i16, panel: &mut [i32]) {
    assert!(stage.len() >= 2 * panel.len());
    if has_avx2(level) {
        // SAFETY: the level has AVX2, and there are two rows of bytes for each of words.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            avx2::interleave(stage, flip, zero, panel);
        }
        return;
    }
    let value = |x: u8| i16::from(x ^ flip) - zero;
    for (rows, out) in stage.chunks_exact(2 * NR).zip(panel.chunks_exact_mut(NR)) {
        let (low, high) = rows.split_at(NR);
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            *out = super::pair(value(*low), value(*high));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        _mm_loadu_si128, _mm_set1_epi8, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8,
        _mm_xor_si128, _mm256_add_epi32, _mm256_cvtepu8_epi16, _mm256_loadu_si256,
        _mm256_madd_epi16, _mm256_permute2x128_si256, _mm256_set1_epi16, _mm256_set1_epi32,
        _mm256_setzero_si256, _mm256_storeu_si256, _mm256_sub_epi16,
    };

    use super::super::Finish;
    use super::super::finish::avx2::Vectors;
    use super::{MR, NR, Stage};

    /// The bytes of `R` channels for `8 V` windows at the last stage, else their sums.
    ///
    /// # Safety
    /// The machine has AVX2; `a` has `R` words and `b` 16 for each step along the depth; `carried` has 16 words for each channel, if
    /// the stage is not the only one.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn tile<const R: usize, const V: usize>(
        a: &[i32],
        b: &[i32],
        stage: Stage,
        carried: &mut [i32],
        (finish, channel): (&Finish<'_>, usize),
        bytes: &mut [[u8; NR]; MR],
    ) {
        let mut sums = [[_mm256_setzero_si256(); V]; R];
        let carried = carried.as_mut_ptr();
        if !stage.begins {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_loadu_si256(carried.add(NR * r + 8 * v).cast());
                }
            }
        }
        let (mut a, mut b, pairs) = (a.as_ptr(), b.as_ptr(), b.len() / NR);
        for _ in 0..pairs {
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
            b = b.add(NR);
        }
        if !stage.ends {
            for (r, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    _mm256_storeu_si256(carried.add(NR * r + 8 * v).cast(), *sum);
                }
            }
            return;
        }
        let mut vectors = Vectors::of(finish);
        for (r, sums) in sums.iter().enumerate() {
            vectors.turn(finish, channel + r);
            let (first, last) = (sums[0], sums[V - 1]);
            // Numbers 0 to 3 and 8 to 11, then the others.
            let low = _mm256_permute2x128_si256::<0x20>(first, last);
            let high = _mm256_permute2x128_si256::<0x31>(first, last);
            let packed = vectors.bytes(low, high);
            _mm_storeu_si128(bytes[r].as_mut_ptr().cast(), packed);
        }
    }

    /// # Safety
    /// The machine has AVX2; `stage` has two rows of 16 bytes for each 16 words of `panel`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn interleave(stage: &[u8], flip: u8, zero: i16, panel: &mut [i32]) {
        let (flip, zero) = (_mm_set1_epi8(flip as i8), _mm256_set1_epi16(zero));
        let rows = stage.chunks_exact(2 * NR).zip(panel.chunks_exact_mut(NR));
        for (rows, out) in rows {
            let low = _mm_xor_si128(_mm_loadu_si128(rows.as_ptr().cast()), flip);
            let high = _mm_xor_si128(_mm_loadu_si128(rows.as_ptr().add(NR).cast()), flip);
            let first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, high));
            let last = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(low, high));
            let out = out.as_mut_ptr();
            _mm256_storeu_si256(out.cast(), _mm256_sub_epi16(first, zero));
            _mm256_storeu_si256(out.add(8).cast(), _mm256_sub_epi16(last, zero));
        }
    }
}
