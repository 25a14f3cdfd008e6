//! One row of activations times packed weights by integer dot products (AVX2, or AVX-512 VNNI at 256 bits).
//!
//! The row becomes 24-bit fixed point, a power of two for each 256 elements: element `i` is `t[i] * scale`, with
//! `|t| < 2^23`, so it is off by at most half a unit in the last place of the largest of the 256. `t` is three signed
//! bytes, `d2 * 2^16 + d1 * 2^8 + d0`, each multiplied with the unsigned codes of weights by 8-bit dot products. Their sums are
//! exact integers: what is rounded is one sum of a group of weights, not each product. Where the scales of groups are
//! integers themselves, the sum of 256 products is. Offsets of weights are multiplied with sums of `t`; where an offset is
//! a power of two of scales of floats, it is taken off as an integer.
//!
//! A row whose numbers do not fit (not finite, or so small that the scale would be subnormal) is left to the kernels of
//! floats. So are several rows: decoding weights to floats is shared by all of them.
//!
//! Next: `row.rs` for the fixed point, `codes.rs` beside this file for what blocks are made of.

mod row;
mod strips;

use std::arch::x86_64::*;

use std::ops::Range;

use tercet_ir::Scheme;

use super::super::simd::{Avx2, Level, Simd, SimdLevel};
use super::codes::{Groups, has_small_codes, visit};
use super::decode::scale16;
use super::strips::STRIP;
use super::{Arrangement, QuantView};
pub(super) use row::Row;

/// Elements whose digits lie side by side.
const GROUP: usize = 32;
/// Elements that have one scale, but for the last of a row: no block of weights spans two.
const SPAN: usize = 256;
/// Bytes of a group's digits and of the sums of four `t` each.
const PLANES: usize = 4 * GROUP;
/// Floats of scratch for a group: these, the scale, the sums of the halves and of all.
const GROUP_FLOATS: usize = PLANES / 4 + 1 + 2 + 1;
/// Weights of a row that are multiplied before the next row's: their digits stay in the nearest cache.
const CHUNK: usize = 4096;
/// Floats of scratch that a row of `k` elements takes.
pub(super) fn scratch_len(k: usize) -> usize {
    k.div_ceil(GROUP) * GROUP_FLOATS
}

/// Whether weights of this scheme are multiplied as integers.
pub(super) fn supports(level: SimdLevel, scheme: Scheme) -> bool {
    has_small_codes(scheme) && level.0 != Level::Portable
}

/// Exact dot products of 8-bit numbers.
trait Dots: Copy {
    /// Whether integer scales are multiplied as integers ([`scaled`]), on the way from 16 to 32 bits.
    const SCALED: bool;

    /// Lane `i` is the sum of `codes[j] * t[j]` for `4 i <= j < 4 i + 4`; codes are below 64, and `digits` the three planes
    /// of their group.
    ///
    /// # Safety
    /// Needs the instructions; `digits` is valid for [`PLANES`] bytes.
    unsafe fn dot(codes: __m256i, digits: *const i8) -> __m256i;
}

/// As [`Dots::dot`], as floats, with codes less `2^CENTER`; less nothing where that is 0.
///
/// # Safety
/// As [`Dots::dot`].
#[inline(always)]
unsafe fn centered<D: Dots, const CENTER: i32>(codes: __m256i, digits: *const i8) -> __m256 {
    let mut dots = D::dot(codes, digits);
    if CENTER > 0 {
        let quads = _mm256_loadu_si256(digits.add(3 * GROUP).cast());
        dots = _mm256_sub_epi32(dots, _mm256_slli_epi32::<CENTER>(quads));
    }
    _mm256_cvtepi32_ps(dots)
}

/// By products of pairs in 16 bits.
#[derive(Clone, Copy)]
struct Pairs;

impl Dots for Pairs {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn dot(codes: __m256i, digits: *const i8) -> __m256i {
        // At most 2 * 63 * 128: no 16-bit sum saturates. Four of them by 2^16 are below 2^31.
        let low = _mm256_maddubs_epi16(codes, _mm256_loadu_si256(digits.cast()));
        let middle = _mm256_maddubs_epi16(codes, _mm256_loadu_si256(digits.add(32).cast()));
        let high = _mm256_maddubs_epi16(codes, _mm256_loadu_si256(digits.add(64).cast()));
        let low = _mm256_madd_epi16(low, _mm256_set1_epi16(1));
        let middle = _mm256_madd_epi16(middle, _mm256_set1_epi16(256));
        let high = _mm256_slli_epi32::<16>(_mm256_madd_epi16(high, _mm256_set1_epi16(1)));
        _mm256_add_epi32(high, _mm256_add_epi32(middle, low))
    }
}

/// Adds the products of a group's codes, below 64, with its digits and its scales, to the sums of each digit; all scales
/// of the two neighbours in a word of `s` are alike.
///
/// # Safety
/// Needs AVX2; `digits` is valid for [`PLANES`] bytes.
#[inline(always)]
unsafe fn scaled(sums: &mut [__m256i; 3], codes: __m256i, digits: *const i8, s: __m256i) {
    for (plane, sum) in sums.iter_mut().enumerate() {
        // As in `Pairs`; eight groups of these, with scales of a byte, stay below 2^26.
        let digits = _mm256_loadu_si256(digits.add(GROUP * plane).cast());
        let pairs = _mm256_maddubs_epi16(codes, digits);
        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, s));
    }
}

