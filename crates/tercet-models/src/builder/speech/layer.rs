//! The parts of a layer, of encoder and decoder alike.

use tercet::Value;

use super::super::cross::Projections;
use super::super::decoder::layer::activate;
use super::super::{Builder, ModelError};
use crate::config::Activation;

/// What layer norms add to variances, whatever the configuration says.
pub(super) const EPS: f64 = 1e-5;

/// The projections of an attention of so many heads.
pub(super) fn projections(heads: usize, width: usize) -> Projections {
    Projections {
        // Keys alone have no bias: it would add the same to all scores of a query.
        names: [
            ("q_proj", true),
            ("k_proj", false),
            ("v_proj", true),
            ("out_proj", true),
        ],
        heads,
        head_dim: width / heads,
        width,
        scale: None,
        turn: None,
    }
}

/// A layer norm with gain and bias.
pub(super) fn layer_norm(
    b: &mut Builder<'_>,
    name: &str,
    width: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let gain = b.vector(&format!("{name}.weight"), width)?;
    let bias = b.vector(&format!("{name}.bias"), width)?;
    let axis = b.graph.ty(x).rank() - 1;
    Ok(b.graph.layer_norm(x, gain, Some(bias), axis, EPS)?)
}

/// A residual sum.
pub(super) fn plus(b: &mut Builder<'_>, x: Value, y: Value) -> Result<Value, ModelError> {
    Ok(b.graph.plus(x, y)?)
}

/// `x` and the feed-forward network of its norm.
pub(super) fn feed_forward(
    b: &mut Builder<'_>,
    (layer, ffn, width): (&str, usize, usize),
    activation: Activation,
    x: Value,
) -> Result<Value, ModelError> {
    let h = layer_norm(b, &format!("{layer}.final_layer_norm"), width, x)?;
    let h = biased(b, &format!("{layer}.fc1"), h, [ffn, width])?;
    let h = activate(b, activation, h)?;
    let y = biased(b, &format!("{layer}.fc2"), h, [width, ffn])?;
    plus(b, x, y)
}

fn biased(
    b: &mut Builder<'_>,
    name: &str,
    x: Value,
    shape: [usize; 2],
) -> Result<Value, ModelError> {
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    b.linear(x, &weight, Some(&bias), shape)
}
