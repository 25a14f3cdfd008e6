//! Mixture of experts: a router sends each row to the experts with the highest scores.

use tercet::scalar::UnaryFn;
use tercet::{DType, Dim, Tensor, Value};

use super::super::trainable::WeightUse;
use super::super::weights::WeightMatrix;
use super::super::{ModelBuilder, ModelError, Weights};
use super::layer::{activate, linear};
use crate::config::decoder::{
    DecoderPart, DecoderSpec, EXPERT, ExpertGroups, ExpertTensors, Experts, FeedForward,
    FfnActivation, RouterScoring, SharedExpert,
};

/// Factor of the gate inside its sigmoid, for models with clamped gates.
const CLAMPED_GATE: f32 = 1.702;

/// Configuration shared by all functions of a mixture-of-experts layer.
#[derive(Clone, Copy)]
struct MoeContext<'a> {
    spec: &'a DecoderSpec,
    experts: &'a Experts,
    layer: usize,
    activation: FfnActivation,
    /// True if the experts have gate projections.
    gated: bool,
}

/// Mixture-of-experts output of a layer for `h`.
pub(super) fn experts(
    b: &mut ModelBuilder<'_>,
    (spec, experts): (&DecoderSpec, &Experts),
    layer: usize,
    h: Value,
) -> Result<Value, ModelError> {
    if let WeightUse::Full = b.mode {
        return Err(ModelError::Unsupported(
            "full fine-tuning of experts is not supported; train adapters on attention instead"
                .to_string(),
        ));
    }
    let (FeedForward::Gated(activation) | FeedForward::Plain(activation)) = spec.feed_forward;
    let of = MoeContext {
        spec,
        experts,
        layer,
        activation,
        gated: matches!(spec.feed_forward, FeedForward::Gated(_)),
    };
    let shape = b.graph.ty(h).shape.clone();
    let x = match shape.split_last() {
        Some((_, [_])) => h,
        Some(_) | None => {
            let rows = rows(&shape)?;
            b.graph.reshape(h, [rows, spec.hidden.into()])?
        }
    };
    let sum = routed(b, of, x)?;
    let sum = match experts.shared {
        Some(shared) => {
            let own = shared_expert(b, of, shared, x)?;
            b.graph.plus(sum, own)?
        }
        None => sum,
    };
    Ok(b.graph.reshape(sum, shape)?)
}

fn too_large() -> ModelError {
    ModelError::Unsupported("the batch is too large".to_string())
}

/// Product of all axes except the last.
fn rows(shape: &[Dim]) -> Result<Dim, ModelError> {
    let all = shape[..shape.len() - 1].iter();
    all.cloned()
        .try_fold(Dim::Known(1), |n, dim| n.checked_mul(&dim))
        .ok_or_else(too_large)
}

/// Weighted sum of the selected experts' outputs for each row of `x [n, hidden]`.
fn routed(b: &mut ModelBuilder<'_>, of: MoeContext<'_>, x: Value) -> Result<Value, ModelError> {
    let (n, used) = (b.graph.ty(x).shape[0].clone(), of.experts.used);
    let each = n.checked_mul(&Dim::Known(used)).ok_or_else(too_large)?;
    let [weights, expert] = route(b, of, x)?;
    let expert = b.graph.reshape(expert, [each.clone()])?;
    let (x, hidden) = match of.experts.latent {
        Some(width) => (
            linear(b, of.spec, DecoderPart::ExpertsIn, of.layer, x)?,
            width,
        ),
        None => (x, of.spec.hidden),
    };
    // Repeat each row once per selected expert.
    let x = b.graph.unsqueeze(x, 1)?;
    let x = b.graph.expand(x, [n.clone(), used.into(), hidden.into()])?;
    let x = b.graph.reshape(x, [each.clone(), hidden.into()])?;
    let h = match (of.gated, of.experts.stored.joins_gates()) {
        (true, true) => {
            let both = product(b, of, DecoderPart::ExpertGateUp, x, expert)?;
            let (gate, up) = halves(b, both, of.experts.ffn)?;
            gated(b, of, gate, up)?
        }
        (true, false) => {
            let gate = product(b, of, DecoderPart::ExpertGate, x, expert)?;
            let up = product(b, of, DecoderPart::ExpertUp, x, expert)?;
            gated(b, of, gate, up)?
        }
        (false, _) => {
            let up = product(b, of, DecoderPart::ExpertUp, x, expert)?;
            activate(b, of.activation, up)?
        }
    };
    // Without a bias the down projection is linear. The router weights can then multiply its input,
    // in the same elementwise kernel as the gate.
    let is_linear = !DecoderPart::ExpertDown.has_bias(of.spec);
    let h = match is_linear {
        true => {
            let weights = b.graph.reshape(weights, [each, 1.into()])?;
            b.graph.mul(h, weights)?
        }
        false => h,
    };
    let y = product(b, of, DecoderPart::ExpertDown, h, expert)?;
    let y = b.graph.reshape(y, [n, used.into(), hidden.into()])?;
    let y = match is_linear {
        true => y,
        false => {
            let weights = b.graph.unsqueeze(weights, 2)?;
            b.graph.mul(y, weights)?
        }
    };
    let y = b.graph.reduce_sum(y, &[1], false)?;
    match of.experts.latent {
        Some(_) => linear(b, of.spec, DecoderPart::ExpertsOut, of.layer, y),
        None => Ok(y),
    }
}

