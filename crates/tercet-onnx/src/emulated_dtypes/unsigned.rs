//! U64 arithmetic on I64 carriers, for operations that differ from I64.
//!
//! Sums, products, bit operations and left shifts are identical. The other operations are built
//! from signed operations. A comparison has the I64 result unless exactly one operand is negative
//! in I64, and therefore at least 2^63.

use tercet_ir::scalar::{BinaryFn, CompareFn};
use tercet_ir::{DType, Graph, Value};

use crate::attrs::OnnxAttrs;
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;
use crate::ops::{OpsetEntry, op};

const TABLE: &[OpsetEntry] = &[
    op("Greater", 7, |k| compare(k, false, false)),
    op("Less", 7, |k| compare(k, true, false)),
    op("GreaterOrEqual", 12, |k| compare(k, true, true)),
    op("LessOrEqual", 12, |k| compare(k, false, true)),
    op("Max", 6, |k| extreme(k, false)),
    op("Min", 6, |k| extreme(k, true)),
    op("Clip", 11, clip),
    op("Abs", 6, |k| one(k.x(0)?)),
    op("Sign", 9, |k| {
        let x = k.x(0)?;
        let zero = k.c.scalar(DType::I64, 0.0)?;
        let g = k.g();
        let is_set = g.compare(CompareFn::Ne, x, zero)?;
        one(g.cast(is_set, DType::I64)?)
    }),
    op("Div", 6, |k| {
        let (a, b) = (k.x(0)?, k.x(1)?);
        one(divide(k.g(), a, b)?.0)
    }),
    op("Mod", 10, |k| {
        k.attrs.ignore(&["fmod"]);
        let (a, b) = (k.x(0)?, k.x(1)?);
        one(divide(k.g(), a, b)?.1)
    }),
    op("BitShift", 11, |k| {
        k.attrs.ignore(&["direction"]);
        let (a, b) = (k.x(0)?, k.x(1)?);
        one(shift_right(k.g(), a, b)?)
    }),
];

/// The table entry of an operator that differs from I64.
pub(super) fn entry(
    name: &str,
    attrs: &OnnxAttrs<'_>,
) -> Result<Option<&'static OpsetEntry>, NodeErrorKind> {
    if name == "BitShift" && attrs.string("direction", "")? != "RIGHT" {
        return Ok(None);
    }
    Ok(TABLE.iter().find(|e| e.name == name))
}

/// Whether `a < b`.
pub fn below(g: &mut Graph, a: Value, b: Value) -> Result<Value, NodeErrorKind> {
    let zero = g.scalar(DType::I64, 0.0)?;
    let less = g.compare(CompareFn::Lt, a, b)?;
    let (a_high, b_high) = (
        g.compare(CompareFn::Lt, a, zero)?,
        g.compare(CompareFn::Lt, b, zero)?,
    );
    let differ = g.binary(BinaryFn::Xor, a_high, b_high)?;
    Ok(g.binary(BinaryFn::Xor, less, differ)?)
}

/// Computes `a > b`, or `a < b` if `swapped`; the inverse result if `negated`.
fn compare(k: &mut ImportNode<'_, '_>, swapped: bool, negated: bool) -> NodeOutputs {
    let (a, b) = (k.x(0)?, k.x(1)?);
    let is = match swapped {
        true => below(k.g(), a, b)?,
        false => below(k.g(), b, a)?,
    };
    one(match negated {
        true => k.g().unary(tercet_ir::scalar::UnaryFn::Not, is)?,
        false => is,
    })
}

fn extreme(k: &mut ImportNode<'_, '_>, least: bool) -> NodeOutputs {
    let xs = k.xs()?;
    let (first, rest) = xs
        .split_first()
        .ok_or_else(|| NodeErrorKind::operand(0, "is missing"))?;
    let mut y = *first;
    for x in rest {
        y = extreme_of(k.g(), y, *x, least)?;
    }
    one(y)
}

/// The minimum of two numbers, or their maximum.
fn extreme_of(g: &mut Graph, a: Value, b: Value, least: bool) -> Result<Value, NodeErrorKind> {
    let less = below(g, a, b)?;
    Ok(match least {
        true => g.where_(less, a, b)?,
        false => g.where_(less, b, a)?,
    })
}

