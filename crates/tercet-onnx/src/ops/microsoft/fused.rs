//! Convolutions and matmuls fused with an activation by ONNX Runtime's optimizer.

use tercet_ir::Value;
use tercet_ir::scalar::UnaryFn;

use super::super::{OpsetEntry, op};
use super::DOMAIN;
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("FusedConv", 1, fused_conv).in_domain(DOMAIN),
    op("FusedGemm", 1, fused_gemm).in_domain(DOMAIN),
    op("QuickGelu", 1, quick_gelu).in_domain(DOMAIN),
];

/// `x * sigmoid(alpha x)`
fn quick_gelu(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, alpha) = (k.x(0)?, k.attrs.float("alpha", 1.702)?);
    let alpha = k.like(x, alpha)?;
    let g = k.g();
    let scaled = g.mul(x, alpha)?;
    let gate = g.unary(UnaryFn::Sigmoid, scaled)?;
    one(g.mul(x, gate)?)
}

/// Applies the activation `name` with its parameters.
fn activated(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    name: &str,
    numbers: &[f64],
) -> Result<Value, NodeErrorKind> {
    let expected = match name {
        "" | "Relu" | "Tanh" | "Sigmoid" => 0,
        "LeakyRelu" => 1,
        "Clip" | "HardSigmoid" => 2,
        other => {
            let text = format!("`{other}` is not supported");
            return Err(NodeErrorKind::attribute("activation", text));
        }
    };
    if numbers.len() < expected {
        let text = format!("{name} takes {expected} numbers, not {}", numbers.len());
        return Err(NodeErrorKind::attribute("activation_params", text));
    }
    Ok(match name {
        "Relu" => k.g().unary(UnaryFn::Relu, x)?,
        "Tanh" => k.g().unary(UnaryFn::Tanh, x)?,
        "Sigmoid" => k.g().unary(UnaryFn::Sigmoid, x)?,
        "LeakyRelu" => leaky(k, x, numbers[0])?,
        "Clip" => k.g().clamp(x, numbers[0], numbers[1])?,
        "HardSigmoid" => {
            let (alpha, beta) = (k.like(x, numbers[0])?, k.like(x, numbers[1])?);
            let scaled = k.g().mul(x, alpha)?;
            let moved = k.g().plus(scaled, beta)?;
            k.g().clamp(moved, 0.0, 1.0)?
        }
        _ => x,
    })
}

/// `max(x, 0) + alpha min(x, 0)`
pub(super) fn leaky(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    alpha: f64,
) -> Result<Value, NodeErrorKind> {
    let (zero, alpha) = (k.like(x, 0.0)?, k.like(x, alpha)?);
    let g = k.g();
    let (above, below) = (g.max(x, zero)?, g.min(x, zero)?);
    let below = g.mul(below, alpha)?;
    Ok(g.plus(above, below)?)
}

/// `activation(conv(X, W) + B + Z)`
fn fused_conv(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, w, bias, sum) = (k.x(0)?, k.x(1)?, k.opt(2)?, k.opt(3)?);
    let mut y = super::super::conv::convolved(k, x, w, bias)?;
    if let Some(sum) = sum {
        y = k.g().plus(y, sum)?;
    }
    let name = k.attrs.string("activation", "")?;
    let numbers = k.attrs.floats_opt("activation_params")?.unwrap_or(&[]);
    let numbers: Vec<f64> = numbers.iter().map(|x| f64::from(*x)).collect();
    one(activated(k, y, &name, &numbers)?)
}

fn fused_gemm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let y = super::super::linear::gemm(k)?;
    let y = k.c.place(&y[0], 0)?;
    let name = k.attrs.string("activation", "")?;
    let mut numbers = Vec::new();
    for name in ["activation_alpha", "activation_beta", "activation_gamma"] {
        numbers.extend(k.attrs.float_opt(name)?);
    }
    one(activated(k, y, &name, &numbers)?)
}
