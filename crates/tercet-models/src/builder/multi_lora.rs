//! Adapters of which each row of a run has one of its own, or none.
//!
//! The low-rank matrices of all adapters lie beside each other, and a row counts only the columns of its own: one product
//! for all rows, whoever they are for, and a sum of zeros for who has none.

use tercet::{DType, Tensor, TensorType, Value};

use super::tuned::{Mode, ScaledAdapter, Site};
use super::{Builder, ModelError};
use crate::adapter::rows::to_f32;
use crate::adapter::{AdapterError, LowRank};

/// More than anybody lists; every one of them costs a product for every row.
pub(crate) const MOST_CHOICES: usize = 64;

/// Adapters, and which of them each row has: I32 `[rows]`, 0 for none, else a place from 1.
#[derive(Clone, Copy)]
pub(crate) struct Choices<'a> {
    pub(crate) adapters: &'a [ScaledAdapter],
    pub(crate) of_row: Value,
}

impl Builder<'_> {
    /// Projections see these rows alone from now on.
    pub(super) fn only_rows(&mut self, rows: Value) -> Result<(), ModelError> {
        if let Mode::Chosen(choices) = &mut self.mode {
            choices.of_row = self.graph.gather(choices.of_row, rows, 0)?;
        }
        Ok(())
    }

    /// The result of a projection of `x` with what the adapter of each row adds to it.
    pub(super) fn with_chosen(
        &mut self,
        x: Value,
        y: Value,
        site: &Site<'_>,
        choices: Choices<'_>,
    ) -> Result<Value, ModelError> {
        let mut own = Vec::new();
        for (at, applied) in choices.adapters.iter().enumerate() {
            let Some(low) = applied.adapter.modules().get(site.module) else {
                continue;
            };
            low.expect_shape(site.module, site.shape)?;
            let scale = low.scale() * applied.scale;
            if !scale.is_finite() {
                let (what, found) = ("the scale of an adapter".to_string(), scale);
                return Err(AdapterError::Number { what, found }.into());
            }
            own.push((at, scale, low));
        }
        if own.is_empty() {
            return Ok(y);
        }
        let name = |side: &str| format!("adapters.{}.{side}", site.module);
        let failed = |side: &str| {
            let tensor = name(side);
            move |source| AdapterError::Tensor { tensor, source }
        };
        let a = stacked(&own, site).map_err(failed("lora_A"))?;
        let b = side_by_side(&own, site).map_err(failed("lora_B"))?;
        let factors = factors(&own, choices.adapters.len()).map_err(failed("factors"))?;
        let a = self.param(&name("lora_A"), a)?;
        let b = self.param(&name("lora_B"), b)?;
        let g = &mut self.graph;
        let a = g.transpose(a, &[1, 0])?;
        let low = g.matmul(x, a)?;
        let factors = g.constant(factors)?;
        let factor = g.gather(factors, choices.of_row, 0)?;
        let zero = g.scalar(DType::F32, 0.0)?;
        let is_own = g.not_equal(factor, zero)?;
        let low = g.mul(low, factor)?;
        // What another adapter makes of the row may leave the range of narrow numbers.
        let low = g.where_(is_own, low, zero)?;
        let b = g.transpose(b, &[1, 0])?;
        let change = g.matmul(low, b)?;
        Ok(g.plus(y, change)?)
    }
}

type Own<'a> = (usize, f64, &'a LowRank);

fn ranks(own: &[Own<'_>]) -> usize {
    own.iter().map(|(_, _, low)| low.rank()).sum()
}

/// `[ranks, inputs]`: the `A` of all, below each other.
fn stacked(own: &[Own<'_>], site: &Site<'_>) -> Result<Tensor, tercet::TensorError> {
    let [_, inputs] = site.shape;
    let mut all = Tensor::zeros(TensorType::new(DType::F32, &[ranks(own), inputs]))?;
    let mut rest = all.as_slice_mut::<f32>()?;
    for (_, _, low) in own {
        let a = to_f32(low.a())?;
        let a = a.as_slice::<f32>()?;
        let (to, behind) = rest.split_at_mut(a.len());
        to.copy_from_slice(a);
        rest = behind;
    }
    Ok(all)
}

/// `[outputs, ranks]`: the `B` of all, beside each other.
fn side_by_side(own: &[Own<'_>], site: &Site<'_>) -> Result<Tensor, tercet::TensorError> {
    let ([outputs, _], ranks) = (site.shape, ranks(own));
    let mut all = Tensor::zeros(TensorType::new(DType::F32, &[outputs, ranks]))?;
    let to = all.as_slice_mut::<f32>()?;
    let mut first = 0;
    for (_, _, low) in own {
        let (b, rank) = (to_f32(&site.rows.apply(low.b()))?, low.rank());
        let rows = b.as_slice::<f32>()?.chunks_exact(rank);
        for (to, from) in to.chunks_exact_mut(ranks).zip(rows) {
            to[first..first + rank].copy_from_slice(from);
        }
        first += rank;
    }
    Ok(all)
}

/// `[adapters + 1, ranks]`: what each column counts for a row of each adapter; the first row is that of none.
fn factors(own: &[Own<'_>], adapters: usize) -> Result<Tensor, tercet::TensorError> {
    let ranks = ranks(own);
    let mut all = Tensor::zeros(TensorType::new(DType::F32, &[adapters + 1, ranks]))?;
    let to = all.as_slice_mut::<f32>()?;
    let mut first = 0;
    for (at, scale, low) in own {
        to[(at + 1) * ranks + first..][..low.rank()].fill(*scale as f32);
        first += low.rank();
    }
    Ok(all)
}
