//! Activation row in 24-bit fixed point.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{GROUP, PLANES, SPAN};

/// Maximum integer that three signed 8-bit limbs can represent: all limbs are 127.
const MAX: f32 = 8_355_711.0;

/// An activation row in fixed point.
#[derive(Clone, Copy)]
pub(in super::super) struct FixedPointRow<'a> {
    /// Per group of 32 elements: the low limbs, the middle limbs, the high limbs, and eight 32-bit
    /// sums of four adjacent elements.
    pub(super) digits: &'a [i8],
    /// Scale of each group, equal within [`SPAN`] elements.
    pub(super) scales: &'a [f32],
    /// Sum of each 16 fixed-point elements, times their scale.
    pub(super) sums16: &'a [f32],
    /// Sum of each 32 fixed-point elements, times their scale.
    pub(super) sums32: &'a [f32],
}

impl<'a> FixedPointRow<'a> {
    /// Converts the row `x` of whole groups, in `scratch` of [`scratch_len`](super::scratch_len)
    /// floats. `None` if fixed point cannot represent the row.
    ///
    /// # Safety
    /// The machine has AVX2, or is an aarch64 one.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
    pub(in super::super) unsafe fn new(x: &[f32], scratch: &'a mut [f32]) -> Option<Self> {
        let groups = x.len() / GROUP;
        let (digits, rest) = scratch.split_at_mut(PLANES / 4 * groups);
        let (scales, rest) = rest.split_at_mut(groups);
        let (sums16, rest) = rest.split_at_mut(2 * groups);
        let sums32 = &mut rest[..groups];
        let digits: &mut [i8] = bytemuck::cast_slice_mut(digits);
        let (planes, _) = digits.as_chunks_mut::<PLANES>();
        let (parts, _) = x.as_chunks::<GROUP>();
        let mut scale = 0.0;
        for (i, (part, planes)) in parts.iter().zip(planes).enumerate() {
            if i % (SPAN / GROUP) == 0 {
                scale = scale_of(&x[i * GROUP..x.len().min(i * GROUP + SPAN)])?;
            }
            // SAFETY: the requirements are those of this function.
            let (low, high) = unsafe { encode(part, scale, planes) };
            scales[i] = scale;
            // The sum of 16 elements is below 16 * 2^23, so the integer is exact; the conversion to
            // float rounds once.
            sums16[2 * i] = low as f32 * scale;
            sums16[2 * i + 1] = high as f32 * scale;
            sums32[i] = (low + high) as f32 * scale;
        }
        Some(Self {
            digits,
            scales,
            sums16,
            sums32,
        })
    }
}

/// Groups per tile of repacked weights.
const TILE_GROUPS: usize = SPAN / GROUP;

/// Pointers into the fixed-point activation row, at the elements of the current tile.
#[derive(Clone, Copy)]
pub(super) struct FixedPointRowTail {
    pub(super) planes: *const i8,
    pub(super) scales: *const f32,
    pub(super) sums16: *const f32,
    pub(super) sums32: *const f32,
}

impl FixedPointRowTail {
    /// The elements of a row from element `k0`, the first of a group.
    #[inline(always)]
    pub(super) fn new(row: &FixedPointRow<'_>, k0: usize) -> Self {
        FixedPointRowTail {
            planes: row.digits.as_ptr().wrapping_add(PLANES / GROUP * k0),
            scales: row.scales.as_ptr().wrapping_add(k0 / GROUP),
            sums16: row.sums16.as_ptr().wrapping_add(2 * (k0 / GROUP)),
            sums32: row.sums32.as_ptr().wrapping_add(k0 / GROUP),
        }
    }

    /// # Safety
    /// `self` points to a tile of the row, not past its end.
    #[inline(always)]
    pub(super) unsafe fn advance(&mut self) {
        self.planes = self.planes.wrapping_add(TILE_GROUPS * PLANES);
        self.scales = self.scales.wrapping_add(TILE_GROUPS);
        self.sums16 = self.sums16.wrapping_add(2 * TILE_GROUPS);
        self.sums32 = self.sums32.wrapping_add(TILE_GROUPS);
    }
}

