//! Training operators: one optimizer step for several tensors with their gradients and states.

use tercet_ir::Value;
use tercet_ir::scalar::{BinaryFn, CompareFn};

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs};
use crate::error::NodeErrorKind;

const DOMAIN: &str = "ai.onnx.preview.training";

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Momentum", 1, momentum).in_domain(DOMAIN),
    op("Adagrad", 1, adagrad).in_domain(DOMAIN),
    op("Adam", 1, adam).in_domain(DOMAIN),
];

/// The learning rate, the step, and the operands in groups: all tensors, all gradients, all first
/// states and so on.
struct OptimizerOperands {
    rate: Value,
    step: Value,
    /// For each tensor: the tensor, its gradient and its states.
    tensors: Vec<Vec<Value>>,
}

fn operands(k: &mut ImportNode<'_, '_>, parts: usize) -> Result<OptimizerOperands, NodeErrorKind> {
    let all = k.xs()?;
    let (Some(rate), Some(step)) = (all.first(), all.get(1)) else {
        return Err(NodeErrorKind::operand(all.len(), "is missing"));
    };
    let rest = &all[2..];
    if !rest.len().is_multiple_of(parts) {
        return Err(NodeErrorKind::unsupported(format!(
            "{} operands are not a multiple of {parts} per tensor",
            rest.len()
        )));
    }
    let count = rest.len() / parts;
    let tensor = |i: usize| (0..parts).map(|p| rest[p * count + i]).collect();
    Ok(OptimizerOperands {
        rate: *rate,
        step: *step,
        tensors: (0..count).map(tensor).collect(),
    })
}

/// A scalar operand with the dtype of a tensor.
fn as_like(k: &mut ImportNode<'_, '_>, v: Value, like: Value) -> Result<Value, NodeErrorKind> {
    let to = k.dtype(like);
    let v = super::shape::reshaped(k.g(), v, &[])?;
    crate::emulated_dtypes::cast_to(k.g(), v, to)
}

/// `a x + b y`
fn blend(
    k: &mut ImportNode<'_, '_>,
    a: f64,
    x: Value,
    b: f64,
    y: Value,
) -> Result<Value, NodeErrorKind> {
    let (a, b) = (k.like(x, a)?, k.like(y, b)?);
    let (left, right) = (k.g().mul(x, a)?, k.g().mul(y, b)?);
    Ok(k.g().plus(left, right)?)
}

/// Whether the step is greater than 0.
fn is_later(k: &mut ImportNode<'_, '_>, step: Value) -> Result<Value, NodeErrorKind> {
    let step = super::shape::reshaped(k.g(), step, &[])?;
    let zero = k.like(step, 0.0)?;
    Ok(k.g().compare(CompareFn::Gt, step, zero)?)
}

/// Reorders results: the first results of all tensors, then the second ones.
fn by_part(results: Vec<Vec<Value>>) -> NodeOutputs {
    let parts = results.first().map_or(0, Vec::len);
    let part = |p: usize| results.iter().map(move |r| r[p].into());
    Ok((0..parts).flat_map(part).collect())
}

fn momentum(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (alpha, beta) = (number(k, "alpha")?, number(k, "beta")?);
    let norm = number(k, "norm_coefficient")?;
    let nesterov = match k.attrs.string("mode", "")?.as_str() {
        "standard" => false,
        "nesterov" => true,
        other => {
            return Err(NodeErrorKind::attribute(
                "mode",
                format!("expected standard or nesterov, found `{other}`"),
            ));
        }
    };
    let all = operands(k, 3)?;
    let later = is_later(k, all.step)?;
    let mut results = Vec::new();
    for own in &all.tensors {
        let [x, grad, v] = own[..] else { break };
        let rate = as_like(k, all.rate, x)?;
        let grad = blend(k, norm, x, 1.0, grad)?;
        // The first gradient has weight 1.
        let (first, rest) = (k.like(x, 1.0)?, k.like(x, beta)?);
        let share = k.g().where_(later, rest, first)?;
        let (alpha_, added) = (k.like(x, alpha)?, k.g().mul(grad, share)?);
        let kept = k.g().mul(v, alpha_)?;
        let v = k.g().plus(kept, added)?;
        let way = match nesterov {
            true => blend(k, 1.0, grad, alpha, v)?,
            false => v,
        };
        let way = k.g().mul(way, rate)?;
        results.push(vec![k.g().sub(x, way)?, v]);
    }
    by_part(results)
}

