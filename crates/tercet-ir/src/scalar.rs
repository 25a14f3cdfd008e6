//! Scalar functions: the single definition of every elementwise operator.
//!
//! [`ScalarOp`] is an operation on one element, in a single operator (`Unary`, `Binary`, ...) or as
//! a step of a fused `Map`. Floats are computed in `f64` and rounded once to the dtype; integers in
//! two's complement. NaN propagates through `max`, `min`, `relu` and `clamp` (IEEE 754-2019
//! `maximum` and `minimum`).

mod binary;
pub(crate) mod unary;

use tercet_tensor::{DType, DTypeClass};

use crate::attr::FloatAttr;
use crate::error::TypeError;
use crate::spelled;
pub use unary::UnaryFn;

spelled! {
    /// A function of two numbers of one dtype.
    ///
    /// ```
    /// use tercet_ir::{DType, scalar::{BinaryFn, Scalar}};
    /// let sum = BinaryFn::Add.eval(DType::I8, Scalar::I(127), Scalar::I(1));
    /// assert_eq!(sum, Scalar::I(-128));
    /// let quotient = BinaryFn::Div.eval(DType::I32, Scalar::I(7), Scalar::I(0));
    /// assert_eq!(quotient, Scalar::I(7));
    /// ```
    pub enum BinaryFn {
        /// `a + b`
        Add "add",
        /// `a - b`
        Sub "sub",
        /// `a b`
        Mul "mul",
        /// `a / b`; integers truncate, `x / 0 = x`, `INT_MIN / -1 = INT_MIN`.
        Div "div",
        /// Remainder with the sign of `a`; integers: `x % 0 = 0`.
        Rem "rem",
        /// `a^b`; integers wrap, a negative exponent gives the truncated reciprocal power.
        Pow "pow",
        /// The maximum; NaN if either is NaN.
        Max "max",
        /// The minimum; NaN if either is NaN.
        Min "min",
        /// The angle of the point (b, a), in radians.
        Atan2 "atan2",
        /// Logical or bitwise and.
        And "and",
        /// Logical or bitwise or.
        Or "or",
        /// Logical or bitwise exclusive or.
        Xor "xor",
        /// Shift left; the count is taken modulo the width.
        Shl "shl",
        /// Shift right, arithmetic for signed integers; the count is taken modulo the width.
        Shr "shr",
    }
}

spelled! {
    /// A comparison of two numbers of one dtype, with a boolean result.
    ///
    /// ```
    /// use tercet_ir::scalar::{CompareFn, Scalar};
    /// assert!(CompareFn::Lt.eval(Scalar::F(1.0), Scalar::F(2.0)));
    /// assert!(CompareFn::Ne.eval(Scalar::F(f64::NAN), Scalar::F(f64::NAN)));
    /// ```
    pub enum CompareFn {
        /// `a == b`; false if either is NaN.
        Eq "eq",
        /// `a != b`; true if either is NaN.
        Ne "ne",
        /// `a < b`
        Lt "lt",
        /// `a <= b`
        Le "le",
        /// `a > b`
        Gt "gt",
        /// `a >= b`
        Ge "ge",
    }
}

/// An intermediate value of scalar functions. Floats (already rounded to their dtype) are `F`;
/// integers and booleans are `I`.
///
/// ```
/// use tercet_ir::{DType, scalar::{Scalar, convert}};
/// assert_eq!(Scalar::F(2.9).as_i64(), 2);
/// assert!(!Scalar::I(0).truth());
/// assert_eq!(convert(Scalar::I(300), DType::U8), Scalar::I(44));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A float.
    F(f64),
    /// An integer, or a boolean as 0 or 1.
    I(i64),
}

impl Scalar {
    /// The value as a float.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::F(x) => x,
            Scalar::I(i) => i as f64,
        }
    }

    /// The value as an integer; floats truncate and saturate, NaN is 0.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::F(x) => x as i64,
            Scalar::I(i) => i,
        }
    }

    /// True if the value is not zero.
    pub fn truth(self) -> bool {
        match self {
            Scalar::F(x) => x != 0.0,
            Scalar::I(i) => i != 0,
        }
    }
}

