//! Recurrent layers (state-space models): Mamba and Mamba-2. Gated delta rules are in `delta.rs`.
//!
//! Between runs a layer keeps the last rows of its convolution and the states of its scan, in F32
//! for every precision.

use tercet::scalar::UnaryFn;
use tercet::{DType, Dim, Tensor, Type, Value};

use super::super::trainable::WeightUse;
use super::super::weights::bytes_error;
use super::super::{ModelBuilder, ModelError, Weights};
use super::layer::{AttentionMode, ForwardContext, linear, project};
use crate::config::decoder::{DecoderPart, DecoderSpec, SsmSpec, StateKind, StateNorm};

/// A recurrent mixer layer under construction.
pub(super) struct ScanMixerBuilder<'a> {
    pub(super) spec: &'a DecoderSpec,
    pub(super) of: &'a SsmSpec,
    pub(super) at: usize,
    batch: Dim,
    len: Dim,
    /// Recurrent state; `None` for full sequences, which start from zero.
    sequence: Option<RecurrentSequence>,
}

/// A sequence that continues from run to run.
struct RecurrentSequence {
    /// True if this run starts the sequence, Bool `[1]`.
    is_first: Value,
    /// Name suffix of the sequence's states.
    suffix: String,
    /// True if the caller zeroes the states at the start of a sequence.
    is_alone: bool,
}

/// Output of a layer's scan for the normalized rows `h`.
pub(super) fn scan(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    shared: &ForwardContext,
    at: usize,
    h: Value,
) -> Result<Value, ModelError> {
    let of = spec.states.as_ref();
    let of = of.expect("invariant: a specification with states contains their sizes");
    let [before, after] = spec.scales.multipliers.states;
    let h = b.times(h, before)?;
    let mut projected = Vec::new();
    for part in DecoderPart::into_states(of) {
        projected.push(project(b, spec, part, at, h)?);
    }
    let whole = |batch: Dim, sequence: Option<RecurrentSequence>| ScanMixerBuilder {
        spec,
        of,
        at,
        batch,
        len: shared.len.clone(),
        sequence,
    };
    let y = match &shared.attend {
        AttentionMode::FullSequences { .. } => {
            whole(shared.batch.clone(), None).scan_rows(b, &projected)?
        }
        AttentionMode::Cached { start, .. } => {
            let sequence = RecurrentSequence {
                is_alone: true,
                ..RecurrentSequence::new(b, *start, String::new())?
            };
            whole(Dim::Known(1), Some(sequence)).scan_rows(b, &projected)?
        }
        AttentionMode::Slots {
            slots,
            idle,
            origin,
            ..
        } => {
            for part in &mut projected {
                *part = b.graph.unsqueeze(*part, 0)?;
            }
            let mut parts = Vec::with_capacity(slots.len() + 1);
            for (number, slot) in slots.iter().enumerate() {
                let own = projected.iter();
                let own: Result<Vec<Value>, _> =
                    own.map(|x| b.graph.gather(*x, slot.rows, 1)).collect();
                let len = b.graph.ty(slot.rows).shape[0].clone();
                let sequence = RecurrentSequence::new(b, slot.start, format!(".{number}"))?;
                let scan = ScanMixerBuilder {
                    len,
                    ..whole(Dim::Known(1), Some(sequence))
                };
                parts.push(scan.scan_rows(b, &own?)?);
            }
            let of = |rows: &Dim| [Dim::Known(1), rows.clone(), of.inner.into()];
            let zero = b.graph.scalar(DType::F32, 0.0)?;
            parts.push(b.graph.expand(zero, of(idle))?);
            let all = b.graph.concat(&parts, 1)?;
            let begin = b.graph.narrow(*origin, 0, 0, 3)?;
            b.graph.dynamic_slice(all, begin, of(&shared.len))?
        }
    };
    let mut y = b.graph.reshape(y, shared.rows(of.inner))?;
    if let StateKind::Heads {
        groups,
        eps,
        norm: StateNorm::AfterGate,
        ..
    } = of.kind
    {
        // Keep the norm next to the projection, so that the projection's kernel can fuse it.
        y = whole(shared.batch.clone(), None).normed(b, y, groups, eps)?;
    }
    let y = project(b, spec, DecoderPart::StatesOut, at, y)?;
    b.times(y, after)
}

impl RecurrentSequence {
    /// `start` is I32 `[4]`; its second element is the position of the first row.
    fn new(
        b: &mut ModelBuilder<'_>,
        start: Value,
        suffix: String,
    ) -> Result<RecurrentSequence, ModelError> {
        let first = b.graph.narrow(start, 0, 1, 1)?;
        let zero = b.graph.scalar(DType::I32, 0.0)?;
        Ok(RecurrentSequence {
            is_first: b.graph.equal(first, zero)?,
            suffix,
            is_alone: false,
        })
    }
}

