//! Layer components shared by the Whisper encoder and decoder.

use tercet::Value;

use super::super::cross_attention::AttentionProjections;
use super::super::decoder::layer::activate;
use super::super::{ModelBuilder, ModelError};
use crate::config::FfnActivation;

/// Epsilon of the layer norms; the reference ignores the configuration here.
pub(super) const EPS: f64 = 1e-5;

/// Attention projections for this number of heads.
pub(super) fn projections(heads: usize, width: usize) -> AttentionProjections {
    AttentionProjections {
        // Keys have no bias: it would add the same constant to all scores of a query.
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
        rope: None,
    }
}

/// Layer norm with gain and bias.
pub(super) fn layer_norm(
    b: &mut ModelBuilder<'_>,
    name: &str,
    width: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let gain = b.vector(&format!("{name}.weight"), width)?;
    let bias = b.vector(&format!("{name}.bias"), width)?;
    let axis = b.graph.ty(x).rank() - 1;
    Ok(b.graph.layer_norm(x, gain, Some(bias), axis, EPS)?)
}

/// Residual sum.
pub(super) fn plus(b: &mut ModelBuilder<'_>, x: Value, y: Value) -> Result<Value, ModelError> {
    Ok(b.graph.plus(x, y)?)
}

/// Feed-forward block with its norm and residual connection.
pub(super) fn feed_forward(
    b: &mut ModelBuilder<'_>,
    (layer, ffn, width): (&str, usize, usize),
    activation: FfnActivation,
    x: Value,
) -> Result<Value, ModelError> {
    let h = layer_norm(b, &format!("{layer}.final_layer_norm"), width, x)?;
    let h = biased(b, &format!("{layer}.fc1"), h, [ffn, width])?;
    let h = activate(b, activation, h)?;
    let y = biased(b, &format!("{layer}.fc2"), h, [width, ffn])?;
    plus(b, x, y)
}

fn biased(
    b: &mut ModelBuilder<'_>,
    name: &str,
    x: Value,
    shape: [usize; 2],
) -> Result<Value, ModelError> {
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    b.linear(x, &weight, Some(&bias), shape)
}
