//! Register tiles of integer products of aarch64: some rows of A times 16 columns of B.
//!
//! A is row-major in words, each with two 16-bit or four 8-bit elements. B is a panel of 16 words per step.
//! All sums wrap.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name the rows and vectors of the tile in several arrays at once"
)]

use std::arch::aarch64::*;

use super::simd::neon::{load_halves, sdot, smmla};

/// Columns of a panel.
pub(crate) const NR: usize = 16;
/// Maximum rows of a tile: with four registers per row, 24 accumulators.
pub(crate) const MR: usize = 6;

/// Sums of a tile.
pub(crate) type TileSums<const R: usize> = [[int32x4_t; 4]; R];

/// Words of a tile's rows of A.
#[derive(Clone, Copy)]
pub(crate) struct WordRows {
    pub(crate) a: *const i32,
    /// Distance between rows.
    pub(crate) row: usize,
    /// Distance between steps.
    pub(crate) step: usize,
}

/// Zero sums.
#[inline(always)]
pub(crate) unsafe fn zeros<const R: usize>() -> TileSums<R> {
    [[vdupq_n_s32(0); 4]; R]
}

/// Adds products of words of two 16-bit elements.
///
/// # Safety
/// A has `R` rows and B a panel of `steps` words per row and column.
#[inline(always)]
pub(crate) unsafe fn add_pairs<const R: usize>(
    acc: &mut TileSums<R>,
    rows: WordRows,
    b: *const i32,
    steps: usize,
) {
    for p in 0..steps {
        let b = b.add(p * NR).cast::<i16>();
        // The low and the high elements of eight words each.
        let (first, second) = (vld2q_s16(b), vld2q_s16(b.add(NR)));
        for r in 0..R {
            let word = *rows.a.add(r * rows.row + p * rows.step);
            let (x, y) = (vdup_n_s16(word as i16), vdup_n_s16((word >> 16) as i16));
            for (v, columns) in [first, second].into_iter().enumerate() {
                let acc = &mut acc[r][2 * v..2 * v + 2];
                acc[0] = vmlal_s16(acc[0], vget_low_s16(columns.0), x);
                acc[0] = vmlal_s16(acc[0], vget_low_s16(columns.1), y);
                acc[1] = vmlal_high_s16(acc[1], columns.0, vcombine_s16(x, x));
                acc[1] = vmlal_high_s16(acc[1], columns.1, vcombine_s16(y, y));
            }
        }
    }
}

/// Adds products of words of four signed bytes.
///
/// # Safety
/// Same as [`add_pairs`]; requires `dotprod`.
#[inline(always)]
pub(crate) unsafe fn add_quads<const R: usize>(
    acc: &mut TileSums<R>,
    rows: WordRows,
    b: *const i32,
    steps: usize,
) {
    for p in 0..steps {
        let mut columns = [vdupq_n_s8(0); 4];
        for v in 0..4 {
            columns[v] = vld1q_s8(b.add(p * NR + 4 * v).cast());
        }
        for r in 0..R {
            let word = vld1q_dup_s32(rows.a.add(r * rows.row + p * rows.step));
            for v in 0..4 {
                acc[r][v] = sdot(acc[r][v], columns[v], vreinterpretq_s8_s32(word));
            }
        }
    }
}

