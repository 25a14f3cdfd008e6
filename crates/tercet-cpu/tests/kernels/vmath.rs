//! Elementwise functions compared with f64, in ulps, at every SIMD level of the machine.

use tercet_cpu::kernels::{SimdLevel, convert, vmath};
use tercet_ir::scalar::UnaryFn;

/// Maximum error of any function, in units in the last place.
const MAX_ULPS: f64 = 3.0;

/// Distance in units in the last place of the exact value rounded to f32.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got.is_nan() && rounded.is_nan() || got == rounded {
        return 0.0;
    }
    if !got.is_finite() || !rounded.is_finite() {
        return f64::INFINITY;
    }
    let step = f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs());
    (f64::from(got) - want).abs() / step
}

/// Every 2^13th bit pattern and some neighbours, with all special values.
fn samples() -> Vec<f32> {
    let mut x: Vec<f32> = (0..=u32::MAX / 8191)
        .map(|i| f32::from_bits(i * 8191))
        .collect();
    x.extend((-40_000..=40_000).map(|i| i as f32 * 0.002_3));
    x.extend([
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
    ]);
    x.extend([
        f32::MAX,
        f32::MIN,
        f32::from_bits(1),
        -f32::from_bits(1),
        88.722_84,
        -103.97,
        0.5,
    ]);
    x
}

/// erfc without `ln Gamma`: a continued fraction for large x, the series for small x.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        return 1.0 - erf_series(x);
    }
    let mut f = 0.0;
    for i in (1..=120).rev() {
        f = f64::from(i) / 2.0 / (x + f);
    }
    (-x * x).exp() / (x + f) / std::f64::consts::PI.sqrt()
}

fn erf_series(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for i in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * i + 1);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

fn erf(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x.abs() < 2.5 {
        erf_series(x)
    } else {
        (1.0 - erfc(x.abs())).copysign(x)
    }
}

type Block = fn(SimdLevel, &[f32], &mut [f32]);

