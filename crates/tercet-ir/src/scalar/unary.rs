//! Functions of one number.

use tercet_tensor::{DType, DTypeClass};

use super::{Scalar, maximum, minimum, refuse};
use crate::error::TypeError;

/// The dtypes that a function of one number accepts, and the dtype of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnaryDomain {
    /// Floats.
    Floats,
    /// Floats and integers.
    Numbers,
    /// Booleans and integers.
    Logic,
    /// Floats; the result is a boolean.
    Predicate,
}

/// The functions of one number, a row each: documentation, variant, name, accepted dtypes, and the
/// meaning in `f64`. The name is also that of the builder method of a graph. `$callback!` gets
/// the rows.
macro_rules! unary_functions {
    ($callback:ident) => {
        $callback! {
            /// `max(x, 0)`, NaN stays NaN.
            Relu relu: Numbers = |x| maximum(x, 0.0);
            /// `min(max(x, 0), 6)`; NaN stays NaN.
            Relu6 relu6: Floats = |x| minimum(maximum(x, 0.0), 6.0);
            /// `1 / (1 + exp(-x))`
            Sigmoid sigmoid: Floats = |x| sigmoid(x);
            /// Hyperbolic tangent.
            Tanh tanh: Floats = |x| x.tanh();
            /// `e^x`
            Exp exp: Floats = |x| x.exp();
            /// Natural logarithm.
            Ln ln: Floats = |x| x.ln();
            /// Square root.
            Sqrt sqrt: Floats = |x| x.sqrt();
            /// `1 / sqrt(x)`
            Rsqrt rsqrt: Floats = |x| 1.0 / x.sqrt();
            /// `1 / x`
            Recip recip: Floats = |x| 1.0 / x;
            /// `-x`; the minimum integer is its own negative.
            Neg neg: Numbers = |x| -x;
            /// `|x|`; the minimum integer is its own absolute value.
            Abs abs: Numbers = |x| x.abs();
            /// `-1`, `0` or `1`; NaN stays NaN, `-0` stays `-0`.
            Sign sign: Numbers = |x| {
                if x.is_nan() || x == 0.0 {
                    x
                } else {
                    x.signum()
                }
            };
            /// `x Phi(x)` with the Gaussian distribution function, computed with `erf`.
            Gelu gelu: Floats = |x| gelu(x);
            /// The tanh approximation of gelu.
            GeluTanh gelu_tanh: Floats = |x| gelu_tanh(x);
            /// `x sigmoid(x)`
            Silu silu: Floats = |x| {
                if x == f64::NEG_INFINITY {
                    -0.0
                } else {
                    x * sigmoid(x)
                }
            };
            /// `ln(1 + exp(x))`
            Softplus softplus: Floats = |x| {
                if x > 0.0 {
                    x + (-x).exp().ln_1p()
                } else {
                    x.exp().ln_1p()
                }
            };
            /// The error function.
            Erf erf: Floats = |x| libm::erf(x);
            /// Sine of radians.
            Sin sin: Floats = |x| x.sin();
            /// Cosine of radians.
            Cos cos: Floats = |x| x.cos();
            /// Tangent of radians.
            Tan tan: Floats = |x| x.tan();
            /// Arc sine.
            Asin asin: Floats = |x| x.asin();
            /// Arc cosine.
            Acos acos: Floats = |x| x.acos();
            /// Arc tangent.
            Atan atan: Floats = |x| x.atan();
            /// Inverse hyperbolic tangent, accurate near 0.
            Atanh atanh: Floats = |x| libm::atanh(x);
            /// Hyperbolic sine.
            Sinh sinh: Floats = |x| x.sinh();
            /// Hyperbolic cosine.
            Cosh cosh: Floats = |x| x.cosh();
            /// Largest integer `<= x`.
            Floor floor: Numbers = |x| x.floor();
            /// Smallest integer `>= x`.
            Ceil ceil: Numbers = |x| x.ceil();
            /// Nearest integer, ties to even.
            Round round: Numbers = |x| x.round_ties_even();
            /// Nearest integer towards zero.
            Trunc trunc: Numbers = |x| x.trunc();
            /// `2^x`
            Exp2 exp2: Floats = |x| x.exp2();
            /// Base 2 logarithm.
            Log2 log2: Floats = |x| x.log2();
            /// `ln(1 + x)`, accurate near 0.
            Log1p log1p: Floats = |x| x.ln_1p();
            /// `e^x - 1`, accurate near 0.
            Expm1 expm1: Floats = |x| x.exp_m1();
            /// Logical not of a boolean, bitwise not of an integer.
            Not not: Logic = |x| f64::from(x == 0.0);
            /// True for NaN.
            IsNan is_nan: Predicate = |x| f64::from(x.is_nan());
            /// True for positive and negative infinity.
            IsInf is_inf: Predicate = |x| f64::from(x.is_infinite());
        }
    };
}

