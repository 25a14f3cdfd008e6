//! Conversion between f16, bf16 and f32, over slices of raw bits.
//!
//! Narrowing rounds to nearest even and preserves NaN (quiet, payload truncated).

use super::simd::{Simd, SimdLevel, SimdLevelKind, simd_dispatch};

/// Converts one f16 with integer operations that the compiler can vectorize.
#[inline(always)]
pub(crate) fn f16_bits_to_f32(h: u16) -> f32 {
    // A factor of 2^112 corrects the exponent bias of f16, for subnormals too.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(h & 0x7FFF);
    let sign = u32::from(h & 0x8000) << 16;
    let finite = (f32::from_bits(magnitude << 13) * SCALE).to_bits();
    let special =
        (magnitude << 13) | 0x7F80_0000 | if magnitude > 0x7C00 { 0x0040_0000 } else { 0 };
    f32::from_bits(sign | if magnitude >= 0x7C00 { special } else { finite })
}

/// Converts one f32 to f16 bits with integer operations.
#[inline(always)]
pub(crate) fn f32_to_f16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let a = bits & 0x7FFF_FFFF;
    // Normal numbers: rebias, then round to nearest even on the 13 dropped bits.
    let normal = (a
        .wrapping_sub(112 << 23)
        .wrapping_add(0x0FFF + ((a >> 13) & 1)))
        >> 13;
    // Subnormal numbers: adding 0.5 aligns the mantissa so that the hardware rounds it.
    let subnormal = (f32::from_bits(a) + 0.5)
        .to_bits()
        .wrapping_sub(0x3F00_0000);
    let y = if a < 0x3880_0000 { subnormal } else { normal };
    let y = if a >= 0x4780_0000 { 0x7C00 } else { y };
    let y = if a > 0x7F80_0000 {
        0x7E00 | ((a >> 13) & 0x03FF)
    } else {
        y
    };
    (sign | y) as u16
}

/// Converts one f32 to bf16 bits.
#[inline(always)]
pub(crate) fn f32_to_bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    (if x.is_nan() {
        (bits >> 16) | 0x0040
    } else {
        rounded
    }) as u16
}

/// Magic number: after adding it to an integral float within 2^22, the integer is in the low bits.
const WHOLE: f32 = 12_582_912.0;

