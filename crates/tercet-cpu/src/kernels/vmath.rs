//! Elementwise math functions over blocks of `f32`.
//!
//! Each function maps slices of equal length element by element. Transcendental functions are
//! within 2 ulp of the exact value (3 for silu and gelu) at every SIMD level. All functions follow
//! IEEE 754 for NaN, infinities and signed zeros. The function bodies are in `scalar`; the compiler
//! vectorizes each body once per level.
//!
//! # Panics
//! All functions panic if the slices differ in length.

pub(crate) mod scalar;

use tercet_ir::scalar::UnaryFn;

use super::chain::VmathFn;
use super::simd::{Simd, simd_dispatch};

/// Function of one operand.
trait VmathUnaryOp {
    fn eval<S: Simd>(x: f32) -> f32;
}

/// Function of two operands.
trait VmathBinaryOp {
    fn eval<S: Simd>(a: f32, b: f32) -> f32;
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn map_unary<S: Simd, O: VmathUnaryOp>(x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    for (out, x) in out.iter_mut().zip(x) {
        *out = O::eval::<S>(*x);
    }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn map_binary<S: Simd, O: VmathBinaryOp>(a: &[f32], b: &[f32], out: &mut [f32]) {
    assert!(
        a.len() == out.len() && b.len() == out.len(),
        "inputs and output differ in length"
    );
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = O::eval::<S>(*a, *b);
    }
}

/// Declares block functions of one operand: `name: Op = |S, x| body;` gives a type `Op` and `pub fn
/// name(level, x: &[f32], out: &mut [f32])`.
macro_rules! unary {
    ($($(#[$meta:meta])* $vis:vis $name:ident: $op:ident = |$s:ident, $x:ident| $body:expr;)*) => {$(
        struct $op;
        impl VmathUnaryOp for $op {
            #[inline(always)]
            fn eval<$s: Simd>($x: f32) -> f32 { $body }
        }
        simd_dispatch!($(#[$meta])* $vis fn $name(x: &[f32], out: &mut [f32]) = map_unary::<$op>);
    )*};
}

/// Declares a block function for each row, as `unary!`, and [`vectorized`], which finds it by its
/// [`UnaryFn`], the type of the row.
macro_rules! functions {
    ($($(#[$meta:meta])* $vis:vis $name:ident: $op:ident = |$s:ident, $x:ident| $body:expr;)*) => {
        unary! { $($(#[$meta])* $vis $name: $op = |$s, $x| $body;)* }

        /// The block function of `f`; `None` for those of booleans and for predicates.
        pub fn vectorized(f: UnaryFn) -> Option<VmathFn> {
            Some(match f {
                $(UnaryFn::$op => $name,)*
                UnaryFn::Sin => sin,
                UnaryFn::Cos => cos,
                UnaryFn::Tan => tan,
                UnaryFn::Not | UnaryFn::IsNan | UnaryFn::IsInf => return None,
            })
        }
    };
}

/// Like `unary!`, for two operands.
macro_rules! binary {
    ($($(#[$meta:meta])* $vis:vis $name:ident: $op:ident = |$s:ident, $a:ident, $b:ident| $body:expr;)*) => {$(
        struct $op;
        impl VmathBinaryOp for $op {
            #[inline(always)]
            fn eval<$s: Simd>($a: f32, $b: f32) -> f32 { $body }
        }
        simd_dispatch!($(#[$meta])* $vis fn $name(a: &[f32], b: &[f32], out: &mut [f32]) = map_binary::<$op>);
    )*};
}

functions! {
    /// Computes `max(x, 0)`; NaN stays NaN.
    pub relu: Relu = |S, x| scalar::relu(x);
    /// Computes `min(max(x, 0), 6)`; NaN stays NaN.
    pub relu6: Relu6 = |S, x| scalar::relu6(x);
    /// Computes `|x|`.
    pub abs: Abs = |S, x| x.abs();
    /// Computes `-x`.
    pub neg: Neg = |S, x| -x;
    /// Square root.
    pub sqrt: Sqrt = |S, x| x.sqrt();
    /// Computes `1 / sqrt(x)`.
    pub rsqrt: Rsqrt = |S, x| 1.0 / x.sqrt();
    /// Computes `1 / x`.
    pub recip: Recip = |S, x| 1.0 / x;
    /// Rounds toward negative infinity.
    pub floor: Floor = |S, x| x.floor();
    /// Rounds toward positive infinity.
    pub ceil: Ceil = |S, x| x.ceil();
    /// Rounds to the nearest integer, half to even.
    pub round: Round = |S, x| x.round_ties_even();
    /// Rounds toward zero.
    pub trunc: Trunc = |S, x| x.trunc();
    /// Computes `e^x`.
    pub exp: Exp = |S, x| scalar::exp::<S>(x);
    /// Computes `2^x`.
    pub exp2: Exp2 = |S, x| scalar::exp2::<S>(x);
    /// Computes `e^x - 1`.
    pub expm1: Expm1 = |S, x| scalar::expm1::<S>(x);
    /// Natural logarithm.
    pub ln: Ln = |S, x| scalar::ln::<S>(x);
    /// Binary logarithm.
    pub log2: Log2 = |S, x| scalar::log2::<S>(x);
    /// Computes `ln(1 + x)`.
    pub log1p: Log1p = |S, x| scalar::log1p::<S>(x);
    /// Hyperbolic tangent.
    pub tanh: Tanh = |S, x| scalar::tanh::<S>(x);
    /// Sigmoid `1 / (1 + e^-x)`.
    pub sigmoid: Sigmoid = |S, x| scalar::sigmoid::<S>(x);
    /// SiLU `x sigmoid(x)`.
    pub silu: Silu = |S, x| scalar::silu::<S>(x);
    /// GELU `x Phi(x)`, computed with the error function.
    pub gelu: Gelu = |S, x| scalar::gelu::<S>(x);
    /// GELU approximated by tanh.
    pub gelu_tanh: GeluTanh = |S, x| scalar::gelu_tanh::<S>(x);
    /// Error function.
    pub erf: Erf = |S, x| scalar::erf::<S>(x);
    /// Softplus `ln(1 + e^x)`.
    pub softplus: Softplus = |S, x| scalar::softplus::<S>(x);
    /// Inverse sine.
    pub asin: Asin = |S, x| scalar::asin::<S>(x);
    /// Inverse cosine.
    pub acos: Acos = |S, x| scalar::acos::<S>(x);
    /// Inverse tangent.
    pub atan: Atan = |S, x| scalar::atan::<S>(x);
    /// Inverse hyperbolic tangent.
    pub atanh: Atanh = |S, x| {
        let a = x.abs();
        (0.5 * scalar::log1p::<S>(2.0 * a / (1.0 - a))).copysign(x)
    };
    /// Hyperbolic sine.
    pub sinh: Sinh = |S, x| scalar::sinh::<S>(x);
    /// Hyperbolic cosine.
    pub cosh: Cosh = |S, x| scalar::cosh::<S>(x);
    /// Computes -1, 0 or 1; NaN and the sign of zero stay.
    pub sign: Sign = |S, x| scalar::sign(x);
}

unary! {
    /// Derivative of `gelu_tanh`; the error is at most 2^-22 of its maximum.
    pub gelu_tanh_grad: GeluTanhGrad = |S, x| scalar::gelu_tanh_grad::<S>(x);
    square: Square = |S, x| x * x;
    cube: Cube = |S, x| scalar::cube(x);
    fourth: Fourth = |S, x| scalar::fourth(x);
    half_power: HalfPower = |S, x| scalar::half_power(x);
    tan_reduced: TanReduced = |S, x| scalar::tan::<S>(x);
    sin_reduced: SinReduced = |S, x| scalar::sin_cos::<S>(x, 0);
    cos_reduced: CosReduced = |S, x| scalar::sin_cos::<S>(x, 1);
}

binary! {
    /// Computes `a + b`.
    pub add: Add = |S, a, b| a + b;
    /// Computes `a - b`.
    pub sub: Sub = |S, a, b| a - b;
    /// Computes `a * b`.
    pub mul: Mul = |S, a, b| a * b;
    /// Computes `a / b`.
    pub div: Div = |S, a, b| a / b;
    /// IEEE 754-2019 `maximum`: NaN if an operand is NaN.
    pub max: Max = |S, a, b| scalar::maximum(a, b);
    /// IEEE 754-2019 `minimum`: NaN if an operand is NaN.
    pub min: Min = |S, a, b| scalar::minimum(a, b);
    plain_pow: PlainPow = |S, a, b| scalar::pow::<S>(a, b);
}

/// Recomputes with the standard library the elements that are too large for the fast range
/// reduction.
fn fix_large(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    // One vectorized scan detects the common case that no element is too large.
    if x.iter()
        .fold(false, |any, x| any | (x.abs() > scalar::TRIG_MAX))
    {
        for (out, x) in out.iter_mut().zip(x) {
            if x.abs() > scalar::TRIG_MAX {
                *out = f(*x);
            }
        }
    }
}

/// Sine; for `|x|` above 1e5 it calls the standard library.
pub fn sin(level: super::SimdLevel, x: &[f32], out: &mut [f32]) {
    sin_reduced(level, x, out);
    fix_large(x, out, f32::sin);
}

/// Cosine; for `|x|` above 1e5 it calls the standard library.
pub fn cos(level: super::SimdLevel, x: &[f32], out: &mut [f32]) {
    cos_reduced(level, x, out);
    fix_large(x, out, f32::cos);
}

/// Tangent; for `|x|` above 1e5 it calls the standard library.
pub fn tan(level: super::SimdLevel, x: &[f32], out: &mut [f32]) {
    tan_reduced(level, x, out);
    fix_large(x, out, |x| f64::from(x).tan() as f32);
}

/// Computes `a^b`; zeros and values that are not finite go through the standard library.
pub fn pow(level: super::SimdLevel, a: &[f32], b: &[f32], out: &mut [f32]) {
    plain_pow(level, a, b, out);
    fix_powers(a, b.iter().copied(), out);
}

/// Computes `a^exponent`. The exponents 1, 2, 3, 4, -1 and 0.5 take at most a few
/// multiplications, a division or a root.
pub fn pow_by(level: super::SimdLevel, a: &[f32], exponent: f32, out: &mut [f32]) {
    match exponent {
        1.0 => out.copy_from_slice(a),
        2.0 => square(level, a, out),
        3.0 => cube(level, a, out),
        4.0 => fourth(level, a, out),
        -1.0 => recip(level, a, out),
        0.5 => half_power(level, a, out),
        _ => {
            const PART: usize = 256;
            let exponents = [exponent; PART];
            for (a, out) in a.chunks(PART).zip(out.chunks_mut(PART)) {
                plain_pow(level, a, &exponents[..a.len()], out);
            }
            fix_powers(a, std::iter::repeat(exponent), out);
        }
    }
}

/// Recomputes with the standard library the powers that [`plain_pow`] does not compute.
fn fix_powers(a: &[f32], b: impl Iterator<Item = f32> + Clone, out: &mut [f32]) {
    let pairs = || a.iter().copied().zip(b.clone());
    if !pairs().fold(true, |all, (a, b)| all & scalar::is_plain_power(a, b)) {
        for (out, (a, b)) in out.iter_mut().zip(pairs()) {
            if !scalar::is_plain_power(a, b) {
                *out = f64::from(a).powf(f64::from(b)) as f32;
            }
        }
    }
}

simd_dispatch!(
    /// Computes `a * b + c` with one rounding, at every level.
    pub fn fma(a: &[f32], b: &[f32], c: &[f32], out: &mut [f32]) = fma_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn fma_body<S: Simd>(a: &[f32], b: &[f32], c: &[f32], out: &mut [f32]) {
    let n = out.len();
    assert!(
        a.len() == n && b.len() == n && c.len() == n,
        "inputs and output differ in length"
    );
    for (i, out) in out.iter_mut().enumerate() {
        *out = a[i].mul_add(b[i], c[i]);
    }
}

/// Comparison operator; false if an operand is NaN, except for `Ne`, which is then true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "conventional names")]
pub enum VmathComparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

simd_dispatch!(
    /// Computes `out[i] = a[i] op b[i]` as 0 or 1.
    pub fn compare(op: VmathComparison, a: &[f32], b: &[f32], out: &mut [u8]) = compare_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn compare_body<S: Simd>(op: VmathComparison, a: &[f32], b: &[f32], out: &mut [u8]) {
    assert!(
        a.len() == out.len() && b.len() == out.len(),
        "inputs and output differ in length"
    );
    #[inline(always)]
    fn each(a: &[f32], b: &[f32], out: &mut [u8], f: impl Fn(f32, f32) -> bool) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = u8::from(f(*a, *b));
        }
    }
    match op {
        VmathComparison::Eq => each(a, b, out, |a, b| a == b),
        VmathComparison::Ne => each(a, b, out, |a, b| a != b),
        VmathComparison::Lt => each(a, b, out, |a, b| a < b),
        VmathComparison::Le => each(a, b, out, |a, b| a <= b),
        VmathComparison::Gt => each(a, b, out, |a, b| a > b),
        VmathComparison::Ge => each(a, b, out, |a, b| a >= b),
    }
}

simd_dispatch!(
    /// Computes `out[i] = if cond[i] != 0 { a[i] } else { b[i] }`.
    pub fn select(cond: &[u8], a: &[f32], b: &[f32], out: &mut [f32]) = select_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn select_body<S: Simd>(cond: &[u8], a: &[f32], b: &[f32], out: &mut [f32]) {
    let n = out.len();
    assert!(
        cond.len() == n && a.len() == n && b.len() == n,
        "inputs and output differ in length"
    );
    // A condition is often the same for a whole block, which is then copied.
    let first = cond.first().is_some_and(|c| *c != 0);
    if (cond.iter()).fold(true, |same, c| same & ((*c != 0) == first)) {
        return out.copy_from_slice(if first { a } else { b });
    }
    let values = a.iter().zip(b);
    for ((out, cond), (a, b)) in out.iter_mut().zip(cond).zip(values) {
        *out = scalar::pick(*cond != 0, *a, *b);
    }
}
