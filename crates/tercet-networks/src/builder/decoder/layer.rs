//! Decoder layer components, independent of the weight mode ([`ModelBuilder`]) and the attention mode
//! ([`AttentionMode`]).

use tercet::ops::AttentionMask;
use tercet::scalar::UnaryFn;
use tercet::{DType, Dim, Tensor, TensorType, Value};

use super::super::trainable::{ProjectionSite, WeightUse};
use super::super::{ModelBuilder, ModelError};
use super::attention::attention;
use super::cache::CacheFormat;
use super::experts::experts;
use super::states::scan;
use super::windows::ordered::WindowCache;
use super::windows::rings::SlotWindow;
use crate::config::decoder::rows::ProjectionRowOrder;
use crate::config::decoder::{
    DecoderPart, DecoderSpec, FeedForward, FfnActivation, Mixer, NormKind, NormPlacement,
    ResidualOrder, RopeSpec,
};

/// Attention mode of a layer: single sequence, batch of slots, or full sequences without a cache.
pub(crate) enum AttentionMode {
    /// One sequence with a KV cache: the rows of `x` are appended to caches with this capacity and
    /// format.
    Cached {
        start: Value,
        kv_len: Value,
        context: usize,
        format: CacheFormat,
        /// Filled part of the caches, for caches that are dequantized before attention.
        visible: Option<VisibleCache>,
        /// Window caches of layers that cache fewer positions than the context.
        windows: Vec<WindowCache>,
    },
    /// Batch of slots: the rows of `x` are one new token of several sequences, or a prefill chunk
    /// of one prompt, followed by padding rows. Each sequence has a slot; caches have a leading
    /// slot axis.
    Slots {
        /// Row indices of each slot, for layers that compute each slot separately.
        slots: Vec<SlotInputs>,
        rows: Box<SlotRows>,
        /// Window caches of layers that cache fewer positions than the context.
        windows: Vec<SlotWindow>,
        /// Number of padding rows.
        idle: Dim,
        /// I32 `[4]` zeros: start indices of slices that begin at the first row.
        origin: Value,
        context: usize,
        format: CacheFormat,
    },
    /// Full sequences without a cache; `x` has a batch axis.
    FullSequences {
        /// Attention mask for each window size of the model's layers.
        masks: Vec<(Option<usize>, AttentionMask)>,
        /// Length of each sequence, I32 `[batch]`, if the masks do not include it.
        kv_len: Option<Value>,
    },
}

/// Filled prefix of a KV cache.
pub(crate) struct VisibleCache {
    /// Number of filled positions, as a symbolic axis.
    pub(crate) positions: Dim,
    /// I32 `[4]` zeros: start indices of the slice.
    pub(crate) origin: Value,
}

/// Inputs of a run for one slot, all I32.
pub(crate) struct SlotInputs {
    /// Indices of the slot's rows, `[s]`.
    pub(crate) rows: Value,
    /// Start indices, `[4]`; the second element is the position of the slot's first row.
    pub(crate) start: Value,
}

/// Inputs of a run that map rows to slots, all I32.
pub(crate) struct SlotRows {
    /// Number of slots.
    pub(crate) count: usize,
    /// Slot and position of each row, `[n, 2]`; padding rows use the last cache position.
    pub(crate) places: Value,
    /// Row of each slot's new token, `[slots]`. The next field contains the filled positions of
    /// each slot after this run, `[slots]`.
    pub(crate) row_of_slot: Value,
    pub(crate) kv_lens: Value,
    /// Attention result of each row, `[n]`: the slot of a new token, or the number of slots plus the
    /// index in the prefill chunk. Any for padding rows.
    pub(crate) source_of_row: Value,
    /// Rows of a prefill chunk, `[s]`. The next fields are the start indices of the chunk's slot,
    /// `[4]`, and the filled positions after this run, as a scalar and as a symbolic axis.
    pub(crate) prompt_rows: Value,
    pub(crate) prompt_start: Value,
    pub(crate) prompt_len: Value,
    pub(crate) prompt_visible: Dim,
    /// Longest filled length of all slots, as a symbolic axis, for caches that are dequantized
    /// before attention.
    pub(crate) slots_visible: Option<Dim>,
}

/// Values computed once per run and read by every layer.
pub(crate) struct ForwardContext {
    pub(crate) attend: AttentionMode,
    /// Cosines and sines of each RoPE configuration of the model.
    pub(crate) ropes: Vec<[Value; 2]>,
    /// Factors of the queries by position, F32, with two trailing axes of length 1.
    pub(crate) query_scales: Option<Value>,
    pub(crate) batch: Dim,
    pub(crate) len: Dim,
}

