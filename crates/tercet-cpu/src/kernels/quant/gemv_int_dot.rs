//! Quantized GEMV with integer dot products (AVX2, or AVX-512 VNNI at 256 bits).
//!
//! The activation row is converted to 24-bit fixed point, with a power-of-two scale per 256
//! elements. Element `i` becomes `t[i] * scale` with an integer `|t[i]| < 2^23`. The error is at
//! most half a unit in the last place of the largest of the 256 elements. Each `t[i]` is split into
//! three signed 8-bit limbs, `d2 * 2^16 + d1 * 2^8 + d0`. Each limb is multiplied with the unsigned
//! quantized weights by 8-bit dot products.
//!
//! The sums are exact integers, so only the sum of each weight group is rounded, not each product.
//! If group scales are themselves integers, the sum of 256 products is exact. Weight offsets are
//! multiplied with sums of the elements `t[i]` of their group. If an offset is a power of two times
//! a float scale, it is subtracted as an integer.
//!
//! The float kernels compute activation rows that fixed point cannot represent: those with
//! non-finite values, or with a scale that would be subnormal. The float kernels also compute
//! several rows, which then share the decoding of weights.
//!
//! Related files: `row.rs` for the fixed-point row, `codes.rs` for the decoding of blocks.

mod row;
mod strips;
#[cfg(tercet_avx512)]
mod strips_vnni;

use std::arch::x86_64::*;

use std::ops::Range;

use tercet_ir::Scheme;

use super::super::simd::{Avx2, Simd, SimdLevel, SimdLevelKind};
use super::codes::{WeightGroupSink, has_small_codes, visit};
use super::decode::scale16;
use super::repack_x8::STRIP;
use super::{QuantRowLayout, QuantView};
pub(super) use row::FixedPointRow;

/// Number of adjacent elements (a group) whose limbs are stored together.
const GROUP: usize = 32;
/// Elements that share a scale, except at the end of a row; no weight block spans two such ranges.
const SPAN: usize = 256;
/// Bytes of a group: three limbs per element, and one 32-bit sum per four adjacent fixed-point
/// elements.
const PLANES: usize = 4 * GROUP;
/// Scratch floats per group: [`PLANES`] bytes, the scale, the sum of each 16 elements, and the sum
/// of all 32.
const GROUP_FLOATS: usize = PLANES / 4 + 1 + 2 + 1;
/// Weights of a row that are multiplied before those of the next row. The limbs of as many
/// activations stay in the L1 cache.
const CHUNK: usize = 4096;
/// Scratch floats for a row of `k` elements.
pub(super) fn scratch_len(k: usize) -> usize {
    k.div_ceil(GROUP) * GROUP_FLOATS
}

/// True if weights of this scheme are multiplied as integers.
pub(super) fn supports(level: SimdLevel, scheme: Scheme) -> bool {
    has_small_codes(scheme) && level.kind != SimdLevelKind::Portable
}

/// Exact dot products of 8-bit integers.
trait IntDotProduct: Copy {
    /// True if integer scales are multiplied as integers ([`scaled`]) while sums are widened from
    /// 16 to 32 bits.
    const SCALED: bool;

    /// Lane `i` of the result is the sum of `codes[j] * t[j]` for `4 i <= j < 4 i + 4`, where `t`
    /// are the fixed-point activations. The codes are below 64; `digits` has the low, middle and
    /// high limbs of the same group.
    ///
    /// # Safety
    /// Requires the instructions of the implementation; `digits` is valid for [`PLANES`] bytes.
    unsafe fn dot(codes: __m256i, digits: *const i8) -> __m256i;
}

/// Like [`IntDotProduct::dot`], converted to floats, with `2^CENTER` subtracted from the codes unless
/// `CENTER` is 0.
///
/// # Safety
/// Same as [`IntDotProduct::dot`].
#[inline(always)]
unsafe fn centered<D: IntDotProduct, const CENTER: i32>(
    codes: __m256i,
    digits: *const i8,
) -> __m256 {
    let mut dots = D::dot(codes, digits);
    if CENTER > 0 {
        let quads = _mm256_loadu_si256(digits.add(3 * GROUP).cast());
        dots = _mm256_sub_epi32(dots, _mm256_slli_epi32::<CENTER>(quads));
    }
    _mm256_cvtepi32_ps(dots)
}

