//! The parts of a decoder layer, over how weights are had ([`Builder`]) and how attention is done ([`Attend`]).

use tercet::ops::AttentionMask;
use tercet::scalar::UnaryFn;
use tercet::{DType, Dim, Tensor, TensorType, Value};

use super::super::tuned::{Mode, Site};
use super::super::{Builder, ModelError};
use super::attention::attention;
use super::cache::CacheFormat;
use super::experts::experts;
use super::slot_windows::SlotWindow;
use super::states::scan;
use super::windows::WindowCache;
use crate::adapter::rows::Rows;
use crate::config::decoder::{
    Activation, DecoderSpec, FeedForward, Mixer, NormKind, NormPlacement, Part, Residual, Rope,
};

/// How a layer attends.
pub(crate) enum Attend {
    /// New keys and values are appended to caches, which are states of this capacity and format; the rows of `x` are
    /// one sequence.
    Cached {
        start: Value,
        kv_len: Value,
        context: usize,
        format: CacheFormat,
        /// How far caches are filled, where what attention sees of them is decoded first.
        seen: Option<Seen>,
        /// Of layers whose caches do not hold the context.
        windows: Vec<WindowCache>,
    },
    /// The rows of `x` are new tokens of several sequences, one of each, or a part of one prompt, then rows of none. Each
    /// sequence has a slot; caches are states with an axis of slots in front.
    Slots {
        /// Which rows are of each slot, where layers compute those of one by themselves.
        slots: Vec<Slot>,
        rows: Box<SlotRows>,
        /// Of layers whose caches do not hold the context.
        windows: Vec<SlotWindow>,
        /// How many rows are of no slot.
        idle: Dim,
        /// I32 `[4]` zeros: where all rows begin.
        origin: Value,
        context: usize,
        format: CacheFormat,
    },
    /// Sequences attend to themselves; `x` has an axis for them.
    Whole {
        /// A mask for each window of the model's layers.
        masks: Vec<(Option<usize>, AttentionMask)>,
        /// How many tokens each sequence has, I32 `[batch]`, where masks do not say.
        kv_len: Option<Value>,
    },
}

/// The first positions of a cache.
pub(crate) struct Seen {
    /// How many, as an axis.
    pub(crate) positions: Dim,
    /// I32 `[4]` zeros: where they begin.
    pub(crate) origin: Value,
}

/// What a run says of a slot; all I32.
pub(crate) struct Slot {
    /// Which rows are its own, `[s]`.
    pub(crate) rows: Value,
    /// `[4]`: its second number is the position of the first.
    pub(crate) start: Value,
}

/// What a run says of the rows of all slots; all I32.
pub(crate) struct SlotRows {
    /// How many slots there are.
    pub(crate) count: usize,
    /// The slot and the position of each row, `[n, 2]`; those of rows of no slot are the last of a cache.
    pub(crate) places: Value,
    /// Which row the new token of each slot is, `[slots]`, and the positions filled after this run, `[slots]`.
    pub(crate) row_of_slot: Value,
    pub(crate) kv_lens: Value,
    /// The slots of new tokens, `[d]`.
    pub(crate) slot_of_row: Value,
    /// The rows of a part of a prompt, `[s]`; where its slot begins, `[4]`; and how many of its positions are filled after
    /// this run, by number and as an axis.
    pub(crate) prompt_rows: Value,
    pub(crate) prompt_start: Value,
    pub(crate) prompt_len: Value,
    pub(crate) prompt_seen: Dim,
    /// Positions filled of the slot that has most, as an axis, where what attention sees is decoded first.
    pub(crate) slots_seen: Option<Dim>,
}

/// Values that every layer reads.
pub(crate) struct Shared {
    pub(crate) attend: Attend,
    /// The cosines and sines of each of the model's rotary embeddings.
    pub(crate) ropes: Vec<[Value; 2]>,
    /// What queries are times by their positions, F32, with two axes of 1 after those of positions.
    pub(crate) query_scales: Option<Value>,
    pub(crate) batch: Dim,
    pub(crate) len: Dim,
}

impl Shared {
    /// The shape of rows of this width.
    pub(super) fn rows(&self, width: usize) -> tercet::Shape {
        match self.attend {
            Attend::Cached { .. } | Attend::Slots { .. } => [self.len.clone(), width.into()].into(),
            Attend::Whole { .. } => [self.batch.clone(), self.len.clone(), width.into()].into(),
        }
    }
}