/// Name, function, exact function, and maximum error in ulps.
type Row = (&'static str, Block, fn(f64) -> f64, f64);

const UNARY: &[Row] = &[
    ("exp", vmath::exp, f64::exp, 1.0),
    ("exp2", vmath::exp2, f64::exp2, 1.5),
    ("expm1", vmath::expm1, f64::exp_m1, 1.0),
    ("ln", vmath::ln, f64::ln, 1.0),
    ("log2", vmath::log2, f64::log2, 1.0),
    ("log1p", vmath::log1p, f64::ln_1p, 1.0),
    ("tanh", vmath::tanh, f64::tanh, 2.0),
    ("sigmoid", vmath::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 2.0),
    (
        "silu",
        vmath::silu,
        |x| {
            if x < -1e30 {
                -0.0
            } else {
                x / (1.0 + (-x).exp())
            }
        },
        3.0,
    ),
    (
        "gelu",
        vmath::gelu,
        |x| {
            if x < -1e30 {
                -0.0
            } else {
                x * 0.5 * erfc(-x / std::f64::consts::SQRT_2)
            }
        },
        2.5,
    ),
    ("erf", vmath::erf, erf, 2.0),
    (
        "softplus",
        vmath::softplus,
        |x| {
            if x.is_nan() {
                x
            } else {
                x.max(0.0) + (-x.abs()).exp().ln_1p()
            }
        },
        1.0,
    ),
    ("sin", vmath::sin, f64::sin, 1.0),
    ("cos", vmath::cos, f64::cos, 1.0),
    ("tan", vmath::tan, f64::tan, 1.0),
    ("asin", vmath::asin, f64::asin, 2.0),
    ("acos", vmath::acos, f64::acos, 2.0),
    ("atan", vmath::atan, f64::atan, 2.0),
    ("sinh", vmath::sinh, f64::sinh, 1.0),
    ("cosh", vmath::cosh, f64::cosh, 1.0),
    (
        "sign",
        vmath::sign,
        |x| {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        },
        0.0,
    ),
    ("sqrt", vmath::sqrt, f64::sqrt, 0.5001),
    ("rsqrt", vmath::rsqrt, |x| 1.0 / x.sqrt(), 1.5),
    ("recip", vmath::recip, |x| 1.0 / x, 0.5001),
    ("floor", vmath::floor, f64::floor, 0.0),
    ("ceil", vmath::ceil, f64::ceil, 0.0),
    ("round", vmath::round, f64::round_ties_even, 0.0),
    ("trunc", vmath::trunc, f64::trunc, 0.0),
    ("abs", vmath::abs, f64::abs, 0.0),
    ("neg", vmath::neg, |x| -x, 0.0),
    ("relu6", vmath::relu6, |x| x.clamp(0.0, 6.0), 0.0),
    ("relu", vmath::relu, |x| if x < 0.0 { 0.0 } else { x }, 0.0),
];

#[test]
fn unary_functions_are_accurate() {
    let x = samples();
    let mut out = vec![0.0; x.len()];
    let mut failures = Vec::new();
    for &level in SimdLevel::available() {
        for (name, block, exact, limit) in UNARY {
            block(level, &x, &mut out);
            let worst = x
                .iter()
                .zip(&out)
                .map(|(x, y)| (ulps(*y, exact(f64::from(*x))), *x, *y));
            let worst = worst.fold((0.0, 0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a });
            println!(
                "{name} at {}: {:.3} ulp at {}",
                level.name(),
                worst.0,
                worst.1
            );
            if worst.0 > *limit {
                failures.push(format!("{name} at {}: {worst:?}", level.name()));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Every function that the IR declares, against its meaning.
#[test]
fn functions_of_the_ir_have_their_meaning() {
    let x = samples();
    let mut out = vec![0.0; x.len()];
    let mut failures = Vec::new();
    for &level in SimdLevel::available() {
        for f in UnaryFn::ALL {
            let Some(block) = vmath::vectorized(*f) else {
                continue;
            };
            block(level, &x, &mut out);
            let errors = x
                .iter()
                .zip(&out)
                .map(|(x, y)| (ulps(*y, f.eval_f64(f64::from(*x))), *x));
            let worst = errors.fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a });
            if worst.0 > MAX_ULPS {
                failures.push(format!("{} at {}: {worst:?}", f.name(), level.name()));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn gelu_tanh_is_accurate_and_zero_signs_survive() {
    let x: Vec<f32> = (-60_000..60_000).map(|i| i as f32 * 1.7e-4).collect();
    let mut out = vec![0.0; x.len()];
    for &level in SimdLevel::available() {
        vmath::gelu_tanh(level, &x, &mut out);
        for (x, y) in x.iter().zip(&out) {
            let v = f64::from(*x);
            let z = 1.595_769_121_605_730_7 * (v + 0.044715 * v * v * v);
            let s = 1.0 / (1.0 + (-z).exp());
            assert!(ulps(*y, v * s) < 3.0, "gelu_tanh({x}) is {y}");
        }
        vmath::gelu_tanh_grad(level, &x, &mut out);
        for (x, y) in x.iter().zip(&out) {
            let v = f64::from(*x);
            let z = 1.595_769_121_605_730_7 * (v + 0.044715 * v * v * v);
            let e = (-z.abs()).exp();
            let steep = 1.595_769_121_605_730_7 * (1.0 + 3.0 * 0.044715 * v * v);
            let s = 1.0 / (1.0 + (-z).exp());
            let exact = s + v * steep * e / ((1.0 + e) * (1.0 + e));
            let off = (f64::from(*y) - exact).abs();
            assert!(
                off < 2f64.powi(-22),
                "gelu_tanh_grad({x}) is {y}, expected {exact}"
            );
        }
        let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -30.0, 1e30];
        let mut grad = [7.0; 6];
        vmath::gelu_tanh_grad(level, &special, &mut grad);
        assert!(grad[2].is_nan());
        assert_eq!(
            [grad[0], grad[1], grad[3], grad[4], grad[5]],
            [1.0, 0.0, 0.5, 0.0, 1.0]
        );
        let (zero, mut y) = ([-0.0f32], [1.0f32]);
        for f in [
            vmath::sin,
            vmath::tanh,
            vmath::erf,
            vmath::expm1,
            vmath::log1p,
            vmath::tan,
            vmath::asin,
            vmath::atan,
            vmath::sinh,
            vmath::sign,
            vmath::gelu,
            vmath::gelu_tanh,
        ] as [Block; 12]
        {
            f(level, &zero, &mut y);
            assert!(y[0] == 0.0 && y[0].is_sign_negative());
        }
    }
}

#[test]
fn binary_functions_follow_ieee() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -2.5,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-40,
    ];
    let a: Vec<f32> = special.iter().flat_map(|a| [*a; 8]).collect();
    let b: Vec<f32> = (0..64).map(|i| special[i % 8]).collect();
    let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
    for &level in SimdLevel::available() {
        let mut out = vec![0.0; 64];
        vmath::max(level, &a, &b, &mut out);
        for i in 0..64 {
            let want = if a[i].is_nan() || b[i].is_nan() {
                f32::NAN
            } else if a[i] == 0.0 && b[i] == 0.0 {
                if a[i].is_sign_positive() { a[i] } else { b[i] }
            } else {
                a[i].max(b[i])
            };
            assert!(same(out[i], want), "max({}, {}) is {}", a[i], b[i], out[i]);
        }
        vmath::min(level, &a, &b, &mut out);
        for i in 0..64 {
            let want = if a[i].is_nan() || b[i].is_nan() {
                f32::NAN
            } else if a[i] == 0.0 && b[i] == 0.0 {
                if a[i].is_sign_negative() { a[i] } else { b[i] }
            } else {
                a[i].min(b[i])
            };
            assert!(same(out[i], want), "min({}, {}) is {}", a[i], b[i], out[i]);
        }
        vmath::fma(level, &a, &b, &a, &mut out);
        assert!((0..64).all(|i| same(out[i], a[i].mul_add(b[i], a[i]))));
        vmath::sub(level, &a, &b, &mut out);
        assert!((0..64).all(|i| same(out[i], a[i] - b[i])));
        vmath::div(level, &a, &b, &mut out);
        assert!((0..64).all(|i| same(out[i], a[i] / b[i])));
        let mut flags = vec![9; 64];
        vmath::compare(level, vmath::VmathComparison::Ne, &a, &b, &mut flags);
        assert!((0..64).all(|i| flags[i] == u8::from(a[i] != b[i])));
        vmath::compare(level, vmath::VmathComparison::Le, &a, &b, &mut flags);
        assert!((0..64).all(|i| flags[i] == u8::from(a[i] <= b[i])));
        vmath::select(level, &flags, &a, &b, &mut out);
        assert!((0..64).all(|i| same(out[i], if flags[i] != 0 { a[i] } else { b[i] })));
    }
}

/// Distance in ulps for powers, which the standard library computes in f64.
fn power_ulps(got: f32, a: f32, b: f32) -> f64 {
    ulps(got, f64::from(a).powf(f64::from(b)))
}

#[test]
fn powers_are_accurate_for_every_base_and_exponent() {
    let bases: Vec<f32> = samples().into_iter().step_by(7).collect();
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let given = [
        2.0,
        3.0,
        4.0,
        5.0,
        0.5,
        -0.5,
        -1.0,
        -2.0,
        1.7,
        -3.3,
        33.0,
        1e-3,
        16_777_217.0,
        0.333_333,
    ];
    for &level in SimdLevel::available() {
        for &exponent in given.iter().chain(&special) {
            let bases: Vec<f32> = bases.iter().chain(&special).copied().collect();
            let mut out = vec![0.0; bases.len()];
            for uniform in [true, false] {
                match uniform {
                    true => vmath::pow_by(level, &bases, exponent, &mut out),
                    false => vmath::pow(level, &bases, &vec![exponent; bases.len()], &mut out),
                }
                for (a, y) in bases.iter().zip(&out) {
                    let apart = power_ulps(*y, *a, exponent);
                    assert!(apart <= 1.0, "{a}^{exponent} is {y}, {apart} ulps apart");
                    let exact = f64::from(*a).powf(f64::from(exponent));
                    assert!(
                        *y != 0.0 || y.is_sign_negative() == exact.is_sign_negative(),
                        "the sign of {a}^{exponent}"
                    );
                }
            }
        }
    }
}

#[test]
fn half_conversions_are_exact() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let mut wide = vec![0.0; all.len()];
    let mut back = vec![0; all.len()];
    for &level in SimdLevel::available() {
        convert::f16_to_f32(level, &all, &mut wide);
        for (h, x) in all.iter().zip(&wide) {
            let want = half::f16::from_bits(*h).to_f32();
            assert!(
                x.to_bits() == want.to_bits() || x.is_nan() && want.is_nan(),
                "{h:#x}"
            );
        }
        convert::bf16_to_f32(level, &all, &mut wide);
        assert!(
            all.iter()
                .zip(&wide)
                .all(|(h, x)| x.to_bits() == u32::from(*h) << 16)
        );
        let x: Vec<f32> = (0..200_003u32)
            .map(|i| f32::from_bits(i * 21_473))
            .collect();
        back.resize(x.len(), 0);
        convert::f32_to_f16(level, &x, &mut back);
        for (x, h) in x.iter().zip(&back) {
            let want = half::f16::from_f32(*x);
            let got = half::f16::from_bits(*h);
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{x} at {}",
                level.name()
            );
        }
        convert::f32_to_bf16(level, &x, &mut back);
        for (x, h) in x.iter().zip(&back) {
            let want = half::bf16::from_f32(*x);
            let got = half::bf16::from_bits(*h);
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{x}"
            );
        }
        back.resize(all.len(), 0);
        wide.resize(all.len(), 0.0);
    }
}
