//! Scans over states of a layer: Mamba and Mamba-2.
//!
//! Between runs a layer remembers the last rows of its convolution and the states of its scan, F32 in every precision.

use tercet::scalar::UnaryFn;
use tercet::{DType, Dim, Tensor, Type, Value};

use super::super::tuned::Mode;
use super::super::weights::bytes_error;
use super::super::{Builder, ModelError, Weights};
use super::layer::{Attend, Shared, linear, project};
use crate::config::decoder::{DecoderSpec, Part, StateKind, StateSpace};

/// A layer's mixer under construction.
struct Scan<'a> {
    spec: &'a DecoderSpec,
    of: &'a StateSpace,
    at: usize,
    batch: Dim,
    len: Dim,
    /// None where sequences are whole.
    sequence: Option<Sequence>,
}

/// A sequence that goes on from run to run.
struct Sequence {
    /// Whether nothing was read before, Bool `[1]`.
    is_first: Value,
    /// What the names of its states end with.
    suffix: String,
    /// Whether whoever runs the graph sets its states to zeros where a text begins.
    is_alone: bool,
}

/// A layer's scan over the normed rows `h`.
pub(super) fn scan(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    shared: &Shared,
    at: usize,
    h: Value,
) -> Result<Value, ModelError> {
    let of = spec.states.as_ref();
    let of = of.expect("invariant: a specification with states says their sizes");
    let projected = project(b, spec, Part::StatesIn, at, h)?;
    let whole = |batch: Dim, sequence: Option<Sequence>| Scan {
        spec,
        of,
        at,
        batch,
        len: shared.len.clone(),
        sequence,
    };
    let y = match &shared.attend {
        Attend::Whole { .. } => whole(shared.batch.clone(), None).of_rows(b, projected)?,
        Attend::Cached { start, .. } => {
            let sequence = Sequence {
                is_alone: true,
                ..Sequence::of(b, *start, String::new())?
            };
            whole(Dim::Known(1), Some(sequence)).of_rows(b, projected)?
        }
        Attend::Slots {
            slots,
            idle,
            origin,
            ..
        } => {
            let all = [Dim::Known(1), shared.len.clone(), of.projected().into()];
            let projected = b.graph.reshape(projected, all)?;
            let mut parts = Vec::with_capacity(slots.len() + 1);
            for (number, slot) in slots.iter().enumerate() {
                let own = b.graph.gather(projected, slot.rows, 1)?;
                let len = b.graph.ty(slot.rows).shape[0].clone();
                let sequence = Sequence::of(b, slot.start, format!(".{number}"))?;
                let scan = Scan {
                    len,
                    ..whole(Dim::Known(1), Some(sequence))
                };
                parts.push(scan.of_rows(b, own)?);
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
    if let StateKind::Heads { groups, eps, .. } = of.kind {
        // Next to the projection, whose kernels may take a norm in.
        let gain = whole(shared.batch.clone(), None).vector(
            b,
            Part::StatesNorm,
            of.inner,
            &[groups, of.inner / groups],
        )?;
        y = normed(b, y, gain, groups, eps)?;
    }
    project(b, spec, Part::StatesOut, at, y)
}

/// The norm of each group of columns of `y`.
fn normed(
    b: &mut Builder<'_>,
    y: Value,
    gain: Value,
    groups: usize,
    eps: f32,
) -> Result<Value, ModelError> {
    if groups == 1 {
        return Ok(b.graph.rms_norm(y, gain, None, eps.into())?);
    }
    let rows = b.graph.ty(y).shape.clone();
    let inner = rows.last().and_then(Dim::known);
    let inner = inner.expect("invariant: columns of rows are known");
    let each = inner / groups;
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

impl Sequence {
    /// `start` is I32 `[4]`: where the sequence goes on is its second number.
    fn of(b: &mut Builder<'_>, start: Value, suffix: String) -> Result<Sequence, ModelError> {
        let first = b.graph.narrow(start, 0, 1, 1)?;
        let zero = b.graph.scalar(DType::I32, 0.0)?;
        Ok(Sequence {
            is_first: b.graph.equal(first, zero)?,
            suffix,
            is_alone: false,
        })
    }
}

impl Scan<'_> {
    /// `[batch, len, inner]` of what the projection gives.
    fn of_rows(&self, b: &mut Builder<'_>, projected: Value) -> Result<Value, ModelError> {
        let projected = self.rows(b, projected, &[self.of.projected()])?;
        match self.of.kind {
            StateKind::Channels { rank, normed } => self.channels(b, projected, rank, normed),
            StateKind::Heads { heads, groups, .. } => self.heads(b, projected, [heads, groups]),
        }
    }

    /// `x` as `[batch, len, ..]`.
    fn rows(&self, b: &mut Builder<'_>, x: Value, rest: &[usize]) -> Result<Value, ModelError> {
        let rest = rest.iter().map(|n| Dim::Known(*n));
        let shape: Vec<Dim> = [self.batch.clone(), self.len.clone()]
            .into_iter()
            .chain(rest)
            .collect();
        Ok(b.graph.reshape(x, shape)?)
    }

    fn name(&self, b: &Builder<'_>, part: Part, suffix: &str) -> String {
        part.name(self.spec, b.weights, self.at, suffix)
    }

    /// Everything of a part as F32, by the shapes that folders and GGUF files store it in.
    fn vector(
        &self,
        b: &mut Builder<'_>,
        part: Part,
        len: usize,
        in_gguf: &[usize],
    ) -> Result<Value, ModelError> {
        let name = self.name(b, part, "weight");
        match b.weights {
            Weights::Gguf(_) => {
                let stored = b.dense(&name, in_gguf)?;
                Ok(b.graph.reshape(stored, [len])?)
            }
            Weights::Hf(_) | Weights::MadeUp(_) => b.vector(&name, len),
        }
    }

    /// The rates of decay: the negated exponentials of what folders store, which GGUF files have as they are.
    fn decay(&self, b: &mut Builder<'_>, shape: &[usize]) -> Result<Value, ModelError> {
        let name = self.name(b, Part::StatesDecay, "weight");
        if let Weights::Gguf(_) = b.weights {
            let stored: &[usize] = match shape {
                [heads] => &[*heads, 1],
                _ => shape,
            };
            let stored = b.dense(&name, stored)?;
            return Ok(b.graph.reshape(stored, shape)?);
        }
        if let Mode::Full = b.mode {
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

    /// What is remembered between runs, and what of it counts: zeros at the beginning of a text.
    fn remembered(
        &self,
        b: &mut Builder<'_>,
        what: &str,
        shape: &[usize],
    ) -> Result<Option<[Value; 2]>, ModelError> {
        let Some(Sequence {
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

    /// The causal convolution of each channel, and SiLU.
    fn convolve(&self, b: &mut Builder<'_>, x: Value) -> Result<Value, ModelError> {
        let (channels, kernel) = (self.of.convolved(), self.of.kernel);
        let name = self.name(b, Part::StatesConv, "weight");
        let weight = match b.weights {
            Weights::Gguf(_) => b.dense(&name, &[channels, kernel])?,
            Weights::Hf(_) | Weights::MadeUp(_) => {
                let weight = b.dense(&name, &[channels, 1, kernel])?;
                b.graph.reshape(weight, [channels, kernel])?
            }
        };
        let weight = b.graph.transpose(weight, &[1, 0])?;
        let bias = match Part::StatesConv.has_bias(self.spec) {
            true => {
                let bias = self.name(b, Part::StatesConv, "bias");
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

    /// Step sizes within their range.
    fn steps(&self, b: &mut Builder<'_>, dt: Value) -> Result<Value, ModelError> {
        let dt = b.graph.unary(UnaryFn::Softplus, dt)?;
        match self.of.steps {
            [0.0, f32::INFINITY] => Ok(dt),
            [least, most] => Ok(b.graph.clamp(dt, least.into(), most.into())?),
        }
    }

    /// What `x` is after the states: `y + D x`.
    fn skipped(
        &self,
        b: &mut Builder<'_>,
        y: Value,
        x: Value,
        heads: usize,
    ) -> Result<Value, ModelError> {
        let in_gguf: &[usize] = match self.of.kind {
            StateKind::Channels { .. } => &[heads],
            StateKind::Heads { .. } => &[heads, 1],
        };
        let mut skip = self.vector(b, Part::StatesSkip, heads, in_gguf)?;
        if let StateKind::Heads { .. } = self.of.kind {
            skip = b.graph.unsqueeze(skip, 1)?;
        }
        let past = b.graph.mul(x, skip)?;
        Ok(b.graph.plus(y, past)?)
    }

    /// Mamba: `projected` holds what is convolved, then the gate.
    fn channels(
        &self,
        b: &mut Builder<'_>,
        projected: Value,
        rank: usize,
        normed: Option<f32>,
    ) -> Result<Value, ModelError> {
        let StateSpace { inner, states, .. } = *self.of;
        let x = b.graph.narrow(projected, 2, 0, inner)?;
        let gate = b.graph.narrow(projected, 2, inner, inner)?;
        let x = self.convolve(b, x)?;
        let row = linear(b, self.spec, Part::StatesRow, self.at, x)?;
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
        let dt = linear(b, self.spec, Part::StatesStep, self.at, dt)?;
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

    /// Mamba-2: `projected` holds the gate, what is convolved, then step sizes.
    fn heads(
        &self,
        b: &mut Builder<'_>,
        projected: Value,
        [heads, groups]: [usize; 2],
    ) -> Result<Value, ModelError> {
        let StateSpace { inner, states, .. } = *self.of;
        let per_head = inner / heads;
        let gate = b.graph.narrow(projected, 2, 0, inner)?;
        let convolved = b.graph.narrow(projected, 2, inner, self.of.convolved())?;
        let dt = b
            .graph
            .narrow(projected, 2, inner + self.of.convolved(), heads)?;
        let convolved = self.convolve(b, convolved)?;
        let part = |b: &mut Builder<'_>, first: usize, shape: [usize; 2]| {
            let part = b.graph.narrow(convolved, 2, first, shape[0] * shape[1])?;
            self.rows(b, part, &shape)
        };
        let x = part(b, 0, [heads, per_head])?;
        let enter = part(b, inner, [groups, states])?;
        let leave = part(b, inner + groups * states, [groups, states])?;
        let bias = self.vector(b, Part::StatesStepBias, heads, &[heads])?;
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
        // By heads, so that it is one map with the skip.
        let gate = self.rows(b, gate, &[heads, per_head])?;
        let gate = b.graph.unary(UnaryFn::Silu, gate)?;
        let y = b.graph.mul(y, gate)?;
        self.rows(b, y, &[inner])
    }
}
