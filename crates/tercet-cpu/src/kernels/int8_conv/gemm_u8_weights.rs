//! Weights that are spread evenly, by elements of A that are not.
//!
//! Weights plus 128 are bytes without sign, and elements of A less a number in their midst are bytes with sign: of two neighbours along k, or of four
//! where the products of two words are added, products fit 16 bits whatever the weights if those of one sign add up to [`MOST_SIZE`] at most.
//! Rows of networks have few large elements. So each panel has its own list of words: pairs of steps whose products are added, then steps that stand
//! alone, with what is over of a step as another one. What 128 and the number in the midst amount to is added for each row and each column.

use std::ops::Range;

use super::super::quads::{MOST_SIZE, ROWS, keep, word};
use super::avx2::{Rows, panel};
use super::{Digit, IntShape, NR, channels};

/// Words of columns of a step at most: what is over of two elements of at most [`MOST_MIDST`] and 255 less that takes two steps more.
const MOST_WORDS: usize = 3;
/// Bounds of what is taken away of bytes without sign.
const MIDST: Range<i16> = 64..192;
/// Pairs of a panel that are looked at to choose it.
const SAMPLES: usize = 256;

/// Words of packed weights: four columns of a step side by side, then the sums of all columns.
pub(super) fn packed_len(shape: &IntShape) -> usize {
    let columns = shape.n.next_multiple_of(ROWS);
    columns * (channels(shape).steps() + 1)
}

/// Packs some columns from `first` on, where a tile begins, of which `words` has those of each one after the other.
pub(super) fn pack(shape: &IntShape, first: usize, words: &[u32], out: &mut [i32]) {
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
        // Beyond k weights are zeros, whatever is beside them.
        if !shape.k.is_multiple_of(4) {
            for last in &mut to[(steps - 1) * ROWS..] {
                *last &= (1 << (shape.k % 4 * 8)) - 1;
            }
        }
    }
}

/// Parts of a panel's memory.
pub(super) struct Panel<'a> {
    /// Columns of pairs of steps from the front, of steps that stand alone from the back.
    columns: &'a mut [i32],
    /// Which steps these are, likewise.
    steps: &'a mut [i32],
    /// What is added to the sums of each row.
    rows: &'a mut [i32],
    /// Pairs and steps alone, or what is over of each of few rows; and what has been taken away of elements.
    head: &'a mut [i32],
}

/// Words of a panel.
pub(super) fn panel_len(shape: &IntShape) -> usize {
    channels(shape).steps() * MOST_WORDS * (NR + 1) + NR + HEAD
}

const HEAD: usize = 3;

