//! Definitions of the elementwise functions, in F64 and I128.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

use super::values::{Special, rounded};

/// An integer wrapped to the width of a dtype.
pub(super) fn wrapped(x: i128, dtype: DType) -> i128 {
    if dtype == DType::Bool {
        return i128::from(x != 0);
    }
    let (least, most) = dtype.int_range().expect("an integer dtype");
    let count = i128::from(most) - i128::from(least) + 1;
    (x - i128::from(least)).rem_euclid(count) + i128::from(least)
}

fn sigmoid(x: f64) -> f64 {
    match x < 0.0 {
        true => libm::exp(x) / (1.0 + libm::exp(x)),
        false => 1.0 / (1.0 + libm::exp(-x)),
    }
}

/// `x gate`, where the gate of `-inf` is 0 and decays faster than `x` grows.
fn gated(x: f64, gate: f64) -> f64 {
    match x == f64::NEG_INFINITY {
        true => -0.0,
        false => x * gate,
    }
}

fn float_of(f: UnaryFn, x: f64) -> f64 {
    match f {
        UnaryFn::Relu if x <= 0.0 => 0.0,
        UnaryFn::Relu6 if x <= 0.0 => 0.0,
        UnaryFn::Relu6 if x > 6.0 => 6.0,
        UnaryFn::Relu | UnaryFn::Relu6 => x,
        UnaryFn::Sigmoid => sigmoid(x),
        UnaryFn::Tanh => libm::tanh(x),
        UnaryFn::Exp => libm::exp(x),
        UnaryFn::Ln => libm::log(x),
        UnaryFn::Sqrt => libm::sqrt(x),
        UnaryFn::Rsqrt => 1.0 / libm::sqrt(x),
        UnaryFn::Recip => 1.0 / x,
        UnaryFn::Neg => -x,
        UnaryFn::Abs => libm::fabs(x),
        UnaryFn::Sign if x > 0.0 => 1.0,
        UnaryFn::Sign if x < 0.0 => -1.0,
        UnaryFn::Sign => x,
        UnaryFn::Gelu => gated(x, 0.5 * libm::erfc(-x * FRAC_1_SQRT_2)),
        UnaryFn::GeluTanh => {
            let inner = (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x);
            gated(x, sigmoid(2.0 * inner))
        }
        UnaryFn::Silu => gated(x, sigmoid(x)),
        UnaryFn::Softplus if x > 0.0 => x + libm::log1p(libm::exp(-x)),
        UnaryFn::Softplus => libm::log1p(libm::exp(x)),
        UnaryFn::Erf => libm::erf(x),
        UnaryFn::Sin => libm::sin(x),
        UnaryFn::Cos => libm::cos(x),
        UnaryFn::Tan => libm::tan(x),
        UnaryFn::Asin => libm::asin(x),
        UnaryFn::Acos => libm::acos(x),
        UnaryFn::Atan => libm::atan(x),
        UnaryFn::Sinh => libm::sinh(x),
        UnaryFn::Cosh => libm::cosh(x),
        UnaryFn::Floor => libm::floor(x),
        UnaryFn::Ceil => libm::ceil(x),
        UnaryFn::Round => libm::rint(x),
        UnaryFn::Trunc => libm::trunc(x),
        UnaryFn::Exp2 => libm::exp2(x),
        UnaryFn::Log2 => libm::log2(x),
        UnaryFn::Log1p => libm::log1p(x),
        UnaryFn::Expm1 => libm::expm1(x),
        UnaryFn::Not | UnaryFn::IsNan | UnaryFn::IsInf => {
            unreachable!("invariant: these functions have no float results")
        }
        // Functions whose definition is a function of libm already.
        f => f.eval_f64(x),
    }
}

/// The result of a function of one number of a dtype.
pub(super) fn unary(f: UnaryFn, dtype: DType, x: Special) -> Special {
    match (f, x) {
        (UnaryFn::IsNan, Special::F(x)) => Special::I(x.is_nan().into()),
        (UnaryFn::IsInf, Special::F(x)) => Special::I((x.abs() == f64::INFINITY).into()),
        (_, Special::F(x)) => Special::F(rounded(float_of(f, x), dtype)),
        (UnaryFn::Relu, Special::I(x)) => Special::I(x.max(0)),
        (UnaryFn::Neg, Special::I(x)) => Special::I(wrapped(-x, dtype)),
        (UnaryFn::Abs, Special::I(x)) => Special::I(wrapped(x.abs(), dtype)),
        (UnaryFn::Sign, Special::I(x)) => Special::I(x.signum()),
        (UnaryFn::Not, Special::I(x)) if dtype == DType::Bool => Special::I(1 - x),
        (UnaryFn::Not, Special::I(x)) => Special::I(wrapped(-x - 1, dtype)),
        // The remaining functions of integers are roundings, which change nothing.
        (_, Special::I(x)) => Special::I(x),
    }
}

/// Whether the results of a function of one number are correctly rounded.
pub(super) fn is_exact(f: UnaryFn) -> bool {
    matches!(
        f,
        UnaryFn::Relu
            | UnaryFn::Relu6
            | UnaryFn::Neg
            | UnaryFn::Abs
            | UnaryFn::Sign
            | UnaryFn::Floor
            | UnaryFn::Ceil
            | UnaryFn::Round
            | UnaryFn::Trunc
            | UnaryFn::Not
            | UnaryFn::IsNan
            | UnaryFn::IsInf
    )
}

