//! Rounding to small float formats.

use tercet_ir::scalar::CompareFn;
use tercet_ir::{DType, Graph, Value};

use super::sign;
use crate::elem::{Minifloat, MinifloatSpecials};
use crate::error::NodeErrorKind;

/// Rounds F32 or F64 to the nearest value of a format, ties to even. Overflow gives the maximum
/// with `saturate`, otherwise infinity, or NaN if the format has no infinities.
///
/// All steps except the rounding to an integer are exact, because they only multiply by powers of
/// two. Comparisons select the power.
pub fn round(
    g: &mut Graph,
    format: Minifloat,
    x: Value,
    saturate: bool,
) -> Result<Value, NodeErrorKind> {
    let dtype = g.ty(x).dtype;
    let bits = format.mantissa_bits as i32;
    let size = g.abs(x)?;
    // Clamp to twice the maximum, which is enough for overflow.
    let most = g.scalar(dtype, 2.0 * format.greatest)?;
    let size = g.min(size, most)?;
    let unit = g.scalar(dtype, 2f64.powi(-format.min_exponent))?;
    let t = g.mul(size, unit)?;
    // Find the largest power of two from 1 to `t`, and its reciprocal.
    let mut power = g.scalar(dtype, 1.0)?;
    let mut inverse = power;
    let span = (2.0 * format.greatest).log2() as i32 - format.min_exponent;
    for step in [16, 8, 4, 2, 1].into_iter().filter(|s| *s <= span) {
        let (up, down) = (
            g.scalar(dtype, 2f64.powi(step))?,
            g.scalar(dtype, 2f64.powi(-step))?,
        );
        let (larger, smaller) = (g.mul(power, up)?, g.mul(inverse, down)?);
        let above = g.compare(CompareFn::Ge, t, larger)?;
        power = g.where_(above, larger, power)?;
        inverse = g.where_(above, smaller, inverse)?;
    }
    let last = g.scalar(dtype, 2f64.powi(bits))?;
    let scaled = g.mul(t, inverse)?;
    let scaled = g.mul(scaled, last)?;
    let whole = g.round(scaled)?;
    let back = g.scalar(dtype, 2f64.powi(format.min_exponent - bits))?;
    let y = g.mul(whole, power)?;
    let y = g.mul(y, back)?;
    let greatest = g.scalar(dtype, format.greatest)?;
    let y = if saturate {
        g.min(y, greatest)?
    } else {
        let beyond = match format.special {
            MinifloatSpecials::Ieee => f64::INFINITY,
            MinifloatSpecials::OnesAreNan | MinifloatSpecials::MinusZeroIsNan => f64::NAN,
            MinifloatSpecials::None => format.greatest,
        };
        let beyond = g.scalar(dtype, beyond)?;
        let over = g.compare(CompareFn::Gt, y, greatest)?;
        g.where_(over, beyond, y)?
    };
    let sign = sign(g, x)?;
    let signed = g.mul(y, sign)?;
    let zero = g.scalar(dtype, 0.0)?;
    let y = match format.special {
        MinifloatSpecials::MinusZeroIsNan => {
            let none = g.compare(CompareFn::Eq, y, zero)?;
            g.where_(none, zero, signed)?
        }
        // The format has no NaN, so NaN becomes 0.
        MinifloatSpecials::None => {
            let number = g.compare(CompareFn::Eq, y, y)?;
            g.where_(number, signed, zero)?
        }
        MinifloatSpecials::Ieee | MinifloatSpecials::OnesAreNan => signed,
    };
    super::cast_to(g, y, DType::F32)
}
