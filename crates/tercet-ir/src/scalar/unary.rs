//! Functions of one number.

use tercet_tensor::{DType, DTypeClass};

use super::{Scalar, UnaryFn, maximum, minimum, refuse};
use crate::error::TypeError;

impl UnaryFn {
    pub(super) fn infer(self, x: DType) -> Result<DType, TypeError> {
        use UnaryFn::*;
        match (self, x.class()) {
            (IsNan | IsInf, DTypeClass::Float) => Ok(DType::Bool),
            (Not, DTypeClass::Float) => Err(refuse("x", x, "bool and integers")),
            (Not, _) => Ok(x),
            (_, DTypeClass::Bool) => Err(refuse("x", x, "floats and integers")),
            (Relu | Neg | Abs | Sign | Floor | Ceil | Round | Trunc, _) => Ok(x),
            (_, DTypeClass::Float) => Ok(x),
            (_, DTypeClass::Signed | DTypeClass::Unsigned) => Err(refuse("x", x, "floats")),
        }
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

    /// The function in `f64`; predicates give 0 or 1.
    pub fn eval_f64(self, x: f64) -> f64 {
        use UnaryFn::*;
        match self {
            Relu => maximum(x, 0.0),
            Relu6 => minimum(maximum(x, 0.0), 6.0),
            Sigmoid => sigmoid(x),
            Tanh => x.tanh(),
            Exp => x.exp(),
            Ln => x.ln(),
            Sqrt => x.sqrt(),
            Rsqrt => 1.0 / x.sqrt(),
            Recip => 1.0 / x,
            Neg => -x,
            Abs => x.abs(),
            Sign => {
                if x.is_nan() || x == 0.0 {
                    x
                } else {
                    x.signum()
                }
            }
            Gelu => gelu(x),
            GeluTanh => gelu_tanh(x),
            Silu => {
                if x == f64::NEG_INFINITY {
                    -0.0
                } else {
                    x * sigmoid(x)
                }
            }
            Softplus => {
                if x > 0.0 {
                    x + (-x).exp().ln_1p()
                } else {
                    x.exp().ln_1p()
                }
            }
            Erf => libm::erf(x),
            Sin => x.sin(),
            Cos => x.cos(),
            Tan => x.tan(),
            Asin => x.asin(),
            Acos => x.acos(),
            Atan => x.atan(),
            Sinh => x.sinh(),
            Cosh => x.cosh(),
            Floor => x.floor(),
            Ceil => x.ceil(),
            Round => x.round_ties_even(),
            Trunc => x.trunc(),
            Exp2 => x.exp2(),
            Log2 => x.log2(),
            Log1p => x.ln_1p(),
            Expm1 => x.exp_m1(),
            Not => f64::from(x == 0.0),
            IsNan => f64::from(x.is_nan()),
            IsInf => f64::from(x.is_infinite()),
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
pub(super) fn gelu(x: f64) -> f64 {
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
