//! Powers.

use super::{clamp64, exp_parts64, ln64};
use crate::kernels::simd::Simd;

/// True if [`pow`] computes the power; the standard library computes the others.
#[inline(always)]
pub(crate) fn is_plain_power(a: f32, b: f32) -> bool {
    a != 0.0 && a.is_finite() && b.is_finite()
}

/// `a^b`; within 1 ulp if [`is_plain_power`] holds.
#[inline(always)]
pub(crate) fn pow<S: Simd>(a: f32, b: f32) -> f32 {
    let exponent = f64::from(b) * ln64::<S>(f64::from(a.abs()));
    let (scale, m1) = exp_parts64::<S>(clamp64(exponent));
    let y = S::fmad(scale, m1, scale) as f32;
    let half = 0.5 * b;
    let whole = b.floor() == b;
    let odd = whole && half.floor() != half;
    let signed = if odd { -y } else { y };
    let negative = if whole { signed } else { f32::NAN };
    if a < 0.0 { negative } else { y }
}

/// `x^3`, rounded once except in rare ties.
#[inline(always)]
pub(crate) fn cube(x: f32) -> f32 {
    let x = f64::from(x);
    (x * x * x) as f32
}

/// `x^4`, rounded once except in rare ties.
#[inline(always)]
pub(crate) fn fourth(x: f32) -> f32 {
    let square = f64::from(x) * f64::from(x);
    (square * square) as f32
}

/// `x^0.5`: unlike the square root, `+0` for `-0` and infinity for `-infinity`.
#[inline(always)]
pub(crate) fn half_power(x: f32) -> f32 {
    let y = (x + 0.0).sqrt();
    if x == f32::NEG_INFINITY {
        f32::INFINITY
    } else {
        y
    }
}
