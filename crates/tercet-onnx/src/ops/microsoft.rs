//! Operators of the domain `com.microsoft` that exporters and optimizers emit. Specification: ONNX
//! Runtime's `ContribOperators.md`.

mod attention;
mod embedding;
mod fused;
mod packed;
mod quantized;

use tercet_ir::Value;
use tercet_ir::scalar::UnaryFn;

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

const DOMAIN: &str = "com.microsoft";

pub(super) use attention::TABLE as ATTENTION;
pub(super) use embedding::TABLE as EMBEDDING;
pub(super) use fused::TABLE as FUSED;
pub(super) use packed::TABLE as PACKED;
pub(super) use quantized::TABLE as QUANTIZED;

pub(super) const TABLE: &[OpsetEntry] = &[
    op("Gelu", 1, |k| gelu(k, UnaryFn::Gelu)).in_domain(DOMAIN),
    op("BiasGelu", 1, |k| gelu(k, UnaryFn::Gelu)).in_domain(DOMAIN),
    op("FastGelu", 1, |k| gelu(k, UnaryFn::GeluTanh)).in_domain(DOMAIN),
    op("FusedMatMul", 1, fused_mat_mul).in_domain(DOMAIN),
    op("SkipLayerNormalization", 1, skip_layer_norm).in_domain(DOMAIN),
    op("SkipSimplifiedLayerNormalization", 1, skip_rms_norm).in_domain(DOMAIN),
    op("GatherND", 1, super::index::gather_nd).in_domain(DOMAIN),
    op("Trilu", 1, super::rearrange::trilu).in_domain(DOMAIN),
    // ONNX Runtime emits this operator in the standard domain.
    op("SimplifiedLayerNormalization", 1, rms_norm),
];

/// `gelu(x + bias)`; the bias is optional.
fn gelu(k: &mut ImportNode<'_, '_>, f: UnaryFn) -> NodeOutputs {
    let (mut x, bias) = (k.x(0)?, k.opt(1)?);
    if let Some(bias) = bias {
        x = k.g().plus(x, bias)?;
    }
    one(k.g().unary(f, x)?)
}

/// `alpha * op(A) @ op(B)`; `transBatchA` and `transBatchB` are not supported.
fn fused_mat_mul(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (mut a, mut b) = (k.x(0)?, k.x(1)?);
    let alpha = k.attrs.float("alpha", 1.0)?;
    for name in ["transBatchA", "transBatchB"] {
        if k.attrs.flag(name, false)? {
            return Err(NodeErrorKind::attribute(name, "1 is not supported"));
        }
    }
    for (name, v) in [("transA", &mut a), ("transB", &mut b)] {
        let rank = k.rank(*v);
        // Vectors are not transposed.
        if k.attrs.flag(name, false)? && rank >= 2 {
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(rank - 2, rank - 1);
            *v = k.g().transpose(*v, &order)?;
        }
    }
    let y = super::linear::vectors(k, a, b)?;
    if alpha == 1.0 {
        return one(y);
    }
    let alpha = k.like(y, alpha)?;
    one(k.g().mul(y, alpha)?)
}

/// `x + skip + bias`
fn with_skip(k: &mut ImportNode<'_, '_>, bias: usize) -> Result<Value, NodeErrorKind> {
    let (x, skip, bias) = (k.x(0)?, k.x(1)?, k.opt(bias)?);
    let sum = k.g().plus(x, skip)?;
    Ok(match bias {
        Some(bias) => k.g().plus(sum, bias)?,
        None => sum,
    })
}

/// The results: the normalized value, and the sum as the fourth. Only training needs the second and
/// third result (mean and inverse standard deviation).
fn skipped(k: &ImportNode<'_, '_>, y: Value, sum: Value) -> NodeOutputs {
    if k.is_requested(1) || k.is_requested(2) {
        let text = "the mean and the inverse standard deviation are not supported as outputs";
        return Err(NodeErrorKind::unsupported(text));
    }
    Ok(vec![
        y.into(),
        ImportedValue::Absent,
        ImportedValue::Absent,
        sum.into(),
    ])
}

fn skip_layer_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let sum = with_skip(k, 4)?;
    let (gamma, beta) = (k.x(2)?, k.opt(3)?);
    let eps = k.attrs.float("epsilon", 1e-12)?;
    let last = last_axis(k, sum)?;
    let y = k.g().layer_norm(sum, gamma, beta, last, eps)?;
    skipped(k, y, sum)
}

fn skip_rms_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let sum = with_skip(k, 3)?;
    let gamma = k.x(2)?;
    let eps = k.attrs.float("epsilon", 1e-12)?;
    let y = k.g().rms_norm(sum, gamma, None, eps)?;
    skipped(k, y, sum)
}

fn rms_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, gamma) = (k.x(0)?, k.x(1)?);
    let (at, eps) = (k.axis(-1, k.rank(x))?, k.attrs.float("epsilon", 1e-5)?);
    // Statistics are always computed in F32 or wider.
    if k.attrs.int("stash_type", 1)? != 1 {
        return Err(NodeErrorKind::attribute(
            "stash_type",
            "only 1 is supported",
        ));
    }
    if at != last_axis(k, x)? || k.is_requested(1) {
        let text = "only the last axis is supported, without a second output";
        return Err(NodeErrorKind::unsupported(text));
    }
    one(k.g().rms_norm(x, gamma, None, eps)?)
}

fn last_axis(k: &ImportNode<'_, '_>, x: Value) -> Result<usize, NodeErrorKind> {
    let rank = k.rank(x).checked_sub(1);
    rank.ok_or_else(|| NodeErrorKind::operand(0, "must have an axis"))
}