/// One elementwise operation.
///
/// ```
/// use tercet_ir::{DType, scalar::{Scalar, ScalarOp}};
/// let op = ScalarOp::Fma;
/// let dtype = op.infer(&[DType::F32; 3])?;
/// let y = op.eval(DType::F32, dtype, &[Scalar::F(2.0), Scalar::F(3.0), Scalar::F(1.0)]);
/// assert_eq!((op.arity(), y), (3, Scalar::F(7.0)));
/// # Ok::<(), tercet_ir::TypeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScalarOp {
    /// A constant of a dtype.
    Const(DType, FloatAttr),
    /// A function of one number.
    Unary(UnaryFn),
    /// A function of two numbers of one dtype.
    Binary(BinaryFn),
    /// A comparison.
    Compare(CompareFn),
    /// `cond ? a : b`
    Where,
    /// `a b + c` with one rounding.
    Fma,
    /// `min(max(x, lo), hi)`, NaN stays NaN.
    Clamp {
        /// Lower bound.
        lo: FloatAttr,
        /// Upper bound.
        hi: FloatAttr,
    },
    /// Conversion to a dtype.
    Cast(DType),
}

fn refuse(operand: &'static str, found: DType, accepted: &str) -> TypeError {
    TypeError::DType {
        operand,
        found,
        accepted: accepted.to_string(),
    }
}

fn same(a: DType, b: DType) -> Result<DType, TypeError> {
    if a == b {
        return Ok(a);
    }
    Err(TypeError::DType {
        operand: "b",
        found: b,
        accepted: format!("{a}, the dtype of the first operand; cast one of them"),
    })
}

impl ScalarOp {
    /// The number of operands.
    pub fn arity(&self) -> usize {
        match self {
            ScalarOp::Const(..) => 0,
            ScalarOp::Unary(_) | ScalarOp::Clamp { .. } | ScalarOp::Cast(_) => 1,
            ScalarOp::Binary(_) | ScalarOp::Compare(_) => 2,
            ScalarOp::Where | ScalarOp::Fma => 3,
        }
    }

    /// The dtype of the result.
    ///
    /// # Errors
    /// [`TypeError`] when the number or the dtypes of the operands are invalid.
    pub fn infer(&self, operands: &[DType]) -> Result<DType, TypeError> {
        if operands.len() != self.arity() {
            let expected = self.arity().to_string();
            return Err(TypeError::Arity {
                expected,
                given: operands.len(),
            });
        }
        match (self, operands) {
            (ScalarOp::Unary(f), &[x]) => f.infer(x),
            (ScalarOp::Binary(f), &[a, b]) => f.infer(same(a, b)?),
            (ScalarOp::Compare(f), &[a, b]) => match (f, same(a, b)?) {
                (CompareFn::Eq | CompareFn::Ne, _) => Ok(DType::Bool),
                (_, DType::Bool) => Err(refuse("a", a, "floats and integers")),
                _ => Ok(DType::Bool),
            },
            (ScalarOp::Where, &[cond, a, b]) => match cond {
                DType::Bool => same(a, b),
                found => Err(refuse("cond", found, "bool")),
            },
            (ScalarOp::Fma, &[a, b, c]) => match same(same(a, b)?, c)? {
                DType::Bool => Err(refuse("a", a, "floats and integers")),
                d => Ok(d),
            },
            (ScalarOp::Clamp { lo, hi }, &[x]) => clamp_infer(*lo, *hi, x),
            (ScalarOp::Const(d, _) | ScalarOp::Cast(d), _) => Ok(*d),
            _ => unreachable!("invariant: the arity was checked above"),
        }
    }

    /// The result for operands of dtype `from` (the dtype of the last operand). The result is
    /// rounded or wrapped to `to`, the dtype that [`ScalarOp::infer`] returned.
    pub fn eval(&self, from: DType, to: DType, x: &[Scalar]) -> Scalar {
        match (self, x) {
            (ScalarOp::Const(_, v), _) => convert(Scalar::F(v.0), to),
            (ScalarOp::Unary(f), &[x]) => f.eval(to, x),
            (ScalarOp::Binary(f), &[a, b]) => f.eval(to, a, b),
            (ScalarOp::Compare(f), &[a, b]) => Scalar::I(f.eval(a, b).into()),
            (ScalarOp::Where, &[cond, a, b]) => {
                if cond.truth() {
                    a
                } else {
                    b
                }
            }
            (ScalarOp::Fma, &[a, b, c]) => fma(to, a, b, c),
            (ScalarOp::Clamp { lo, hi }, &[x]) => match x {
                Scalar::F(v) => {
                    let (lo, hi) = (from.round_f64(lo.0), from.round_f64(hi.0));
                    Scalar::F(minimum(maximum(v, lo), hi))
                }
                Scalar::I(v) => {
                    let (least, greatest) =
                        from.int_range().expect("invariant: integers have a range");
                    let bound = |x: f64| (x as i64).clamp(least, greatest);
                    Scalar::I(v.max(bound(lo.0.ceil())).min(bound(hi.0.floor())))
                }
            },
            (ScalarOp::Cast(_), &[x]) => convert(x, to),
            _ => unreachable!("invariant: operands were checked by infer"),
        }
    }
}