/// Smallest power-of-two scale for which all fixed-point elements are below 2^23; 0 if all elements
/// are zero.
#[inline(always)]
fn scale_of(x: &[f32]) -> Option<f32> {
    // Magnitudes are compared by their bits; the bits of NaN and infinity exceed those of all
    // finite numbers.
    let max = x
        .iter()
        .fold(0, |max, x| max.max(x.to_bits() & 0x7FFF_FFFF));
    if max == 0 {
        return Some(0.0);
    }
    let exponent = max >> 23;
    // The scale is the power of two of the maximum, divided by 2^22; exponents in this range keep
    // it normal and its inverse finite.
    if !(48..0xFF).contains(&exponent) {
        return None;
    }
    let scale = f32::from_bits((exponent - 22) << 23);
    Some(if f32::from_bits(max) > MAX * scale {
        2.0 * scale
    } else {
        scale
    })
}

/// Writes the limbs of a group, and returns the integer sums of its two halves.
///
/// # Safety
/// Requires AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn encode(x: &[f32; GROUP], scale: f32, planes: &mut [i8; PLANES]) -> (i32, i32) {
    let inverse = _mm256_set1_ps(if scale == 0.0 { 0.0 } else { 1.0 / scale });
    let zero = _mm256_setzero_si256();
    let (mut digits, mut ts, mut sums) = ([[zero; 4]; 3], [zero; 4], [zero; 2]);
    for i in 0..4 {
        let x = _mm256_loadu_ps(x.as_ptr().add(8 * i));
        // Multiplication by a power of two is exact, so this rounds once.
        let t = _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
        ts[i] = t;
        sums[i / 2] = _mm256_add_epi32(sums[i / 2], t);
        digits[0][i] = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(t));
        let above = _mm256_srai_epi32::<8>(_mm256_sub_epi32(t, digits[0][i]));
        digits[1][i] = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(above));
        digits[2][i] = _mm256_srai_epi32::<8>(_mm256_sub_epi32(above, digits[1][i]));
    }
    for (plane, [a, b, c, d]) in digits.into_iter().enumerate() {
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        // Packing works within 128-bit halves: each half has four bytes each of a, b, c and d. The
        // permutation restores the order.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let bytes = _mm256_permutevar8x32_epi32(bytes, order);
        _mm256_storeu_si256(planes.as_mut_ptr().add(GROUP * plane).cast(), bytes);
    }
    // Horizontal adds work within 128-bit halves: the low half has the sums of elements 0 to 3 of
    // each vector, the high half those of elements 4 to 7.
    let quads = _mm256_hadd_epi32(
        _mm256_hadd_epi32(ts[0], ts[1]),
        _mm256_hadd_epi32(ts[2], ts[3]),
    );
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let quads = _mm256_permutevar8x32_epi32(quads, order);
    _mm256_storeu_si256(planes.as_mut_ptr().add(3 * GROUP).cast(), quads);
    let mut lanes = [[0i32; 8]; 2];
    for (lanes, sum) in lanes.iter_mut().zip(sums) {
        _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum);
    }
    (lanes[0].iter().sum(), lanes[1].iter().sum())
}

/// Writes the limbs of a group, and returns the integer sums of its two halves.
///
/// # Safety
/// The machine is an aarch64 one.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn encode(x: &[f32; GROUP], scale: f32, planes: &mut [i8; PLANES]) -> (i32, i32) {
    let inverse = vdupq_n_f32(if scale == 0.0 { 0.0 } else { 1.0 / scale });
    let planes = planes.as_mut_ptr();
    let mut halves = [0; 2];
    for (half, sum) in halves.iter_mut().enumerate() {
        let mut t = [vdupq_n_s32(0); 4];
        for (i, t) in t.iter_mut().enumerate() {
            let x = vld1q_f32(x.as_ptr().add(16 * half + 4 * i));
            // Multiplication by a power of two is exact, so this rounds once.
            *t = vcvtnq_s32_f32(vmulq_f32(x, inverse));
        }
        let quads = vpaddq_s32(vpaddq_s32(t[0], t[1]), vpaddq_s32(t[2], t[3]));
        vst1q_s32(planes.add(3 * GROUP + 16 * half).cast(), quads);
        *sum = vaddvq_s32(quads);
        for plane in 0..3 {
            let words = |a: int32x4_t, b: int32x4_t| vmovn_high_s32(vmovn_s32(a), b);
            let (low, high) = (words(t[0], t[1]), words(t[2], t[3]));
            // Narrowing keeps the lowest byte, the signed limb of this plane.
            vst1q_s8(
                planes.add(GROUP * plane + 16 * half),
                vmovn_high_s16(vmovn_s16(low), high),
            );
            for t in &mut t {
                let limb = vshrq_n_s32::<24>(vshlq_n_s32::<24>(*t));
                *t = vshrq_n_s32::<8>(vsubq_s32(*t, limb));
            }
        }
    }
    (halves[0], halves[1])
}
