//! GEMM with u8 weights and i8 activations, for matrices with many large weights. In contrast to
//! `maddubs`, this kernel splits elements of A that overflow, not weights.
//!
//! Weights plus 128 are unsigned bytes. Elements of A minus a center value (`midst`) are signed
//! bytes. The products of two neighbours along k, or of four if two words are combined, are added
//! in 16 bits. For any weights, such a sum does not overflow if neither its positive nor its
//! negative elements of A add up to more than [`MAX_SIZE`] in magnitude.
//!
//! Activations of neural networks have few large elements. So each panel has its own list of words.
//! First come pairs of steps whose products are added, then single steps; what exceeds the limit in
//! a step becomes an additional single step. The offset of 128 of the weights is corrected per row,
//! the center value per column.

use std::ops::Range;

use super::super::super::parallel::{KernelThreads, SharedMut, for_each};
use super::super::maddubs::{MAX_SIZE, ROWS, split_overflow, word};
use super::avx2::{LimbGemmRows, panel};
use super::{IntGemmShape, Limb, NR, channels, int_gemm};

/// Maximum number of words that a step of a column becomes. If the center value is in [`MIDST`],
/// what exceeds the limit needs at most two further words.
const MAX_WORDS: usize = 3;
/// Range of the center value that is subtracted from unsigned bytes.
const MIDST: Range<i16> = 64..192;
/// Number of pairs of a panel that are sampled to choose the center value.
const SAMPLES: usize = 256;

/// Words of packed weights: four adjacent columns per step, then the sums of all columns.
pub(super) fn packed_len(shape: &IntGemmShape) -> usize {
    let columns = shape.n.next_multiple_of(ROWS);
    columns * (channels(shape).steps() + 1)
}

/// Packs columns from `first` on, which is the start of a tile. `words` contains the contiguous
/// words of each column.
pub(super) fn pack(shape: &IntGemmShape, first: usize, words: &[u32], out: &mut [i32]) {
    let steps = channels(shape).steps();
    let all = shape.n.next_multiple_of(ROWS) * steps;
    let (weights, sums) = out[..packed_len(shape)].split_at_mut(all);
    for (tile, words) in words.chunks(ROWS * steps.max(1)).enumerate() {
        let column = first + tile * ROWS;
        let to = &mut weights[column * steps..][..ROWS * steps];
        let sums = &mut sums[column..][..ROWS];
        sums.fill(0);
        for (i, words) in words.chunks_exact(steps.max(1)).enumerate() {
            let mut sum = 0;
            for (to, word) in to.chunks_exact_mut(ROWS).zip(words) {
                let bytes = word.to_le_bytes();
                sum += bytes.iter().map(|w| i32::from(*w as i8)).sum::<i32>();
                to[i] = (*word ^ 0x8080_8080) as i32;
            }
            sums[i] = sum;
        }
        // Weights past k are zeros, so the elements of A there have no effect.
        if !shape.k.is_multiple_of(4) {
            for last in &mut to[(steps - 1) * ROWS..] {
                *last &= (1 << (shape.k % 4 * 8)) - 1;
            }
        }
    }
}

/// Writes the columns from `first` on, a panel of [`int_gemm`], as pairs of 16 bits.
pub(super) fn unpack(shape: &IntGemmShape, weights: &[i32], first: usize, panel: &mut [i32]) {
    let steps = channels(shape).steps();
    let end = shape.n.next_multiple_of(ROWS);
    let tiles = (first..end.min(first + int_gemm::NR)).step_by(ROWS);
    panel.fill(0);
    for (tile, column) in tiles.enumerate() {
        let words = weights[column * steps..][..ROWS * steps].chunks_exact(ROWS);
        // Two pairs a step; the last step may have one.
        for (words, to) in words.zip(panel.chunks_mut(2 * int_gemm::NR)) {
            for (i, word) in words.iter().enumerate() {
                let bytes = (*word as u32 ^ 0x8080_8080).to_le_bytes();
                let [a, b, c, d] = bytes.map(|byte| i32::from(byte as i8));
                let at = tile * ROWS + i;
                to[at] = int_gemm::pair(a, b);
                if let Some(second) = to.get_mut(int_gemm::NR + at) {
                    *second = int_gemm::pair(c, d);
                }
            }
        }
    }
}