/// Positions up to which F32, in which angles are computed, counts.
pub(crate) const MOST_CONTEXT: usize = 1 << 24;

/// The F32 cosines and sines of the positions at hand for each rotary embedding, with an axis of `rope_dims / 2` after
/// those of `positions`.
pub(crate) fn rope_tables(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    context: usize,
    positions: Value,
) -> Result<Vec<[Value; 2]>, ModelError> {
    let tables = |rope| rope_table(b, rope, [spec.rope_dims, context], positions);
    spec.ropes.iter().map(tables).collect()
}

/// Angles are computed as the reference implementations do: frequencies and angles in F32.
pub(crate) fn rope_table(
    b: &mut Builder<'_>,
    rope: &Rope,
    [dims, context]: [usize; 2],
    positions: Value,
) -> Result<[Value; 2], ModelError> {
    // Once for all positions: powers took half of the time of long tables.
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

/// What queries at the positions at hand are times, where the model's grow.
pub(crate) fn query_scales(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    context: usize,
    positions: Value,
) -> Result<Option<Value>, ModelError> {
    let Some(growth) = spec.query_growth else {
        return Ok(None);
    };
    let factors: Vec<f32> = (0..context).map(|p| growth.at(p)).collect();
    let table = Tensor::from_slice(&[context, 1, 1], &factors).map_err(ModelError::RopeTables)?;
    let table = b.graph.constant(table)?;
    Ok(Some(b.graph.gather(table, positions, 0)?))
}

/// The rows of the embedding at `tokens`, times the model's factor, with those of their positions where the model has some.
pub(crate) fn embed(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    tokens: Value,
    positions: Value,
) -> Result<Value, ModelError> {
    let name = Part::Embedding.name(spec, b.weights, 0, "weight");
    let x = b.embedding(tokens, &name, Part::Embedding.shape(spec))?;
    let x = b.times(x, spec.embedding_scale)?;
    if !spec.learned_positions {
        return Ok(x);
    }
    let name = Part::Positions.name(spec, b.weights, 0, "weight");
    let of_positions = b.embedding(positions, &name, Part::Positions.shape(spec))?;
    Ok(b.graph.plus(x, of_positions)?)
}

/// The norm of `x` with the gain of this part.
pub(crate) fn norm(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    part: Part,
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

/// The gain of a norm, to which 1 is added where files store it without: in the graph where it is trained, else once, in
/// F32.
fn gain(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    name: &str,
    len: usize,
) -> Result<Value, ModelError> {
    if !spec.norm.one_plus {
        return b.vector(name, len);
    }
    if let Mode::Full = b.mode {
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

/// `c tanh(x / c)`.
pub(crate) fn soft_cap(
    b: &mut Builder<'_>,
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

/// The logits of normed rows.
pub(crate) fn head(b: &mut Builder<'_>, spec: &DecoderSpec, x: Value) -> Result<Value, ModelError> {
    let part = match spec.tied_embeddings {
        true => Part::Embedding,
        false => Part::Output,
    };
    let shape = Part::Output.shape(spec);
    let bias = Part::Output.has_bias(spec);
    let bias = bias.then(|| Part::Output.name(spec, b.weights, 0, "bias"));
    let name = part.name(spec, b.weights, 0, "weight");
    let logits = b.linear(x, &name, bias.as_deref(), shape)?;
    let site = Site {
        module: &Part::Output.module(spec, 0),
        shape,
        rows: Rows::Plain,
        layer: false,
    };
    let logits = b.adapted(x, logits, &site)?;
    let logits = b.times(logits, spec.logit_scale)?;
    soft_cap(b, logits, spec.logit_softcap)
}

/// A projection that no adapter changes.
pub(super) fn linear(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    part: Part,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let bias = part.has_bias(spec);
    let bias = bias.then(|| part.name(spec, b.weights, layer, "bias"));
    let weight = part.name(spec, b.weights, layer, "weight");
    b.linear(x, &weight, bias.as_deref(), part.shape(spec))
}

/// One that adapters may change.
pub(super) fn project(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    part: Part,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let y = linear(b, spec, part, layer, x)?;
    let shape = part.shape(spec);
    let site = Site {
        module: &part.module(spec, layer),
        shape,
        rows: part.rows(spec),
        layer: true,
    };
    b.adapted(x, y, &site)
}

/// What a decoder layer makes of `x`.
pub(crate) fn layer(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    shared: &Shared,
    at: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let before = spec.placement != NormPlacement::After;
    let of = spec.layers[at];
    let (sum, h) = match of.mixer {
        Mixer::None => (x, x),
        Mixer::Attention | Mixer::StateSpace | Mixer::Both => {
            let h = match before {
                true => norm(b, spec, Part::AttentionNorm, at, x)?,
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
            (added(b, spec, (Part::AttentionPostNorm, at), x, y)?, h)
        }
    };
    if !of.feed_forward {
        return Ok(sum);
    }
    let h = match (spec.residual, before) {
        (Residual::Parallel, _) => h,
        (Residual::ParallelNorms, true) => norm(b, spec, Part::FfnNorm, at, x)?,
        (Residual::ParallelNorms, false) => x,
        (Residual::Serial, true) => norm(b, spec, Part::FfnNorm, at, sum)?,
        (Residual::Serial, false) => sum,
    };
    let y = feed_forward(b, spec, shared, at, h)?;
    added(b, spec, (Part::FfnPostNorm, at), sum, y)
}

/// `x` and what a half of a layer adds to it, normed first where the model does so.
fn added(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    (after, at): (Part, usize),
    x: Value,
    y: Value,
) -> Result<Value, ModelError> {
    let y = match spec.placement {
        NormPlacement::Before => y,
        NormPlacement::After | NormPlacement::Around => norm(b, spec, after, at, y)?,
    };
    let y = b.drop(y)?;
    let y = b.times(y, spec.residual_scale)?;
    Ok(b.graph.plus(x, y)?)
}

pub(crate) fn activate(
    b: &mut Builder<'_>,
    activation: Activation,
    x: Value,
) -> Result<Value, ModelError> {
    if activation == Activation::ReluSquared {
        let x = b.graph.relu(x)?;
        return Ok(b.graph.mul(x, x)?);
    }
    let f = match activation {
        Activation::Silu => UnaryFn::Silu,
        Activation::Gelu => UnaryFn::Gelu,
        Activation::GeluTanh => UnaryFn::GeluTanh,
        Activation::Relu | Activation::ReluSquared => UnaryFn::Relu,
        Activation::Tanh => UnaryFn::Tanh,
        Activation::GeluQuick => {
            let scaled = b.times(x, 1.702)?;
            let y = b.graph.unary(UnaryFn::Silu, scaled)?;
            return b.times(y, 1.0 / 1.702);
        }
    };
    Ok(b.graph.unary(f, x)?)
}

/// What `f` makes of the rows `h` `[n, width]`, of each slot's apart where there are slots; `f` gives F32 rows of the same
/// width.
fn by_slot(
    b: &mut Builder<'_>,
    shared: &Shared,
    h: Value,
    mut f: impl FnMut(&mut Builder<'_>, Value) -> Result<Value, ModelError>,
) -> Result<Value, ModelError> {
    let Attend::Slots {
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

/// A layer's feed-forward network of `h`.
fn feed_forward(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    shared: &Shared,
    layer: usize,
    h: Value,
) -> Result<Value, ModelError> {
    if let (Some(of), true) = (spec.experts, spec.layers[layer].experts) {
        // Rows of one expert are multiplied together: in the rows of a slot there are no others'.
        return by_slot(b, shared, h, |b, h| experts(b, (spec, &of), layer, h));
    }
    let [of_gate, after] = spec.factors.feed_forward;
    let h = match spec.feed_forward {
        FeedForward::Plain(activation) => {
            let up = project(b, spec, Part::Up, layer, h)?;
            activate(b, activation, up)?
        }
        FeedForward::Gated(activation) => {
            let (gate, up) = match spec.fused_gate_up {
                true => {
                    let both = project(b, spec, Part::GateUp, layer, h)?;
                    let axis = b.graph.ty(both).shape.len() - 1;
                    let gate = b.graph.narrow(both, axis, 0, spec.ffn)?;
                    (gate, b.graph.narrow(both, axis, spec.ffn, spec.ffn)?)
                }
                false => (
                    project(b, spec, Part::Gate, layer, h)?,
                    project(b, spec, Part::Up, layer, h)?,
                ),
            };
            let gate = b.times(gate, of_gate)?;
            let gate = activate(b, activation, gate)?;
            b.graph.mul(gate, up)?
        }
    };
    let y = project(b, spec, Part::Down, layer, h)?;
    b.times(y, after)
}
