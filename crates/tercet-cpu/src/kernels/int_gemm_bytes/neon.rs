//! Tiles of `dotprod` and `i8mm`.

use std::arch::aarch64::*;

use super::super::int_gemm::IntGemmShape;
use super::super::int_tiles_neon::{MR, NR, WordRows, quads};
use super::super::parallel::SharedMut;
use super::super::simd::SimdLevel;
use super::{ByteRows, LANES, steps};

/// Computes a tile of `count` rows.
///
/// # Safety
/// The level is of this machine and has `dotprod`; rows and panel exist; no other task accesses their elements
/// of `c`.
#[allow(clippy::too_many_arguments, reason = "operands and position of a tile")]
pub(super) unsafe fn tile(
    level: SimdLevel,
    count: usize,
    shape: &IntGemmShape,
    rows: &ByteRows<'_>,
    packed: &[i32],
    panel: usize,
    row: usize,
    c: SharedMut<i32>,
) {
    let (own, columns) = (steps(shape), shape.n.next_multiple_of(LANES));
    let b = packed[panel * NR * own..][..NR * own].as_ptr();
    let (mut acc, mut part) = ([0i32; MR * NR], [0i32; MR * NR]);
    // The bytes of A are too small by 128 in each limb.
    let mut missing = 0i32;
    for limb in (0..rows.count).rev() {
        let a = rows.limbs[(limb * shape.m + row) * own..][..count * own].as_ptr();
        let words = WordRows {
            a,
            row: own,
            step: 1,
        };
        quads(level.matrices, count, words, b, own, part.as_mut_ptr());
        for (acc, part) in acc.iter_mut().zip(&part).take(count * NR) {
            *acc = (*acc << 8).wrapping_add(*part);
        }
        missing = (missing << 8).wrapping_add(128);
    }
    // `(a' + least)(b' + center) = a' b' + least b' + center a`.
    let ends = &packed[columns * own..];
    let (first, center) = (panel * NR, ends[columns]);
    let sums = &ends[first..][..NR];
    for (r, acc) in acc.chunks_exact_mut(NR).take(count).enumerate() {
        let least = vdupq_n_s32(rows.least[row + r].wrapping_add(missing));
        let shift = vdupq_n_s32(center.wrapping_mul(rows.sums[row + r]));
        for v in (0..NR).step_by(4) {
            let sum = vaddq_s32(vld1q_s32(acc[v..].as_ptr()), shift);
            let sum = vmlaq_s32(sum, least, vld1q_s32(sums[v..].as_ptr()));
            vst1q_s32(acc[v..].as_mut_ptr(), sum);
        }
        let count = (shape.n - first).min(NR);
        let to = c.slice((row + r) * shape.n + first, count);
        to.copy_from_slice(&acc[..count]);
    }
}
