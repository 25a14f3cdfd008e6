//! Gated delta rules in place of attention.

use tercet::scalar::UnaryFn;
use tercet::{Dim, Tensor, Value};

use super::super::weights::bytes_error;
use super::super::{Builder, ModelError};
use super::states::Scan;
use crate::config::decoder::{DeltaRows, Part, StateKind, StateSpace};

/// Added to the squared length by which queries and keys are divided.
const EPS: f64 = 1e-6;

/// The sizes of a layer's heads.
#[derive(Clone, Copy)]
struct Heads {
    /// Heads of values, and elements of each.
    values: [usize; 2],
    /// Heads of keys, and elements of each.
    keys: [usize; 2],
}

impl Heads {
    /// Heads of values of each key head.
    fn per_key(self) -> usize {
        self.values[0] / self.keys[0]
    }
}

impl Scan<'_> {
    /// `[batch, len, inner]` of the first projection and the others.
    pub(super) fn delta(
        &self,
        b: &mut Builder<'_>,
        first: Value,
        others: &[Value],
    ) -> Result<Value, ModelError> {
        let StateSpace { inner, states, .. } = *self.of;
        let StateKind::Delta {
            heads: count,
            key_heads,
            eps,
            rows,
        } = self.of.kind
        else {
            unreachable!("invariant: the caller looked at the kind");
        };
        let heads = Heads {
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
        let q = self.of_keys(b, q, heads, rows)?;
        let k = b.graph.narrow(convolved, 2, width, width)?;
        let k = self.of_keys(b, k, heads, rows)?;
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
        let gain = self.vector(b, Part::StatesNorm, size, &[size])?;
        let y = b.graph.rms_norm(y, gain, None, eps.into())?;
        let gate = self.rows(b, gate, &heads.values)?;
        let gate = b.graph.unary(UnaryFn::Silu, gate)?;
        let y = b.graph.mul(y, gate)?;
        self.rows(b, y, &[inner])
    }

    /// What is convolved and the gates of one projection, in which those of a key head stand together.
    fn by_key_head(
        &self,
        b: &mut Builder<'_>,
        all: Value,
        heads: Heads,
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

    /// Strengths and logarithms of decays, `[batch, len, heads]`.
    fn rates(
        &self,
        b: &mut Builder<'_>,
        projected: &[Value],
        heads: Heads,
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
        let bias = self.vector(b, Part::StatesStepBias, count, &[count])?;
        let a = b.graph.plus(a, bias)?;
        let a = b.graph.unary(UnaryFn::Softplus, a)?;
        let decay = self.decay(b, &[count])?;
        Ok([beta, b.graph.mul(a, decay)?])
    }

    /// Queries or keys over their length, once for each head of values.
    fn of_keys(
        &self,
        b: &mut Builder<'_>,
        x: Value,
        heads: Heads,
        rows: DeltaRows,
    ) -> Result<Value, ModelError> {
        let [count, size] = heads.keys;
        let x = self.rows(b, x, &heads.keys)?;
        // By the root of the mean square, of which the length is the square root of `size` times.
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
