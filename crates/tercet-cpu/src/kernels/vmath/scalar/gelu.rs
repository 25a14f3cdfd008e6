//! GELU by erf and by tanh, and the derivative of the tanh form.

use super::{EXP32, LN2_HIGH, LN2_LOW, ROUND32, clamp64, exp_parts64, poly32, poly64};
use crate::kernels::simd::Simd;

/// Polynomial of `e^(a^2 / 2) Phi(-a)` in `u = 3 / (a + 3)` for 0 <= a <= 14.5; error 2^-26.6.
const TAIL: [f64; 10] = [
    5.310_887_94e-6,
    0.132_833_703_00,
    0.134_746_070_47,
    0.106_129_028_39,
    0.140_624_745_23,
    -0.096_805_983_62,
    0.277_122_591_27,
    -0.319_373_934_90,
    0.151_939_571_79,
    -0.027_221_097_97,
];

#[inline(always)]
pub(crate) fn gelu<S: Simd>(x: f32) -> f32 {
    match S::FMA {
        true => gelu32::<S>(x),
        false => gelu64::<S>(x),
    }
}

/// Variant for levels without FMA, which cannot compensate rounding errors in f32.
#[inline(always)]
fn gelu64<S: Simd>(x: f32) -> f32 {
    // `Phi(-|x|) = e^(-x^2/2) R(|x|)` keeps relative accuracy in the tail. The product is computed
    // in f64, because the rounding errors of the exponent and of R would add up to 7 ulp of the
    // result.
    let v = f64::from(if x < -15.0 { -15.0 } else { x });
    let a = v.abs();
    let a = if a > 15.0 { 15.0 } else { a };
    let (scale, m1) = exp_parts64::<S>(-0.5 * a * a);
    let tail = S::fmad(scale, m1, scale) * poly64::<S>(3.0 / (a + 3.0), &TAIL);
    (v * if x < 0.0 { tail } else { 1.0 - tail }) as f32
}

/// Polynomial of `(Phi(x) - 1/2) / x` in `x^2 <= 0.7`; error 2^-26.8.
const CENTER: [f32; 5] = [
    0.398_942_291_74,
    -0.066_490_150_988,
    0.009_971_057_064_8,
    -0.001_177_577_534_7,
    9.965_958_452e-5,
];
/// Polynomial of `a e^(a^2 / 2) Phi(-a)` in `u = 3 / (a + 3)` for 0.79 <= a <= 14.7; error 2^-27.3.
const TAIL32: [f32; 9] = [
    0.398_920_923_47,
    0.000_565_599_242_69,
    -0.050_770_722_33,
    -0.047_248_672_694,
    -0.283_071_219_92,
    0.300_217_121_84,
    -0.743_796_348_57,
    0.565_280_616_28,
    -0.140_129_536_39,
];

/// The error is at most 3.7 unit roundoffs for all floats.
#[inline(always)]
fn gelu32<S: Simd>(x: f32) -> f32 {
    // `x + a e^(-a^2/2) (-R(a))` for x > 0. The low part of the exponent contains the rounding
    // errors of the exponent and of u.
    const END: f32 = 14.6;
    let v = if x < -END { -END } else { x };
    let near = v * S::fmaf(v, poly32::<S>(v * v, &CENTER), 0.5);
    let a = v.abs();
    let a = if a > END { END } else { a };
    let square = a * a;
    let sum = a + 3.0;
    let u = 3.0 / sum;
    // `3 - u (a + 3)` without the rounding errors of the sum and the quotient.
    let left = S::fmaf(-u, a - (sum - 3.0), S::fmaf(-u, sum, 3.0));
    // Approximate derivative of `ln(TAIL32(u))` by that residual.
    let slope = -2.2 * ((u * u) * (u * u));
    let x2 = -0.5 * square;
    let t = S::fmaf(x2, std::f32::consts::LOG2_E, ROUND32);
    let n = t - ROUND32;
    let low = S::fmaf(n, -LN2_LOW, -0.5 * S::fmaf(a, a, -square));
    let r = S::fmaf(n, -LN2_HIGH, x2) + S::fmaf(slope, left, low);
    let m1 = S::fmaf(r * r, poly32::<S>(r, &EXP32), r);
    let tail = poly32::<S>(u, &TAIL32);
    // The power of two may be below the range of floats, so it is scaled by 2^64; the last product
    // removes this factor.
    let scale = f32::from_bits((t.to_bits() << 23).wrapping_add((127 + 64) << 23));
    let y = S::fmaf(tail, m1, tail) * scale;
    let far = S::fmaf(y, -BACK, if x < 0.0 { -0.0 } else { x });
    if a < 0.82 { near } else { far }
}

