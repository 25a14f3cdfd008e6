//! Integer dot products of x86-64: `maddubs` of AVX2, and VNNI of AVX-512 and of AVX.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::super::simd::{SimdLevel, SimdLevelKind};
use super::super::QuantView;
use super::{FixedPointRow, GROUP, IntDotProduct};

/// Dot products by `maddubs`: pairs of products added in 16 bits.
#[derive(Clone, Copy)]
struct MaddPairsDot;

impl IntDotProduct for MaddPairsDot {
    #[inline(always)]
    unsafe fn dot(codes: __m256i, digits: *const i8) -> __m256i {
        // A 16-bit sum of two products is at most 2 * 63 * 128, so it never saturates. A sum of
        // four products times 2^16 is below 2^31.
        let low = _mm256_maddubs_epi16(codes, _mm256_loadu_si256(digits.cast()));
        let middle = _mm256_maddubs_epi16(codes, _mm256_loadu_si256(digits.add(32).cast()));
        let high = _mm256_maddubs_epi16(codes, _mm256_loadu_si256(digits.add(64).cast()));
        let low = _mm256_madd_epi16(low, _mm256_set1_epi16(1));
        let middle = _mm256_madd_epi16(middle, _mm256_set1_epi16(256));
        let high = _mm256_slli_epi32::<16>(_mm256_madd_epi16(high, _mm256_set1_epi16(1)));
        _mm256_add_epi32(high, _mm256_add_epi32(middle, low))
    }

    // Integer scales are multiplied while sums are widened from 16 to 32 bits.
    #[inline(always)]
    unsafe fn scaled_by_32(
        codes: &[__m256i; 8],
        digits: *const i8,
        s: u64,
    ) -> Option<[__m256i; 3]> {
        let s = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(s as i64));
        // Copies the scale into both 16-bit halves of its word.
        let s = _mm256_or_si256(s, _mm256_slli_epi32::<16>(s));
        let mut each = [0i32; 8];
        _mm256_storeu_si256(each.as_mut_ptr().cast(), s);
        let mut sums = [_mm256_setzero_si256(); 3];
        for g in 0..8 {
            let s = _mm256_set1_epi32(each[g]);
            scaled(&mut sums, codes[g], digits.add(super::PLANES * g), s);
        }
        Some(sums)
    }

    #[inline(always)]
    unsafe fn scaled_by_16(
        codes: &[__m256i; 8],
        digits: *const i8,
        s: &[i8; 16],
    ) -> Option<[__m256i; 3]> {
        // Each 128-bit half of a group's vector has its own scale. The two scales of a group
        // are broadcast as a pair; a shuffle then selects one per half.
        let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(s.as_ptr().cast()));
        let mut each = [0i32; 8];
        _mm256_storeu_si256(each.as_mut_ptr().cast(), wide);
        let halves = _mm256_setr_epi8(
            0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, //
            2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3,
        );
        let mut sums = [_mm256_setzero_si256(); 3];
        for g in 0..8 {
            let s = _mm256_shuffle_epi8(_mm256_set1_epi32(each[g]), halves);
            scaled(&mut sums, codes[g], digits.add(super::PLANES * g), s);
        }
        Some(sums)
    }
}

/// For each of the three limbs, adds the products of a group's codes (below 64), limbs and scales
/// to `sums`. Both halves of a word of `s` contain the same scale.
///
/// # Safety
/// Requires AVX2; `digits` is valid for [`PLANES`](super::PLANES) bytes.
#[inline(always)]
unsafe fn scaled(sums: &mut [__m256i; 3], codes: __m256i, digits: *const i8, s: __m256i) {
    for (plane, sum) in sums.iter_mut().enumerate() {
        // No saturation, as in `MaddPairsDot`; the sum of eight groups with 8-bit scales stays below 2^26.
        let digits = _mm256_loadu_si256(digits.add(GROUP * plane).cast());
        let pairs = _mm256_maddubs_epi16(codes, digits);
        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, s));
    }
}

