//! Gradients of elementwise functions: the cotangent times the derivative, summed over broadcast
//! axes. Derivatives of narrow floats are computed in F32 and rounded once. At kinks, `relu` and
//! `abs` have derivative 0, a maximum or minimum divides its cotangent equally among equal
//! operands, and `clamp` passes it at its bounds.

use crate::error::OpError;
use crate::grad::{Vjp, VjpResult};
use crate::graph::{Graph, Value};
use crate::ops::{Binary, Cast, Clamp, Fma, Unary, Where};
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};

type ElementwiseGradResult = Result<Value, OpError>;

pub(crate) fn unary(op: &Unary, v: &mut Vjp<'_>) -> VjpResult {
    let (x, y, dy) = (v.x(0), v.y(0), v.dy(0)?);
    match slope(v, op.f, x, y, dy)? {
        Some(dx) => Ok(v.accumulate(0, dx)?),
        None => Ok(()),
    }
}

/// The cotangent of `x` for `y = f(x)`; `None` if the derivative of `f` is zero.
pub(crate) fn slope(
    g: &mut Graph,
    f: UnaryFn,
    x: Value,
    y: Value,
    dy: Value,
) -> Result<Option<Value>, OpError> {
    let dtype = g.dtype(x);
    if f == UnaryFn::Neg {
        return g.neg(dy).map(Some);
    }
    if f == UnaryFn::Relu {
        let above = g.is(CompareFn::Gt, x, 0.0)?;
        return g.only_where(above, dy).map(Some);
    }
    if f == UnaryFn::Relu6 {
        let (above, below) = (g.is(CompareFn::Gt, x, 0.0)?, g.is(CompareFn::Lt, x, 6.0)?);
        let dx = g.only_where(above, dy)?;
        return g.only_where(below, dx).map(Some);
    }
    if f == UnaryFn::Abs {
        let sign = g.sign(x)?;
        return g.mul(dy, sign).map(Some);
    }
    let (x, y) = (g.widen(x)?, g.widen(y)?);
    let Some(slope) = derivative(g, f, x, y)? else {
        return Ok(None);
    };
    let dy = g.widen(dy)?;
    let dx = g.mul(dy, slope)?;
    g.in_dtype(dx, dtype).map(Some)
}

/// `f'(x)`, from `x` and `y = f(x)`.
fn derivative(g: &mut Graph, f: UnaryFn, x: Value, y: Value) -> Result<Option<Value>, OpError> {
    use UnaryFn::*;
    let derivative = match f {
        Sigmoid => {
            let rest = g.number_less(1.0, y)?;
            g.mul(y, rest)
        }
        Tanh => one_minus_square(g, y),
        Exp => Ok(y),
        Ln => g.recip(x),
        Sqrt => {
            let inverse = g.recip(y)?;
            g.times(inverse, 0.5)
        }
        // y / x would be less accurate near zero.
        Rsqrt => {
            let square = g.mul(y, y)?;
            let cube = g.mul(square, y)?;
            g.times(cube, -0.5)
        }
        Recip => {
            let square = g.mul(y, y)?;
            g.neg(square)
        }
        Gelu => gelu(g, x),
        GeluTanh => gelu_tanh(g, x),
        // s + y (1 - s) has the correct limit at -inf.
        Silu => {
            let s = g.sigmoid(x)?;
            let rest = g.number_less(1.0, s)?;
            g.fma(y, rest, s)
        }
        Softplus => g.sigmoid(x),
        Erf => {
            let bell = bell(g, x, 1.0)?;
            g.times(bell, std::f64::consts::FRAC_2_SQRT_PI)
        }
        Sin => g.cos(x),
        Cos => {
            let sin = g.sin(x)?;
            g.neg(sin)
        }
        Tan => {
            let square = g.mul(y, y)?;
            g.shifted(square, 1.0)
        }
        Asin => arc(g, x),
        Acos => {
            let slope = arc(g, x)?;
            g.neg(slope)
        }
        Atan => {
            let square = g.mul(x, x)?;
            let sum = g.shifted(square, 1.0)?;
            g.recip(sum)
        }
        Atanh => {
            let rest = one_minus_square(g, x)?;
            g.recip(rest)
        }
        Sinh => g.cosh(x),
        Cosh => g.sinh(x),
        Exp2 => g.times(y, std::f64::consts::LN_2),
        Log2 => {
            let inverse = g.recip(x)?;
            g.times(inverse, std::f64::consts::LOG2_E)
        }
        Log1p => {
            let sum = g.shifted(x, 1.0)?;
            g.recip(sum)
        }
        Expm1 => g.shifted(y, 1.0),
        // The caller handles piecewise linear functions such as `Relu`; the derivative of the other
        // functions is zero.
        Relu | Relu6 | Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Not | IsNan | IsInf => {
            return Ok(None);
        }
    };
    derivative.map(Some)
}