/// Dot products by `maddubs`: pairs of products added in 16 bits.
#[derive(Clone, Copy)]
struct MaddPairsDot;

impl IntDotProduct for MaddPairsDot {
    const SCALED: bool = true;

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
}

/// For each of the three limbs, adds the products of a group's codes (below 64), limbs and scales
/// to `sums`. Both halves of a word of `s` contain the same scale.
///
/// # Safety
/// Requires AVX2; `digits` is valid for [`PLANES`] bytes.
#[inline(always)]
unsafe fn scaled(sums: &mut [__m256i; 3], codes: __m256i, digits: *const i8, s: __m256i) {
    for (plane, sum) in sums.iter_mut().enumerate() {
        // No saturation, as in `MaddPairsDot`; the sum of eight groups with 8-bit scales stays below 2^26.
        let digits = _mm256_loadu_si256(digits.add(GROUP * plane).cast());
        let pairs = _mm256_maddubs_epi16(codes, digits);
        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, s));
    }
}

/// Combines the sums of the three limbs into floats.
///
/// # Safety
/// Requires AVX2 and FMA.
#[inline(always)]
unsafe fn joined(sums: [__m256i; 3]) -> __m256 {
    let (low, middle) = (_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1]));
    let high = _mm256_cvtepi32_ps(sums[2]);
    let above = Avx2::fma(high, Avx2::splat(256.0), middle);
    Avx2::fma(above, Avx2::splat(256.0), low)
}

/// Dot products of four by VNNI (`vpdpbusd`).
#[cfg(tercet_avx512)]
#[derive(Clone, Copy)]
struct VnniDot;

#[cfg(tercet_avx512)]
impl IntDotProduct for VnniDot {
    // VNNI sums have 32 bits from the start.
    const SCALED: bool = false;

    #[inline(always)]
    unsafe fn dot(codes: __m256i, digits: *const i8) -> __m256i {
        let zero = _mm256_setzero_si256();
        let high = _mm256_dpbusd_epi32(zero, codes, _mm256_loadu_si256(digits.add(64).cast()));
        let middle = _mm256_dpbusd_epi32(
            _mm256_slli_epi32::<8>(high),
            codes,
            _mm256_loadu_si256(digits.add(32).cast()),
        );
        _mm256_dpbusd_epi32(
            _mm256_slli_epi32::<8>(middle),
            codes,
            _mm256_loadu_si256(digits.cast()),
        )
    }
}

/// Computes `y[i * stride + j] = sum_p x[i, p] w[j, p]` for the rows `rows` of W. If W is repacked,
/// these are whole strips, except for the last rows. A row has the same bits for any number of rows.
///
/// # Panics
/// Same as [`dot_row`].
///
/// # Safety
/// Same as [`dot_row`], for all rows of `y`.
pub(super) unsafe fn dot_rows(
    level: SimdLevel,
    x: &[FixedPointRow<'_>],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    let left = match w.arrangement {
        QuantRowLayout::Rows => rows,
        QuantRowLayout::Strips => {
            let is_long = |row: &FixedPointRow<'_>| row.scales.len() * GROUP >= w.k;
            assert!(x.iter().all(is_long), "the row is too short");
            let end = rows.end / STRIP * STRIP;
            dot_strips(level, x, w, rows.start..end, y, stride);
            rows.start.max(end)..rows.end
        }
    };
    if left.is_empty() {
        return;
    }
    for (i, row) in x.iter().enumerate() {
        dot_row(level, *row, w, left.clone(), y.add(i * stride));
    }
}

