//! GEMM of I32 matrices with AVX2 if the right-hand side contains weights in the i8 range.
//!
//! Weights are packed like those of int8 convolutions (`maddubs`), with columns of B as channels.
//! Sixteen rows of A form a panel of windows. If the elements of a panel minus their minimum fit in
//! a byte, as in quantized models, a single multiplication of the panel suffices. If the elements
//! of a panel need more bits, each is split into up to four 8-bit limbs. The panel is multiplied
//! once per limb, highest limb first, and each time the previous sum is multiplied by 256. Sums
//! wrap, so the result is exact for all elements.

use std::ops::Range;

use super::super::int_gemm::{self, IntGemmShape};
use super::super::parallel::{self, DisjointChunks, KernelThreads, SharedMut};
use super::super::simd::SimdLevel;
use super::dense::{Int8ChannelBlock, NR};
use super::maddubs::{self, MaddubsChannels, MaddubsTile, ROWS};
use super::{Int8Encoding, TASKS, has_avx2};

/// Multiply-adds below which waking another thread is not profitable.
const SERIAL_WORK: usize = 1 << 18;
/// Minimum multiply-adds per task, unless some threads would then be idle.
const TASK_WORK: usize = 1 << 18;
/// Approximate words of panels that are multiplied with all weights before the next panels: most of
/// an L2 cache.
const TOGETHER: usize = 80 << 10;
/// Approximate words of weights that stay in the L1 cache together with a panel.
const NEAR: usize = 4 << 10;
/// Columns of B that are read together: one cache line.
const COLUMNS: usize = 16;
/// Encoding of signed bytes with zero point 0.
const BYTES: Int8Encoding = Int8Encoding {
    signed: true,
    zero: 0,
};

fn channels(shape: &IntGemmShape) -> MaddubsChannels {
    MaddubsChannels {
        groups: 1,
        m: shape.n,
        k: shape.k,
    }
}

/// True if all weights are in the i8 range and the level has the instructions.
#[must_use]
pub fn supports(level: SimdLevel, b: &[i32]) -> bool {
    // This loop has no branches, so that the compiler vectorizes it.
    let beyond = |b: &[i32]| b.iter().fold(0, |all, x| all | (i32::from(*x as i8) ^ x));
    has_avx2(level) && b.chunks(1 << 12).all(|b| beyond(b) == 0)
}

/// Words of packed weights.
#[must_use]
pub fn packed_len(shape: &IntGemmShape) -> usize {
    // The last word stores the packing format.
    channels(shape).packed_len().max(even::packed_len(shape)) + 1
}

/// Packs weights `[k, n]` that [`supports`] accepts.
///
/// # Panics
/// If a slice is shorter than the shape requires.
pub fn pack(shape: &IntGemmShape, b: &[i32], out: &mut [i32]) {
    assert_eq!(b.len(), shape.k * shape.n, "B must have k * n elements");
    let of = channels(shape);
    let steps = of.steps();
    let (out, form) = out[..packed_len(shape)].split_at_mut(packed_len(shape) - 1);
    // The words of each column, contiguous.
    let mut turned = vec![0u32; COLUMNS * steps];
    let even = is_even(shape, b);
    form[0] = i32::from(even);
    if even {
        for first in (0..shape.n).step_by(COLUMNS) {
            turn(shape, b, first, &mut turned);
            let count = COLUMNS.min(shape.n - first);
            even::pack(shape, first, &turned[..count * steps], out);
        }
        return;
    }
    maddubs::pack_by(&of, BYTES, out, |columns, pack| {
        let first = columns.start / COLUMNS * COLUMNS;
        if columns.start == first {
            turn(shape, b, first, &mut turned);
        }
        let words = &turned[(columns.start - first) * steps..(columns.end - first) * steps];
        pack(bytemuck::cast_slice(words));
    });
}

/// True if [`super::maddubs`] would split too many weight pairs, so that splitting elements of A is cheaper.
fn is_even(shape: &IntGemmShape, b: &[i32]) -> bool {
    /// Approximate number of sampled rows and of sampled columns.
    const SAMPLES: usize = 64;
    /// The result is true if more than one in `SHARE` sampled pairs overflows.
    const SHARE: usize = 16;
    let &IntGemmShape { k, n, .. } = shape;
    let apart = |len: usize| (len / SAMPLES).max(1);
    let (mut pairs, mut large) = (0, 0);
    for row in (0..k / 2).step_by(apart(k / 2)) {
        let (first, second) = b[2 * row * n..][..2 * n].split_at(n);
        for (a, b) in first.iter().zip(second).step_by(apart(n)) {
            pairs += 1;
            let of_one_sign = (*a < 0) == (*b < 0);
            large += usize::from(of_one_sign && (a + b).abs() > i32::from(maddubs::MAX_SIZE));
        }
    }
    large * SHARE > pairs
}