simd_dispatch!(
    /// Low bytes of floats that are integers within 2^22.
    pub(crate) fn integral_to_bytes(from: &[f32], out: &mut [u8]) = integral_to_bytes_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn integral_to_bytes_body<S: Simd>(from: &[f32], out: &mut [u8]) {
    let pairs = out.iter_mut().zip(from);
    pairs.for_each(|(y, x)| *y = (x + WHOLE).to_bits() as u8);
}

simd_dispatch!(
    /// Converts floats that are integers within 2^22 to i32.
    pub(crate) fn integral_to_i32(from: &[f32], out: &mut [i32]) = integral_to_i32_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn integral_to_i32_body<S: Simd>(from: &[f32], out: &mut [i32]) {
    let pairs = out.iter_mut().zip(from);
    pairs.for_each(|(y, x)| *y = (x + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i32);
}

simd_dispatch!(
    /// Converts floats that are integers within 2^15 to i16.
    pub(crate) fn integral_to_i16(from: &[f32], out: &mut [i16]) = integral_to_i16_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn integral_to_i16_body<S: Simd>(from: &[f32], out: &mut [i16]) {
    let pairs = out.iter_mut().zip(from);
    // The low half of `WHOLE` is 0.
    pairs.for_each(|(y, x)| *y = (x + WHOLE).to_bits() as i16);
}

simd_dispatch!(
    /// Converts unsigned bytes to floats.
    pub(crate) fn u8_to_f32(x: &[u8], out: &mut [f32]) = u8_to_f32_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn u8_to_f32_body<S: Simd>(x: &[u8], out: &mut [f32]) {
    let pairs = out.iter_mut().zip(x);
    pairs.for_each(|(y, x)| *y = f32::from(*x));
}

simd_dispatch!(
    /// Converts signed bytes to floats.
    pub(crate) fn i8_to_f32(x: &[u8], out: &mut [f32]) = i8_to_f32_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn i8_to_f32_body<S: Simd>(x: &[u8], out: &mut [f32]) {
    let pairs = out.iter_mut().zip(x);
    pairs.for_each(|(y, x)| *y = f32::from(*x as i8));
}

simd_dispatch!(
    /// Converts 16-bit integers to floats.
    pub(crate) fn i16_to_f32(x: &[i16], out: &mut [f32]) = i16_to_f32_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn i16_to_f32_body<S: Simd>(x: &[i16], out: &mut [f32]) {
    let pairs = out.iter_mut().zip(x);
    pairs.for_each(|(y, x)| *y = f32::from(*x));
}

simd_dispatch!(
    /// Converts integers to floats, rounded to nearest even.
    pub(crate) fn i32_to_f32(x: &[i32], out: &mut [f32]) = i32_to_f32_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn i32_to_f32_body<S: Simd>(x: &[i32], out: &mut [f32]) {
    let pairs = out.iter_mut().zip(x);
    pairs.for_each(|(y, x)| *y = *x as f32);
}

simd_dispatch!(
    /// Converts f16 to f32.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn f16_to_f32(x: &[u16], out: &mut [f32]) = f16_to_f32_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn f16_to_f32_body<S: Simd>(x: &[u16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    let whole = x.len() / S::LANES * S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        S::store(out.as_mut_ptr().add(i), S::from_f16(x.as_ptr().add(i)));
    }
    for i in whole..x.len() {
        out[i] = f16_bits_to_f32(x[i]);
    }
}

simd_dispatch!(
    /// Converts bf16 to f32.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn bf16_to_f32(x: &[u16], out: &mut [f32]) = bf16_to_f32_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn bf16_to_f32_body<S: Simd>(x: &[u16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    for (out, x) in out.iter_mut().zip(x) {
        *out = f32::from_bits(u32::from(*x) << 16);
    }
}

simd_dispatch!(
    /// Converts f32 to bf16, rounding to nearest even.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn f32_to_bf16(x: &[f32], out: &mut [u16]) = f32_to_bf16_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn f32_to_bf16_body<S: Simd>(x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    for (out, x) in out.iter_mut().zip(x) {
        *out = f32_to_bf16_bits(*x);
    }
}

simd_dispatch!(fn f32_to_f16_plain(x: &[f32], out: &mut [u16]) = f32_to_f16_body);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn f32_to_f16_body<S: Simd>(x: &[f32], out: &mut [u16]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = f32_to_f16_bits(*x);
    }
}

/// Converts f32 to f16, rounding to nearest even; values that are too large become infinity.
///
/// # Panics
/// If the lengths differ.
pub fn f32_to_f16(level: SimdLevel, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    match level.kind {
        SimdLevelKind::Portable => f32_to_f16_plain(level, x, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level has F16C (512-bit levels include it).
        SimdLevelKind::Avx2 => unsafe { f32_to_f16_f16c(x, out) },
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        // SAFETY: the level has F16C (512-bit levels include it).
        SimdLevelKind::Avx512 => unsafe { f32_to_f16_f16c(x, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every aarch64 processor has NEON; the lengths are equal.
        SimdLevelKind::Neon => unsafe { f32_to_f16_neon(x, out) },
    }
}

/// # Safety
/// The lengths are equal.
#[cfg(target_arch = "aarch64")]
unsafe fn f32_to_f16_neon(x: &[f32], out: &mut [u16]) {
    use std::arch::aarch64::*;
    let whole = x.len() / 4 * 4;
    for i in (0..whole).step_by(4) {
        let h = super::simd::neon::narrow_f16(vld1q_f32(x.as_ptr().add(i)));
        vst1_u16(out.as_mut_ptr().add(i), h);
    }
    for i in whole..x.len() {
        out[i] = f32_to_f16_bits(x[i]);
    }
}

/// # Safety
/// The processor has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn f32_to_f16_f16c(x: &[f32], out: &mut [u16]) {
    use std::arch::x86_64::*;
    let whole = x.len() / 8 * 8;
    for i in (0..whole).step_by(8) {
        let h = _mm256_cvtps_ph::<0>(_mm256_loadu_ps(x.as_ptr().add(i)));
        _mm_storeu_si128(out.as_mut_ptr().add(i).cast(), h);
    }
    for i in whole..x.len() {
        out[i] = f32_to_f16_bits(x[i]);
    }
}