/// Multiplies a small number of rows by 16-bit weights. Returns false without a result if an element of the
/// rows does not fit in 16 bits.
pub(super) fn multiply_few(
    threads: KernelThreads,
    shape: &IntGemmShape,
    a: &[i32],
    weights: &[i32],
    c: &mut [i32],
    scratch: &mut [i32],
) -> bool {
    /// Tiles of columns per task.
    const TILES: usize = 16;
    let &IntGemmShape { m, k, n } = shape;
    let steps = channels(shape).steps();
    let len = 4 * steps;
    let rows: &mut [i16] = &mut bytemuck::cast_slice_mut(scratch)[..m * len];
    let mut sums = [0i32; MAX_SINGLE_ROWS];
    for ((row, to), sum) in a
        .chunks_exact(k)
        .zip(rows.chunks_exact_mut(len))
        .zip(&mut sums)
    {
        to.fill(0);
        for (to, x) in to.iter_mut().zip(row) {
            *to = *x as i16;
        }
        if to.iter().zip(row).any(|(to, x)| i32::from(*to) != *x) {
            return false;
        }
        *sum = row.iter().fold(0, |sum, x| sum.wrapping_add(*x));
    }
    let (rows, tiles) = (&*rows, n.div_ceil(ROWS));
    let out = SharedMut::new(c);
    for_each(threads, m * tiles.div_ceil(TILES), |task| {
        let (row, first) = (task % m, task / m * TILES);
        let x = &rows[row * len..][..len];
        for tile in (first..tiles.min(first + TILES)).step_by(avx2::FEW_TILES) {
            let count = avx2::FEW_TILES.min(tiles - tile);
            let weights = &weights[tile * len..(tile + count) * len];
            // SAFETY: this GEMM is only used with AVX2; a tile has four words per step.
            let products = unsafe { avx2::few(x, weights, steps) };
            let products = products.as_flattened();
            let width = (ROWS * count).min(n - tile * ROWS);
            // SAFETY: each task writes its own columns of a row of C.
            let c = unsafe { out.slice(row * n + tile * ROWS, width) };
            for (c, product) in c.iter_mut().zip(products) {
                // The weights are 128 too large.
                *c = product.wrapping_sub(sums[row].wrapping_mul(128));
            }
        }
    });
    true
}

/// True if the elements fit in 16 bits, and many sampled pairs of neighbours exceed the limit of
/// 16-bit sums. Most steps of a panel then need several words.
pub(super) fn has_many_large(shape: &IntGemmShape, a: &[i32]) -> bool {
    /// Sampled rows, at most.
    const ROWS_SAMPLED: usize = 16;
    /// The result is true if more than one in `SHARE` sampled pairs overflows.
    const SHARE: usize = 24;
    // This loop has no branches, so that the compiler vectorizes it.
    let beyond = (a.iter()).fold(0, |beyond, x| beyond | (i32::from(*x as i16) ^ x));
    if beyond != 0 {
        return false;
    }
    let apart = (shape.m / ROWS_SAMPLED).max(1);
    let (mut fitting, mut all) = (0, 0);
    for row in a.chunks_exact(shape.k).step_by(apart) {
        let digit = Limb {
            min: row.iter().copied().min().unwrap_or(0),
            place: 0,
        };
        let (counts, center) = (pair_counts(row, digit), midst(row, digit));
        fitting += usize::from(counts.fitting(center as usize));
        all += usize::from(counts.0[2 * 256 - 1]);
    }
    (all - fitting) * SHARE > all
}

/// Memory of a panel, split by content.
pub(super) struct U8GemmPanelMemory<'a> {
    /// Columns: pairs of steps from the front, single steps from the back.
    columns: &'a mut [i32],
    /// Step indices of these columns, in the same order.
    steps: &'a mut [i32],
    /// For each row of the panel, a constant that is added to its sums.
    rows: &'a mut [i32],
    /// Number of pairs and of single steps (or, for few rows, the number of excess words of each
    /// row), and the center value.
    head: &'a mut [i32],
}

/// Words of a panel.
pub(super) fn panel_len(shape: &IntGemmShape) -> usize {
    channels(shape).steps() * MAX_WORDS * (NR + 1) + NR + HEAD
}

const HEAD: usize = 3;