fn clip(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let mut y = k.x(0)?;
    if let Some(least) = k.opt(1)? {
        y = extreme_of(k.g(), y, least, false)?;
    }
    if let Some(greatest) = k.opt(2)? {
        y = extreme_of(k.g(), y, greatest, true)?;
    }
    one(y)
}

/// A mask of all bits except the highest.
fn low_bits(g: &mut Graph) -> Result<Value, NodeErrorKind> {
    Ok(g.constant(tercet_ir::Tensor::scalar(i64::MAX))?)
}

/// A logical right shift; shifts by 64 or more give 0.
pub fn shift_right(g: &mut Graph, a: Value, count: Value) -> Result<Value, NodeErrorKind> {
    let (zero, one_) = (g.scalar(DType::I64, 0.0)?, g.scalar(DType::I64, 1.0)?);
    let mask = low_bits(g)?;
    let half = g.binary(BinaryFn::Shr, a, one_)?;
    let half = g.binary(BinaryFn::And, half, mask)?;
    let less = g.sub(count, one_)?;
    let shifted = g.binary(BinaryFn::Shr, half, less)?;
    let none = g.compare(CompareFn::Eq, count, zero)?;
    let y = g.where_(none, a, shifted)?;
    let width = g.scalar(DType::I64, 64.0)?;
    let kept = below(g, count, width)?;
    Ok(g.where_(kept, y, zero)?)
}

/// Quotient and remainder. If the divisor is at least 2^63, the quotient is 0 or 1. Otherwise twice
/// the quotient of the halved dividend is at most one too small.
pub fn divide(g: &mut Graph, a: Value, b: Value) -> Result<(Value, Value), NodeErrorKind> {
    let (zero, one_) = (g.scalar(DType::I64, 0.0)?, g.scalar(DType::I64, 1.0)?);
    let mask = low_bits(g)?;
    let half = g.binary(BinaryFn::Shr, a, one_)?;
    let half = g.binary(BinaryFn::And, half, mask)?;
    let high = g.compare(CompareFn::Lt, b, zero)?;
    let divisor = g.where_(high, one_, b)?;
    let part = g.div(half, divisor)?;
    let twice = g.plus(part, part)?;
    let twice = g.where_(high, zero, twice)?;
    let product = g.mul(twice, b)?;
    let rest = g.sub(a, product)?;
    let less = below(g, rest, b)?;
    let more = g.plus(twice, one_)?;
    let smaller = g.sub(rest, b)?;
    Ok((g.where_(less, twice, more)?, g.where_(less, rest, smaller)?))
}

/// Rounds to the nearest float. Values of at least 2^63 are halved first. The last bit is set if
/// the halving cuts off a one (sticky bit).
pub fn to_float(g: &mut Graph, x: Value, to: DType) -> Result<Value, NodeErrorKind> {
    let (zero, one_) = (g.scalar(DType::I64, 0.0)?, g.scalar(DType::I64, 1.0)?);
    let mask = low_bits(g)?;
    let half = g.binary(BinaryFn::Shr, x, one_)?;
    let half = g.binary(BinaryFn::And, half, mask)?;
    let last = g.binary(BinaryFn::And, x, one_)?;
    let half = g.binary(BinaryFn::Or, half, last)?;
    let (small, large) = (g.cast(x, to)?, g.cast(half, to)?);
    let large = g.plus(large, large)?;
    let high = g.compare(CompareFn::Lt, x, zero)?;
    Ok(g.where_(high, large, small)?)
}

/// Truncates floats to integers. Values of at least 2^63 are converted after subtracting 2^63.
pub fn from_float(g: &mut Graph, x: Value) -> Result<Value, NodeErrorKind> {
    let x = match g.ty(x).dtype {
        DType::F16 | DType::BF16 => g.cast(x, DType::F32)?,
        _ => x,
    };
    let dtype = g.ty(x).dtype;
    let bound = g.scalar(dtype, 2f64.powi(63))?;
    let least = g.constant(tercet_ir::Tensor::scalar(i64::MIN))?;
    let above = g.sub(x, bound)?;
    let (small, large) = (g.cast(x, DType::I64)?, g.cast(above, DType::I64)?);
    let large = g.binary(BinaryFn::Xor, large, least)?;
    let high = g.compare(CompareFn::Ge, x, bound)?;
    Ok(g.where_(high, large, small)?)
}
