//! Scalar function bodies without branches. The compiler vectorizes a body when a block function
//! inlines it under a level's target features.
//!
//! Range reductions are exact without fused multiply-add, so the accuracy is the same at every
//! level. The polynomials are least-squares fits of the relative error on Chebyshev nodes,
//! reweighted towards minimax. The comment at each polynomial states its interval and error.
//! Functions that would lose accuracy by cancellation compute in f64 and round once.

#![allow(clippy::excessive_precision, reason = "polynomials as fitted")]

mod gelu;
mod inverse;
mod power;

use std::f64::consts::{LN_2, LOG2_E};

use super::super::simd::Simd;
pub(crate) use gelu::{gelu, gelu_tanh, gelu_tanh_grad};
pub(crate) use inverse::{acos, asin, atan, cosh, sign, sinh, tan};
pub(crate) use power::{cube, fourth, half_power, is_plain_power, pow};

/// Magic number: adding and then subtracting this number rounds a float to the nearest integer. The
/// low bits of the sum contain that integer.
const ROUND32: f32 = 12_582_912.0;
const ROUND64: f64 = 6_755_399_441_055_744.0;

/// Returns `a` if the condition holds, else `b`. The selection works on bits, so that loops that
/// call this function have no branches.
#[inline(always)]
pub(crate) fn pick(condition: bool, a: f32, b: f32) -> f32 {
    let mask = 0u32.wrapping_sub(u32::from(condition));
    f32::from_bits((a.to_bits() & mask) | (b.to_bits() & !mask))
}

/// IEEE 754-2019 `maximum`: NaN if an operand is NaN, and `+0 > -0`.
///
/// Each selection is one instruction. The two orders differ for zeros of different signs only, and
/// then the bits that both have are `+0`.
#[inline(always)]
pub(crate) fn maximum(a: f32, b: f32) -> f32 {
    let (first, second) = (if a > b { a } else { b }, if b > a { b } else { a });
    let most = f32::from_bits(first.to_bits() & second.to_bits());
    pick(a.is_nan() | b.is_nan(), a + b, most)
}

/// IEEE 754-2019 `minimum`, as [`maximum`].
#[inline(always)]
pub(crate) fn minimum(a: f32, b: f32) -> f32 {
    let (first, second) = (if a < b { a } else { b }, if b < a { b } else { a });
    let least = f32::from_bits(first.to_bits() | second.to_bits());
    pick(a.is_nan() | b.is_nan(), a + b, least)
}

/// `maximum(x, 0)`.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// `minimum(maximum(x, 0), 6)`.
#[inline(always)]
pub(crate) fn relu6(x: f32) -> f32 {
    let x = relu(x);
    if x > 6.0 { 6.0 } else { x }
}

#[inline(always)]
fn poly32<S: Simd>(x: f32, coefficients: &[f32]) -> f32 {
    // A product of 0 and x first would cost two instructions, as x may be infinite.
    let Some((last, others)) = coefficients.split_last() else {
        return 0.0;
    };
    let step = |y: f32, c: &f32| S::fmaf(y, x, *c);
    others.iter().rev().fold(*last, step)
}

#[inline(always)]
fn poly64<S: Simd>(x: f64, coefficients: &[f64]) -> f64 {
    let Some((last, others)) = coefficients.split_last() else {
        return 0.0;
    };
    let step = |y: f64, c: &f64| S::fmad(y, x, *c);
    others.iter().rev().fold(*last, step)
}

/// Polynomial of `(e^r - 1 - r) / r^2` for `|r| <= 0.3476`; error of `e^r` 2^-28.
const EXP32: [f32; 5] = [
    0.499_999_933_35,
    0.166_665_189_602,
    0.041_668_407_708_4,
    0.008_368_919_159_95,
    0.001_381_417_991_63,
];
/// The same polynomial for f64; error 2^-43.
const EXP64: [f64; 8] = [
    0.499_999_999_997_934_62,
    0.166_666_666_666_087_01,
    0.041_666_666_894_819_24,
    0.008_333_333_373_506_684_7,
    0.001_388_882_089_569_334_2,
    0.000_198_411_804_878_331_53,
    2.487_660_050_834_445_9e-5,
    2.763_731_923_899_561_2e-6,
];