impl ScanMixerBuilder<'_> {
    /// Scan result `[batch, len, inner]` from the projections.
    fn scan_rows(
        &self,
        b: &mut ModelBuilder<'_>,
        projected: &[Value],
    ) -> Result<Value, ModelError> {
        let all = self.rows(b, projected[0], &[self.of.projected()])?;
        match self.of.kind {
            StateKind::Channels { rank, normed } => self.channels(b, all, rank, normed),
            StateKind::Heads {
                heads,
                groups,
                eps,
                norm,
            } => self.heads(b, all, [heads, groups], (norm, eps)),
            StateKind::Delta { .. } => self.delta(b, all, &projected[1..]),
        }
    }

    /// Reshapes `x` to `[batch, len, ..]`.
    pub(super) fn rows(
        &self,
        b: &mut ModelBuilder<'_>,
        x: Value,
        rest: &[usize],
    ) -> Result<Value, ModelError> {
        let rest = rest.iter().map(|n| Dim::Known(*n));
        let shape: Vec<Dim> = [self.batch.clone(), self.len.clone()]
            .into_iter()
            .chain(rest)
            .collect();
        Ok(b.graph.reshape(x, shape)?)
    }

    fn name(&self, b: &ModelBuilder<'_>, part: DecoderPart, suffix: &str) -> String {
        part.name(self.spec, b.weights, self.at, suffix)
    }

    /// A whole parameter as F32, for the different shapes in folders and GGUF files.
    pub(super) fn vector(
        &self,
        b: &mut ModelBuilder<'_>,
        part: DecoderPart,
        len: usize,
        in_gguf: &[usize],
    ) -> Result<Value, ModelError> {
        let name = self.name(b, part, "weight");
        match b.weights {
            Weights::Gguf(_) => {
                let stored = b.dense(&name, in_gguf)?;
                Ok(b.graph.reshape(stored, [len])?)
            }
            Weights::Hf(_) | Weights::Dummy(_) => b.vector(&name, len),
        }
    }

    /// Decay rates: `-exp` of the values that folders store; GGUF files store the decay rates
    /// themselves.
    pub(super) fn decay(
        &self,
        b: &mut ModelBuilder<'_>,
        shape: &[usize],
    ) -> Result<Value, ModelError> {
        let name = self.name(b, DecoderPart::StatesDecay, "weight");
        if let Weights::Gguf(_) = b.weights {
            let stored: &[usize] = match (self.of.kind, shape) {
                (StateKind::Heads { .. }, [heads]) => &[*heads, 1],
                _ => shape,
            };
            let stored = b.dense(&name, stored)?;
            return Ok(b.graph.reshape(stored, shape)?);
        }
        if let WeightUse::Full = b.mode {
            let logs = b.dense(&name, shape)?;
            let rates = b.graph.unary(UnaryFn::Exp, logs)?;
            return b.times(rates, -1.0);
        }
        let mut rates = b.weights.dense_f32(&name, shape)?;
        let values = rates.as_slice_mut::<f32>();
        let values = values.map_err(|e| bytes_error(&name, e))?;
        values.iter_mut().for_each(|x| *x = -x.exp());
        b.param(&name, rates)
    }

    /// A state tensor, and its effective value: zero at the start of a sequence. `None` for full
    /// sequences.
    pub(super) fn remembered(
        &self,
        b: &mut ModelBuilder<'_>,
        what: &str,
        shape: &[usize],
    ) -> Result<Option<[Value; 2]>, ModelError> {
        let Some(RecurrentSequence {
            is_first,
            suffix,
            is_alone,
        }) = &self.sequence
        else {
            return Ok(None);
        };
        let ty = Type::new(DType::F32, shape);
        let state = b
            .graph
            .state(&format!("state.{}.{what}{suffix}", self.at), ty)?;
        if *is_alone {
            return Ok(Some([state, state]));
        }
        let zero = b.graph.scalar(DType::F32, 0.0)?;
        let before = b.graph.where_(*is_first, zero, state)?;
        Ok(Some([state, before]))
    }

    /// Depthwise causal convolution followed by SiLU.
    pub(super) fn convolve(&self, b: &mut ModelBuilder<'_>, x: Value) -> Result<Value, ModelError> {
        let (channels, kernel) = (self.of.convolved(), self.of.kernel);
        let name = self.name(b, DecoderPart::StatesConv, "weight");
        let weight = match b.weights {
            Weights::Gguf(_) => b.dense(&name, &[channels, kernel])?,
            Weights::Hf(_) | Weights::Dummy(_) => {
                let weight = b.dense(&name, &[channels, 1, kernel])?;
                b.graph.reshape(weight, [channels, kernel])?
            }
        };
        let weight = self.scale_conv_weight(b, weight)?;
        let weight = b.graph.transpose(weight, &[1, 0])?;
        let bias = match DecoderPart::StatesConv.has_bias(self.spec) {
            true => {
                let bias = self.name(b, DecoderPart::StatesConv, "bias");
                b.vector(&bias, channels)?
            }
            false => {
                let zeros = Tensor::from_slice(&[channels], &vec![0.0_f32; channels]);
                let zeros = zeros.map_err(|e| bytes_error("the bias of a convolution", e))?;
                b.graph.constant(zeros)?
            }
        };
        let carried = self.remembered(b, "convolved", &[1, kernel - 1, channels])?;
        let before = carried.map(|[_, before]| before);
        let y = (b.graph).causal_conv([x, weight, bias], before, true, carried.is_some())?;
        if let Some([state, _]) = carried {
            b.graph.assign(state, y.port(1))?;
        }
        Ok(y)
    }

    /// Convolution weight `[channels, kernel]` with the model's input multipliers folded into its
    /// rows.
    fn scale_conv_weight(
        &self,
        b: &mut ModelBuilder<'_>,
        weight: Value,
    ) -> Result<Value, ModelError> {
        let StateKind::Heads { groups, .. } = self.of.kind else {
            return Ok(weight);
        };
        let [_, x, enter, leave, _] = self.spec.scales.multipliers.into_states;
        if [x, enter, leave] == [1.0; 3] {
            return Ok(weight);
        }
        let SsmSpec { inner, states, .. } = *self.of;
        let mut factors = vec![x; inner];
        factors.extend(vec![enter; groups * states]);
        factors.extend(vec![leave; groups * states]);
        let factors = Tensor::from_slice(&[factors.len(), 1], &factors);
        let factors = factors.map_err(|e| bytes_error("the factors of a convolution", e))?;
        let factors = b.graph.constant(factors)?;
        Ok(b.graph.mul(weight, factors)?)
    }

    /// Step sizes: softplus, clamped to the model's range.
    fn steps(&self, b: &mut ModelBuilder<'_>, dt: Value) -> Result<Value, ModelError> {
        let dt = b.graph.unary(UnaryFn::Softplus, dt)?;
        match self.of.steps {
            [0.0, f32::INFINITY] => Ok(dt),
            [least, most] => Ok(b.graph.clamp(dt, least.into(), most.into())?),
        }
    }

    /// Adds the skip connection of the scan: `y + D x`.
    fn skipped(
        &self,
        b: &mut ModelBuilder<'_>,
        y: Value,
        x: Value,
        heads: usize,
    ) -> Result<Value, ModelError> {
        let in_gguf: &[usize] = match self.of.kind {
            StateKind::Channels { .. } | StateKind::Delta { .. } => &[heads],
            StateKind::Heads { .. } => &[heads, 1],
        };
        let mut skip = self.vector(b, DecoderPart::StatesSkip, heads, in_gguf)?;
        if let StateKind::Heads { .. } = self.of.kind {
            skip = b.graph.unsqueeze(skip, 1)?;
        }
        let past = b.graph.mul(x, skip)?;
        Ok(b.graph.plus(y, past)?)
    }

    /// Mamba scan; `projected` contains the convolution input, then the gate.
    fn channels(
        &self,
        b: &mut ModelBuilder<'_>,
        projected: Value,
        rank: usize,
        normed: Option<f32>,
    ) -> Result<Value, ModelError> {
        let SsmSpec { inner, states, .. } = *self.of;
        let x = b.graph.narrow(projected, 2, 0, inner)?;
        let gate = b.graph.narrow(projected, 2, inner, inner)?;
        let x = self.convolve(b, x)?;
        let row = linear(b, self.spec, DecoderPart::StatesRow, self.at, x)?;
        let mut parts = [
            b.graph.narrow(row, 2, 0, rank)?,
            b.graph.narrow(row, 2, rank, states)?,
            b.graph.narrow(row, 2, rank + states, states)?,
        ];
        if let Some(eps) = normed {
            for (part, width) in parts.iter_mut().zip([rank, states, states]) {
                let ones = Tensor::from_slice(&[width], &vec![1.0_f32; width]);
                let ones = ones.map_err(|e| bytes_error("the gain of a norm", e))?;
                let ones = b.graph.constant(ones)?;
                *part = b.graph.rms_norm(*part, ones, None, eps.into())?;
            }
        }
        let [dt, enter, leave] = parts;
        let dt = linear(b, self.spec, DecoderPart::StatesStep, self.at, dt)?;
        let dt = self.steps(b, dt)?;
        let a = self.decay(b, &[inner, states])?;
        let carried = self.remembered(b, "scan", &[1, inner, states])?;
        let before = carried.map(|[_, before]| before);
        let given = [x, dt, a, enter, leave];
        let y = b
            .graph
            .selective_scan_from(given, before, carried.is_some())?;
        if let Some([state, _]) = carried {
            b.graph.assign(state, y.port(1))?;
        }
        let y = self.skipped(b, y, x, inner)?;
        let gate = b.graph.unary(UnaryFn::Silu, gate)?;
        Ok(b.graph.mul(y, gate)?)
    }

    /// Mamba-2 scan; `projected` contains the gate, the convolution input, then the step sizes.
    fn heads(
        &self,
        b: &mut ModelBuilder<'_>,
        projected: Value,
        [heads, groups]: [usize; 2],
        (norm, eps): (StateNorm, f32),
    ) -> Result<Value, ModelError> {
        let SsmSpec { inner, states, .. } = *self.of;
        let [of_gate, .., of_steps] = self.spec.scales.multipliers.into_states;
        let per_head = inner / heads;
        let gate = b.graph.narrow(projected, 2, 0, inner)?;
        let gate = b.times(gate, of_gate)?;
        let convolved = b.graph.narrow(projected, 2, inner, self.of.convolved())?;
        let dt = b
            .graph
            .narrow(projected, 2, inner + self.of.convolved(), heads)?;
        let convolved = self.convolve(b, convolved)?;
        let part = |b: &mut ModelBuilder<'_>, first: usize, shape: [usize; 2]| {
            let part = b.graph.narrow(convolved, 2, first, shape[0] * shape[1])?;
            self.rows(b, part, &shape)
        };
        let x = part(b, 0, [heads, per_head])?;
        let enter = part(b, inner, [groups, states])?;
        let leave = part(b, inner + groups * states, [groups, states])?;
        let dt = b.times(dt, of_steps)?;
        let bias = self.vector(b, DecoderPart::StatesStepBias, heads, &[heads])?;
        let dt = b.graph.plus(dt, bias)?;
        let dt = self.steps(b, dt)?;
        let a = self.decay(b, &[heads])?;
        let carried = self.remembered(b, "scan", &[1, heads, per_head, states])?;
        let before = carried.map(|[_, before]| before);
        let given = [x, dt, a, enter, leave];
        let y = b.graph.mamba2_from(given, before, carried.is_some())?;
        if let Some([state, _]) = carried {
            b.graph.assign(state, y.port(1))?;
        }
        let y = self.skipped(b, y, x, heads)?;
        // The gate gets the head axes of `y`, so that gate and skip fuse into one elementwise
        // kernel.
        let gate = self.rows(b, gate, &[heads, per_head])?;
        let gate = b.graph.unary(UnaryFn::Silu, gate)?;
        match norm {
            // For `AfterGate` the caller applies the norm, next to the output projection.
            StateNorm::None | StateNorm::AfterGate => {
                let y = b.graph.mul(y, gate)?;
                self.rows(b, y, &[inner])
            }
            StateNorm::BeforeGate => {
                let y = self.rows(b, y, &[inner])?;
                let y = self.normed(b, y, groups, eps)?;
                let gate = self.rows(b, gate, &[inner])?;
                Ok(b.graph.mul(y, gate)?)
            }
        }
    }

    /// RMS norm of each group of columns of `y`.
    fn normed(
        &self,
        b: &mut ModelBuilder<'_>,
        y: Value,
        groups: usize,
        eps: f32,
    ) -> Result<Value, ModelError> {
        let inner = self.of.inner;
        let each = inner / groups;
        let gain = self.vector(b, DecoderPart::StatesNorm, inner, &[groups, each])?;
        if groups == 1 {
            return Ok(b.graph.rms_norm(y, gain, None, eps.into())?);
        }
        let rows = b.graph.ty(y).shape.clone();
        let mut by_groups: Vec<Dim> = rows.iter().take(rows.rank() - 1).cloned().collect();
        by_groups.extend([groups, each].map(Dim::Known));
        let y = b.graph.reshape(y, by_groups)?;
        let ones = Tensor::from_slice(&[each], &vec![1.0_f32; each]);
        let ones = ones.map_err(|e| bytes_error("the gain of a norm", e))?;
        let ones = b.graph.constant(ones)?;
        let y = b.graph.rms_norm(y, ones, None, eps.into())?;
        let gain = b.graph.reshape(gain, [groups, each])?;
        let y = b.graph.mul(y, gain)?;
        Ok(b.graph.reshape(y, rows)?)
    }
}
