//! Gated delta rule layers, used instead of attention.

use tercet::scalar::UnaryFn;
use tercet::{Dim, Tensor, Value};

use super::super::weights::bytes_error;
use super::super::{ModelBuilder, ModelError};
use super::states::ScanMixerBuilder;
use crate::config::decoder::{DecoderPart, DeltaRows, SsmSpec, StateKind};

/// Epsilon added to the squared length in the L2 normalization of queries and keys.
const EPS: f64 = 1e-6;

/// Head sizes of a layer.
#[derive(Clone, Copy)]
struct DeltaNetHeads {
    /// Number of value heads and elements per value head.
    values: [usize; 2],
    /// Number of key heads and elements per key head.
    keys: [usize; 2],
}

impl DeltaNetHeads {
    /// Number of value heads per key head.
    fn per_key(self) -> usize {
        self.values[0] / self.keys[0]
    }
}

impl ScanMixerBuilder<'_> {
    /// Layer result `[batch, len, inner]` from the first projection and the other projections.
    pub(super) fn delta(
        &self,
        b: &mut ModelBuilder<'_>,
        first: Value,
        others: &[Value],
    ) -> Result<Value, ModelError> {
        let SsmSpec { inner, states, .. } = *self.of;
        let StateKind::Delta {
            heads: count,
            key_heads,
            eps,
            rows,
        } = self.of.kind
        else {
            unreachable!("invariant: the caller checked the kind");
        };
        let heads = DeltaNetHeads {
            values: [count, inner / count],
            keys: [key_heads, states],
        };
        let [convolved, gate] = match rows.fused {
            true => self.by_key_head(b, first, heads)?,
            false => [first, self.rows(b, others[0], &[inner])?],
        };
        let rates = &others[usize::from(!rows.fused)..];
        let [beta, g] = self.rates(b, rates, heads, rows)?;
        let convolved = self.convolve(b, convolved)?;
        let width = key_heads * states;
        let q = b.graph.narrow(convolved, 2, 0, width)?;
        let q = self.repeat_key_heads(b, q, heads, rows)?;
        let k = b.graph.narrow(convolved, 2, width, width)?;
        let k = self.repeat_key_heads(b, k, heads, rows)?;
        let v = b.graph.narrow(convolved, 2, 2 * width, inner)?;
        let v = self.rows(b, v, &heads.values)?;
        let carried = self.remembered(b, "scan", &[1, count, states, inner / count])?;
        let before = carried.map(|[_, before]| before);
        let y = b
            .graph
            .gated_delta_net([q, k, v, g, beta], before, carried.is_some())?;
        if let Some([state, _]) = carried {
            b.graph.assign(state, y.port(1))?;
        }
        let size = inner / count;
        let gain = self.vector(b, DecoderPart::StatesNorm, size, &[size])?;
        let y = b.graph.rms_norm(y, gain, None, eps.into())?;
        let gate = self.rows(b, gate, &heads.values)?;
        let gate = b.graph.unary(UnaryFn::Silu, gate)?;
        let y = b.graph.mul(y, gate)?;
        self.rows(b, y, &[inner])
    }

    /// Splits a fused projection, grouped by key head, into the convolution input and the gates.
    fn by_key_head(
        &self,
        b: &mut ModelBuilder<'_>,
        all: Value,
        heads: DeltaNetHeads,
    ) -> Result<[Value; 2], ModelError> {
        let [count, size] = heads.keys;
        let own = heads.per_key() * heads.values[1];
        let all = self.rows(b, all, &[count, 2 * size + 2 * own])?;
        let mut parts = Vec::new();
        let mut first = 0;
        for width in [size, size, own, own] {
            let part = b.graph.narrow(all, 3, first, width)?;
            parts.push(self.rows(b, part, &[count * width])?);
            first += width;
        }
        Ok([b.graph.concat(&parts[..3], 2)?, parts[3]])
    }

    /// Write strengths (beta) and log decays of the delta rule, `[batch, len, heads]`.
    fn rates(
        &self,
        b: &mut ModelBuilder<'_>,
        projected: &[Value],
        heads: DeltaNetHeads,
        rows: DeltaRows,
    ) -> Result<[Value; 2], ModelError> {
        let count = heads.values[0];
        let [beta, a] = match rows.rates_fused {
            true => {
                let own = heads.per_key();
                let all = self.rows(b, projected[0], &[heads.keys[0], 2 * own])?;
                [
                    b.graph.narrow(all, 3, 0, own)?,
                    b.graph.narrow(all, 3, own, own)?,
                ]
            }
            false => [projected[0], projected[1]],
        };
        let [beta, a] = [self.rows(b, beta, &[count])?, self.rows(b, a, &[count])?];
        let beta = b.graph.unary(UnaryFn::Sigmoid, beta)?;
        let bias = self.vector(b, DecoderPart::StatesStepBias, count, &[count])?;
        let a = b.graph.plus(a, bias)?;
        let a = b.graph.unary(UnaryFn::Softplus, a)?;
        let decay = self.decay(b, &[count])?;
        Ok([beta, b.graph.mul(a, decay)?])
    }

    /// L2-normalized queries or keys, repeated for each value head.
    fn repeat_key_heads(
        &self,
        b: &mut ModelBuilder<'_>,
        x: Value,
        heads: DeltaNetHeads,
        rows: DeltaRows,
    ) -> Result<Value, ModelError> {
        let [count, size] = heads.keys;
        let x = self.rows(b, x, &heads.keys)?;
        // RMS norm divides by length / sqrt(size), so a gain of 1 / sqrt(size) makes it an L2 norm.
        let gain = vec![(size as f32).sqrt().recip(); size];
        let gain = Tensor::from_slice(&[size], &gain);
        let gain = gain.map_err(|e| bytes_error("the gain of a norm", e))?;
        let gain = b.graph.constant(gain)?;
        let x = b.graph.rms_norm(x, gain, None, EPS / size as f64)?;
        let own = heads.per_key();
        if own == 1 {
            return Ok(x);
        }
        let (lone, all) = match rows.tiled {
            true => ([1, count, size], [own, count, size]),
            false => ([count, 1, size], [count, own, size]),
        };
        let x = self.rows(b, x, &lone)?;
        let own = b.graph.ty(x).shape[..2].iter().cloned();
        let shape: Vec<Dim> = own.chain(all.map(Dim::Known)).collect();
        let x = b.graph.expand(x, shape)?;
        self.rows(b, x, &[heads.values[0], size])
    }
}