/// Magic number like [`ROUND32`]: the low bits of the sum contain the integer and the exponent biases
/// of two floats.
const ROUND_EXP32: f32 = ROUND32 + 254.0;

/// Computes `2^n e^r` for `|r| <= ln(2) / 2` and `n` from -254 to 256 as two factors, so that their
/// product rounds once into subnormals. `n_offset` is `n + ROUND_EXP32`.
#[inline(always)]
fn scale_exp32<S: Simd>(n_offset: f32, r: f32) -> (f32, f32) {
    const EXPONENT: u32 = 0xff80_0000;
    let e = 1.0 + S::fmaf(r * r, poly32::<S>(r, &EXP32), r);
    // The exponents `floor(n / 2) + 127` and `n + 254` less that.
    let first = n_offset.to_bits() << 22 & EXPONENT;
    let second = (n_offset.to_bits() << 23).wrapping_sub(first);
    (e * f32::from_bits(first), f32::from_bits(second))
}

/// `ln(2)` in two parts. The high part has few bits, so its product with an integer of magnitude up
/// to 250 is exact.
const LN2_HIGH: f32 = 0.693_359_375;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Computes `e^x` as two factors.
#[inline(always)]
fn exp_parts32<S: Simd>(x: f32) -> (f32, f32) {
    // A comparison is used instead of `min`, so that NaN passes through.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -150.0 { -150.0 } else { x };
    let t = S::fmaf(x, std::f32::consts::LOG2_E, ROUND_EXP32);
    let n = t - ROUND_EXP32;
    let r = S::fmaf(n, -LN2_HIGH, x);
    let r = S::fmaf(n, -LN2_LOW, r);
    scale_exp32::<S>(t, r)
}

#[inline(always)]
pub(crate) fn exp<S: Simd>(x: f32) -> f32 {
    let (e, scale) = exp_parts32::<S>(x);
    e * scale
}

/// Computes `e^x` of a vector of `x <= 0`; NaN stays NaN. Subnormal results may be 0.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn exp_of_negative<S: Simd>(x: S::V) -> S::V {
    // For smaller x the power of two becomes 0, and so does the result.
    const END: f32 = -88.1;
    let x = S::clamp(x, S::splat(END), S::splat(0.0));
    let t = S::fma(x, S::splat(std::f32::consts::LOG2_E), S::splat(ROUND32));
    let n = S::add(t, S::splat(-ROUND32));
    let r = S::fma(n, S::splat(-LN2_HIGH), x);
    let r = S::fma(n, S::splat(-LN2_LOW), r);
    let mut y = S::splat(EXP32[EXP32.len() - 1]);
    for c in EXP32.iter().rev().skip(1) {
        y = S::fma(y, r, S::splat(*c));
    }
    let e = S::add(S::fma(S::mul(r, r), y, r), S::splat(1.0));
    S::mul(e, S::power_of_two(t))
}

#[inline(always)]
pub(crate) fn exp2<S: Simd>(x: f32) -> f32 {
    let x = if x > 129.0 { 129.0 } else { x };
    let x = if x < -151.0 { -151.0 } else { x };
    let t = x + ROUND_EXP32;
    let r = (x - (t - ROUND_EXP32)) * std::f32::consts::LN_2;
    let (e, scale) = scale_exp32::<S>(t, r);
    e * scale
}

/// Returns `(2^n, e^r - 1)` with `e^x = 2^n e^r`, for `|x| <= 700`.
#[inline(always)]
fn exp_parts64<S: Simd>(x: f64) -> (f64, f64) {
    let t = S::fmad(x, LOG2_E, ROUND64);
    let r = S::fmad(t - ROUND64, -LN_2, x);
    let scale = f64::from_bits((t.to_bits() << 52).wrapping_add(1023 << 52));
    (scale, S::fmad(r * r, poly64::<S>(r, &EXP64), r))
}

/// Clamps x so that `e^x` cannot overflow f64, but it still saturates in f32; NaN passes through.
#[inline(always)]
fn clamp64(x: f64) -> f64 {
    let x = if x > 200.0 { 200.0 } else { x };
    if x < -200.0 { -200.0 } else { x }
}