/// The maximum, or the minimum: NaN if either is NaN, and -0 is below 0.
pub(super) fn extreme(a: f64, b: f64, greatest: bool) -> f64 {
    let a_first = match a == b {
        true => a.is_sign_positive(),
        false => a > b,
    };
    match (a.is_nan() || b.is_nan(), a_first == greatest) {
        (true, _) => f64::NAN,
        (false, true) => a,
        (false, false) => b,
    }
}

fn binary_float(f: BinaryFn, a: f64, b: f64) -> f64 {
    match f {
        BinaryFn::Add => a + b,
        BinaryFn::Sub => a - b,
        BinaryFn::Mul => a * b,
        BinaryFn::Div => a / b,
        BinaryFn::Rem => libm::fmod(a, b),
        BinaryFn::Pow => libm::pow(a, b),
        BinaryFn::Max => extreme(a, b, true),
        BinaryFn::Min => extreme(a, b, false),
        BinaryFn::Atan2 => libm::atan2(a, b),
        BinaryFn::And | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Shl | BinaryFn::Shr => {
            unreachable!("invariant: inference rejects bit functions of floats")
        }
    }
}

/// `a^b` modulo 2^64 for `b >= 0`, or the truncated reciprocal power.
fn integer_power(a: i128, b: i128) -> i128 {
    if b < 0 {
        let odd = b % 2 != 0;
        return match a {
            1 => 1,
            -1 if odd => -1,
            -1 => 1,
            _ => 0,
        };
    }
    let (mut power, mut square, mut rest) = (1u64, a as u64, b as u64);
    while rest > 0 {
        if rest % 2 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest /= 2;
    }
    i128::from(power)
}

fn binary_integer(f: BinaryFn, dtype: DType, a: i128, b: i128) -> i128 {
    let width = 8 * dtype.size_bytes() as i128;
    let count = b.rem_euclid(width);
    match f {
        BinaryFn::Add => a + b,
        BinaryFn::Sub => a - b,
        BinaryFn::Mul => a * b,
        BinaryFn::Div if b == 0 => a,
        BinaryFn::Div => a / b,
        BinaryFn::Rem if b == 0 => 0,
        BinaryFn::Rem => a % b,
        BinaryFn::Pow => integer_power(a, b),
        BinaryFn::Max => a.max(b),
        BinaryFn::Min => a.min(b),
        BinaryFn::And => a & b,
        BinaryFn::Or => a | b,
        BinaryFn::Xor => a ^ b,
        BinaryFn::Shl => wrapped(a, dtype) << count,
        BinaryFn::Shr => a >> count,
        BinaryFn::Atan2 => unreachable!("invariant: inference rejects atan2 of integers"),
    }
}

/// The result of a function of two numbers of a dtype.
pub(super) fn binary(f: BinaryFn, dtype: DType, a: Special, b: Special) -> Special {
    match (a, b) {
        (Special::I(a), Special::I(b)) => {
            Special::I(wrapped(binary_integer(f, dtype, a, b), dtype))
        }
        (a, b) => Special::F(rounded(binary_float(f, a.as_f64(), b.as_f64()), dtype)),
    }
}

/// Whether the results of a function of two numbers are correctly rounded.
pub(super) fn is_exact_binary(f: BinaryFn) -> bool {
    !matches!(f, BinaryFn::Div | BinaryFn::Pow | BinaryFn::Atan2)
}

/// The result of a comparison.
pub(super) fn compare(f: CompareFn, a: Special, b: Special) -> Special {
    let order = match (a, b) {
        (Special::I(a), Special::I(b)) => Some(a.cmp(&b)),
        (a, b) => a.as_f64().partial_cmp(&b.as_f64()),
    };
    let (less, equal) = (
        order.is_some_and(|o| o.is_lt()),
        order.is_some_and(|o| o.is_eq()),
    );
    let greater = order.is_some_and(|o| o.is_gt());
    Special::I(i128::from(match f {
        CompareFn::Eq => equal,
        CompareFn::Ne => !equal,
        CompareFn::Lt => less,
        CompareFn::Le => less || equal,
        CompareFn::Gt => greater,
        CompareFn::Ge => greater || equal,
    }))
}

/// The number converted to a dtype: floats saturate and NaN becomes 0, integers wrap.
pub(super) fn cast(x: Special, to: DType) -> Special {
    match (x, to.int_range()) {
        (Special::F(x), None) => Special::F(rounded(x, to)),
        (Special::I(i), None) => Special::F(match to {
            DType::F32 => f64::from(i as f32),
            _ => rounded(i as f64, to),
        }),
        (x, Some(_)) if to == DType::Bool => Special::I(match x {
            Special::F(x) => (x != 0.0).into(),
            Special::I(i) => (i != 0).into(),
        }),
        (Special::F(x), Some((least, most))) => {
            Special::I((x as i128).clamp(least.into(), most.into()))
        }
        (Special::I(i), Some(_)) => Special::I(wrapped(i, to)),
    }
}

/// `a b + c` with one rounding.
pub(super) fn fma(dtype: DType, [a, b, c]: [Special; 3]) -> Special {
    match (a, b, c) {
        (Special::I(a), Special::I(b), Special::I(c)) => Special::I(wrapped(a * b + c, dtype)),
        (a, b, c) if dtype == DType::F32 => {
            let [a, b, c] = [a, b, c].map(|x| x.as_f64() as f32);
            Special::F(f64::from(libm::fmaf(a, b, c)))
        }
        (a, b, c) => {
            let y = libm::fma(a.as_f64(), b.as_f64(), c.as_f64());
            Special::F(rounded(y, dtype))
        }
    }
}