/// The sums of all digits as floats.
///
/// # Safety
/// Needs AVX2 and FMA.
#[inline(always)]
unsafe fn joined(sums: [__m256i; 3]) -> __m256 {
    let (low, middle) = (_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1]));
    let high = _mm256_cvtepi32_ps(sums[2]);
    let above = Avx2::fma(high, Avx2::splat(256.0), middle);
    Avx2::fma(above, Avx2::splat(256.0), low)
}

/// By dot products of four.
#[cfg(tercet_avx512)]
#[derive(Clone, Copy)]
struct Vnni;

#[cfg(tercet_avx512)]
impl Dots for Vnni {
    // Its sums have 32 bits from the start.
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

/// `y[j] = sum_p x[p] w[j, p]` for the rows `rows` of W, whole strips but for the last rows where W lies as strips.
///
/// # Panics
/// As [`dot_row`].
///
/// # Safety
/// As [`dot_row`].
pub(super) unsafe fn dot_rows(
    level: SimdLevel,
    row: Row<'_>,
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
) {
    let left = match w.arrangement {
        Arrangement::Rows => rows,
        Arrangement::Strips => {
            assert!(row.scales.len() * GROUP >= w.k, "the row is too short");
            let end = rows.end / STRIP * STRIP;
            strips::dot_strips(row, w, rows.start..end, y);
            rows.start.max(end)..rows.end
        }
    };
    if !left.is_empty() {
        dot_row(level, row, w, left, y);
    }
}

/// `y[j] = sum_p x[p] w[j, p]` for the rows `rows` of W.
///
/// # Panics
/// If the scheme has no integer dot products, or `row` is shorter than a row of W.
///
/// # Safety
/// `level` is of this machine; `y` is valid for `rows`, which no one else touches.
unsafe fn dot_row(
    level: SimdLevel,
    row: Row<'_>,
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(row: Row<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
        all_rows::<Pairs>(row, w, rows, y);
    }
    #[cfg(tercet_avx512)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn vnni(row: Row<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
        all_rows::<Vnni>(row, w, rows, y);
    }
    assert!(row.scales.len() * GROUP >= w.k, "the row is too short");
    match level.0 {
        Level::Portable => unreachable!("`supports` leaves this level out"),
        Level::Avx2 => avx2(row, w, rows, y),
        #[cfg(tercet_avx512)]
        Level::Avx512 if is_x86_feature_detected!("avx512vnni") => vnni(row, w, rows, y),
        #[cfg(tercet_avx512)]
        Level::Avx512 => avx2(row, w, rows, y),
    }
}

/// # Safety
/// As [`dot_row`]; needs the instructions of `D`.
#[inline(always)]
unsafe fn all_rows<D: Dots>(row: Row<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
    let row_bytes = w.row_bytes();
    for k0 in (0..w.k.max(1)).step_by(CHUNK) {
        // Not for each row: what divides takes as long as some blocks.
        let (start, end) = (w.at(k0), w.at(w.k.min(k0 + CHUNK)));
        for j in rows.clone() {
            let bytes = &w.bytes[j * row_bytes + start..j * row_bytes + end];
            let mut sum = Sum::<D>::new(&row, k0 / GROUP);
            visit(&mut sum, w.scheme, bytes);
            let (to, sum) = (y.add(j), sum.finish());
            *to = if k0 > 0 { *to + sum } else { sum };
        }
    }
}

/// Sums of a row of weights, from a group on.
struct Sum<D: Dots> {
    digits: *const i8,
    scales: *const f32,
    sums16: *const f32,
    sums32: *const f32,
    products: [__m256; 2],
    offsets: __m256,
    offset: f32,
    dots: std::marker::PhantomData<D>,
}

impl<D: Dots> Sum<D> {
    /// # Safety
    /// Needs the instructions of `D`.
    #[inline(always)]
    unsafe fn new(row: &Row<'_>, group: usize) -> Self {
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

    /// Adds the sums of digits of 256 weights.
    ///
    /// # Safety
    /// Needs the instructions of `D`.
    #[inline(always)]
    unsafe fn add_joined(&mut self, sums: [__m256i; 3], d: f32) {
        // The scale of all eight groups.
        let factor = Avx2::splat(d * *self.scales);
        self.products[0] = Avx2::fma(joined(sums), factor, self.products[0]);
    }

    /// # Safety
    /// Needs the instructions of `D`.
    #[inline(always)]
    unsafe fn finish(self) -> f32 {
        let products = Avx2::add(self.products[0], self.products[1]);
        Avx2::sum(Avx2::add(products, self.offsets)) + self.offset
    }
}

impl<D: Dots> Groups for Sum<D> {
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
            // Both halves of a word.
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
            // Two scales for each group, in the halves of its vector: a word of both, of which halves take one each.
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