impl<'a> U8GemmPanelMemory<'a> {
    pub(super) fn new(shape: &IntGemmShape, memory: &'a mut [i32]) -> U8GemmPanelMemory<'a> {
        let most = channels(shape).steps() * MAX_WORDS;
        let (columns, rest) = memory.split_at_mut(most * NR);
        let (steps, rest) = rest.split_at_mut(most);
        let (rows, rest) = rest.split_at_mut(NR);
        U8GemmPanelMemory {
            columns,
            steps,
            rows,
            head: &mut rest[..HEAD],
        }
    }

    /// Packs one limb of the rows `[.., k]`.
    pub(super) fn fill(self, rows: &[i32], k: usize, digit: Limb) {
        let midst = midst(rows, digit);
        if rows.len() / k <= MAX_SINGLE_ROWS {
            return self.fill_few(rows, k, digit, midst);
        }
        let mut to = U8GemmPanelWriter {
            panel: self,
            pairs: 0,
            unpaired: 0,
            midst,
        };
        let mut stage = [0; STAGE * NR];
        let mut sums = [0; NR];
        for first in (0..k).step_by(4 * STAGE) {
            let depth = first..k.min(first + 4 * STAGE);
            let steps = depth.len().div_ceil(4);
            let stage = &mut stage[..steps * NR];
            // SAFETY: this GEMM is only used with AVX2.
            unsafe { panel(rows, k, depth, (digit, midst as u8), stage) };
            for (i, columns) in stage.chunks_mut(2 * NR).enumerate() {
                // SAFETY: this GEMM is only used with AVX2.
                let fit = unsafe { avx2::center(columns, midst, &mut sums) };
                to.push(first / 4 + 2 * i, columns, fit);
            }
        }
        for (to, sum) in to.panel.rows.iter_mut().zip(sums) {
            let taken = i32::from(midst).wrapping_mul(k.next_multiple_of(4) as i32);
            *to = sum.wrapping_sub(taken).wrapping_mul(-128);
        }
        to.panel
            .head
            .copy_from_slice(&[to.pairs as i32, to.unpaired as i32, i32::from(midst)]);
    }
}

impl U8GemmPanelMemory<'_> {
    /// Packs few rows, one by one: the word of each step, repeated four times, then the words that
    /// exceed the limit with their step index.
    fn fill_few(self, rows: &[i32], k: usize, digit: Limb, midst: i16) {
        self.head.copy_from_slice(&[0, 0, i32::from(midst)]);
        let steps = k.div_ceil(4);
        let (words, over) = self.columns.split_at_mut(MAX_SINGLE_ROWS * ROWS * steps);
        for (i, row) in rows.chunks_exact(k).enumerate() {
            let mut over = over[i * 2 * MAX_WORDS * steps..].chunks_exact_mut(2);
            let words = words[i * ROWS * steps..].chunks_exact_mut(ROWS);
            let mut sum = 0i32;
            for (step, (x, to)) in row.chunks(4).zip(words).enumerate() {
                let mut left = [0; 4];
                for (left, x) in left.iter_mut().zip(x) {
                    *left = i16::from(digit.extract(*x)) - midst;
                    sum = sum.wrapping_add(i32::from(*left));
                }
                let mut part = || {
                    let mut kept = [left];
                    split_overflow(&mut kept, std::slice::from_mut(&mut left));
                    (word(kept[0]), left != [0; 4])
                };
                let (first, mut more) = part();
                to.fill(first);
                while more {
                    let next;
                    (next, more) = part();
                    if let Some(over) = over.next() {
                        over.copy_from_slice(&[step as i32, next]);
                    }
                    self.head[i] += 1;
                }
            }
            self.rows[i] = sum.wrapping_mul(-128);
        }
    }
}

/// Maximum rows of a panel whose rows are processed one by one.
pub(super) const MAX_SINGLE_ROWS: usize = 2;

/// Number of steps that are packed at once; an even number.
const STAGE: usize = 64;

/// How the elements of two steps fit in the 16-bit sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum U8GemmStepFit {
    /// The sum of the products of both steps fits in 16 bits.
    Both,
    /// The products of each step fit in 16 bits, but not the sum of both steps.
    Each,
    /// The elements of a step exceed the limit of the sums; the center value was not subtracted.
    Over,
}

/// A panel under construction.
struct U8GemmPanelWriter<'a> {
    panel: U8GemmPanelMemory<'a>,
    pairs: usize,
    unpaired: usize,
    midst: i16,
}

impl U8GemmPanelWriter<'_> {
    /// Appends the columns of one or two steps.
    fn push(&mut self, step: usize, columns: &[i32], fit: U8GemmStepFit) {
        match fit {
            U8GemmStepFit::Both if columns.len() == 2 * NR => {
                self.panel.columns[self.pairs * 2 * NR..][..2 * NR].copy_from_slice(columns);
                self.panel.steps[self.pairs] = step as i32;
                self.pairs += 1;
            }
            U8GemmStepFit::Both | U8GemmStepFit::Each => {
                for (i, columns) in columns.chunks_exact(NR).enumerate() {
                    self.push_unpaired(step + i, columns);
                }
            }
            U8GemmStepFit::Over => {
                for (i, columns) in columns.chunks_exact(NR).enumerate() {
                    let midst = self.midst;
                    let part = |part: &[i32; NR]| self.push_unpaired(step + i, part);
                    // SAFETY: this GEMM is only used with AVX2.
                    unsafe { avx2::split(columns, midst, part) };
                }
            }
        }
    }

    fn push_unpaired(&mut self, step: usize, columns: &[i32]) {
        self.unpaired += 1;
        let at = self.panel.steps.len() - self.unpaired;
        self.panel.steps[at] = step as i32;
        self.panel.columns[at * NR..][..NR].copy_from_slice(columns);
    }
}