fn clamp_infer(lo: FloatAttr, hi: FloatAttr, x: DType) -> Result<DType, TypeError> {
    if x == DType::Bool {
        return Err(refuse("x", x, "floats and integers"));
    }
    if lo.0.is_nan() || hi.0.is_nan() || lo.0 > hi.0 {
        let reason = format!("bounds {} and {} must be numbers with lo <= hi", lo.0, hi.0);
        return Err(TypeError::Attr { name: "lo", reason });
    }
    Ok(x)
}

/// IEEE 754-2019 `maximum`: NaN if either is NaN, `0.0 > -0.0`.
pub fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        if a.is_sign_negative() { b } else { a }
    } else if a > b {
        a
    } else {
        b
    }
}

/// IEEE 754-2019 `minimum`: NaN if either is NaN, `-0.0 < 0.0`.
pub fn minimum(a: f64, b: f64) -> f64 {
    -maximum(-a, -b)
}

/// Converts to `to`. Floats round to nearest even. Float to integer truncates and saturates, and
/// NaN becomes 0. Integer to integer wraps. Conversion to `Bool` is "not zero" (NaN is true).
pub fn convert(x: Scalar, to: DType) -> Scalar {
    match (to.class(), x) {
        (DTypeClass::Float, Scalar::F(v)) => Scalar::F(to.round_f64(v)),
        // Wide integers round once: i64 -> f32 must not pass through f64.
        (DTypeClass::Float, Scalar::I(i)) if to == DType::F32 => Scalar::F(f64::from(i as f32)),
        (DTypeClass::Float, Scalar::I(i)) if to == DType::F64 => Scalar::F(i as f64),
        (DTypeClass::Float, Scalar::I(i)) => Scalar::F(to.round_f64(i64_to_odd(i))),
        (DTypeClass::Bool, v) => Scalar::I(v.truth().into()),
        (DTypeClass::Signed | DTypeClass::Unsigned, Scalar::F(v)) => {
            let (lo, hi) = to.int_range().expect("invariant: integers have a range");
            Scalar::I((v as i64).clamp(lo, hi))
        }
        (DTypeClass::Signed | DTypeClass::Unsigned, Scalar::I(i)) => Scalar::I(to.wrap_i64(i)),
    }
}

/// The integer as a float, rounded to odd if it has more than 53 bits. A second rounding to a
/// narrow float then has the same result as rounding the integer directly.
fn i64_to_odd(i: i64) -> f64 {
    const DROPPED: u32 = 10;
    if i.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS {
        return i as f64;
    }
    let sticky = i & ((1 << DROPPED) - 1) != 0;
    (((i >> DROPPED) | i64::from(sticky)) << DROPPED) as f64
}

fn fma(to: DType, a: Scalar, b: Scalar, c: Scalar) -> Scalar {
    match (a, b, c) {
        (Scalar::I(a), Scalar::I(b), Scalar::I(c)) => {
            Scalar::I(to.wrap_i64(a.wrapping_mul(b).wrapping_add(c)))
        }
        // The product of two f32 is exact in f64, but its sum is not. Rounding the sum to f32 would
        // be a second rounding; the f32 fma rounds once.
        (a, b, c) if to == DType::F32 => {
            let f = |s: Scalar| s.as_f64() as f32;
            Scalar::F(f64::from(f(a).mul_add(f(b), f(c))))
        }
        (a, b, c) => Scalar::F(to.round_f64(a.as_f64().mul_add(b.as_f64(), c.as_f64()))),
    }
}