/// Transposes [`COLUMNS`] columns of B from `first` on into contiguous words.
fn turn(shape: &IntGemmShape, b: &[i32], first: usize, to: &mut [u32]) {
    let (n, steps) = (shape.n, channels(shape).steps());
    for (step, four) in b.chunks(4 * n).enumerate() {
        let mut words = [0u32; COLUMNS];
        for (row, b) in four.chunks_exact(n).enumerate() {
            let mut line = [0; COLUMNS];
            match b[first..].first_chunk() {
                Some(whole) => line = *whole,
                None => line[..n - first].copy_from_slice(&b[first..]),
            }
            for (word, b) in words.iter_mut().zip(line) {
                *word |= u32::from(b as u8) << (8 * row);
            }
        }
        for (word, to) in words.iter().zip(to.chunks_exact_mut(steps)) {
            to[step] = word.to_le();
        }
    }
}

/// An 8-bit limb of the unsigned numbers `element - min`.
#[derive(Clone, Copy, Debug)]
struct Limb {
    min: i32,
    /// Index of the limb; 0 is the lowest.
    place: i32,
}

impl Limb {
    fn extract(self, x: i32) -> u8 {
        (x.wrapping_sub(self.min) as u32 >> (8 * self.place)) as u8
    }
}

/// True if panels of this number of rows use the layout of [`super::maddubs`]. The kernel for that
/// layout needs whole tiles of columns.
fn is_unpaired(shape: &IntGemmShape, rows: usize) -> bool {
    rows <= 2 && shape.n.is_multiple_of(ROWS)
}

/// Writes one limb of some rows to their panel.
fn fill(even: bool, shape: &IntGemmShape, rows: &[i32], digit: Limb, panel: &mut [i32]) {
    let k = shape.k;
    if even {
        return even::U8GemmPanelMemory::new(shape, panel).fill(rows, k, digit);
    }
    match is_unpaired(shape, rows.len() / k) {
        true => avx2::unpaired_words(rows, k, digit, panel),
        // SAFETY: this GEMM is only used with AVX2.
        false => unsafe { avx2::panel(rows, k, 0..k, (digit, 0), panel) },
    }
}

/// Words of a panel in either packing format.
fn panel_len(even: bool, shape: &IntGemmShape) -> usize {
    match even {
        true => even::panel_len(shape),
        false => channels(shape).steps() * NR,
    }
}

/// Words of scratch memory: the columns of all panels, and two words per panel.
#[must_use]
pub fn scratch_len(shape: &IntGemmShape) -> usize {
    shape.m.div_ceil(NR) * (panel_len(true, shape).max(panel_len(false, shape)) + 2)
}

/// Computes `c = a b` for a B packed by [`pack`].
///
/// # Panics
/// If a slice does not have the length of the shape, or the level does not have the instructions.
pub fn byte_gemm(
    level: SimdLevel,
    threads: KernelThreads,
    shape: &IntGemmShape,
    a: &[i32],
    weights: &[i32],
    c: &mut [i32],
    scratch: &mut [i32],
) {
    let &IntGemmShape { m, k, n } = shape;
    let sizes = (a.len(), c.len());
    assert_eq!(sizes, (m * k, m * n), "A must have m * k elements, C m * n");
    assert!(has_avx2(level) && weights.len() >= packed_len(shape));
    if k == 0 || c.is_empty() {
        return c.fill(0);
    }
    let threads = match m * n * k < SERIAL_WORK {
        true => KernelThreads::Serial,
        false => threads,
    };
    let even = weights[packed_len(shape) - 1] != 0;
    if even
        && m <= even::MAX_SINGLE_ROWS
        && even::multiply_few(threads, shape, a, weights, c, scratch)
    {
        return;
    }
    let len = panel_len(even, shape);
    let (panels, ranges) = scratch[..m.div_ceil(NR) * (len + 2)].split_at_mut(m.div_ceil(NR) * len);
    let parts = (
        DisjointChunks::new(&mut *panels, len),
        DisjointChunks::new(&mut *ranges, 2),
    );
    parallel::for_each_part(threads, parts, |i, (panel, range)| {
        let rows = &a[i * NR * k..m.min((i + 1) * NR) * k];
        // SAFETY: the level has AVX2.
        let [least, digits] = unsafe { avx2::range(rows) };
        range.copy_from_slice(&[least, digits]);
        if digits == 1 {
            fill(
                even,
                shape,
                rows,
                Limb {
                    min: least,
                    place: 0,
                },
                panel,
            );
        }
    });
    let digits = ranges.chunks_exact(2).map(|range| range[1]).max();
    let mut job = LimbGemmTask {
        even,
        shape,
        weights,
        ranges,
        panels,
        c: SharedMut::new(c),
        after: false,
    };
    for place in (0..digits.unwrap_or(1)).rev() {
        if digits != Some(1) {
            let parts = DisjointChunks::new(&mut *job.panels, len);
            let ranges = job.ranges;
            parallel::for_each_part(threads, parts, |i, panel| {
                let rows = &a[i * NR * k..m.min((i + 1) * NR) * k];
                let least = ranges[2 * i];
                fill(even, shape, rows, Limb { min: least, place }, panel);
            });
        }
        job.run(threads, place);
        job.after = true;
    }
}

