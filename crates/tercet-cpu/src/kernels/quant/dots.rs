//! One row of activations times packed weights by integer dot products (AVX2, or AVX-512 VNNI at 256 bits).
//!
//! The row becomes 24-bit fixed point, a power of two for each 32 elements: element `i` is `t[i] * scale`, with
//! `|t| < 2^23`, so it is off by at most half a unit in the last place of the largest of the 32. `t` is three signed
//! bytes, `d2 * 2^16 + d1 * 2^8 + d0`, each multiplied with the unsigned codes of weights by 8-bit dot products. Their sums are
//! exact integers: what is rounded is one sum of a group of weights, not each product. Offsets of weights
//! are multiplied with sums of `t`; where an offset is a power of two of scales, it is taken off as an integer.
//!
//! A row whose numbers do not fit (not finite, or so small that the scale would be subnormal) is left to the kernels of
//! floats. So are several rows: decoding weights to floats is shared by all of them.
//!
//! Next: `row.rs` for the fixed point, `formats.rs` for what blocks are made of.

mod formats;
mod row;

use std::arch::x86_64::*;

use std::ops::Range;

use tercet_ir::Scheme;

use super::super::simd::{Avx2, Level, Simd, SimdLevel};
use super::QuantView;
pub(super) use row::Row;

/// Elements that have a scale.
const GROUP: usize = 32;
/// Bytes of a group's digits and of the sums of four `t` each.
const PLANES: usize = 4 * GROUP;
/// Floats of scratch for a group: these, the scale, the sums of the halves and of all.
const GROUP_FLOATS: usize = PLANES / 4 + 1 + 2 + 1;
/// Weights of a row that are multiplied before the next row's: their digits stay in the nearest cache.
const CHUNK: usize = 4096;
/// Bytes of weights asked for ahead of their use.
const AHEAD: usize = 1024;
/// Floats of scratch that a row of `k` elements takes.
pub(super) fn scratch_len(k: usize) -> usize {
    k.div_ceil(GROUP) * GROUP_FLOATS
}

/// Whether weights of this scheme have codes of at most six bits that are multiplied as integers.
pub(super) fn supports(level: SimdLevel, scheme: Scheme) -> bool {
    let codes = match scheme {
        Scheme::Q4_0
        | Scheme::Q4_1
        | Scheme::Q5_0
        | Scheme::Q5_1
        | Scheme::Q2K
        | Scheme::Q3K
        | Scheme::Q4K
        | Scheme::Q5K
        | Scheme::Q6K
        | Scheme::Int4
        | Scheme::Int4Asym => true,
        Scheme::F16
        | Scheme::BF16
        | Scheme::Q8_0
        | Scheme::Int8
        | Scheme::Int8Asym
        | Scheme::Iq2Xxs
        | Scheme::Iq2Xs
        | Scheme::Iq2S
        | Scheme::Iq3Xxs
        | Scheme::Iq3S
        | Scheme::Iq1S
        | Scheme::Iq1M
        | Scheme::Iq4Nl
        | Scheme::Iq4Xs
        | Scheme::Tq1_0
        | Scheme::Tq2_0
        | Scheme::Mxfp4
        | Scheme::Nvfp4
        | Scheme::Fp8E4m3
        | Scheme::Fp8E5m2 => false,
    };
    codes && level.0 != Level::Portable
}