#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(x: f32) -> f32 {
    match S::FMA {
        true => gelu_tanh32::<S>(x),
        false => gelu_tanh64::<S>(x),
    }
}

#[inline(always)]
fn gelu_tanh64<S: Simd>(x: f32) -> f32 {
    // `0.5 (1 + tanh(y)) = sigmoid(2 y)`, in f64 because y reaches 100.
    const TWO_SQRT_2_OVER_PI: f64 = 1.595_769_121_605_730_7;
    // Below -100 the result is -0; the clamp prevents NaN for `-inf`.
    let v = f64::from(if x < -100.0 { -100.0 } else { x });
    let z = TWO_SQRT_2_OVER_PI * v * S::fmad(v * v, 0.044_715, 1.0);
    let (scale, m1) = exp_parts64::<S>(clamp64(-z.abs()));
    let e = S::fmad(scale, m1, scale);
    (v * (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)) as f32
}

/// Polynomial of `(2^r - 1) / r` for `|r| <= 0.5`; error 2^-28 of `2^r`.
const EXP2M1: [f32; 6] = [
    std::f32::consts::LN_2,
    0.240_226_54,
    0.055_503_59,
    0.009_617_729,
    0.001_339_133_5,
    0.000_155_505_52,
];

/// Magnitude of x from which the tanh form of GELU is -0 or x itself.
const GELU_TANH_END: f32 = 10.8;
/// 2^-64.
const BACK: f32 = 5.421_010_862_427_522e-20;

/// The error is at most 3 unit roundoffs for all floats.
#[inline(always)]
fn gelu_tanh32<S: Simd>(x: f32) -> f32 {
    // `x sigmoid(z)`: the low part of the exponent contains the rounding errors of its products,
    // because the exponent reaches 107.
    const C: f32 = -2.302_208_2;
    const C_LOW: f32 = -1.294_840_2e-8;
    const B: f32 = 0.044_715;
    const B_LOW: f32 = 1.546_144_4e-9;
    let a = x.abs();
    let a = if a > GELU_TANH_END { GELU_TANH_END } else { a };
    let square = a * a;
    let square_low = S::fmaf(a, a, -square);
    let q = S::fmaf(B, square, 1.0);
    let q_low = S::fmaf(B, square, -(q - 1.0)) + S::fmaf(B_LOW, square, B * square_low);
    let v = C * a;
    let v_low = S::fmaf(C_LOW, a, S::fmaf(C, a, -v));
    let y = v * q;
    let y_low = S::fmaf(v, q_low, S::fmaf(v_low, q, S::fmaf(v, q, -y)));
    let t = y + ROUND32;
    let r = (y - (t - ROUND32)) + y_low;
    let m1 = r * poly32::<S>(r, &EXP2M1);
    // The power of two may be below the range of floats, so it is scaled by 2^64; the last product
    // removes this factor.
    let scale = f32::from_bits((t.to_bits() << 23).wrapping_add((127 + 64) << 23));
    let low = scale * BACK;
    let x = if x < -GELU_TANH_END {
        -GELU_TANH_END
    } else {
        x
    };
    let above = if x < 0.0 {
        S::fmaf(x, m1, x) * scale
    } else {
        x
    };
    above / S::fmaf(low, m1, low + 1.0) * if x < 0.0 { BACK } else { 1.0 }
}

/// Derivative of [`gelu_tanh`]; the error is at most 2^-22 of its maximum.
#[inline(always)]
pub(crate) fn gelu_tanh_grad<S: Simd>(x: f32) -> f32 {
    // With `e = exp(-|z|)` and `s = 1 / (1 + e)`, `sigmoid(z)` is s or e s, and its derivative is e
    // s^2.
    const C: f32 = 1.595_769_1;
    const B: f32 = 0.044_715;
    let a = x.abs();
    let a = if a > GELU_TANH_END { GELU_TANH_END } else { a };
    let square = a * a;
    let y = (-std::f32::consts::LOG2_E * C) * a * S::fmaf(B, square, 1.0);
    let t = y + ROUND32;
    let r = y - (t - ROUND32);
    let scale = f32::from_bits((t.to_bits() << 23).wrapping_add(127 << 23));
    let scale = if y < -100.0 { 0.0 } else { scale };
    let e = S::fmaf(scale, r * poly32::<S>(r, &EXP2M1), scale);
    let s = 1.0 / (1.0 + e);
    let es = e * s;
    let steep = (C * a) * S::fmaf(3.0 * B, square, 1.0) * (es * s);
    if x < 0.0 { es - steep } else { s + steep }
}
