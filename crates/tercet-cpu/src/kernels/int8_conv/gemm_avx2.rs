//! AVX2 packing of panels, and sums of integer GEMMs.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_add_epi32, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_slli_epi32,
    _mm_storeu_si128, _mm256_and_si256, _mm256_castsi256_si128, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_max_epi32, _mm256_min_epi32, _mm256_packs_epi32,
    _mm256_packus_epi16, _mm256_permute2x128_si256, _mm256_permutevar8x32_epi32, _mm256_set1_epi8,
    _mm256_set1_epi32, _mm256_setr_epi32, _mm256_setzero_si256, _mm256_srl_epi32,
    _mm256_storeu_si256, _mm256_sub_epi32, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};
use std::ops::Range;

use super::super::maddubs::{ChannelSumSink, ROWS};
use super::{Limb, NR};

/// I32 elements per vector.
pub(super) const LANES: usize = 8;
/// Bytes per vector.
const BYTES: usize = 4 * LANES;

/// Minimum element, and the number of 8-bit limbs of `element - minimum`, at least one.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn range(x: &[i32]) -> [i32; 2] {
    let (vectors, rest) = x.as_chunks::<LANES>();
    let first = x.first().copied().unwrap_or_default();
    let (mut least, mut most) = ([_mm256_set1_epi32(first); 2], [_mm256_set1_epi32(first); 2]);
    for (i, x) in vectors.iter().enumerate() {
        let x = _mm256_loadu_si256(x.as_ptr().cast());
        least[i % 2] = _mm256_min_epi32(least[i % 2], x);
        most[i % 2] = _mm256_max_epi32(most[i % 2], x);
    }
    let (mut low, mut high) = ([0; LANES], [0; LANES]);
    _mm256_storeu_si256(
        low.as_mut_ptr().cast(),
        _mm256_min_epi32(least[0], least[1]),
    );
    _mm256_storeu_si256(high.as_mut_ptr().cast(), _mm256_max_epi32(most[0], most[1]));
    let least = low.iter().chain(rest).fold(first, |a, b| a.min(*b));
    let most = high.iter().chain(rest).fold(first, |a, b| a.max(*b));
    let bits = u32::BITS - most.wrapping_sub(least).leading_zeros();
    [least, bits.div_ceil(u8::BITS).max(1) as i32]
}

/// Writes one limb of rows `[.., k]` as panel words in the layout of [`ChannelSumSink::ALONE`].
///
/// # Panics
/// If there are more rows than a panel in this layout has.
pub(super) fn unpaired_words(rows: &[i32], k: usize, digit: Limb, to: &mut [i32]) {
    assert!(rows.len() / k * ROWS <= NR);
    let rows = rows.chunks_exact(k).flat_map(|row| row.chunks(4));
    for (to, x) in to.chunks_exact_mut(ROWS).zip(rows) {
        let mut word = [0; 4];
        word.iter_mut()
            .zip(x)
            .for_each(|(to, x)| *to = digit.extract(*x));
        to.fill(i32::from_le_bytes(word));
    }
}

/// Writes one limb of a part of rows `[.., k]` as columns of a panel, four bytes per word. Missing
/// elements become `pad`.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If there are more rows than a panel has, or it has too little room.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn panel(
    rows: &[i32],
    k: usize,
    depth: Range<usize>,
    (digit, pad): (Limb, u8),
    to: &mut [i32],
) {
    let count = rows.len() / k;
    assert!(count <= NR && to.len() == depth.len().div_ceil(4) * NR);
    let digits = LimbExtract {
        min: _mm256_set1_epi32(digit.min),
        shift: _mm_cvtsi32_si128(8 * digit.place),
    };
    for half in [0, LANES] {
        for at in depth.clone().step_by(BYTES) {
            let mut words = [_mm256_set1_epi8(pad as i8); LANES];
            for (r, words) in words.iter_mut().enumerate() {
                if half + r >= count {
                    break;
                }
                let row = &rows[(half + r) * k..][..depth.end];
                *words = match row.get(at..at + BYTES) {
                    Some(x) => digits.bytes(x.as_ptr()),
                    None => {
                        let pad = i32::from(pad) << (8 * digit.place);
                        let mut x = [digit.min.wrapping_add(pad); BYTES];
                        x[..depth.end - at].copy_from_slice(&row[at..]);
                        digits.bytes(x.as_ptr())
                    }
                };
            }
            let columns = turn(words);
            let steps = to[(at - depth.start) / 4 * NR..].chunks_exact_mut(NR);
            for (to, column) in steps.zip(columns) {
                _mm256_storeu_si256(to[half..half + LANES].as_mut_ptr().cast(), column);
            }
        }
    }
}

