//! Products of I32 matrices of which the right one holds weights that are bytes with sign, with AVX2.
//!
//! Weights are packed as those of convolutions (`quads`): their columns are channels. Sixteen rows of A are a panel of windows; its elements less
//! the least of them are bytes, as those of quantised rows are. Otherwise they are numbers of up to four digits of 8 bits each, and the product is made of each digit's,
//! the greatest first, each sum 256 times that before and its own. Sums wrap, so that it is exact for all elements.

use std::ops::Range;

use super::super::int_gemm::IntShape;
use super::super::parallel::{self, Chunks, SharedMut, Threads};
use super::super::simd::SimdLevel;
use super::dense::{Block, NR};
use super::quads::{self, Channels, ROWS, Tile};
use super::{Codes, TASKS, has_avx2};

/// Multiply-adds below which waking another thread costs more than it gains.
const SERIAL_WORK: usize = 1 << 18;
/// Multiply-adds of a task at least, but for what makes all threads busy.
const TASK_WORK: usize = 1 << 18;
/// Words of panels that are multiplied with all weights before the next, about: most of a second-level cache.
const TOGETHER: usize = 80 << 10;
/// Words of weights that stay in the nearest cache beside a panel, about.
const NEAR: usize = 4 << 10;
/// Columns of B that are read together: a line of a cache.
const COLUMNS: usize = 16;
/// Bytes with sign.
const BYTES: Codes = Codes {
    signed: true,
    zero: 0,
};

fn channels(shape: &IntShape) -> Channels {
    Channels {
        groups: 1,
        m: shape.n,
        k: shape.k,
    }
}

/// Whether weights are bytes with sign, and the level has instructions for them.
#[must_use]
pub fn takes(level: SimdLevel, b: &[i32]) -> bool {
    // Without a branch: vectors of it.
    let beyond = |b: &[i32]| b.iter().fold(0, |all, x| all | (i32::from(*x as i8) ^ x));
    has_avx2(level) && b.chunks(1 << 12).all(|b| beyond(b) == 0)
}

/// Words of packed weights.
#[must_use]
pub fn packed_len(shape: &IntShape) -> usize {
    // The last says which form it is.
    channels(shape).packed_len().max(even::packed_len(shape)) + 1
}

/// Packs weights `[k, n]` that [`takes`] takes.
///
/// # Panics
/// If a slice is shorter than the shape says.
pub fn pack(shape: &IntShape, b: &[i32], out: &mut [i32]) {
    assert_eq!(b.len(), shape.k * shape.n, "B has another size");
    let of = channels(shape);
    let steps = of.steps();
    let (out, form) = out[..packed_len(shape)].split_at_mut(packed_len(shape) - 1);
    // Words of a column one after the other.
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
    quads::pack_by(&of, BYTES, out, |columns, pack| {
        let first = columns.start / COLUMNS * COLUMNS;
        if columns.start == first {
            turn(shape, b, first, &mut turned);
        }
        let words = &turned[(columns.start - first) * steps..(columns.end - first) * steps];
        pack(bytemuck::cast_slice(words));
    });
}

/// Whether so many pairs of weights are too large for [`quads`] that elements of A are looked at instead.
fn is_even(shape: &IntShape, b: &[i32]) -> bool {
    /// Rows and columns that are looked at, about.
    const SAMPLES: usize = 64;
    /// One of so many pairs is too large.
    const SHARE: usize = 16;
    let &IntShape { k, n, .. } = shape;
    let apart = |len: usize| (len / SAMPLES).max(1);
    let (mut pairs, mut large) = (0, 0);
    for row in (0..k / 2).step_by(apart(k / 2)) {
        let (first, second) = b[2 * row * n..][..2 * n].split_at(n);
        for (a, b) in first.iter().zip(second).step_by(apart(n)) {
            pairs += 1;
            let of_one_sign = (*a < 0) == (*b < 0);
            large += usize::from(of_one_sign && (a + b).abs() > i32::from(quads::MOST_SIZE));
        }
    }
    large * SHARE > pairs
}