impl ForwardContext {
    /// Shape of activation rows with this width.
    pub(super) fn rows(&self, width: usize) -> tercet::Shape {
        match self.attend {
            AttentionMode::Cached { .. } | AttentionMode::Slots { .. } => {
                [self.len.clone(), width.into()].into()
            }
            AttentionMode::FullSequences { .. } => {
                [self.batch.clone(), self.len.clone(), width.into()].into()
            }
        }
    }
}

/// Maximum context: F32 represents integers exactly up to this position.
pub(crate) const MAX_CONTEXT: usize = 1 << 24;

/// F32 cosines and sines for the positions of this run, for each RoPE configuration. The last axis
/// has length `rope_dims / 2`; the axes before it are those of `positions`.
pub(crate) fn rope_tables(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    context: usize,
    positions: Value,
) -> Result<Vec<[Value; 2]>, ModelError> {
    let tables = |rope| rope_table(b, rope, [spec.rope_dims, context], positions);
    spec.ropes.iter().map(tables).collect()
}

/// RoPE table with frequencies and angles in F32, as in the reference implementations.
pub(crate) fn rope_table(
    b: &mut ModelBuilder<'_>,
    rope: &RopeSpec,
    [dims, context]: [usize; 2],
    positions: Value,
) -> Result<[Value; 2], ModelError> {
    // Compute the frequencies once for all positions: `pow` dominates the time of long tables.
    let (frequencies, factor) = rope.frequencies(dims, context);
    let ty = TensorType::new(DType::F32, &[context, dims / 2]);
    let mut gather = |f: fn(f32) -> f32| -> Result<Value, ModelError> {
        let mut table = Tensor::zeros(ty.clone()).map_err(ModelError::RopeTables)?;
        let elements = table
            .as_slice_mut::<f32>()
            .expect("invariant: the table was made of F32");
        let angles = (0..context).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        elements
            .iter_mut()
            .zip(angles)
            .for_each(|(to, a)| *to = factor * f(a));
        let table = b.graph.constant(table)?;
        Ok(b.graph.gather(table, positions, 0)?)
    };
    Ok([gather(f32::cos)?, gather(f32::sin)?])
}

/// Query factors for the positions of this run, if the model scales queries by position.
pub(crate) fn query_scales(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    context: usize,
    positions: Value,
) -> Result<Option<Value>, ModelError> {
    let Some(growth) = spec.attention.temperature else {
        return Ok(None);
    };
    let factors: Vec<f32> = (0..context).map(|p| growth.at(p)).collect();
    let table = Tensor::from_slice(&[context, 1, 1], &factors).map_err(ModelError::RopeTables)?;
    let table = b.graph.constant(table)?;
    Ok(Some(b.graph.gather(table, positions, 0)?))
}

/// Token embeddings times the model's embedding factor, plus position embeddings if the model has
/// them.
pub(crate) fn embed(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    tokens: Value,
    positions: Value,
) -> Result<Value, ModelError> {
    let name = DecoderPart::Embedding.name(spec, b.weights, 0, "weight");
    let x = b.embedding(tokens, &name, DecoderPart::Embedding.shape(spec))?;
    let x = b.times(x, spec.scales.embedding)?;
    if !spec.has_learned_positions() {
        return Ok(x);
    }
    let name = DecoderPart::Positions.name(spec, b.weights, 0, "weight");
    let of_positions = b.embedding(positions, &name, DecoderPart::Positions.shape(spec))?;
    Ok(b.graph.plus(x, of_positions)?)
}

/// Norm of `x` with the gain of the model part `part`.
pub(crate) fn norm(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    part: DecoderPart,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let [_, len] = part.shape(spec);
    let gain = gain(b, spec, &part.name(spec, b.weights, layer, "weight"), len)?;
    let bias = match part.has_bias(spec) {
        true => Some(b.vector(&part.name(spec, b.weights, layer, "bias"), len)?),
        false => None,
    };
    let eps = f64::from(spec.norm.eps);
    match spec.norm.kind {
        NormKind::Rms => Ok(b.graph.rms_norm(x, gain, bias, eps)?),
        NormKind::Layer => {
            let axis = b.graph.ty(x).shape.len() - 1;
            Ok(b.graph.layer_norm(x, gain, bias, axis, eps)?)
        }
    }
}