/// Like [`add_quads`], with two steps at once. Rows are processed in pairs: without an even number, the last
/// row is multiplied twice.
///
/// # Safety
/// Same as [`add_quads`], with contiguous and an even number of steps; requires `i8mm`. `PAIRS` is half of
/// `R`, rounded up.
#[inline(always)]
pub(crate) unsafe fn add_quads_by_matrices<const R: usize, const PAIRS: usize>(
    acc: &mut TileSums<R>,
    rows: WordRows,
    b: *const i32,
    steps: usize,
) {
    let second = |pair: usize| (2 * pair + 1).min(R - 1);
    // Three pairs of rows take half of the columns at a time: with all 24 matrices, the compiler would run
    // out of registers.
    let width = if PAIRS > 2 { 2 } else { 4 };
    for first in (0..4).step_by(width) {
        // Element `v` of a pair of rows: a 2 x 2 matrix of its rows and of columns `2 v` and `2 v + 1`.
        let mut sums = [[vdupq_n_s32(0); 8]; PAIRS];
        for p in (0..steps).step_by(2) {
            let mut pairs = [vdupq_n_s8(0); PAIRS];
            for i in 0..PAIRS {
                let row = rows.a.add(p);
                let (a, b) = (row.add(2 * i * rows.row), row.add(second(i) * rows.row));
                pairs[i] = load_halves(a.cast(), b.cast());
            }
            for v in 0..width {
                let at = b.add(p * NR + 4 * (first + v));
                let (low, high) = (vld1q_s32(at), vld1q_s32(at.add(NR)));
                let columns = [
                    vreinterpretq_s8_s32(vzip1q_s32(low, high)),
                    vreinterpretq_s8_s32(vzip2q_s32(low, high)),
                ];
                for i in 0..PAIRS {
                    sums[i][2 * v] = smmla(sums[i][2 * v], pairs[i], columns[0]);
                    sums[i][2 * v + 1] = smmla(sums[i][2 * v + 1], pairs[i], columns[1]);
                }
            }
        }
        for i in 0..PAIRS {
            for v in 0..width {
                let [a, b] = [sums[i][2 * v], sums[i][2 * v + 1]].map(|s| vreinterpretq_s64_s32(s));
                let (one, other) = (vzip1q_s64(a, b), vzip2q_s64(a, b));
                let to = first + v;
                acc[2 * i][to] = vaddq_s32(acc[2 * i][to], vreinterpretq_s32_s64(one));
                if 2 * i + 1 < R {
                    let other = vreinterpretq_s32_s64(other);
                    acc[2 * i + 1][to] = vaddq_s32(acc[2 * i + 1][to], other);
                }
            }
        }
    }
}

/// Stores the sums of a tile.
///
/// # Safety
/// `to` is valid for `R` rows of 16 words.
#[inline(always)]
pub(crate) unsafe fn store<const R: usize>(acc: &TileSums<R>, to: *mut i32) {
    for r in 0..R {
        for v in 0..4 {
            vst1q_s32(to.add(r * NR + 4 * v), acc[r][v]);
        }
    }
}

/// Computes the sums of a tile of words of two elements.
///
/// # Safety
/// Same as [`add_pairs`]; `to` has a row per row of A.
pub(crate) unsafe fn pairs(
    count: usize,
    rows: WordRows,
    b: *const i32,
    steps: usize,
    to: *mut i32,
) {
    unsafe fn run<const R: usize>(rows: WordRows, b: *const i32, steps: usize, to: *mut i32) {
        let mut acc = zeros::<R>();
        add_pairs::<R>(&mut acc, rows, b, steps);
        store(&acc, to);
    }
    let run = match count {
        1 => run::<1>,
        2 => run::<2>,
        3 => run::<3>,
        4 => run::<4>,
        5 => run::<5>,
        _ => run::<6>,
    };
    run(rows, b, steps, to);
}

/// Computes the sums of a tile of words of four elements.
///
/// # Safety
/// Same as [`add_quads`], with contiguous and an even number of steps; `to` has a row per row of A. The
/// machine has `i8mm` if `by_matrices`.
pub(crate) unsafe fn quads(
    by_matrices: bool,
    count: usize,
    rows: WordRows,
    b: *const i32,
    steps: usize,
    to: *mut i32,
) {
    #[target_feature(enable = "dotprod")]
    unsafe fn dots<const R: usize>(rows: WordRows, b: *const i32, steps: usize, to: *mut i32) {
        let mut acc = zeros::<R>();
        add_quads::<R>(&mut acc, rows, b, steps);
        store(&acc, to);
    }
    #[target_feature(enable = "dotprod,i8mm")]
    unsafe fn matrices<const R: usize, const PAIRS: usize>(
        rows: WordRows,
        b: *const i32,
        steps: usize,
        to: *mut i32,
    ) {
        let mut acc = zeros::<R>();
        add_quads_by_matrices::<R, PAIRS>(&mut acc, rows, b, steps);
        store(&acc, to);
    }
    let run = match (by_matrices, count) {
        (_, 1) => dots::<1>,
        (false, 2) => dots::<2>,
        (false, 3) => dots::<3>,
        (false, 4) => dots::<4>,
        (false, 5) => dots::<5>,
        (false, _) => dots::<6>,
        (true, 2) => matrices::<2, 1>,
        (true, 3) => matrices::<3, 2>,
        (true, 4) => matrices::<4, 2>,
        (true, 5) => matrices::<5, 3>,
        (true, _) => matrices::<6, 3>,
    };
    run(rows, b, steps, to);
}