/// Computes `y[i * stride + j] = sum_p x[i, p] w[j, p]` for the rows `rows` of repacked W, in whole
/// strips.
///
/// # Safety
/// Same as [`dot_rows`]; the rows of `x` are as long as those of W.
unsafe fn dot_strips(
    level: SimdLevel,
    x: &[FixedPointRow<'_>],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    #[cfg(tercet_avx512)]
    if level.kind == SimdLevelKind::Avx512 && level.vnni {
        for (part, x) in x.chunks(strips_vnni::MAX_ROWS).enumerate() {
            let y = y.add(part * strips_vnni::MAX_ROWS * stride);
            let rows = rows.clone();
            match *x {
                [a] => strips_vnni::dot_strips([a], w, rows, y, stride),
                [a, b] => strips_vnni::dot_strips([a, b], w, rows, y, stride),
                [a, b, c] => strips_vnni::dot_strips([a, b, c], w, rows, y, stride),
                [a, b, c, d] => strips_vnni::dot_strips([a, b, c, d], w, rows, y, stride),
                _ => unreachable!("invariant: chunks have at most four rows"),
            }
        }
        return;
    }
    let _ = level;
    for (i, row) in x.iter().enumerate() {
        strips::dot_strips(*row, w, rows.clone(), y.add(i * stride));
    }
}

/// Computes `y[j] = sum_p x[p] w[j, p]` for the rows `rows` of W.
///
/// # Panics
/// If the scheme has no integer dot products, or `row` is shorter than a row of W.
///
/// # Safety
/// `level` is of this machine; `y` is valid for `rows`, which no other task accesses.
unsafe fn dot_row(
    level: SimdLevel,
    row: FixedPointRow<'_>,
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(row: FixedPointRow<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
        all_rows::<MaddPairsDot>(row, w, rows, y);
    }
    #[cfg(tercet_avx512)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn vnni(row: FixedPointRow<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
        all_rows::<VnniDot>(row, w, rows, y);
    }
    assert!(row.scales.len() * GROUP >= w.k, "the row is too short");
    match level.kind {
        SimdLevelKind::Portable => unreachable!("`supports` rejects this level"),
        SimdLevelKind::Avx2 => avx2(row, w, rows, y),
        #[cfg(tercet_avx512)]
        SimdLevelKind::Avx512 if level.vnni => vnni(row, w, rows, y),
        #[cfg(tercet_avx512)]
        SimdLevelKind::Avx512 => avx2(row, w, rows, y),
    }
}

/// # Safety
/// Same as [`dot_row`]; requires the instructions of `D`.
#[inline(always)]
unsafe fn all_rows<D: IntDotProduct>(
    row: FixedPointRow<'_>,
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
) {
    let row_bytes = w.row_bytes();
    for k0 in (0..w.k.max(1)).step_by(CHUNK) {
        // The byte range is computed outside the loop over rows, because its divisions take as long
        // as multiplying several blocks.
        let (start, end) = (w.at(k0), w.at(w.k.min(k0 + CHUNK)));
        for j in rows.clone() {
            let bytes = &w.bytes[j * row_bytes + start..j * row_bytes + end];
            let mut sum = GemvRowSum::<D>::new(&row, k0 / GROUP);
            visit(&mut sum, w.scheme, bytes);
            let (to, sum) = (y.add(j), sum.finish());
            *to = if k0 > 0 { *to + sum } else { sum };
        }
    }
}

/// Sum of the products of one row of weights, and the position in the activation row.
struct GemvRowSum<D: IntDotProduct> {
    digits: *const i8,
    scales: *const f32,
    sums16: *const f32,
    sums32: *const f32,
    products: [__m256; 2],
    offsets: __m256,
    offset: f32,
    dots: std::marker::PhantomData<D>,
}

impl<D: IntDotProduct> GemvRowSum<D> {
    /// # Safety
    /// Requires the instructions of `D`.
    #[inline(always)]
    unsafe fn new(row: &FixedPointRow<'_>, group: usize) -> Self {
        Self {
            digits: row.digits.as_ptr().wrapping_add(PLANES * group),
            scales: row.scales.as_ptr().wrapping_add(group),
            sums16: row.sums16.as_ptr().wrapping_add(2 * group),
            sums32: row.sums32.as_ptr().wrapping_add(group),
            products: [_mm256_setzero_ps(); 2],
            offsets: _mm256_setzero_ps(),
            offset: 0.0,
            dots: std::marker::PhantomData,
        }
    }

    /// Adds the limb sums of 256 weights.
    ///
    /// # Safety
    /// Requires the instructions of `D`.
    #[inline(always)]
    unsafe fn add_joined(&mut self, sums: [__m256i; 3], d: f32) {
        // All eight groups of the 256 activations have the same scale.
        let factor = Avx2::splat(d * *self.scales);
        self.products[0] = Avx2::fma(joined(sums), factor, self.products[0]);
    }