/// Gain of a norm. If files store `gain - 1`, 1 is added: in the graph if the gain is trained,
/// otherwise once in F32 at build time.
fn gain(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    name: &str,
    len: usize,
) -> Result<Value, ModelError> {
    if !spec.norm.one_plus {
        return b.vector(name, len);
    }
    if let WeightUse::Full = b.mode {
        let gain = b.vector(name, len)?;
        let one = b.graph.scalar(DType::F32, 1.0)?;
        return Ok(b.graph.plus(gain, one)?);
    }
    let mut gain = b.weights.dense_f32(name, &[len])?;
    let elements = gain.as_slice_mut::<f32>();
    let elements = elements.map_err(|e| super::super::weights::bytes_error(name, e))?;
    elements.iter_mut().for_each(|x| *x += 1.0);
    b.param(name, gain)
}

/// Soft cap of logits or scores: `c tanh(x / c)`.
pub(crate) fn soft_cap(
    b: &mut ModelBuilder<'_>,
    x: Value,
    cap: Option<f64>,
) -> Result<Value, ModelError> {
    let Some(cap) = cap else {
        return Ok(x);
    };
    let x = b.times(x, (1.0 / cap) as f32)?;
    let x = b.graph.unary(UnaryFn::Tanh, x)?;
    b.times(x, cap as f32)
}

/// Logits of normalized hidden rows.
pub(crate) fn head(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    x: Value,
) -> Result<Value, ModelError> {
    let part = match spec.tied_embeddings {
        true => DecoderPart::Embedding,
        false => DecoderPart::Output,
    };
    let shape = DecoderPart::Output.shape(spec);
    let bias = DecoderPart::Output.has_bias(spec);
    let bias = bias.then(|| DecoderPart::Output.name(spec, b.weights, 0, "bias"));
    let name = part.name(spec, b.weights, 0, "weight");
    let logits = b.linear(x, &name, bias.as_deref(), shape)?;
    let site = ProjectionSite {
        module: &DecoderPart::Output.module(spec, 0),
        shape,
        rows: ProjectionRowOrder::Plain,
        layer: false,
    };
    let logits = b.adapted(x, logits, &site)?;
    let logits = b.times(logits, spec.scales.logits)?;
    soft_cap(b, logits, spec.scales.logit_softcap)
}

/// Projection that adapters do not apply to.
pub(super) fn linear(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    part: DecoderPart,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let bias = part.has_bias(spec);
    let bias = bias.then(|| part.name(spec, b.weights, layer, "bias"));
    let weight = part.name(spec, b.weights, layer, "weight");
    b.linear(x, &weight, bias.as_deref(), part.shape(spec))
}

/// Projection with the contributions of adapters.
pub(super) fn project(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    part: DecoderPart,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let y = linear(b, spec, part, layer, x)?;
    let shape = part.shape(spec);
    let site = ProjectionSite {
        module: &part.module(spec, layer),
        shape,
        rows: part.rows(spec),
        layer: true,
    };
    b.adapted(x, y, &site)
}

/// Output of a decoder layer for the hidden rows `x`.
pub(crate) fn layer(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    shared: &ForwardContext,
    at: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let before = spec.placement != NormPlacement::After;
    let of = spec.layers[at];
    let (sum, h) = match of.mixer {
        Mixer::None => (x, x),
        Mixer::Attention | Mixer::StateSpace | Mixer::Both => {
            let h = match before {
                true => norm(b, spec, DecoderPart::AttentionNorm, at, x)?,
                false => x,
            };
            let y = match of.mixer {
                Mixer::StateSpace => scan(b, spec, shared, at, h)?,
                Mixer::Attention | Mixer::None => attention(b, spec, shared, at, h)?,
                Mixer::Both => {
                    let scanned = scan(b, spec, shared, at, h)?;
                    let attended = attention(b, spec, shared, at, h)?;
                    b.graph.plus(scanned, attended)?
                }
            };
            (
                added(b, spec, (DecoderPart::AttentionPostNorm, at), x, y)?,
                h,
            )
        }
    };
    if !of.feed_forward {
        return Ok(sum);
    }
    let h = match (spec.residual, before) {
        (ResidualOrder::Parallel, _) => h,
        (ResidualOrder::ParallelNorms, true) => norm(b, spec, DecoderPart::FfnNorm, at, x)?,
        (ResidualOrder::ParallelNorms, false) => x,
        (ResidualOrder::Serial, true) => norm(b, spec, DecoderPart::FfnNorm, at, sum)?,
        (ResidualOrder::Serial, false) => sum,
    };
    let y = feed_forward(b, spec, shared, at, h)?;
    added(b, spec, (DecoderPart::FfnPostNorm, at), sum, y)
}