impl<'a> Panel<'a> {
    pub(super) fn of(shape: &IntShape, memory: &'a mut [i32]) -> Panel<'a> {
        let most = channels(shape).steps() * MOST_WORDS;
        let (columns, rest) = memory.split_at_mut(most * NR);
        let (steps, rest) = rest.split_at_mut(most);
        let (rows, rest) = rest.split_at_mut(NR);
        Panel {
            columns,
            steps,
            rows,
            head: &mut rest[..HEAD],
        }
    }

    /// Writes a digit of rows `[.., k]`.
    pub(super) fn fill(self, rows: &[i32], k: usize, digit: Digit) {
        let midst = midst(rows, digit);
        if rows.len() / k <= FEW {
            return self.fill_few(rows, k, digit, midst);
        }
        let mut to = List {
            panel: self,
            pairs: 0,
            alone: 0,
            midst,
        };
        let mut stage = [0; STAGE * NR];
        let mut sums = [0; NR];
        for first in (0..k).step_by(4 * STAGE) {
            let depth = first..k.min(first + 4 * STAGE);
            let steps = depth.len().div_ceil(4);
            let stage = &mut stage[..steps * NR];
            // SAFETY: there is AVX2 where products are taken.
            unsafe { panel(rows, k, depth, (digit, midst as u8), stage) };
            for (i, columns) in stage.chunks_mut(2 * NR).enumerate() {
                // SAFETY: as above.
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
            .copy_from_slice(&[to.pairs as i32, to.alone as i32, i32::from(midst)]);
    }
}

impl Panel<'_> {
    /// Writes rows one by one: words of all steps, each four times, and what is over of them with the step that it is of.
    fn fill_few(self, rows: &[i32], k: usize, digit: Digit, midst: i16) {
        self.head.copy_from_slice(&[0, 0, i32::from(midst)]);
        let steps = k.div_ceil(4);
        let (words, over) = self.columns.split_at_mut(FEW * ROWS * steps);
        for (i, row) in rows.chunks_exact(k).enumerate() {
            let mut over = over[i * 2 * MOST_WORDS * steps..].chunks_exact_mut(2);
            let words = words[i * ROWS * steps..].chunks_exact_mut(ROWS);
            let mut sum = 0i32;
            for (step, (x, to)) in row.chunks(4).zip(words).enumerate() {
                let mut left = [0; 4];
                for (left, x) in left.iter_mut().zip(x) {
                    *left = i16::from(digit.of(*x)) - midst;
                    sum = sum.wrapping_add(i32::from(*left));
                }
                let mut part = || {
                    let mut kept = [left];
                    keep(&mut kept, std::slice::from_mut(&mut left));
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

/// Rows of a panel that has no more, which are taken one by one.
const FEW: usize = 2;

/// Steps that are looked at together: an even number.
const STAGE: usize = 64;

/// How elements of two steps fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Products of both may be added.
    Both,
    /// Products of each.
    Each,
    /// Something is over; elements are as they were.
    Over,
}

/// A panel that is being written.
struct List<'a> {
    panel: Panel<'a>,
    pairs: usize,
    alone: usize,
    midst: i16,
}

impl List<'_> {
    /// Takes columns of one step or two.
    fn push(&mut self, step: usize, columns: &[i32], fit: Fit) {
        match fit {
            Fit::Both if columns.len() == 2 * NR => {
                self.panel.columns[self.pairs * 2 * NR..][..2 * NR].copy_from_slice(columns);
                self.panel.steps[self.pairs] = step as i32;
                self.pairs += 1;
            }
            Fit::Both | Fit::Each => {
                for (i, columns) in columns.chunks_exact(NR).enumerate() {
                    self.alone(step + i, columns);
                }
            }
            Fit::Over => {
                for (i, columns) in columns.chunks_exact(NR).enumerate() {
                    let midst = self.midst;
                    let part = |part: &[i32; NR]| self.alone(step + i, part);
                    // SAFETY: there is AVX2 where products are taken.
                    unsafe { avx2::split(columns, midst, part) };
                }
            }
        }
    }

    fn alone(&mut self, step: usize, columns: &[i32]) {
        self.alone += 1;
        let at = self.panel.steps.len() - self.alone;
        self.panel.steps[at] = step as i32;
        self.panel.columns[at * NR..][..NR].copy_from_slice(columns);
    }
}

/// What to take away of bytes without sign so that few pairs of them are too large: by some of them.
fn midst(rows: &[i32], digit: Digit) -> i16 {
    let byte = |x: i32| usize::from(digit.of(x));
    let mut counts = [0u16; 2 * 256];
    let pairs = rows.len() / 2;
    let apart = (pairs / SAMPLES).max(1) | 1;
    for pair in rows.chunks_exact(2).step_by(apart) {
        counts[byte(pair[0]) + byte(pair[1])] += 1;
    }
    for i in 1..counts.len() {
        counts[i] += counts[i - 1];
    }
    // Sums from `2 midst - 128` to `2 midst + 128` fit; of equals, the one amid them.
    let most = usize::from(MOST_SIZE as u16);
    let fitting = |midst: usize| {
        let below = (2 * midst).checked_sub(most + 1).map_or(0, |at| counts[at]);
        counts[(2 * midst + most).min(counts.len() - 1)] - below
    };
    let all = || (MIDST.start as usize..MIDST.end as usize).step_by(4);
    let best = all().map(fitting).max();
    let found = || all().filter(|midst| Some(fitting(*midst)) == best);
    let (first, last) = (found().next(), found().next_back());
    (first.unwrap_or(128) + last.unwrap_or(128)) as i16 / 2
}

/// The rows of a panel by some columns of B, of which the first begins a tile: those at `c` of the first row.
pub(super) fn multiply(
    shape: &IntShape,
    columns: Range<usize>,
    weights: &[i32],
    panel: &[i32],
    least: i32,
    to: Rows<false>,
) {
    let steps = channels(shape).steps();
    let (weights, sums) =
        weights[..packed_len(shape)].split_at(shape.n.next_multiple_of(ROWS) * steps);
    let most = steps * MOST_WORDS;
    let (words, rest) = panel.split_at(most * NR);
    let (numbers, rest) = rest.split_at(most);
    let (rows, head) = rest.split_at(NR);
    let (pairs, alone) = (head[0] as usize, head[1] as usize);
    assert!(columns.end <= shape.n);
    let of = match to.width {
        0..=FEW => avx2::Panel::Few([0, 1].map(|i| {
            let over = &words[FEW * ROWS * steps + i * 2 * MOST_WORDS * steps..];
            avx2::Row {
                words: &words[i * ROWS * steps..][..ROWS * steps],
                over: &over[..2 * head[i] as usize],
                more: rows[i],
            }
        })),
        _ => avx2::Panel::Listed(avx2::Listed {
            pairs: (&numbers[..pairs], &words[..pairs * 2 * NR]),
            alone: (&numbers[most - alone..], &words[(most - alone) * NR..]),
            rows,
        }),
    };
    let less = least.wrapping_add(head[2]);
    for first in columns.clone().step_by(ROWS) {
        let a = &weights[first * steps..(first + ROWS) * steps];
        let begin: [i32; ROWS] = std::array::from_fn(|r| sums[first + r].wrapping_mul(less));
        let count = ROWS.min(columns.end - first);
        // SAFETY: there is AVX2 where products are taken; steps are within the weights.
        unsafe { avx2::columns(&of, a, begin, (first - columns.start, count), to) };
    }
}

#[path = "gemm_even_avx2.rs"]
mod avx2;
