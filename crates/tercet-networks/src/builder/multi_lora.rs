//! Multi-LoRA: each row of a batch selects its own adapter, or none.
//!
//! The low-rank matrices of all adapters are concatenated along the rank axis. A mask zeroes the
//! columns that belong to other adapters. One matmul therefore serves all rows; rows without an
//! adapter add zero.

use tercet::{DType, Tensor, TensorType, Value};

use super::trainable::{ProjectionSite, ScaledAdapter, WeightUse};
use super::{ModelBuilder, ModelError};
use crate::config::decoder::rows::to_f32;
use crate::low_rank::{AdapterError, LowRank};

/// Maximum number of adapters: each one enlarges the low-rank matmul of every row.
pub(crate) const MAX_ADAPTERS: usize = 64;

/// The adapters, and the adapter index of each row as I32 `[rows]`: 0 means none, indices start at
/// 1.
#[derive(Clone, Copy)]
pub(crate) struct MultiLora<'a> {
    pub(crate) adapters: &'a [ScaledAdapter],
    pub(crate) adapter_of_row: Value,
}

impl ModelBuilder<'_> {
    /// Restricts the adapter indices to these rows; later projections compute only these rows.
    pub(super) fn only_rows(&mut self, rows: Value) -> Result<(), ModelError> {
        if let WeightUse::MultiLora(choices) = &mut self.mode {
            choices.adapter_of_row = self.graph.gather(choices.adapter_of_row, rows, 0)?;
        }
        Ok(())
    }

    /// Projection result `y` of `x` plus the contribution of each row's adapter.
    pub(super) fn with_multi_lora(
        &mut self,
        x: Value,
        y: Value,
        site: &ProjectionSite<'_>,
        choices: MultiLora<'_>,
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
        let factor = g.gather(factors, choices.adapter_of_row, 0)?;
        let zero = g.scalar(DType::F32, 0.0)?;
        let is_own = g.not_equal(factor, zero)?;
        let low = g.mul(low, factor)?;
        // Select instead of multiplying: the result of another adapter may overflow a narrow dtype,
        // and `inf * 0` is NaN.
        let low = g.where_(is_own, low, zero)?;
        let b = g.transpose(b, &[1, 0])?;
        let change = g.matmul(low, b)?;
        Ok(g.plus(y, change)?)
    }
}

type IndexedAdapter<'a> = (usize, f64, &'a LowRank);

fn ranks(own: &[IndexedAdapter<'_>]) -> usize {
    own.iter().map(|(_, _, low)| low.rank()).sum()
}

/// The `A` matrices of all adapters stacked along the rank axis, `[ranks, inputs]`.
fn stacked(
    own: &[IndexedAdapter<'_>],
    site: &ProjectionSite<'_>,
) -> Result<Tensor, tercet::TensorError> {
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

/// The `B` matrices of all adapters concatenated along the rank axis, `[outputs, ranks]`.
fn side_by_side(
    own: &[IndexedAdapter<'_>],
    site: &ProjectionSite<'_>,
) -> Result<Tensor, tercet::TensorError> {
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

/// Scale of each rank column for each adapter index, `[adapters + 1, ranks]`. The first row is
/// zero, for rows without an adapter.
fn factors(own: &[IndexedAdapter<'_>], adapters: usize) -> Result<Tensor, tercet::TensorError> {
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
