//! Quantized GEMV with integer dot products (AVX2, VNNI at 256 bits, or `dotprod` and `i8mm` of aarch64).
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
//! Related files: `row.rs` for the fixed-point row, `codes.rs` for the decoding of blocks,
//! `dots_x86.rs` and `dots_neon.rs` for the instructions.

#[cfg(target_arch = "aarch64")]
mod dots_neon;
#[cfg(target_arch = "x86_64")]
mod dots_x86;
mod row;
#[cfg(target_arch = "x86_64")]
mod strips;
#[cfg(target_arch = "aarch64")]
mod strips_neon;
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
mod strips_vnni;

use std::ops::Range;

use tercet_ir::Scheme;

use super::super::simd::{Simd, SimdLevel, SimdLevelKind};
use super::code_vector::{CodeVector, Lanes, load, sub_shifted, to_floats, two_halves};
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

/// True if the level has integer dot products.
pub(super) fn has_level(level: SimdLevel) -> bool {
    match level.kind {
        SimdLevelKind::Portable => false,
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => level.dots,
        #[cfg(target_arch = "x86_64")]
        _ => true,
    }
}

/// True if weights of this scheme are multiplied as integers.
pub(super) fn supports(level: SimdLevel, scheme: Scheme) -> bool {
    has_small_codes(scheme) && has_level(level)
}

/// Exact dot products of 8-bit integers.
trait IntDotProduct: Copy {
    /// Lane `i` of the result is the sum of `codes[j] * t[j]` for `4 i <= j < 4 i + 4`, where `t`
    /// are the fixed-point activations. The codes are below 64; `digits` has the low, middle and
    /// high limbs of the same group.
    ///
    /// # Safety
    /// Requires the instructions of the implementation; `digits` is valid for [`PLANES`] bytes.
    unsafe fn dot(codes: CodeVector, digits: *const i8) -> CodeVector;

    /// For eight groups, multiplies the codes by the three limbs and by the group's integer scale (a
    /// byte of `s`), and returns the sums. `None` if the implementation multiplies by scales in F32.
    ///
    /// # Safety
    /// Same as [`Self::dot`], for eight groups.
    #[inline(always)]
    unsafe fn scaled_by_32(
        _codes: &[CodeVector; 8],
        _digits: *const i8,
        _s: u64,
    ) -> Option<[CodeVector; 3]> {
        None
    }

    /// Like [`Self::scaled_by_32`], with a scale for each 16 codes.
    ///
    /// # Safety
    /// Same as [`Self::dot`], for eight groups.
    #[inline(always)]
    unsafe fn scaled_by_16(
        _codes: &[CodeVector; 8],
        _digits: *const i8,
        _s: &[i8; 16],
    ) -> Option<[CodeVector; 3]> {
        None
    }
}

/// Like [`IntDotProduct::dot`], converted to floats, with `2^CENTER` subtracted from the codes unless
/// `CENTER` is 0.
///
/// # Safety
/// Same as [`IntDotProduct::dot`].
#[inline(always)]
unsafe fn centered<D: IntDotProduct, const CENTER: i32>(
    codes: CodeVector,
    digits: *const i8,
) -> <Lanes as Simd>::V {
    let mut dots = D::dot(codes, digits);
    if CENTER > 0 {
        let quads = load(digits.add(3 * GROUP).cast());
        dots = sub_shifted::<CENTER>(dots, quads);
    }
    to_floats(dots)
}