/// True if products of pairs of 16 bits are faster than those of bytes: if pairs of weights
/// overflow, and many elements of A are large.
pub fn prefers_pairs(shape: &IntGemmShape, a: &[i32], weights: &[i32]) -> bool {
    let even = weights[packed_len(shape) - 1] != 0;
    even && shape.m >= NR && even::has_many_large(shape, a)
}

/// Packs weights into the layout of [`super::super::int_gemm`]. Call it only if [`prefers_pairs`]
/// returned true for the weights.
///
/// # Panics
/// If a slice is shorter than the shape requires.
pub fn unpack_pairs(
    threads: KernelThreads,
    shape: &IntGemmShape,
    weights: &[i32],
    panels: &mut [i32],
) {
    let len = shape.panels_len() / shape.n.div_ceil(int_gemm::NR).max(1);
    let parts = DisjointChunks::new(&mut panels[..shape.panels_len()], len);
    parallel::for_each_part(threads, parts, |i, panel| {
        even::unpack(shape, weights, i * int_gemm::NR, panel);
    });
}

/// Product of one limb.
struct LimbGemmTask<'a> {
    even: bool,
    shape: &'a IntGemmShape,
    weights: &'a [i32],
    /// Two words per panel: its minimum element, and the number of limbs of its elements minus that
    /// minimum.
    ranges: &'a [i32],
    panels: &'a mut [i32],
    c: SharedMut<i32>,
    /// True if C already contains the sums of higher limbs.
    after: bool,
}

impl LimbGemmTask<'_> {
    fn run(&self, threads: KernelThreads, place: i32) {
        let &IntGemmShape { m, n, .. } = self.shape;
        let panels = m.div_ceil(NR);
        let steps = channels(self.shape).steps();
        let blocks = panels.div_ceil((TOGETHER / (steps * NR)).max(1));
        let together = panels.div_ceil(blocks);
        // Columns per task: at most one thread's share, and at most the weights that stay in the L1
        // cache. With small tasks, other threads can take over the work of a preempted thread.
        let share = n.div_ceil((TASKS * threads.count()).div_ceil(blocks));
        let near = NEAR / steps;
        let least = TASK_WORK / (together * NR.min(m) * steps * 4);
        let columns = share.min(near.max(least)).div_ceil(ROWS).max(1) * ROWS;
        let chunks = n.div_ceil(columns);
        parallel::for_each(threads, blocks * chunks, |task| {
            let (block, chunk) = (task / chunks, task % chunks);
            let panels = block * together..panels.min((block + 1) * together);
            let columns = chunk * columns..n.min((chunk + 1) * columns);
            for panel in panels {
                self.multiply(columns.clone(), panel, place);
            }
        });
    }

    /// Multiplies the rows of a panel by some columns of B.
    fn multiply(&self, columns: Range<usize>, panel: usize, place: i32) {
        let &IntGemmShape { m, n, .. } = self.shape;
        let row = panel * NR;
        let width = NR.min(m - row);
        let len = panel_len(self.even, self.shape);
        let columns_of = &self.panels[panel * len..][..len];
        // The minimum was subtracted from the whole element, so it is added back with the lowest
        // limb only.
        let least = if place == 0 {
            self.ranges[2 * panel]
        } else {
            0
        };
        let c = self.c.from(row * n + columns.start).ptr();
        if self.even {
            let to = self.rows(c, width);
            return even::multiply(self.shape, columns, self.weights, columns_of, least, to);
        }
        let shape = channels(self.shape);
        let words = 2 * shape.steps();
        let block = Int8ChannelBlock {
            a: &self.weights[columns.start * words..columns.end * words],
            b: columns_of,
            channels: columns,
            width,
        };
        let ends = maddubs::MaddubsTrailer::new(&shape, self.weights);
        // The kernel subtracts 128 from unsigned bytes to make them signed.
        let tile = MaddubsTile::new(&shape, &block, ends, least.wrapping_add(128));
        // SAFETY: this GEMM is only used with AVX2. Each task writes only its own rectangle of C.
        unsafe {
            match is_unpaired(self.shape, width) {
                true => maddubs::tiles(&tile, self.rows::<true>(c, width), NR / 2),
                false => maddubs::tiles(&tile, self.rows::<false>(c, width), NR / 2),
            }
        }
    }

    fn rows<const ALONE: bool>(&self, c: *mut i32, width: usize) -> avx2::LimbGemmRows<ALONE> {
        avx2::LimbGemmRows {
            c,
            stride: self.shape.n,
            width,
            after: self.after,
        }
    }
}

#[path = "gemm_avx2.rs"]
mod avx2;
#[path = "gemm_u8_weights.rs"]
mod even;
