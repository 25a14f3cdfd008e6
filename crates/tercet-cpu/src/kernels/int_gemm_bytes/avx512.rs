//! Tiles of AVX-512 VNNI.

use std::arch::x86_64::*;

use super::super::int_gemm::IntGemmShape;
use super::super::parallel::SharedMut;
use super::super::simd::SimdLevel;
use super::{ByteRows, LANES, NR, steps};

/// Computes a tile of `count` rows.
///
/// # Safety
/// The machine has AVX-512 VNNI; rows and panel exist; no other task accesses their elements of `c`.
#[allow(clippy::too_many_arguments, reason = "operands and position of a tile")]
pub(super) unsafe fn tile(
    _: SimdLevel,
    count: usize,
    shape: &IntGemmShape,
    rows: &ByteRows<'_>,
    packed: &[i32],
    panel: usize,
    row: usize,
    c: SharedMut<i32>,
) {
    let run = match count {
        1 => rows_of::<1>,
        2 => rows_of::<2>,
        3 => rows_of::<3>,
        4 => rows_of::<4>,
        5 => rows_of::<5>,
        _ => rows_of::<6>,
    };
    run(shape, rows, packed, panel, row, c);
}

/// # Safety
/// The machine has AVX-512 VNNI; rows and panel exist; no other task accesses their elements of `c`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn rows_of<const R: usize>(
    shape: &IntGemmShape,
    rows: &ByteRows<'_>,
    packed: &[i32],
    panel: usize,
    row: usize,
    c: SharedMut<i32>,
) {
    let columns = shape.n.next_multiple_of(LANES);
    match (columns - panel * NR).min(NR) / LANES {
        1 => vectors::<R, 1>(shape, rows, packed, panel, row, c),
        2 => vectors::<R, 2>(shape, rows, packed, panel, row, c),
        3 => vectors::<R, 3>(shape, rows, packed, panel, row, c),
        _ => vectors::<R, 4>(shape, rows, packed, panel, row, c),
    }
}

/// # Safety
/// Same as [`tile`], for a panel of `V` vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn vectors<const R: usize, const V: usize>(
    shape: &IntGemmShape,
    rows: &ByteRows<'_>,
    packed: &[i32],
    panel: usize,
    row: usize,
    c: SharedMut<i32>,
) {
    let (own, columns) = (steps(shape), shape.n.next_multiple_of(LANES));
    let b = packed[panel * NR * own..][..own * V * LANES].as_ptr();
    let mut acc = [[_mm512_setzero_si512(); V]; R];
    for limb in (0..rows.count).rev() {
        let a = rows.limbs[(limb * shape.m + row) * own..][..R * own].as_ptr();
        for acc in &mut acc {
            for acc in acc {
                *acc = _mm512_slli_epi32::<8>(*acc);
            }
        }
        let mut b = b;
        for p in 0..own {
            let mut words = [_mm512_setzero_si512(); V];
            for (v, word) in words.iter_mut().enumerate() {
                *word = _mm512_loadu_si512(b.add(v * LANES).cast());
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*a.add(r * own + p));
                for (acc, word) in acc.iter_mut().zip(&words) {
                    *acc = _mm512_dpbusd_epi32(*acc, x, *word);
                }
            }
            b = b.add(V * LANES);
        }
    }
    // `(a' + least)(b' + center) = a' b' + least b' + center a`.
    let ends = &packed[columns * own..];
    let center = ends[columns];
    for (r, acc) in acc.iter().enumerate() {
        let least = _mm512_set1_epi32(rows.least[row + r]);
        let shift = _mm512_set1_epi32(center.wrapping_mul(rows.sums[row + r]));
        for (v, acc) in acc.iter().enumerate() {
            let first = panel * NR + v * LANES;
            let sums = _mm512_loadu_si512(ends[first..][..LANES].as_ptr().cast());
            let y = _mm512_add_epi32(
                *acc,
                _mm512_add_epi32(shift, _mm512_mullo_epi32(least, sums)),
            );
            let mask = (1u32 << (shape.n - first).min(LANES)) - 1;
            let to = c.ptr().add((row + r) * shape.n + first);
            _mm512_mask_storeu_epi32(to, mask as __mmask16, y);
        }
    }
}