#[inline(always)]
pub(crate) fn expm1<S: Simd>(x: f32) -> f32 {
    let (scale, m1) = exp_parts64::<S>(clamp64(f64::from(x)));
    let y = S::fmad(scale, m1, scale - 1.0) as f32;
    // The result has the sign of `x`, so zero keeps its sign.
    if x == 0.0 { x } else { y }
}

/// Polynomial of `(atanh(s) / s - 1) / s^2` in `s^2 <= 0.0298`; error 2^-44.
const ATANH: [f64; 5] = [
    0.333_333_333_381_545_67,
    0.199_999_977_141_437_2,
    0.142_860_658_249_737_19,
    0.110_875_868_194_849_98,
    0.097_998_791_884_248_557,
];

/// Computes `ln(x)` for a normal positive f64.
#[inline(always)]
fn ln64<S: Simd>(x: f64) -> f64 {
    const SQRT_HALF: u64 = 0x3FE6_A09E_667F_3BCD;
    const ONE: u64 = 1023 << 52;
    const TWO_POW_52: f64 = 4_503_599_627_370_496.0;
    // Reduces the mantissa to [sqrt(1/2), sqrt(2)). The exponent is converted to a float through
    // the low bits of 2^52, because not every level converts 64-bit integers.
    let v = x.to_bits().wrapping_add(ONE - SQRT_HALF);
    let e = f64::from_bits((v >> 52) | TWO_POW_52.to_bits()) - (TWO_POW_52 + 1023.0);
    let f = f64::from_bits((v & ((1 << 52) - 1)) + SQRT_HALF) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    S::fmad(e, LN_2, 2.0 * S::fmad(s * z, poly64::<S>(z, &ATANH), s))
}

/// Values of the logarithm at 0, at infinity and outside of its domain.
#[inline(always)]
fn log_limits(x: f32, y: f32) -> f32 {
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    let y = if x == f32::INFINITY { x } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

#[inline(always)]
pub(crate) fn ln<S: Simd>(x: f32) -> f32 {
    log_limits(x, ln64::<S>(f64::from(x)) as f32)
}

#[inline(always)]
pub(crate) fn log2<S: Simd>(x: f32) -> f32 {
    log_limits(x, (ln64::<S>(f64::from(x)) * LOG2_E) as f32)
}

/// Computes `ln(1 + x)` for `x > -1`, accurate for tiny `x` too.
#[inline(always)]
fn log1p64<S: Simd>(x: f64) -> f64 {
    let tiny = S::fmad(x * x, S::fmad(x, 1.0 / 3.0, -0.5), x);
    if x.abs() < 1e-5 {
        tiny
    } else {
        ln64::<S>(1.0 + x)
    }
}

#[inline(always)]
pub(crate) fn log1p<S: Simd>(x: f32) -> f32 {
    let y = log1p64::<S>(f64::from(x)) as f32;
    let y = if x == -1.0 { f32::NEG_INFINITY } else { y };
    let y = if x == f32::INFINITY || x == 0.0 { x } else { y };
    if x >= -1.0 { y } else { f32::NAN }
}

/// Softplus `ln(1 + e^x)`.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(x: f32) -> f32 {
    let (scale, m1) = exp_parts64::<S>(clamp64(-f64::from(x).abs()));
    let tail = log1p64::<S>(S::fmad(scale, m1, scale));
    let y = (f64::from(if x > 0.0 { x } else { 0.0 }) + tail) as f32;
    if x.is_nan() { x } else { y }
}

/// Polynomial of `(tanh(x) / x - 1) / x^2` in `x^2 <= 0.4225`; error 2^-32.
const TANH: [f32; 6] = [
    -0.333_333_296_1,
    0.133_331_577_9,
    -0.053_940_552_4,
    0.021_666_297_83,
    -0.008_091_865_58,
    0.002_064_584_516,
];

