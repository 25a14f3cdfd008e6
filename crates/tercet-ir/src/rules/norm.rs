//! Decompositions of norms, with and without a residual sum.

use super::util::ValueResult;
use super::{LegalizeRule, RuleResult};
use crate::attr::FloatAttr;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{LayerNorm, Op, OpKind, ReduceFn, RmsNorm};
use crate::scalar::{BinaryFn, UnaryFn};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "layer_norm_as_mean_and_variance",
        on: OpKind::LayerNorm,
        apply: layer_norm,
    },
    LegalizeRule {
        name: "rms_norm_as_mean_of_squares",
        on: OpKind::RmsNorm,
        apply: rms_norm,
    },
    LegalizeRule {
        name: "residual_layer_norm_as_sum_and_norm",
        on: OpKind::ResidualLayerNorm,
        apply: residual_layer_norm,
    },
    LegalizeRule {
        name: "residual_rms_norm_as_sum_and_norm",
        on: OpKind::ResidualRmsNorm,
        apply: residual_rms_norm,
    },
];

/// `x / sqrt(mean(x^2) + eps)` over `axes`.
fn unit_scale(
    b: &mut LegalizeBuilder<'_>,
    x: Value,
    axes: &[usize],
    eps: FloatAttr,
) -> ValueResult {
    let square = b.binary(BinaryFn::Mul, x, x)?;
    let mean = b.reduce(ReduceFn::Mean, square, axes)?;
    let eps = b.scalar(b.dtype(x), eps.0)?;
    let sum = b.binary(BinaryFn::Add, mean, eps)?;
    let scale = b.unary(UnaryFn::Rsqrt, sum)?;
    b.binary(BinaryFn::Mul, x, scale)
}

/// `x gamma + beta`, in the dtype of `x`.
fn affine(
    b: &mut LegalizeBuilder<'_>,
    x: Value,
    gamma: Value,
    beta: Option<&Value>,
) -> ValueResult {
    let gamma = b.widen(gamma)?;
    let y = b.binary(BinaryFn::Mul, x, gamma)?;
    match beta {
        Some(&beta) => {
            let beta = b.widen(beta)?;
            b.binary(BinaryFn::Add, y, beta)
        }
        None => Ok(y),
    }
}

fn layer_norm(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::LayerNorm(o), &[x, gamma, ref beta @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let x = b.widen(x)?;
    let axes: Vec<usize> = (o.axis..b.ty(x).rank()).collect();
    let mean = b.reduce(ReduceFn::Mean, x, &axes)?;
    let centred = b.binary(BinaryFn::Sub, x, mean)?;
    let y = unit_scale(b, centred, &axes, o.eps)?;
    let y = affine(b, y, gamma, beta.first())?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

fn rms_norm(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::RmsNorm(o), &[x, gamma, ref beta @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let x = b.widen(x)?;
    let last = b.ty(x).rank() - 1;
    let y = unit_scale(b, x, &[last], o.eps)?;
    let y = affine(b, y, gamma, beta.first())?;
    Ok(Some(vec![b.cast(y, dtype)?]))
}

/// `x + residual + bias`, rounded once.
fn residual_sum(
    b: &mut LegalizeBuilder<'_>,
    x: Value,
    residual: Value,
    bias: Option<&Value>,
) -> ValueResult {
    let dtype = b.dtype(x);
    let (x, residual) = (b.widen(x)?, b.widen(residual)?);
    let mut sum = b.binary(BinaryFn::Add, x, residual)?;
    if let Some(&bias) = bias {
        let bias = b.widen(bias)?;
        sum = b.binary(BinaryFn::Add, sum, bias)?;
    }
    b.cast(sum, dtype)
}

fn residual_layer_norm(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::ResidualLayerNorm(o), &[x, residual, gamma, beta, ref bias @ ..]) = (op, inputs)
    else {
        return Ok(None);
    };
    let sum = residual_sum(b, x, residual, bias.first())?;
    let axis = b.ty(sum).rank() - 1;
    let normed = b.add(LayerNorm { axis, eps: o.eps }, &[sum, gamma, beta])?;
    Ok(Some(vec![normed, sum]))
}

fn residual_rms_norm(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::ResidualRmsNorm(o), &[x, residual, gamma, ref bias @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let sum = residual_sum(b, x, residual, bias.first())?;
    let normed = b.add(RmsNorm { eps: o.eps }, &[sum, gamma])?;
    Ok(Some(vec![normed, sum]))
}
