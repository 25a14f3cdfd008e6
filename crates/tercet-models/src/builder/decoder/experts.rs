//! Experts in place of a feed-forward network: rows go through the matrices that their greatest scores name.

use tercet::scalar::UnaryFn;
use tercet::{Dim, Value};

use super::super::tuned::Mode;
use super::super::weights::Matrix;
use super::super::{Builder, ModelError, Weights};
use super::layer::{activate, linear};
use crate::config::decoder::{Activation, DecoderSpec, EXPERT, Experts, FeedForward, Part};

/// A layer's experts of `h`.
pub(super) fn experts(
    b: &mut Builder<'_>,
    (spec, experts): (&DecoderSpec, &Experts),
    layer: usize,
    h: Value,
) -> Result<Value, ModelError> {
    if let Mode::Full = b.mode {
        return Err(ModelError::Unsupported(
            "experts are not trained whole; adapters of attention are possible".to_string(),
        ));
    }
    let (FeedForward::Gated(activation) | FeedForward::Plain(activation)) = spec.feed_forward;
    let shape = b.graph.ty(h).shape.clone();
    let x = match shape.split_last() {
        Some((_, [_])) => h,
        Some(_) | None => {
            let rows = rows(&shape)?;
            b.graph.reshape(h, [rows, spec.hidden.into()])?
        }
    };
    let sum = routed(b, (spec, experts), (layer, activation), x)?;
    let sum = match experts.shared {
        Some(_) => {
            let own = shared(b, spec, (layer, activation), x)?;
            b.graph.plus(sum, own)?
        }
        None => sum,
    };
    Ok(b.graph.reshape(sum, shape)?)
}

/// All axes but the last as one.
fn rows(shape: &[Dim]) -> Result<Dim, ModelError> {
    let all = shape[..shape.len() - 1].iter();
    all.cloned()
        .try_fold(Dim::Known(1), |n, dim| n.checked_mul(&dim))
        .ok_or_else(|| ModelError::Unsupported("a batch that is too large".to_string()))
}

/// Each row of `x [n, hidden]` through the experts of its greatest scores, added by their probabilities.
fn routed(
    b: &mut Builder<'_>,
    (spec, experts): (&DecoderSpec, &Experts),
    (layer, activation): (usize, Activation),
    x: Value,
) -> Result<Value, ModelError> {
    let (n, used) = (b.graph.ty(x).shape[0].clone(), experts.used);
    let each = n
        .checked_mul(&Dim::Known(used))
        .ok_or_else(|| ModelError::Unsupported("a batch that is too large".to_string()))?;
    let scores = linear(b, spec, Part::Router, layer, x)?;
    let scores = b.graph.softmax(scores, 1)?;
    let top = b.graph.top_k(scores, used, 1, true)?;
    let expert = b.graph.reshape(top.port(1), [each.clone()])?;
    let weights = match experts.normalized {
        true => {
            let sum = b.graph.reduce_sum(top, &[1], true)?;
            b.graph.div(top, sum)?
        }
        false => top,
    };
    // A row for each of its experts.
    let x = b.graph.unsqueeze(x, 1)?;
    let x = b
        .graph
        .expand(x, [n.clone(), used.into(), spec.hidden.into()])?;
    let x = b.graph.reshape(x, [each, spec.hidden.into()])?;
    let gate = product(b, (spec, experts), (Part::ExpertGate, layer), x, expert)?;
    let up = product(b, (spec, experts), (Part::ExpertUp, layer), x, expert)?;
    let gate = activate(b, activation, gate)?;
    let h = b.graph.mul(gate, up)?;
    let y = product(b, (spec, experts), (Part::ExpertDown, layer), h, expert)?;
    let y = b
        .graph
        .reshape(y, [n.clone(), used.into(), spec.hidden.into()])?;
    let weights = b.graph.unsqueeze(weights, 2)?;
    let y = b.graph.mul(y, weights)?;
    Ok(b.graph.reduce_sum(y, &[1], false)?)
}

/// The expert that all rows go through, times the sigmoid of its score.
fn shared(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    (layer, activation): (usize, Activation),
    x: Value,
) -> Result<Value, ModelError> {
    let gate = linear(b, spec, Part::SharedGate, layer, x)?;
    let up = linear(b, spec, Part::SharedUp, layer, x)?;
    let gate = activate(b, activation, gate)?;
    let h = b.graph.mul(gate, up)?;
    let y = linear(b, spec, Part::SharedDown, layer, h)?;
    let score = linear(b, spec, Part::SharedScore, layer, x)?;
    let score = b.graph.unary(UnaryFn::Sigmoid, score)?;
    Ok(b.graph.mul(y, score)?)
}

/// Each row of `x` times the matrix of the expert that its index names.
fn product(
    b: &mut Builder<'_>,
    (spec, experts): (&DecoderSpec, &Experts),
    (part, layer): (Part, usize),
    x: Value,
    expert: Value,
) -> Result<Value, ModelError> {
    let [rows, cols] = part.shape(spec);
    let name = part.name(spec, b.weights, layer, "weight");
    let names: Vec<String> = match b.weights {
        Weights::Gguf(_) | Weights::MadeUp(_) => vec![name.clone()],
        Weights::Hf(_) => (0..experts.count)
            .map(|e| name.replace(EXPERT, &e.to_string()))
            .collect(),
    };
    let factor = b.weights.factor(&name)?.unwrap_or(1.0);
    let y = match b.weights.experts(&names, [experts.count, rows, cols])? {
        Matrix::Dense(tensor) => {
            let w = b.param(&name, tensor)?;
            let w = b.graph.transpose(w, &[0, 2, 1])?;
            b.graph.grouped_matmul(x, w, expert)?
        }
        Matrix::Packed(scheme, tensor) => {
            let w = b.param(&name, tensor)?;
            b.graph.dequant_grouped_matmul(x, w, expert, scheme)?
        }
    };
    b.times(y, factor)
}