/// Exact dot products of 8-bit numbers.
trait Dots: Copy {
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

/// By dot products of four.
#[cfg(tercet_avx512)]
#[derive(Clone, Copy)]
struct Vnni;

#[cfg(tercet_avx512)]
impl Dots for Vnni {
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

/// `y[j] = sum_p x[p] w[j, p]` for the rows `rows` of W.
///
/// # Panics
/// If the scheme has no integer dot products, or `row` is shorter than a row of W.
///
/// # Safety
/// `level` is of this machine; `y` is valid for `rows`, which no one else touches.
pub(super) unsafe fn dot_row(
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
        let k1 = w.k.min(k0 + CHUNK);
        for j in rows.clone() {
            let bytes = &w.bytes[j * row_bytes + w.at(k0)..j * row_bytes + w.at(k1)];
            let mut sum = Sum::<D>::new(&row, k0 / GROUP);
            sum.visit(w.scheme, bytes);
            let (to, sum) = (y.add(j), sum.finish());
            *to = if k0 > 0 { *to + sum } else { sum };
        }
    }
}

/// Calls a method for each block of `$len` weights in `$size` bytes. No function takes the method: it must be inlined
/// into the one that has the instructions.
macro_rules! each_block {
    ($sum:ident, $bytes:ident, $len:literal, $size:literal, $block:ident) => {
        for i in 0..$bytes.len() / $size {
            let b = $bytes.as_ptr().add(i * $size);
            for line in 0..($size as usize).div_ceil(64) {
                Avx2::prefetch(b.wrapping_add(AHEAD + 64 * line));
            }
            $sum.$block(b);
            $sum.digits = $sum.digits.wrapping_add(4 * $len);
            $sum.scales = $sum.scales.wrapping_add($len / GROUP);
            $sum.sums16 = $sum.sums16.wrapping_add($len / 16);
            $sum.sums32 = $sum.sums32.wrapping_add($len / GROUP);
        }
    };
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

    /// # Safety
    /// Needs the instructions of `D`.
    #[inline(always)]
    unsafe fn finish(self) -> f32 {
        let products = Avx2::add(self.products[0], self.products[1]);
        Avx2::sum(Avx2::add(products, self.offsets)) + self.offset
    }

    /// Adds the whole blocks of `bytes`.
    ///
    /// # Safety
    /// Needs the instructions of `D`; the row has as many elements.
    #[inline(always)]
    unsafe fn visit(&mut self, scheme: Scheme, bytes: &[u8]) {
        match scheme {
            Scheme::Q4_0 => each_block!(self, bytes, 32, 18, q4_0),
            Scheme::Q4_1 => each_block!(self, bytes, 32, 20, q4_1),
            Scheme::Q5_0 => each_block!(self, bytes, 32, 22, q5_0),
            Scheme::Q5_1 => each_block!(self, bytes, 32, 24, q5_1),
            Scheme::Int4 => each_block!(self, bytes, 128, 72, int4),
            Scheme::Int4Asym => each_block!(self, bytes, 128, 76, int4_asym),
            Scheme::Q2K => each_block!(self, bytes, 256, 84, q2_k),
            Scheme::Q3K => each_block!(self, bytes, 256, 110, q3_k),
            Scheme::Q4K => each_block!(self, bytes, 256, 144, q4_k),
            Scheme::Q5K => each_block!(self, bytes, 256, 176, q5_k),
            Scheme::Q6K => each_block!(self, bytes, 256, 210, q6_k),
            Scheme::F16
            | Scheme::BF16
            | Scheme::Q8_0
            | Scheme::Int8
            | Scheme::Int8Asym
            | Scheme::Iq2Xxs
            | Scheme::Iq2Xs
            | Scheme::Iq2S
            | Scheme::Iq3Xxs
            | Scheme::Iq3S
            | Scheme::Iq1S
            | Scheme::Iq1M
            | Scheme::Iq4Nl
            | Scheme::Iq4Xs
            | Scheme::Tq1_0
            | Scheme::Tq2_0
            | Scheme::Mxfp4
            | Scheme::Nvfp4
            | Scheme::Fp8E4m3
            | Scheme::Fp8E5m2 => unreachable!("`supports` leaves these out"),
        }
    }

    /// Adds group `g` of the block: `d (code - 2^CENTER)`.
    ///
    /// # Safety
    /// As [`Self::visit`].
    #[inline(always)]
    unsafe fn group<const CENTER: i32>(&mut self, g: usize, codes: __m256i, d: f32) {
        let dots = centered::<D, CENTER>(codes, self.digits.add(PLANES * g));
        let factor = Avx2::splat(d * *self.scales.add(g));
        self.products[g % 2] = Avx2::fma(dots, factor, self.products[g % 2]);
    }

    /// Adds to group `g` an offset of all its weights.
    ///
    /// # Safety
    /// As [`Self::visit`].
    #[inline(always)]
    unsafe fn offset(&mut self, g: usize, m: f32) {
        self.offset = Avx2::fmaf(m, *self.sums32.add(g), self.offset);
    }

    /// Adds 256 weights whose scales and offsets are of 32.
    ///
    /// # Safety
    /// As [`Self::visit`].
    #[inline(always)]
    unsafe fn by_32(&mut self, codes: [__m256i; 8], scales: &[f32; 8], offsets: &[f32; 8]) {
        let factors = Avx2::mul(Avx2::load(scales.as_ptr()), Avx2::load(self.scales));
        let mut each = [0.0; 8];
        Avx2::store(each.as_mut_ptr(), factors);
        for g in 0..8 {
            let dots = centered::<D, 0>(codes[g], self.digits.add(PLANES * g));
            self.products[g % 2] = Avx2::fma(dots, Avx2::splat(each[g]), self.products[g % 2]);
        }
        let offsets = Avx2::load(offsets.as_ptr());
        self.offsets = Avx2::fma(offsets, Avx2::load(self.sums32), self.offsets);
    }

    /// Adds 256 weights whose scales are of 16, `d (code - 2^CENTER)`.
    ///
    /// # Safety
    /// As [`Self::visit`].
    #[inline(always)]
    unsafe fn by_16<const CENTER: i32>(&mut self, codes: [__m256i; 8], scales: &[f32; 16]) {
        for half in 0..2 {
            // Scale `2 g + i` of the half belongs to the half `i` of its group `g`.
            let group_scales = _mm256_castps128_ps256(_mm_loadu_ps(self.scales.add(4 * half)));
            let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
            let group_scales = _mm256_permutevar8x32_ps(group_scales, twice);
            let factors = Avx2::mul(Avx2::load(scales.as_ptr().add(8 * half)), group_scales);
            for i in 0..4 {
                let g = 4 * half + i;
                let (a, b) = (2 * i as i32, 2 * i as i32 + 1);
                let lanes = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
                let factor = _mm256_permutevar8x32_ps(factors, lanes);
                let dots = centered::<D, CENTER>(codes[g], self.digits.add(PLANES * g));
                self.products[i % 2] = Avx2::fma(dots, factor, self.products[i % 2]);
            }
        }
    }
}
