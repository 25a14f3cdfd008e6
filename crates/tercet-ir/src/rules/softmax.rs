//! Decompositions of softmax and log-softmax.

use super::util::ValueResult;
use super::{LegalizeRule, RuleResult};
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{Op, OpKind, ReduceFn};
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "softmax_as_exp_over_sum",
        on: OpKind::Softmax,
        apply: softmax,
    },
    LegalizeRule {
        name: "log_softmax_as_shift_minus_log_sum",
        on: OpKind::LogSoftmax,
        apply: log_softmax,
    },
];

/// `x - max`, with 0 in place of a maximum of `-inf`: in a line of only `-inf`, `inf - inf` would
/// be NaN.
fn shifted(b: &mut LegalizeBuilder<'_>, x: Value, axis: usize) -> ValueResult {
    let dtype = b.dtype(x);
    let max = b.reduce(ReduceFn::Max, x, &[axis])?;
    let least = b.scalar(dtype, f64::NEG_INFINITY)?;
    let zero = b.scalar(dtype, 0.0)?;
    let masked = b.compare(CompareFn::Eq, max, least)?;
    let shift = b.select(masked, zero, max)?;
    b.binary(BinaryFn::Sub, x, shift)
}

fn softmax(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Softmax(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let x = b.widen(x)?;
    let shifted = shifted(b, x, o.axis)?;
    let e = b.unary(UnaryFn::Exp, shifted)?;
    let sum = b.reduce(ReduceFn::Sum, e, &[o.axis])?;
    // The sum is at least 1, or 0 for a line of only -inf; the result of such a line must be 0, not
    // 0 / 0.
    let (zero, one) = (b.scalar(b.dtype(x), 0.0)?, b.scalar(b.dtype(x), 1.0)?);
    let masked = b.compare(CompareFn::Eq, sum, zero)?;
    let divisor = b.select(masked, one, sum)?;
    let y = b.binary(BinaryFn::Div, e, divisor)?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

fn log_softmax(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::LogSoftmax(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let x = b.widen(x)?;
    let shifted = shifted(b, x, o.axis)?;
    let e = b.unary(UnaryFn::Exp, shifted)?;
    let sum = b.reduce(ReduceFn::Sum, e, &[o.axis])?;
    let (zero, one) = (b.scalar(b.dtype(x), 0.0)?, b.scalar(b.dtype(x), 1.0)?);
    let masked = b.compare(CompareFn::Eq, sum, zero)?;
    // ln(1) = 0 leaves a line of only -inf unchanged.
    let sum = b.select(masked, one, sum)?;
    let log = b.unary(UnaryFn::Ln, sum)?;
    let y = b.binary(BinaryFn::Sub, shifted, log)?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}