/// Splits a fused projection into its gate columns and its up columns.
fn halves(b: &mut ModelBuilder<'_>, both: Value, ffn: usize) -> Result<(Value, Value), ModelError> {
    let gate = b.graph.narrow(both, 1, 0, ffn)?;
    Ok((gate, b.graph.narrow(both, 1, ffn, ffn)?))
}

fn gated(
    b: &mut ModelBuilder<'_>,
    of: MoeContext<'_>,
    gate: Value,
    up: Value,
) -> Result<Value, ModelError> {
    let Some(most) = of.experts.clamp else {
        let gate = activate(b, of.activation, gate)?;
        return Ok(b.graph.mul(gate, up)?);
    };
    let most = f64::from(most);
    let gate = b.graph.clamp(gate, f64::NEG_INFINITY, most)?;
    let up = b.graph.clamp(up, -most, most)?;
    let inside = b.times(gate, CLAMPED_GATE)?;
    let inside = b.graph.unary(UnaryFn::Sigmoid, inside)?;
    let gate = b.graph.mul(gate, inside)?;
    let one = b.graph.scalar(DType::F32, 1.0)?;
    let up = b.graph.plus(up, one)?;
    Ok(b.graph.mul(gate, up)?)
}

/// Router: weights and indices of the selected experts of each row, both `[n, used]`.
fn route(b: &mut ModelBuilder<'_>, of: MoeContext<'_>, x: Value) -> Result<[Value; 2], ModelError> {
    let Experts {
        used,
        count,
        scores,
        router_bias: choice_bias,
        groups,
        normalized,
        scale,
        ..
    } = *of.experts;
    let logits = linear(b, of.spec, DecoderPart::Router, of.layer, x)?;
    let scores = match scores {
        RouterScoring::Softmax => b.graph.softmax(logits, 1)?,
        RouterScoring::Sigmoid => b.graph.unary(UnaryFn::Sigmoid, logits)?,
    };
    let mut choice = scores;
    if choice_bias {
        let name = DecoderPart::RouterBias.name(of.spec, b.weights, of.layer, "weight");
        let bias = b.vector(&name, count)?;
        choice = b.graph.plus(choice, bias)?;
    }
    if let Some(groups) = groups {
        choice = in_groups(b, choice, count, groups)?;
    }
    let top = b.graph.top_k(choice, used, 1, true)?;
    let expert = top.port(1);
    let weights = match choice == scores {
        true => top,
        false => b.graph.gather_elements(scores, expert, 1)?,
    };
    let weights = match normalized {
        true => {
            let sum = b.graph.reduce_sum(weights, &[1], true)?;
            b.graph.div(weights, sum)?
        }
        false => weights,
    };
    Ok([b.times(weights, scale.unwrap_or(1.0))?, expert])
}

/// Group-limited routing: scores `[n, count]` with minus infinity for experts outside the selected
/// groups.
fn in_groups(
    b: &mut ModelBuilder<'_>,
    scores: Value,
    count: usize,
    groups: ExpertGroups,
) -> Result<Value, ModelError> {
    let n = b.graph.ty(scores).shape[0].clone();
    let size = count / groups.count;
    let shape = [n.clone(), groups.count.into(), size.into()];
    let apart = b.graph.reshape(scores, shape.clone())?;
    let best = b.graph.top_k(apart, groups.best, 2, true)?;
    let best = b.graph.reduce_sum(best, &[2], false)?;
    let best = b.graph.top_k(best, groups.used, 1, true)?;
    // A group is selected if its index equals any selected index: the maximum of these comparisons,
    // as 0 or 1.
    let own = b.graph.unsqueeze(best.port(1), 2)?;
    let all: Vec<i32> = (0..groups.count as i32).collect();
    let all = Tensor::from_slice(&[1, 1, groups.count], &all);
    let all = all.map_err(|e| super::super::weights::bytes_error("groups of experts", e))?;
    let all = b.graph.constant(all)?;
    let is_best = b.graph.equal(own, all)?;
    let is_best = b.graph.cast(is_best, DType::F32)?;
    let is_best = b.graph.reduce_max(is_best, &[1], false)?;
    let is_best = b.graph.cast(is_best, DType::Bool)?;
    let is_best = b.graph.unsqueeze(is_best, 2)?;
    let never = b.graph.scalar(DType::F32, f64::NEG_INFINITY)?;
    let kept = b.graph.where_(is_best, apart, never)?;
    Ok(b.graph.reshape(kept, [n, count.into()])?)
}