/// The instruction `vpdpbusd`: adds to lane `i` the products of the unsigned bytes `4 i` to `4 i + 3` of
/// `codes` and of the signed bytes of `digits`.
#[cfg(tercet_avx512)]
pub(super) trait ByteDot: Copy {
    /// Activation rows that share the decoding of weights; their accumulators fit the registers.
    const MAX_ROWS: usize;
    /// True if integer scales are multiplied as integers, by [`MaddPairsDot`]. A level with repacked weights
    /// then has the bits of AVX2 also in the rows after the last strip.
    const SCALED: bool;

    /// # Safety
    /// Requires the instruction.
    unsafe fn add(sum: __m256i, codes: __m256i, digits: __m256i) -> __m256i;
}

/// `vpdpbusd` of AVX-512 VNNI, with 32 registers.
#[cfg(tercet_avx512)]
#[derive(Clone, Copy)]
pub(super) struct EvexByteDot;

#[cfg(tercet_avx512)]
impl ByteDot for EvexByteDot {
    const MAX_ROWS: usize = 4;
    const SCALED: bool = false;

    #[inline(always)]
    unsafe fn add(sum: __m256i, codes: __m256i, digits: __m256i) -> __m256i {
        _mm256_dpbusd_epi32(sum, codes, digits)
    }
}

/// `vpdpbusd` of AVX-VNNI, with 16 registers.
#[cfg(tercet_avx512)]
#[derive(Clone, Copy)]
pub(super) struct VexByteDot;

#[cfg(tercet_avx512)]
impl ByteDot for VexByteDot {
    const MAX_ROWS: usize = 2;
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn add(sum: __m256i, codes: __m256i, digits: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(sum, codes, digits)
    }
}

/// Dot products of four by VNNI.
#[cfg(tercet_avx512)]
#[derive(Clone, Copy)]
struct VnniDot<B>(std::marker::PhantomData<B>);

#[cfg(tercet_avx512)]
impl<B: ByteDot> IntDotProduct for VnniDot<B> {
    #[inline(always)]
    unsafe fn dot(codes: __m256i, digits: *const i8) -> __m256i {
        // SAFETY: the group has three limbs.
        let limb = |plane: usize| unsafe { _mm256_loadu_si256(digits.add(GROUP * plane).cast()) };
        let high = B::add(_mm256_setzero_si256(), codes, limb(2));
        let middle = B::add(_mm256_slli_epi32::<8>(high), codes, limb(1));
        B::add(_mm256_slli_epi32::<8>(middle), codes, limb(0))
    }

    #[inline(always)]
    unsafe fn scaled_by_32(
        codes: &[__m256i; 8],
        digits: *const i8,
        s: u64,
    ) -> Option<[__m256i; 3]> {
        match B::SCALED {
            true => MaddPairsDot::scaled_by_32(codes, digits, s),
            false => None,
        }
    }

    #[inline(always)]
    unsafe fn scaled_by_16(
        codes: &[__m256i; 8],
        digits: *const i8,
        s: &[i8; 16],
    ) -> Option<[__m256i; 3]> {
        match B::SCALED {
            true => MaddPairsDot::scaled_by_16(codes, digits, s),
            false => None,
        }
    }
}

/// Computes the products of the rows `rows` of W with the instructions of the level.
///
/// # Safety
/// Same as [`super::dot_row`].
pub(super) unsafe fn all_rows(
    level: SimdLevel,
    row: FixedPointRow<'_>,
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(row: FixedPointRow<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
        super::all_rows::<MaddPairsDot>(row, w, rows, y);
    }
    #[cfg(tercet_avx512)]
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn avxvnni(row: FixedPointRow<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
        super::all_rows::<VnniDot<VexByteDot>>(row, w, rows, y);
    }
    #[cfg(tercet_avx512)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn vnni(row: FixedPointRow<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
        super::all_rows::<VnniDot<EvexByteDot>>(row, w, rows, y);
    }
    match level.kind {
        SimdLevelKind::Portable => unreachable!("`supports` rejects this level"),
        #[cfg(tercet_avx512)]
        SimdLevelKind::Avx512 if level.dots => vnni(row, w, rows, y),
        #[cfg(tercet_avx512)]
        SimdLevelKind::Avx2 if level.dots => avxvnni(row, w, rows, y),
        _ => avx2(row, w, rows, y),
    }
}
