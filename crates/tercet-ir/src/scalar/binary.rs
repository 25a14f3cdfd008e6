//! Functions of two numbers, and comparisons.

use tercet_tensor::{DType, DTypeClass};

use super::{BinaryFn, CompareFn, Scalar, maximum, minimum, refuse};
use crate::error::TypeError;

impl BinaryFn {
    pub(super) fn infer(self, d: DType) -> Result<DType, TypeError> {
        use BinaryFn::*;
        match (self, d.class()) {
            (And | Or | Xor, DTypeClass::Float) => Err(refuse("a", d, "bool and integers")),
            (And | Or | Xor, _) => Ok(d),
            (Shl | Shr, DTypeClass::Signed | DTypeClass::Unsigned) => Ok(d),
            (Shl | Shr, _) => Err(refuse("a", d, "integers")),
            (Atan2, DTypeClass::Float) => Ok(d),
            (Atan2, _) => Err(refuse("a", d, "floats")),
            (_, DTypeClass::Bool) => Err(refuse(
                "a",
                d,
                "floats and integers; bool takes and, or, xor",
            )),
            (_, _) => Ok(d),
        }
    }

    /// The result for operands of dtype `d`.
    pub fn eval(self, d: DType, a: Scalar, b: Scalar) -> Scalar {
        match (a, b) {
            (Scalar::I(a), Scalar::I(b)) => Scalar::I(d.wrap_i64(self.eval_i64(d, a, b))),
            (a, b) => Scalar::F(d.round_f64(self.eval_f64(a.as_f64(), b.as_f64()))),
        }
    }

    fn eval_f64(self, a: f64, b: f64) -> f64 {
        match self {
            BinaryFn::Add => a + b,
            BinaryFn::Sub => a - b,
            BinaryFn::Mul => a * b,
            BinaryFn::Div => a / b,
            BinaryFn::Rem => a % b,
            BinaryFn::Pow => a.powf(b),
            BinaryFn::Max => maximum(a, b),
            BinaryFn::Min => minimum(a, b),
            BinaryFn::Atan2 => a.atan2(b),
            BinaryFn::And | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Shl | BinaryFn::Shr => {
                unreachable!("invariant: bit functions take no floats")
            }
        }
    }

    fn eval_i64(self, d: DType, a: i64, b: i64) -> i64 {
        let width = 8 * d.size_bytes() as u32;
        let count = (b as u32) & (width - 1);
        match self {
            BinaryFn::Add => a.wrapping_add(b),
            BinaryFn::Sub => a.wrapping_sub(b),
            BinaryFn::Mul => a.wrapping_mul(b),
            BinaryFn::Div => {
                if b == 0 {
                    a
                } else {
                    a.wrapping_div(b)
                }
            }
            BinaryFn::Rem => {
                if b == 0 {
                    0
                } else {
                    a.wrapping_rem(b)
                }
            }
            BinaryFn::Pow => int_pow(a, b),
            BinaryFn::Max => a.max(b),
            BinaryFn::Min => a.min(b),
            BinaryFn::And => a & b,
            BinaryFn::Or => a | b,
            BinaryFn::Xor => a ^ b,
            BinaryFn::Shl => a.wrapping_shl(count),
            BinaryFn::Shr => a >> count,
            BinaryFn::Atan2 => unreachable!("invariant: atan2 takes floats"),
        }
    }
}

/// `a^b` modulo 2^64, by repeated squaring. For `b < 0` the reciprocal power truncated towards
/// zero; `0^b = 0`.
fn int_pow(a: i64, b: i64) -> i64 {
    if b < 0 {
        return match a {
            1 => 1,
            -1 => {
                if b % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        };
    }
    let (mut base, mut exponent, mut power) = (a, b, 1i64);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    power
}

impl CompareFn {
    /// The result of the comparison.
    pub fn eval(self, a: Scalar, b: Scalar) -> bool {
        let order = match (a, b) {
            (Scalar::I(a), Scalar::I(b)) => Some(a.cmp(&b)),
            (a, b) => a.as_f64().partial_cmp(&b.as_f64()),
        };
        match (self, order) {
            (CompareFn::Ne, o) => o.is_none_or(std::cmp::Ordering::is_ne),
            (_, None) => false,
            (CompareFn::Eq, Some(o)) => o.is_eq(),
            (CompareFn::Lt, Some(o)) => o.is_lt(),
            (CompareFn::Le, Some(o)) => o.is_le(),
            (CompareFn::Gt, Some(o)) => o.is_gt(),
            (CompareFn::Ge, Some(o)) => o.is_ge(),
        }
    }
}