/// Residual connection: `x` plus the sublayer output `y`, which is normalized first if the model
/// has post-norms.
fn added(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    (after, at): (DecoderPart, usize),
    x: Value,
    y: Value,
) -> Result<Value, ModelError> {
    let y = match spec.placement {
        NormPlacement::Before => y,
        NormPlacement::After | NormPlacement::Around => norm(b, spec, after, at, y)?,
    };
    let y = b.drop(y)?;
    let y = b.times(y, spec.scales.residual)?;
    Ok(b.graph.plus(x, y)?)
}

pub(crate) fn activate(
    b: &mut ModelBuilder<'_>,
    activation: FfnActivation,
    x: Value,
) -> Result<Value, ModelError> {
    if activation == FfnActivation::ReluSquared {
        let x = b.graph.relu(x)?;
        return Ok(b.graph.mul(x, x)?);
    }
    let f = match activation {
        FfnActivation::Silu => UnaryFn::Silu,
        FfnActivation::Gelu => UnaryFn::Gelu,
        FfnActivation::GeluTanh => UnaryFn::GeluTanh,
        FfnActivation::Relu | FfnActivation::ReluSquared => UnaryFn::Relu,
        FfnActivation::Tanh => UnaryFn::Tanh,
        FfnActivation::Relu6 => UnaryFn::Relu6,
        FfnActivation::Sigmoid => UnaryFn::Sigmoid,
        FfnActivation::Identity => return Ok(x),
        FfnActivation::GeluQuick => {
            let scaled = b.times(x, 1.702)?;
            let y = b.graph.unary(UnaryFn::Silu, scaled)?;
            return b.times(y, 1.0 / 1.702);
        }
    };
    Ok(b.graph.unary(f, x)?)
}

/// Applies `f` to the rows `h` `[n, width]`, separately for each slot in batch mode. `f` returns
/// F32 rows of the same width.
fn by_slot(
    b: &mut ModelBuilder<'_>,
    shared: &ForwardContext,
    h: Value,
    mut f: impl FnMut(&mut ModelBuilder<'_>, Value) -> Result<Value, ModelError>,
) -> Result<Value, ModelError> {
    let AttentionMode::Slots {
        slots,
        idle,
        origin,
        ..
    } = &shared.attend
    else {
        return f(b, h);
    };
    let mut parts = Vec::with_capacity(slots.len() + 1);
    for slot in slots {
        let own = b.graph.gather(h, slot.rows, 0)?;
        parts.push(f(b, own)?);
    }
    let width = b.graph.ty(h).shape[1].clone();
    let zero = b.graph.scalar(DType::F32, 0.0)?;
    parts.push(b.graph.expand(zero, [idle.clone(), width.clone()])?);
    let all = b.graph.concat(&parts, 0)?;
    let starts = b.graph.narrow(*origin, 0, 0, 2)?;
    Ok(b.graph
        .dynamic_slice(all, starts, [shared.len.clone(), width])?)
}

/// Feed-forward output of a layer for `h`.
fn feed_forward(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    shared: &ForwardContext,
    layer: usize,
    h: Value,
) -> Result<Value, ModelError> {
    if let (Some(of), true) = (spec.experts, spec.layers[layer].experts) {
        // Experts group rows by expert. Computing each slot separately makes the result independent
        // of other slots.
        return by_slot(b, shared, h, |b, h| experts(b, (spec, &of), layer, h));
    }
    let [of_gate, after] = spec.scales.multipliers.feed_forward;
    let h = match spec.feed_forward {
        FeedForward::Plain(activation) => {
            let up = project(b, spec, DecoderPart::Up, layer, h)?;
            activate(b, activation, up)?
        }
        FeedForward::Gated(activation) => {
            let (gate, up) = match spec.storage.fused_gate_up {
                true => {
                    let both = project(b, spec, DecoderPart::GateUp, layer, h)?;
                    let axis = b.graph.ty(both).shape.len() - 1;
                    let gate = b.graph.narrow(both, axis, 0, spec.ffn)?;
                    (gate, b.graph.narrow(both, axis, spec.ffn, spec.ffn)?)
                }
                false => (
                    project(b, spec, DecoderPart::Gate, layer, h)?,
                    project(b, spec, DecoderPart::Up, layer, h)?,
                ),
            };
            let gate = b.times(gate, of_gate)?;
            let gate = activate(b, activation, gate)?;
            b.graph.mul(gate, up)?
        }
    };
    let y = project(b, spec, DecoderPart::Down, layer, h)?;
    b.times(y, after)
}