fn number(k: &ImportNode<'_, '_>, name: &str) -> Result<f64, NodeErrorKind> {
    let given = k.attrs.float_opt(name)?;
    given.ok_or_else(|| NodeErrorKind::attribute(name, "is required"))
}

fn adagrad(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (decay, epsilon) = (
        k.attrs.float("decay_factor", 0.0)?,
        k.attrs.float("epsilon", 1e-6)?,
    );
    let norm = k.attrs.float("norm_coefficient", 0.0)?;
    let all = operands(k, 3)?;
    let mut results = Vec::new();
    for own in &all.tensors {
        let [x, grad, sum] = own[..] else { break };
        let (rate, step) = (as_like(k, all.rate, x)?, as_like(k, all.step, x)?);
        let (decay, one_) = (k.like(x, decay)?, k.like(x, 1.0)?);
        let slower = k.g().mul(step, decay)?;
        let slower = k.g().plus(slower, one_)?;
        let rate = k.g().div(rate, slower)?;
        let grad = blend(k, norm, x, 1.0, grad)?;
        let square = k.g().mul(grad, grad)?;
        let sum = k.g().plus(sum, square)?;
        let epsilon = k.like(x, epsilon)?;
        let root = k.g().sqrt(sum)?;
        let root = k.g().plus(root, epsilon)?;
        let way = k.g().mul(grad, rate)?;
        let way = k.g().div(way, root)?;
        results.push(vec![k.g().sub(x, way)?, sum]);
    }
    by_part(results)
}

/// The bias correction `1 - base^step`.
fn missing(k: &mut ImportNode<'_, '_>, base: f64, step: Value) -> Result<Value, NodeErrorKind> {
    let (base, one_) = (k.like(step, base)?, k.like(step, 1.0)?);
    let power = k.g().binary(BinaryFn::Pow, base, step)?;
    Ok(k.g().sub(one_, power)?)
}

fn adam(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (alpha, beta) = (k.attrs.float("alpha", 0.9)?, k.attrs.float("beta", 0.999)?);
    let epsilon = k.attrs.float("epsilon", 1e-6)?;
    let norm = k.attrs.float("norm_coefficient", 0.0)?;
    let after = k.attrs.float("norm_coefficient_post", 0.0)?;
    let all = operands(k, 4)?;
    let later = is_later(k, all.step)?;
    let mut results = Vec::new();
    for own in &all.tensors {
        let [x, grad, mean, square] = own[..] else {
            break;
        };
        let grad = blend(k, norm, x, 1.0, grad)?;
        let mean = blend(k, alpha, mean, 1.0 - alpha, grad)?;
        let own_square = k.g().mul(grad, grad)?;
        let square = blend(k, beta, square, 1.0 - beta, own_square)?;
        let epsilon = k.like(x, epsilon)?;
        let root = k.g().sqrt(square)?;
        let root = k.g().plus(root, epsilon)?;
        // Moments start at 0, so they are bias-corrected from the first step on.
        let (rate, step) = (as_like(k, all.rate, x)?, as_like(k, all.step, x)?);
        let (mean_share, square_share) = (missing(k, alpha, step)?, missing(k, beta, step)?);
        let corrected = k.g().sqrt(square_share)?;
        let corrected = k.g().mul(rate, corrected)?;
        let corrected = k.g().div(corrected, mean_share)?;
        let rate = k.g().where_(later, corrected, rate)?;
        let way = k.g().div(mean, root)?;
        let way = k.g().mul(way, rate)?;
        let moved = k.g().sub(x, way)?;
        let kept = k.like(x, 1.0 - after)?;
        results.push(vec![k.g().mul(moved, kept)?, mean, square]);
    }
    by_part(results)
}