/// Declares [`UnaryFn`] with its names, dtypes and meanings.
macro_rules! declare {
    ($($(#[$doc:meta])* $V:ident $name:ident: $domain:ident = |$x:ident| $body:expr;)*) => {
        crate::spelled! {
            /// A function of one number.
            ///
            /// ```
            /// use tercet_ir::{DType, scalar::{Scalar, UnaryFn}};
            /// assert_eq!(UnaryFn::Relu.eval(DType::F32, Scalar::F(-2.0)), Scalar::F(0.0));
            /// assert_eq!(UnaryFn::Neg.eval(DType::I32, Scalar::I(5)), Scalar::I(-5));
            /// assert_eq!(UnaryFn::GeluTanh.name(), "gelu_tanh");
            /// ```
            pub enum UnaryFn { $($(#[$doc])* $V stringify!($name)),* }
        }

        impl UnaryFn {
            fn domain(self) -> UnaryDomain {
                match self { $(Self::$V => UnaryDomain::$domain),* }
            }

            /// The function in `f64`; predicates give 0 or 1.
            pub fn eval_f64(self, x: f64) -> f64 {
                match self {
                    $(Self::$V => {
                        let $x = x;
                        $body
                    })*
                }
            }
        }
    };
}

pub(crate) use unary_functions;

unary_functions!(declare);

impl UnaryFn {
    pub(super) fn infer(self, x: DType) -> Result<DType, TypeError> {
        use {DTypeClass as Class, UnaryDomain as Domain};
        match (self.domain(), x.class()) {
            (Domain::Predicate, Class::Float) => Ok(DType::Bool),
            (Domain::Logic, Class::Float) => Err(refuse("x", x, "bool and integers")),
            (Domain::Logic, _) => Ok(x),
            (_, Class::Bool) => Err(refuse("x", x, "floats and integers")),
            (Domain::Numbers, _) | (Domain::Floats, Class::Float) => Ok(x),
            (Domain::Floats | Domain::Predicate, Class::Signed | Class::Unsigned) => {
                Err(refuse("x", x, "floats"))
            }
        }
    }

    /// Whether the function accepts integers.
    pub fn accepts_integers(self) -> bool {
        matches!(self.domain(), UnaryDomain::Numbers | UnaryDomain::Logic)
    }

    /// The result of dtype `to` (the operand's dtype, or `Bool` for predicates).
    pub fn eval(self, to: DType, x: Scalar) -> Scalar {
        match x {
            Scalar::I(i) => Scalar::I(to.wrap_i64(self.eval_i64(to, i))),
            Scalar::F(x) => match self {
                UnaryFn::IsNan => Scalar::I(x.is_nan().into()),
                UnaryFn::IsInf => Scalar::I(x.is_infinite().into()),
                _ => Scalar::F(to.round_f64(self.eval_f64(x))),
            },
        }
    }

    fn eval_i64(self, to: DType, i: i64) -> i64 {
        match self {
            UnaryFn::Relu => i.max(0),
            UnaryFn::Neg => i.wrapping_neg(),
            UnaryFn::Abs => i.wrapping_abs(),
            UnaryFn::Sign => i.signum(),
            UnaryFn::Not if to == DType::Bool => i64::from(i == 0),
            UnaryFn::Not => !i,
            // Rounding functions return integers unchanged; the other functions accept only floats.
            _ => i,
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

/// Hendrycks and Gimpel, "Gaussian Error Linear Units": `x Phi(x)`. `erfc` keeps the relative
/// accuracy of the left tail.
fn gelu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return -0.0;
    }
    0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

fn gelu_tanh(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return -0.0;
    }
    // 0.5 x (1 + tanh(u)) = x sigmoid(2 u)
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x * sigmoid(2.0 * u)
}
