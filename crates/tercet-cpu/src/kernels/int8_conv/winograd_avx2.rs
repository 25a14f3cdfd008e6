//! AVX2 transforms and products of the Winograd convolution.

use std::arch::x86_64::{
    __m256i, _mm_storeu_si128, _mm256_add_epi16, _mm256_add_epi32, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_srai_epi32,
    _mm256_storeu_si256, _mm256_sub_epi16, _mm256_sub_epi32, _mm256_unpackhi_epi32,
    _mm256_unpacklo_epi32,
};

use super::super::requantize::{RequantizeChannel, avx2::RequantizeVectors};
use super::{MR, NR, POINTS};

#[inline(always)]
unsafe fn words(from: *const i32) -> __m256i {
    _mm256_loadu_si256(from.cast())
}

/// Computes `B^T d B` for a row of tiles. `rows` has four rows of x, each split into elements at
/// even and at odd positions. Point `i` (element `i` of a transformed tile) is stored at index `i *
/// step` of `v`.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If the halves of a row or the points of `v` have no room for 8 words more than the number of
/// tiles.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn points(rows: &[i32], half: usize, tiles: usize, v: &mut [i32], step: usize) {
    let reach = tiles.next_multiple_of(8);
    assert!(rows.len() >= 8 * half && half > reach && v.len() >= (POINTS - 1) * step + reach);
    for at in (0..tiles).step_by(8) {
        let from = rows.as_ptr().add(at);
        let to = v.as_mut_ptr().add(at);
        for j in 0..4 {
            let mut of_rows = [_mm256_setzero_si256(); 4];
            for (row, value) in of_rows.iter_mut().enumerate() {
                let even = from.add(2 * row * half);
                let odd = even.add(half);
                *value = match j {
                    0 => _mm256_sub_epi16(words(even), words(even.add(1))),
                    1 => _mm256_add_epi16(words(odd), words(even.add(1))),
                    2 => _mm256_sub_epi16(words(even.add(1)), words(odd)),
                    _ => _mm256_sub_epi16(words(odd), words(odd.add(1))),
                };
            }
            let [a, b, c, d] = of_rows;
            let all = [
                _mm256_sub_epi16(a, c),
                _mm256_add_epi16(b, c),
                _mm256_sub_epi16(c, b),
                _mm256_sub_epi16(b, d),
            ];
            for (i, value) in all.into_iter().enumerate() {
                _mm256_storeu_si256(to.add((4 * i + j) * step).cast(), value);
            }
        }
    }
}

/// Computes the sums of up to 6 channels for 16 or 8 tiles.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If `b` is shorter than the number of steps for which `u` has weights.
pub(super) unsafe fn product(
    channels: usize,
    wide: bool,
    u: &[i32],
    b: &[i32],
    lead: usize,
    to: &mut [i32],
) {
    let steps = u.len() / channels;
    assert!(b.len() >= (steps - 1) * lead + NR && to.len() >= MR * NR && lead >= NR);
    let function = match (channels, wide) {
        (1, false) => sums::<1, 1>,
        (2, false) => sums::<2, 1>,
        (3, false) => sums::<3, 1>,
        (4, false) => sums::<4, 1>,
        (5, false) => sums::<5, 1>,
        (_, false) => sums::<6, 1>,
        (1, true) => sums::<1, 2>,
        (2, true) => sums::<2, 2>,
        (3, true) => sums::<3, 2>,
        (4, true) => sums::<4, 2>,
        (5, true) => sums::<5, 2>,
        (_, true) => sums::<6, 2>,
    };
    function(u.as_ptr(), b.as_ptr(), lead, steps, to.as_mut_ptr());
}

/// # Safety
/// The machine has AVX2. For each step, `u` has `R` words and `b` has `8 V`, with a stride of
/// `lead`. `to` has rows of 16 words.
#[target_feature(enable = "avx2")]
unsafe fn sums<const R: usize, const V: usize>(
    mut u: *const i32,
    mut b: *const i32,
    lead: usize,
    steps: usize,
    to: *mut i32,
) {
    let mut sums = [[_mm256_setzero_si256(); V]; R];
    for _ in 0..steps {
        let mut columns = [_mm256_setzero_si256(); V];
        for (v, columns) in columns.iter_mut().enumerate() {
            *columns = _mm256_loadu_si256(b.add(8 * v).cast());
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            let weight = _mm256_set1_epi32(*u.add(r));
            for (sum, columns) in sums.iter_mut().zip(&columns) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(weight, *columns));
            }
        }
        u = u.add(R);
        b = b.wrapping_add(lead);
    }
    for (r, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            _mm256_storeu_si256(to.add(NR * r + 8 * v).cast(), *sum);
        }
    }
}

/// Computes `a + b + c` and `b - c - d`.
#[inline(always)]
unsafe fn both([a, b, c, d]: [__m256i; 4]) -> [__m256i; 2] {
    let first = _mm256_add_epi32(_mm256_add_epi32(a, b), c);
    [first, _mm256_sub_epi32(_mm256_sub_epi32(b, c), d)]
}

/// Computes the output bytes of both window rows of 8 tiles; the sums of consecutive points are
/// `step` words apart.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If the sums of some of the 16 points are missing.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn windows(
    sums: &[i32],
    step: usize,
    channel: &RequantizeChannel,
    bytes: &mut [[u8; NR]; 2],
) {
    assert!(sums.len() >= (POINTS - 1) * step + 8);
    let vectors = RequantizeVectors::new(channel);
    let zero = _mm256_setzero_si256();
    let [mut first, mut second] = [[zero; 4]; 2];
    for (j, (first, second)) in first.iter_mut().zip(&mut second).enumerate() {
        let mut points = [zero; 4];
        for (i, point) in points.iter_mut().enumerate() {
            *point = words(sums.as_ptr().add((4 * i + j) * step));
        }
        [*first, *second] = both(points);
    }
    for (columns, bytes) in [first, second].into_iter().zip(bytes) {
        let [a, b] = both(columns);
        let (a, b) = (_mm256_srai_epi32::<2>(a), _mm256_srai_epi32::<2>(b));
        let low = _mm256_unpacklo_epi32(a, b);
        let high = _mm256_unpackhi_epi32(a, b);
        _mm_storeu_si128(bytes.as_mut_ptr().cast(), vectors.bytes(low, high));
    }
}