/// Output of the shared expert, which processes every row. The output is multiplied by the sigmoid
/// of the expert's score, if the model has one.
fn shared_expert(
    b: &mut ModelBuilder<'_>,
    of: MoeContext<'_>,
    shared: SharedExpert,
    x: Value,
) -> Result<Value, ModelError> {
    let MoeContext {
        spec,
        layer,
        activation,
        gated,
        ..
    } = of;
    let (gate, up) = match (gated, shared.fused) {
        (true, true) => {
            let both = linear(b, spec, DecoderPart::SharedGateUp, layer, x)?;
            let (gate, up) = halves(b, both, shared.ffn)?;
            (gate, Some(up))
        }
        (true, false) => (
            linear(b, spec, DecoderPart::SharedGate, layer, x)?,
            Some(linear(b, spec, DecoderPart::SharedUp, layer, x)?),
        ),
        (false, _) => (linear(b, spec, DecoderPart::SharedUp, layer, x)?, None),
    };
    let gate = activate(b, activation, gate)?;
    let h = match up {
        Some(up) => b.graph.mul(gate, up)?,
        None => gate,
    };
    let y = linear(b, spec, DecoderPart::SharedDown, layer, h)?;
    if !shared.scored {
        return Ok(y);
    }
    let score = linear(b, spec, DecoderPart::SharedScore, layer, x)?;
    let score = b.graph.unary(UnaryFn::Sigmoid, score)?;
    Ok(b.graph.mul(y, score)?)
}

/// Multiplies each row of `x` by the matrix of its expert index and adds that expert's bias.
fn product(
    b: &mut ModelBuilder<'_>,
    of: MoeContext<'_>,
    part: DecoderPart,
    x: Value,
    expert: Value,
) -> Result<Value, ModelError> {
    let MoeContext {
        spec,
        experts,
        layer,
        ..
    } = of;
    let [rows, cols] = part.shape(spec);
    let count = experts.count;
    let name = part.name(spec, b.weights, layer, "weight");
    let is_turned = experts.stored == ExpertTensors::TransposedPairs;
    let pairs = is_turned && part == DecoderPart::ExpertGateUp;
    let matrix = match (b.weights, is_turned) {
        (Weights::Hf(_), true) => {
            let pieces = ["blocks", "scales"].map(|s| part.name(spec, b.weights, layer, s));
            b.weights
                .transposed_experts((&name, &pieces), [count, rows, cols], pairs)?
        }
        (Weights::Hf(_), false) if name.contains(EXPERT) => {
            let of = |e: usize| name.replace(EXPERT, &e.to_string());
            let names: Vec<String> = (0..count).map(of).collect();
            b.weights.experts(&names, [count, rows, cols])?
        }
        _ => b
            .weights
            .experts(std::slice::from_ref(&name), [count, rows, cols])?,
    };
    let factor = b.weights.factor(&name)?.unwrap_or(1.0);
    let y = match b.stored_for_training(&name, matrix)? {
        WeightMatrix::Dense(tensor) => {
            let w = b.param(&name, tensor)?;
            let w = b.graph.transpose(w, &[0, 2, 1])?;
            b.graph.grouped_matmul(x, w, expert)?
        }
        WeightMatrix::Packed(scheme, tensor) => {
            let w = b.param(&name, tensor)?;
            b.graph.dequant_grouped_matmul(x, w, expert, scheme)?
        }
    };
    let y = b.times(y, factor)?;
    if !part.has_bias(spec) {
        return Ok(y);
    }
    let name = part.name(spec, b.weights, layer, "bias");
    let mut bias = b.weights.dense_f32(&name, &[count, rows])?;
    if pairs {
        super::super::weight_transforms::part_pairs(&name, &mut bias)?;
    }
    let bias = b.param(&name, bias)?;
    let bias = b.graph.gather(bias, expert, 0)?;
    Ok(b.graph.plus(y, bias)?)
}