fn one_minus_square(g: &mut Graph, y: Value) -> ElementwiseGradResult {
    let square = g.mul(y, y)?;
    g.number_less(1.0, square)
}

/// `exp(-x^2 / width)`
fn bell(g: &mut Graph, x: Value, width: f64) -> ElementwiseGradResult {
    let square = g.mul(x, x)?;
    let exponent = g.times(square, -1.0 / width)?;
    g.exp(exponent)
}

/// `1 / sqrt(1 - x^2)`
fn arc(g: &mut Graph, x: Value) -> ElementwiseGradResult {
    let rest = one_minus_square(g, x)?;
    g.rsqrt(rest)
}

/// For magnitudes above this, gelu is 0 or its operand in every dtype. Squares of smaller
/// magnitudes do not overflow.
const GELU_REACH: f64 = 40.0;

/// `cdf(x) + x pdf(x)` of the normal distribution.
fn gelu(g: &mut Graph, x: Value) -> ElementwiseGradResult {
    let x = g.clamp(x, -GELU_REACH, GELU_REACH)?;
    let scaled = g.times(x, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = g.erf(scaled)?;
    let half = g.times(erf, 0.5)?;
    let cdf = g.shifted(half, 0.5)?;
    let bell = bell(g, x, 2.0)?;
    let pdf = g.times(
        bell,
        0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2,
    )?;
    g.fma(x, pdf, cdf)
}

/// The derivative of `y = x (1 + tanh(u)) / 2` with `u = c (x + b x^3)`.
fn gelu_tanh(g: &mut Graph, x: Value) -> ElementwiseGradResult {
    const B: f64 = 0.044715;
    let c = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    let x = g.clamp(x, -GELU_REACH, GELU_REACH)?;
    let square = g.mul(x, x)?;
    let bent = g.times(square, B * c)?;
    let factor = g.shifted(bent, c)?;
    let u = g.mul(x, factor)?;
    let t = g.tanh(u)?;
    let steep = g.times(square, 3.0 * B * c)?;
    let du = g.shifted(steep, c)?;
    let dt = one_minus_square(g, t)?;
    let change = g.mul(dt, du)?;
    let by_tanh = g.mul(x, change)?;
    let sum = g.plus(by_tanh, t)?;
    let sum = g.shifted(sum, 1.0)?;
    g.times(sum, 0.5)
}

pub(crate) fn binary(op: &Binary, v: &mut Vjp<'_>) -> VjpResult {
    let (a, b, y, dy) = (v.x(0), v.x(1), v.y(0), v.dy(0)?);
    for (i, x) in [a, b].into_iter().enumerate() {
        if !v.needs_cotangent(i) {
            continue;
        }
        let dx = match op.f {
            BinaryFn::Add => dy,
            BinaryFn::Sub if i == 0 => dy,
            BinaryFn::Sub => v.neg(dy)?,
            BinaryFn::Mul => {
                let other = [b, a][i];
                v.mul(dy, other)?
            }
            BinaryFn::Div
            | BinaryFn::Rem
            | BinaryFn::Pow
            | BinaryFn::Max
            | BinaryFn::Min
            | BinaryFn::Atan2
            | BinaryFn::And
            | BinaryFn::Or
            | BinaryFn::Xor
            | BinaryFn::Shl
            | BinaryFn::Shr => {
                let dtype = v.dtype(x);
                let [a, b, y, dy] = [v.widen(a)?, v.widen(b)?, v.widen(y)?, v.widen(dy)?];
                let dx = curved(v, op.f, i, [a, b, y], dy)?;
                v.in_dtype(dx, dtype)?
            }
        };
        let shape = v.shape(x);
        let dx = v.summed_to(dx, &shape)?;
        v.accumulate(i, dx)?;
    }
    Ok(())
}

/// The cotangent of operand `i` of `y = f(a, b)`, in the shape of `y`.
fn curved(
    g: &mut Graph,
    f: BinaryFn,
    i: usize,
    [a, b, y]: [Value; 3],
    dy: Value,
) -> ElementwiseGradResult {
    match (f, i) {
        (BinaryFn::Div, 0) => g.div(dy, b),
        (BinaryFn::Div, _) => {
            let quotient = g.div(dy, b)?;
            let product = g.mul(quotient, y)?;
            g.neg(product)
        }
        (BinaryFn::Rem, 0) => Ok(dy),
        // a - y is a multiple of b, apart from rounding.
        (BinaryFn::Rem, _) => {
            let whole = g.sub(a, y)?;
            let quotient = g.div(whole, b)?;
            let count = g.round(quotient)?;
            let product = g.mul(dy, count)?;
            g.neg(product)
        }
        (BinaryFn::Pow, 0) => {
            let less = g.shifted(b, -1.0)?;
            let power = g.pow(a, less)?;
            let slope = g.mul(b, power)?;
            let flat = g.is(CompareFn::Eq, b, 0.0)?;
            let slope = g.except_where(flat, slope)?;
            g.mul(dy, slope)
        }
        (BinaryFn::Pow, _) => {
            let none = g.is(CompareFn::Eq, a, 0.0)?;
            let one = g.scalar(g.dtype(a), 1.0)?;
            let base = g.where_(none, one, a)?;
            let log = g.ln(base)?;
            let slope = g.mul(y, log)?;
            g.mul(dy, slope)
        }
        (BinaryFn::Max | BinaryFn::Min, i) => {
            let [own, other] = if i == 0 { [a, b] } else { [b, a] };
            let wins = match f == BinaryFn::Max {
                true => g.compare(CompareFn::Gt, own, other)?,
                false => g.compare(CompareFn::Lt, own, other)?,
            };
            let ties = g.compare(CompareFn::Eq, own, other)?;
            let half = g.times(dy, 0.5)?;
            let shared = g.only_where(ties, half)?;
            g.where_(wins, dy, shared)
        }
        (BinaryFn::Atan2, i) => {
            let squares = g.mul(a, a)?;
            let norm = g.fma(b, b, squares)?;
            let slope = match i {
                0 => g.div(b, norm)?,
                _ => {
                    let slope = g.div(a, norm)?;
                    g.neg(slope)?
                }
            };
            g.mul(dy, slope)
        }
        // The caller handles sums and products; bitwise functions do not accept floats.
        (BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul, _)
        | (BinaryFn::And | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Shl | BinaryFn::Shr, _) => {
            Ok(dy)
        }
    }
}

pub(crate) fn fma(_: &Fma, v: &mut Vjp<'_>) -> VjpResult {
    let dy = v.dy(0)?;
    let factors = [Some(v.x(1)), Some(v.x(0)), None];
    for (i, factor) in factors.into_iter().enumerate() {
        if !v.needs_cotangent(i) {
            continue;
        }
        let dx = match factor {
            Some(factor) => v.mul(dy, factor)?,
            None => dy,
        };
        let shape = v.shape(v.x(i));
        let dx = v.summed_to(dx, &shape)?;
        v.accumulate(i, dx)?;
    }
    Ok(())
}

pub(crate) fn select(_: &Where, v: &mut Vjp<'_>) -> VjpResult {
    let (cond, dy) = (v.x(0), v.dy(0)?);
    for i in [1, 2] {
        if !v.needs_cotangent(i) {
            continue;
        }
        let dx = match i {
            1 => v.only_where(cond, dy)?,
            _ => v.except_where(cond, dy)?,
        };
        let shape = v.shape(v.x(i));
        let dx = v.summed_to(dx, &shape)?;
        v.accumulate(i, dx)?;
    }
    Ok(())
}

pub(crate) fn clamp(op: &Clamp, v: &mut Vjp<'_>) -> VjpResult {
    let (x, dy) = (v.x(0), v.dy(0)?);
    let above = v.is(CompareFn::Ge, x, op.lo.0)?;
    let below = v.is(CompareFn::Le, x, op.hi.0)?;
    let inside = v.and(above, below)?;
    let dx = v.only_where(inside, dy)?;
    Ok(v.accumulate(0, dx)?)
}

pub(crate) fn cast(_: &Cast, v: &mut Vjp<'_>) -> VjpResult {
    let (x, dy) = (v.x(0), v.dy(0)?);
    let dx = v.in_dtype_of(dy, x)?;
    Ok(v.accumulate(0, dx)?)
}
