//! The parts of a layer, of encoder and decoder alike.

use tercet::ops::{AttentionOptions, Layout};
use tercet::{DType, Dim, Type, Value};

use super::super::decoder::attention::append;
use super::super::decoder::layer::activate;
use super::super::{Builder, ModelError};
use crate::config::Activation;

/// What layer norms add to variances, whatever the configuration says.
const EPS: f64 = 1e-5;

/// Where keys and values come from.
pub(super) enum Keys {
    /// The rows themselves.
    Own,
    /// The rows, appended to those before, of `context` at most.
    Cached {
        layer: usize,
        context: usize,
        start: Value,
        kv_len: Value,
    },
    /// Elsewhere, `[1, positions, heads, head_dim]`.
    Given([Value; 2]),
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

/// Attention of `h`, `[.., len, width]`, projected; of this name, number of heads and width.
pub(super) fn attend(
    b: &mut Builder<'_>,
    (name, heads, width): (&str, usize, usize),
    h: Value,
    len: &Dim,
    keys: Keys,
) -> Result<Value, ModelError> {
    let shape = b.graph.ty(h).shape.clone();
    let q = biased(b, &format!("{name}.q_proj"), h, [width, width])?;
    let q = by_head(b, q, len, heads, width)?;
    let of = (name, heads, width);
    let options = AttentionOptions::new(heads, heads, Layout::Bshd);
    let (k, v, options) = match keys {
        Keys::Own => {
            let [k, v] = keys_and_values(b, of, h, len)?;
            (k, v, options)
        }
        Keys::Cached {
            layer,
            context,
            start,
            kv_len,
        } => {
            let [k, v] = keys_and_values(b, of, h, len)?;
            let ty = Type::new(DType::F32, [1, context, heads, width / heads]);
            let k = append(b, &format!("cache.{layer}.k"), k, &ty, start)?;
            let v = append(b, &format!("cache.{layer}.v"), v, &ty, start)?;
            (k, v, options.causal().kv_len(kv_len))
        }
        Keys::Given([k, v]) => (k, v, options),
    };
    let y = b.graph.attention(q, k, v, options)?;
    let y = b.graph.reshape(y, shape)?;
    biased(b, &format!("{name}.out_proj"), y, [width, width])
}

/// Keys and values of `h` by head, `[1, len, heads, head_dim]`.
pub(super) fn keys_and_values(
    b: &mut Builder<'_>,
    (name, heads, width): (&str, usize, usize),
    h: Value,
    len: &Dim,
) -> Result<[Value; 2], ModelError> {
    // Keys alone have no bias: it would add the same to all scores of a query.
    let k = b.linear(h, &format!("{name}.k_proj.weight"), None, [width, width])?;
    let v = biased(b, &format!("{name}.v_proj"), h, [width, width])?;
    Ok([
        by_head(b, k, len, heads, width)?,
        by_head(b, v, len, heads, width)?,
    ])
}

fn by_head(
    b: &mut Builder<'_>,
    x: Value,
    len: &Dim,
    heads: usize,
    width: usize,
) -> Result<Value, ModelError> {
    let shape = [
        Dim::Known(1),
        len.clone(),
        heads.into(),
        (width / heads).into(),
    ];
    Ok(b.graph.reshape(x, shape)?)
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