/// For each sum of a sampled pair of unsigned bytes, the number of pairs with at most this sum.
struct PairSumCounts([u16; 2 * 256]);

fn pair_counts(rows: &[i32], digit: Limb) -> PairSumCounts {
    let byte = |x: i32| usize::from(digit.extract(x));
    let mut counts = [0u16; 2 * 256];
    let pairs = rows.len() / 2;
    let apart = (pairs / SAMPLES).max(1) | 1;
    for pair in rows.chunks_exact(2).step_by(apart) {
        counts[byte(pair[0]) + byte(pair[1])] += 1;
    }
    for i in 1..counts.len() {
        counts[i] += counts[i - 1];
    }
    PairSumCounts(counts)
}

impl PairSumCounts {
    /// Number of pairs that do not overflow with a center value: those with sums from `2 midst -
    /// 128` to `2 midst + 128`.
    fn fitting(&self, midst: usize) -> u16 {
        let most = usize::from(MAX_SIZE as u16);
        let below = (2 * midst).checked_sub(most + 1).map_or(0, |at| self.0[at]);
        self.0[(2 * midst + most).min(self.0.len() - 1)] - below
    }
}

/// Chooses the center value that makes the fewest sampled pairs of unsigned bytes overflow.
fn midst(rows: &[i32], digit: Limb) -> i16 {
    let counts = pair_counts(rows, digit);
    // Among equally good values, use the middle one.
    let all = || (MIDST.start as usize..MIDST.end as usize).step_by(4);
    let best = all().map(|midst| counts.fitting(midst)).max();
    let found = || all().filter(|midst| Some(counts.fitting(*midst)) == best);
    let (first, last) = (found().next(), found().next_back());
    (first.unwrap_or(128) + last.unwrap_or(128)) as i16 / 2
}

/// Multiplies the rows of a panel by the columns `columns` of B, which start at a tile boundary.
/// `to` writes the results to C.
pub(super) fn multiply(
    shape: &IntGemmShape,
    columns: Range<usize>,
    weights: &[i32],
    panel: &[i32],
    least: i32,
    to: LimbGemmRows<false>,
) {
    let steps = channels(shape).steps();
    let (weights, sums) =
        weights[..packed_len(shape)].split_at(shape.n.next_multiple_of(ROWS) * steps);
    let most = steps * MAX_WORDS;
    let (words, rest) = panel.split_at(most * NR);
    let (numbers, rest) = rest.split_at(most);
    let (rows, head) = rest.split_at(NR);
    let (pairs, alone) = (head[0] as usize, head[1] as usize);
    assert!(columns.end <= shape.n);
    let of = match to.width {
        0..=MAX_SINGLE_ROWS => avx2::U8GemmPanel::TwoRows([0, 1].map(|i| {
            let over = &words[MAX_SINGLE_ROWS * ROWS * steps + i * 2 * MAX_WORDS * steps..];
            avx2::U8GemmRow {
                words: &words[i * ROWS * steps..][..ROWS * steps],
                over: &over[..2 * head[i] as usize],
                more: rows[i],
            }
        })),
        _ => avx2::U8GemmPanel::Listed(avx2::U8GemmPanelWords {
            pairs: (&numbers[..pairs], &words[..pairs * 2 * NR]),
            unpaired: (&numbers[most - alone..], &words[(most - alone) * NR..]),
            rows,
        }),
    };
    let less = least.wrapping_add(head[2]);
    for first in columns.clone().step_by(ROWS) {
        let a = &weights[first * steps..(first + ROWS) * steps];
        let begin: [i32; ROWS] = std::array::from_fn(|r| sums[first + r].wrapping_mul(less));
        let count = ROWS.min(columns.end - first);
        // SAFETY: this GEMM is only used with AVX2; the weights contain every listed step.
        unsafe { avx2::columns(&of, a, begin, (first - columns.start, count), to) };
    }
}

#[path = "gemm_u8_weights_avx2.rs"]
mod avx2;