/// Combines the sums of the three limbs into floats.
///
/// # Safety
/// Requires the instructions of [`Lanes`].
#[inline(always)]
unsafe fn joined(sums: [CodeVector; 3]) -> <Lanes as Simd>::V {
    let [low, middle, high] = sums;
    let above = Lanes::fma(to_floats(high), Lanes::splat(256.0), to_floats(middle));
    Lanes::fma(above, Lanes::splat(256.0), to_floats(low))
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
    match level.kind {
        SimdLevelKind::Portable => unreachable!("`supports` rejects this level"),
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => strips_neon::dot_strips(level, x, w, rows, y, stride),
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        _ if level.dots => strips_vnni::dot_strips(level, x, w, rows, y, stride),
        #[cfg(target_arch = "x86_64")]
        _ => {
            for (i, row) in x.iter().enumerate() {
                strips::dot_strips(*row, w, rows.clone(), y.add(i * stride));
            }
        }
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
    assert!(row.scales.len() * GROUP >= w.k, "the row is too short");
    #[cfg(target_arch = "x86_64")]
    dots_x86::all_rows(level, row, w, rows, y);
    #[cfg(target_arch = "aarch64")]
    dots_neon::all_rows(level, row, w, rows, y);
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
    products: [<Lanes as Simd>::V; 2],
    offsets: <Lanes as Simd>::V,
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
            products: [Lanes::splat(0.0); 2],
            offsets: Lanes::splat(0.0),
            offset: 0.0,
            dots: std::marker::PhantomData,
        }
    }

    /// Adds the limb sums of 256 weights.
    ///
    /// # Safety
    /// Requires the instructions of `D`.
    #[inline(always)]
    unsafe fn add_joined(&mut self, sums: [CodeVector; 3], d: f32) {
        // All eight groups of the 256 activations have the same scale.
        let factor = Lanes::splat(d * *self.scales);
        self.products[0] = Lanes::fma(joined(sums), factor, self.products[0]);
    }

    /// # Safety
    /// Requires the instructions of `D`.
    #[inline(always)]
    unsafe fn finish(self) -> f32 {
        let products = Lanes::add(self.products[0], self.products[1]);
        Lanes::sum(Lanes::add(products, self.offsets)) + self.offset
    }
}

impl<D: IntDotProduct> WeightGroupSink for GemvRowSum<D> {
    #[inline(always)]
    unsafe fn group<const CENTER: i32>(&mut self, g: usize, codes: CodeVector, d: f32) {
        let dots = centered::<D, CENTER>(codes, self.digits.add(PLANES * g));
        let factor = Lanes::splat(d * *self.scales.add(g));
        self.products[g % 2] = Lanes::fma(dots, factor, self.products[g % 2]);
    }

    #[inline(always)]
    unsafe fn offset(&mut self, g: usize, m: f32) {
        self.offset = Lanes::fmaf(m, *self.sums32.add(g), self.offset);
    }

    #[inline(always)]
    unsafe fn by_32(&mut self, codes: [CodeVector; 8], s: u64, d: f32, offsets: &[f32; 8]) {
        if let Some(sums) = D::scaled_by_32(&codes, self.digits, s) {
            self.add_joined(sums, d);
        } else {
            let scales = Lanes::scale8(s.to_le_bytes().map(|s| s as i8), d);
            for g in 0..8 {
                self.group::<0>(g, codes[g], scales[g]);
            }
        }
        let offsets = Lanes::load(offsets.as_ptr());
        self.offsets = Lanes::fma(offsets, Lanes::load(self.sums32), self.offsets);
    }

    #[inline(always)]
    unsafe fn by_16<const CENTER: i32>(&mut self, codes: [CodeVector; 8], s: &[i8; 16], d: f32) {
        let scales = scale16::<Lanes>(s, d);
        if let Some(sums) = D::scaled_by_16(&codes, self.digits, s) {
            self.add_joined(sums, d);
            if CENTER > 0 {
                let center = Lanes::splat(-((1 << CENTER) as f32));
                for half in 0..2 {
                    let sums = Lanes::mul(Lanes::load(self.sums16.add(8 * half)), center);
                    let scales = Lanes::load(scales.as_ptr().add(8 * half));
                    self.offsets = Lanes::fma(scales, sums, self.offsets);
                }
            }
            return;
        }
        for g in 0..8 {
            let (a, b) = (scales[2 * g], scales[2 * g + 1]);
            let factor = two_halves(a, b);
            let factor = Lanes::mul(factor, Lanes::splat(*self.scales.add(g)));
            let dots = centered::<D, CENTER>(codes[g], self.digits.add(PLANES * g));
            self.products[g % 2] = Lanes::fma(dots, factor, self.products[g % 2]);
        }
    }

    #[inline(always)]
    unsafe fn offsets_16(&mut self, offsets: &[f32; 16]) {
        for half in 0..2 {
            let offsets = Lanes::load(offsets.as_ptr().add(8 * half));
            self.offsets = Lanes::fma(
                offsets,
                Lanes::load(self.sums16.add(8 * half)),
                self.offsets,
            );
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