/// The words of [`COLUMNS`] columns of B from `first` on, each one after the other.
fn turn(shape: &IntShape, b: &[i32], first: usize, to: &mut [u32]) {
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

/// Eight bits of numbers without sign that elements less the least are.
#[derive(Clone, Copy, Debug)]
struct Digit {
    least: i32,
    /// How many digits are below.
    place: i32,
}

impl Digit {
    fn of(self, x: i32) -> u8 {
        (x.wrapping_sub(self.least) as u32 >> (8 * self.place)) as u8
    }
}

/// Whether words of so many rows lie as [`quads::Sink::ALONE`] says: tiles of fewer columns have no kernel for that.
fn alone(shape: &IntShape, rows: usize) -> bool {
    rows <= 2 && shape.n.is_multiple_of(ROWS)
}

/// Writes a digit of some rows to their panel.
fn fill(even: bool, shape: &IntShape, rows: &[i32], digit: Digit, panel: &mut [i32]) {
    let k = shape.k;
    if even {
        return even::Panel::of(shape, panel).fill(rows, k, digit);
    }
    match alone(shape, rows.len() / k) {
        true => avx2::alone(rows, k, digit, panel),
        // SAFETY: there is AVX2 where products are taken.
        false => unsafe { avx2::panel(rows, k, 0..k, (digit, 0), panel) },
    }
}

/// Words of a panel of one form.
fn panel_len(even: bool, shape: &IntShape) -> usize {
    match even {
        true => even::panel_len(shape),
        false => channels(shape).steps() * NR,
    }
}

/// Words of scratch memory: columns of all panels, and two words for each.
#[must_use]
pub fn scratch_len(shape: &IntShape) -> usize {
    shape.m.div_ceil(NR) * (panel_len(true, shape).max(panel_len(false, shape)) + 2)
}

/// `c = a b` for B that [`pack`] wrote.
///
/// # Panics
/// If a slice has another length than the shape says, or the level has no instructions for it.
pub fn byte_gemm(
    level: SimdLevel,
    threads: Threads,
    shape: &IntShape,
    a: &[i32],
    weights: &[i32],
    c: &mut [i32],
    scratch: &mut [i32],
) {
    let &IntShape { m, k, n } = shape;
    let sizes = (a.len(), c.len());
    assert_eq!(sizes, (m * k, m * n), "A or C has another size");
    assert!(has_avx2(level) && weights.len() >= packed_len(shape));
    if k == 0 || c.is_empty() {
        return c.fill(0);
    }
    let threads = match m * n * k < SERIAL_WORK {
        true => Threads::Serial,
        false => threads,
    };
    let even = weights[packed_len(shape) - 1] != 0;
    let len = panel_len(even, shape);
    let (panels, ranges) = scratch[..m.div_ceil(NR) * (len + 2)].split_at_mut(m.div_ceil(NR) * len);
    let parts = (Chunks::new(&mut *panels, len), Chunks::new(&mut *ranges, 2));
    parallel::for_each_part(threads, parts, |i, (panel, range)| {
        let rows = &a[i * NR * k..m.min((i + 1) * NR) * k];
        // SAFETY: the level has AVX2.
        let [least, digits] = unsafe { avx2::range(rows) };
        range.copy_from_slice(&[least, digits]);
        if digits == 1 {
            fill(even, shape, rows, Digit { least, place: 0 }, panel);
        }
    });
    let digits = ranges.chunks_exact(2).map(|range| range[1]).max();
    let mut job = Job {
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
            let parts = Chunks::new(&mut *job.panels, len);
            let ranges = job.ranges;
            parallel::for_each_part(threads, parts, |i, panel| {
                let rows = &a[i * NR * k..m.min((i + 1) * NR) * k];
                let least = ranges[2 * i];
                fill(even, shape, rows, Digit { least, place }, panel);
            });
        }
        job.run(threads, place);
        job.after = true;
    }
}

/// A product of one digit.
struct Job<'a> {
    even: bool,
    shape: &'a IntShape,
    weights: &'a [i32],
    /// The least element of each panel, and how many digits the others less that have.
    ranges: &'a [i32],
    panels: &'a mut [i32],
    c: SharedMut<i32>,
    /// Whether C holds the sums of the digits before.
    after: bool,
}

impl Job<'_> {
    fn run(&self, threads: Threads, place: i32) {
        let &IntShape { m, n, .. } = self.shape;
        let panels = m.div_ceil(NR);
        let steps = channels(self.shape).steps();
        let blocks = panels.div_ceil((TOGETHER / (steps * NR)).max(1));
        let together = panels.div_ceil(blocks);
        // A share of each thread at most, else what stays in the nearest cache: threads that are held up even out.
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

    /// Some columns of B with the rows of a panel.
    fn multiply(&self, columns: Range<usize>, panel: usize, place: i32) {
        let &IntShape { m, n, .. } = self.shape;
        let row = panel * NR;
        let width = NR.min(m - row);
        let len = panel_len(self.even, self.shape);
        let columns_of = &self.panels[panel * len..][..len];
        // The least element was taken away once.
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
        let block = Block {
            a: &self.weights[columns.start * words..columns.end * words],
            b: columns_of,
            channels: columns,
            width,
        };
        let ends = quads::Ends::of(&shape, self.weights);
        // Bytes with sign on the way are 128 less.
        let tile = Tile::new(&shape, &block, ends, least.wrapping_add(128));
        // SAFETY: there is AVX2; a task has its columns of its rows to itself, all within C.
        unsafe {
            match alone(self.shape, width) {
                true => quads::tiles(&tile, self.rows::<true>(c, width), NR / 2),
                false => quads::tiles(&tile, self.rows::<false>(c, width), NR / 2),
            }
        }
    }

    fn rows<const ALONE: bool>(&self, c: *mut i32, width: usize) -> avx2::Rows<ALONE> {
        avx2::Rows {
            c,
            apart: self.shape.n,
            width,
            after: self.after,
        }
    }
}

#[path = "gemm_avx2.rs"]
mod avx2;
#[path = "gemm_even.rs"]
mod even;