    /// # Safety
    /// Requires the instructions of `D`.
    #[inline(always)]
    unsafe fn finish(self) -> f32 {
        let products = Avx2::add(self.products[0], self.products[1]);
        Avx2::sum(Avx2::add(products, self.offsets)) + self.offset
    }
}

impl<D: IntDotProduct> WeightGroupSink for GemvRowSum<D> {
    #[inline(always)]
    unsafe fn group<const CENTER: i32>(&mut self, g: usize, codes: __m256i, d: f32) {
        let dots = centered::<D, CENTER>(codes, self.digits.add(PLANES * g));
        let factor = Avx2::splat(d * *self.scales.add(g));
        self.products[g % 2] = Avx2::fma(dots, factor, self.products[g % 2]);
    }

    #[inline(always)]
    unsafe fn offset(&mut self, g: usize, m: f32) {
        self.offset = Avx2::fmaf(m, *self.sums32.add(g), self.offset);
    }

    #[inline(always)]
    unsafe fn by_32(&mut self, codes: [__m256i; 8], s: u64, d: f32, offsets: &[f32; 8]) {
        if D::SCALED {
            let s = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(s as i64));
            // Copies the scale into both 16-bit halves of its word.
            let s = _mm256_or_si256(s, _mm256_slli_epi32::<16>(s));
            let mut each = [0i32; 8];
            _mm256_storeu_si256(each.as_mut_ptr().cast(), s);
            let mut sums = [_mm256_setzero_si256(); 3];
            for g in 0..8 {
                let s = _mm256_set1_epi32(each[g]);
                scaled(&mut sums, codes[g], self.digits.add(PLANES * g), s);
            }
            self.add_joined(sums, d);
        } else {
            let scales = Avx2::scale8(s.to_le_bytes().map(|s| s as i8), d);
            for g in 0..8 {
                self.group::<0>(g, codes[g], scales[g]);
            }
        }
        let offsets = Avx2::load(offsets.as_ptr());
        self.offsets = Avx2::fma(offsets, Avx2::load(self.sums32), self.offsets);
    }

    #[inline(always)]
    unsafe fn by_16<const CENTER: i32>(&mut self, codes: [__m256i; 8], s: &[i8; 16], d: f32) {
        let scales = scale16::<Avx2>(s, d);
        if D::SCALED {
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
                scaled(&mut sums, codes[g], self.digits.add(PLANES * g), s);
            }
            self.add_joined(sums, d);
            if CENTER > 0 {
                let center = Avx2::splat(-((1 << CENTER) as f32));
                for half in 0..2 {
                    let sums = Avx2::mul(Avx2::load(self.sums16.add(8 * half)), center);
                    let scales = Avx2::load(scales.as_ptr().add(8 * half));
                    self.offsets = Avx2::fma(scales, sums, self.offsets);
                }
            }
            return;
        }
        for g in 0..8 {
            let (a, b) = (scales[2 * g], scales[2 * g + 1]);
            let factor = _mm256_setr_ps(a, a, a, a, b, b, b, b);
            let factor = Avx2::mul(factor, Avx2::splat(*self.scales.add(g)));
            let dots = centered::<D, CENTER>(codes[g], self.digits.add(PLANES * g));
            self.products[g % 2] = Avx2::fma(dots, factor, self.products[g % 2]);
        }
    }

    #[inline(always)]
    unsafe fn offsets_16(&mut self, offsets: &[f32; 16]) {
        for half in 0..2 {
            let offsets = Avx2::load(offsets.as_ptr().add(8 * half));
            self.offsets = Avx2::fma(offsets, Avx2::load(self.sums16.add(8 * half)), self.offsets);
        }
    }

    #[inline(always)]
    unsafe fn advance(&mut self, len: usize) {
        let groups = len / GROUP;
        self.digits = self.digits.wrapping_add(PLANES * groups);
        self.scales = self.scales.wrapping_add(groups);
        self.sums16 = self.sums16.wrapping_add(2 * groups);
        self.sums32 = self.sums32.wrapping_add(groups);
    }
}