#[inline(always)]
pub(crate) fn tanh<S: Simd>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let small = S::fmaf(a * z, poly32::<S>(z, &TANH), a);
    let large = 1.0 - 2.0 / (exp::<S>(2.0 * a) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(x: f32) -> f32 {
    let e = exp::<S>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

#[inline(always)]
pub(crate) fn silu<S: Simd>(x: f32) -> f32 {
    // Below -150 the result is -0; the clamp prevents NaN for `-inf`.
    let x = if x < -150.0 { -150.0 } else { x };
    let (e, scale) = exp_parts32::<S>(-x.abs());
    let y = if x < 0.0 { x * e * scale } else { x };
    y / (1.0 + e * scale)
}

/// Polynomial of `erf(x) / x - 1` in `x^2 <= 0.9025`; error 2^-30.
const ERF: [f32; 7] = [
    0.128_379_166_49,
    -0.376_126_322_84,
    0.112_836_725_26,
    -0.026_858_103_379,
    0.005_197_795_217_8,
    -0.000_810_594_587_2,
    8.215_352_47e-5,
];
/// Polynomial of `-ln(erfc(t)) / t` on [0.9, 4.1]; error 2^-32 in erfc.
const ERFC: [f32; 8] = [
    1.128_544_926_9,
    0.635_656_392_38,
    0.105_203_176_8,
    -0.022_612_299_43,
    0.002_892_485_786,
    -3.613_363_013e-5,
    -4.818_840_388e-5,
    5.149_727_106e-6,
];

#[inline(always)]
pub(crate) fn erf<S: Simd>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let small = S::fmaf(a, poly32::<S>(z, &ERF), a);
    let t = if a > 4.1 { 4.1 } else { a };
    let large = 1.0 - exp::<S>(-t * poly32::<S>(t, &ERFC));
    (if a < 0.92 { small } else { large }).copysign(x)
}

/// Polynomial of `(sin(r) / r - 1) / r^2` for `|r| <= pi/4`; error 2^-37.
const SIN: [f64; 4] = [
    -0.166_666_666_395_444_78,
    0.008_333_329_142_800_155_6,
    -0.000_198_392_563_547_433_84,
    2.717_562_285_145_148e-6,
];
/// Polynomial of `(cos(r) - 1 + r^2 / 2) / r^4` for `|r| <= pi/4`; error 2^-43.
const COS: [f64; 4] = [
    0.041_666_666_619_172_358,
    -0.001_388_888_343_618_744_4,
    2.479_943_591_122_768_8e-5,
    -2.720_326_837_098_631_1e-7,
];

/// Maximum `|x|` that [`sin_cos`] reduces exactly.
pub(crate) const TRIG_MAX: f32 = 1e5;

/// The sine and the cosine of `x` modulo `pi / 2`, and the number of quarters, for `|x|` up to [`TRIG_MAX`].
#[inline(always)]
fn sin_cos_parts<S: Simd>(v: f64) -> (f64, f64, u64) {
    // `pi / 2` in two parts; the first has 33 bits, so its products are exact.
    const PIO2_HIGH: f64 = 1.570_796_326_734_125_6;
    const PIO2_LOW: f64 = 6.077_100_506_506_192e-11;
    let t = S::fmad(v, std::f64::consts::FRAC_2_PI, ROUND64);
    let n = t - ROUND64;
    let r = S::fmad(n, -PIO2_LOW, S::fmad(n, -PIO2_HIGH, v));
    let z = r * r;
    let sin = S::fmad(r * z, poly64::<S>(z, &SIN), r);
    let cos = S::fmad(z * z, poly64::<S>(z, &COS), S::fmad(z, -0.5, 1.0));
    (sin, cos, t.to_bits())
}

/// Computes `sin(x + quarter * pi / 2)` for `|x|` up to [`TRIG_MAX`].
#[inline(always)]
pub(crate) fn sin_cos<S: Simd>(x: f32, quarter: u64) -> f32 {
    let (sin, cos, quarters) = sin_cos_parts::<S>(f64::from(x));
    let q = quarters.wrapping_add(quarter);
    let y = if q & 1 == 0 { sin } else { cos };
    let y = f64::from_bits(y.to_bits() ^ ((q & 2) << 62)) as f32;
    // Preserves the sign of zero for sin.
    if quarter == 0 && x == 0.0 { x } else { y }
}
