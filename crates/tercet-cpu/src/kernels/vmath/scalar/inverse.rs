//! Inverse trigonometric functions, hyperbolic sine and cosine, and the tangent.

use std::f32::consts::{FRAC_PI_2, PI};

use super::{clamp64, exp_parts64, poly32, sin_cos_parts};
use crate::kernels::simd::Simd;

/// The parts of `pi / 2` and `pi` that their f32 values lack.
const FRAC_PI_2_LOW: f32 = -4.371_138_8e-8;
const PI_LOW: f32 = -8.742_277_7e-8;

/// Polynomial of `(atan(x) / x - 1) / x^2` in `x^2 <= 1`; error 2^-28.5 of the arctangent.
const ATAN: [f32; 9] = [
    -0.333_332_990_864,
    0.199_985_482_013,
    -0.142_642_407_9,
    0.109_521_810_986,
    -0.084_034_366_492_1,
    0.057_957_359_514,
    -0.031_177_612_991_6,
    0.010_914_480_997_5,
    -0.001_793_593_887_68,
];
/// Polynomial of `(asin(x) / x - 1) / x^2` in `x^2 <= 1/4`; error 2^-31.8 of the arcsine.
const ASIN: [f32; 6] = [
    0.166_666_599_913,
    0.075_005_041_847,
    0.044_516_955_158_6,
    0.031_807_718_562,
    0.014_438_604_362_3,
    0.037_516_450_846_8,
];

#[inline(always)]
pub(crate) fn atan<S: Simd>(x: f32) -> f32 {
    let a = x.abs();
    let over = a > 1.0;
    let t = if over { 1.0 / a } else { a };
    let z = t * t;
    let tail = t * z * poly32::<S>(z, &ATAN);
    // `atan(a) = pi / 2 - atan(1 / a)`.
    let y = if over {
        (FRAC_PI_2 - t) - (tail - FRAC_PI_2_LOW)
    } else {
        t + tail
    };
    y.copysign(x)
}

/// The arcsine of the root that [`halved`] returns, as a sum of the root and a tail.
#[inline(always)]
fn asin_parts<S: Simd>(x: f32) -> (bool, f32, f32) {
    let a = x.abs();
    let over = a > 0.5;
    // `asin(a) = pi / 2 - 2 asin(sqrt((1 - a) / 2))`; the difference is exact.
    let z = if over { 0.5 * (1.0 - a) } else { a * a };
    let t = if over { z.sqrt() } else { a };
    (over, t, t * z * poly32::<S>(z, &ASIN))
}

#[inline(always)]
pub(crate) fn asin<S: Simd>(x: f32) -> f32 {
    let (over, t, tail) = asin_parts::<S>(x);
    let y = if over {
        (FRAC_PI_2 - 2.0 * t) - (2.0 * tail - FRAC_PI_2_LOW)
    } else {
        t + tail
    };
    y.copysign(x)
}

#[inline(always)]
pub(crate) fn acos<S: Simd>(x: f32) -> f32 {
    let (over, t, tail) = asin_parts::<S>(x);
    let (signed, signed_tail) = (t.copysign(x), tail.copysign(x));
    let near = (FRAC_PI_2 - signed) - (signed_tail - FRAC_PI_2_LOW);
    let far = (PI - 2.0 * t) - (2.0 * tail - PI_LOW);
    let end = if x < 0.0 { far } else { 2.0 * (t + tail) };
    if over { end } else { near }
}

#[inline(always)]
pub(crate) fn sinh<S: Simd>(x: f32) -> f32 {
    let (scale, m1) = exp_parts64::<S>(clamp64(f64::from(x.abs())));
    // `(e^x - e^-x) / 2` from `m = e^x - 1`, which is accurate for small x.
    let m = S::fmad(scale, m1, scale - 1.0);
    let y = (0.5 * (m + m / (1.0 + m))) as f32;
    let y = if x.is_nan() { x } else { y };
    y.copysign(x)
}

#[inline(always)]
pub(crate) fn cosh<S: Simd>(x: f32) -> f32 {
    let (scale, m1) = exp_parts64::<S>(clamp64(f64::from(x.abs())));
    let e = S::fmad(scale, m1, scale);
    let y = (0.5 * (e + 1.0 / e)) as f32;
    if x.is_nan() { x } else { y }
}

/// Tangent for `|x|` up to [`super::TRIG_MAX`].
#[inline(always)]
pub(crate) fn tan<S: Simd>(x: f32) -> f32 {
    let (sin, cos, quarter) = sin_cos_parts::<S>(f64::from(x));
    let odd = quarter & 1 != 0;
    let (above, below) = (if odd { -cos } else { sin }, if odd { sin } else { cos });
    let y = (above / below) as f32;
    // Preserves the sign of zero.
    if x == 0.0 { x } else { y }
}

/// -1, 0 or 1; NaN and the sign of zero stay.
#[inline(always)]
pub(crate) fn sign(x: f32) -> f32 {
    let one = 1f32.copysign(x);
    if x == 0.0 || x.is_nan() { x } else { one }
}