/// Extracts a limb from elements.
struct LimbExtract {
    min: __m256i,
    shift: __m128i,
}

impl LimbExtract {
    /// Limbs of [`BYTES`] elements.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn bytes(&self, x: *const i32) -> __m256i {
        let mut parts = [_mm256_setzero_si256(); 4];
        for (i, part) in parts.iter_mut().enumerate() {
            let x = _mm256_sub_epi32(_mm256_loadu_si256(x.add(LANES * i).cast()), self.min);
            let digit = _mm256_srl_epi32(x, self.shift);
            *part = _mm256_and_si256(digit, _mm256_set1_epi32(0xff));
        }
        let low = _mm256_packs_epi32(parts[0], parts[1]);
        let high = _mm256_packs_epi32(parts[2], parts[3]);
        // Both pack instructions work within 128-bit halves, so words 0, 2, 4 and 6 come before the
        // others; the permutation restores the order.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order)
    }
}

/// Transposes an 8 x 8 block of words.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn turn(rows: [__m256i; LANES]) -> [__m256i; LANES] {
    let mut fours = [_mm256_setzero_si256(); LANES];
    for i in 0..2 {
        let [a, b, c, d] = [
            rows[4 * i],
            rows[4 * i + 1],
            rows[4 * i + 2],
            rows[4 * i + 3],
        ];
        fours[4 * i..4 * i + 4].copy_from_slice(&fours_of([a, b, c, d]));
    }
    let mut columns = rows;
    for i in 0..4 {
        columns[i] = _mm256_permute2x128_si256::<0x20>(fours[i], fours[4 + i]);
        columns[4 + i] = _mm256_permute2x128_si256::<0x31>(fours[i], fours[4 + i]);
    }
    columns
}

/// Transposes columns 0 to 3 of four rows; the vector of column `i` also has that of column `i +
/// 4`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn fours_of([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Sink that writes sums to rows of C.
#[derive(Clone, Copy)]
pub(super) struct LimbGemmRows<const ALONE: bool> {
    /// First column of the first row, and the row stride.
    pub(super) c: *mut i32,
    pub(super) stride: usize,
    /// Number of rows.
    pub(super) width: usize,
    /// True if C already contains the sums of higher limbs.
    pub(super) after: bool,
}

impl<const ALONE: bool> LimbGemmRows<ALONE> {
    /// Stores `R` columns of one row, starting at `column`.
    #[inline(always)]
    pub(super) unsafe fn store<const R: usize>(self, row: usize, column: usize, sums: __m128i) {
        let c = self.c.add(row * self.stride + column);
        if R < ROWS {
            let mut all = [0; ROWS];
            _mm_storeu_si128(all.as_mut_ptr().cast(), sums);
            for (i, sum) in all[..R].iter().enumerate() {
                let before = if self.after { *c.add(i) << 8 } else { 0 };
                *c.add(i) = before.wrapping_add(*sum);
            }
            return;
        }
        let sums = match self.after {
            true => _mm_add_epi32(_mm_slli_epi32::<8>(_mm_loadu_si128(c.cast())), sums),
            false => sums,
        };
        _mm_storeu_si128(c.cast(), sums);
    }
}

impl<const ALONE: bool> ChannelSumSink for LimbGemmRows<ALONE> {
    const ALONE: bool = ALONE;

    #[inline(always)]
    unsafe fn tile<const R: usize, const V: usize>(self, column: usize, sums: &[[__m256i; V]; R]) {
        for v in 0..V {
            let mut rows = [_mm256_setzero_si256(); ROWS];
            for (rows, sums) in rows.iter_mut().zip(sums) {
                *rows = sums[v];
            }
            for (i, both) in fours_of(rows).into_iter().enumerate() {
                let halves = [
                    _mm256_castsi256_si128(both),
                    _mm256_extracti128_si256::<1>(both),
                ];
                for (half, sums) in halves.into_iter().enumerate() {
                    let row = LANES * v + ROWS * half + i;
                    if row < self.width {
                        self.store::<R>(row, column, sums);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn window(self, column: usize, window: usize, sums: [i32; ROWS]) {
        self.store::<ROWS>(window, column, _mm_loadu_si128(sums.as_ptr().cast()));
    }
}
