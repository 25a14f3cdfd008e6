//! AVX2 micro-kernels and packing of the int8 GEMM.

use std::arch::x86_64::{
    _mm_loadu_si128, _mm_set1_epi8, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8,
    _mm_xor_si128, _mm256_add_epi32, _mm256_cvtepu8_epi16, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_permute2x128_si256, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256,
    _mm256_storeu_si256, _mm256_sub_epi16,
};

use super::super::Requantize;
use super::super::requantize::avx2::RequantizeVectors;
use super::{MR, NR};

/// Computes the output bytes of `R` channels for `8 V` windows.
///
/// # Safety
/// The machine has AVX2. For each step along the depth, `a` has `R` words and `b` has 16.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn tile<const R: usize, const V: usize>(
    a: &[i32],
    b: &[i32],
    (finish, channel): (&Requantize<'_>, usize),
    bytes: &mut [[u8; NR]; MR],
) {
    let mut sums = [[_mm256_setzero_si256(); V]; R];
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
    let mut vectors = RequantizeVectors::from_requantize(finish);
    for (r, sums) in sums.iter().enumerate() {
        vectors.set_channel(finish, channel + r);
        let (first, last) = (sums[0], sums[V - 1]);
        // `low` has the sums of windows 0 to 3 and 8 to 11, `high` the others.
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
