//! Gathers and scatters with operands of data-dependent size.

use std::rc::Rc;

use tercet_ir::ops::PadMode;
use tercet_ir::scalar::CompareFn;
use tercet_ir::{DType, Graph, Tensor, Value};

use super::{Filler, PaddedNode, PaddedNodeResults};
use crate::call::axis;
use crate::emulated_dtypes::cast_to;
use crate::error::NodeErrorKind;
use crate::padded_value::{PaddedValue, same_value};
use crate::val::ImportedValue;

impl PaddedNode<'_, '_> {
    /// Scatters with padded indices and updates. The target gets one more row, which receives the
    /// updates after the valid ones.
    pub(super) fn scatter_nd(&mut self) -> PaddedNodeResults {
        let (data, updates) = (self.bounded(0), self.bounded(2));
        let Some(indices) = self.bounded(1) else {
            return match (data, updates) {
                (Some(own), None) => {
                    let results = self.run_with(0, own.value)?;
                    self.wrapped(results, own.axis, own.count)
                }
                _ => Err(Self::refused(2)),
            };
        };
        let dims = self.c.dims(indices.value);
        let inner = dims.len() - 1;
        let depth = dims[inner].known().filter(|_| indices.axis < inner);
        let depth = depth.ok_or_else(|| Self::refused(1))?;
        self.check_updates(updates, &indices)?;
        let (x, new) = (self.value(0)?, self.value(2)?);
        let sizes = self.c.dims(x);
        let mut limits = Vec::with_capacity(depth);
        for size in sizes.iter().take(depth) {
            let n = self.number(size)?;
            limits.push(self.c.g().unsqueeze(n, 0)?);
        }
        let limits = self.c.g().concat(&limits, 0)?;
        let mut first = vec![0i64; depth];
        first[0] = 1;
        let first = self.c.g().constant(Tensor::from_slice(&[depth], &first)?)?;
        let valid = self.valid(&indices)?;
        let zero = self.c.scalar(DType::I64, 0.0)?;
        let g = self.c.g();
        let outside = g.mul(limits, first)?;
        let places = cast_to(g, indices.value, DType::I64)?;
        let from_end = g.plus(places, limits)?;
        let negative = g.compare(CompareFn::Lt, places, zero)?;
        let places = g.where_(negative, from_end, places)?;
        let places = g.where_(valid, places, outside)?;
        let longer = longer(g, x, 0, sizes.len())?;
        let mut ins = self.ins.clone();
        ins[0] = longer.into();
        ins[1] = places.into();
        ins[2] = new.into();
        let results = self.run(&ins)?;
        self.shortened(results, 0, data)
    }

    pub(super) fn scatter_elements(&mut self) -> PaddedNodeResults {
        let (data, updates) = (self.bounded(0), self.bounded(2));
        let x = self.value(0)?;
        let sizes = self.c.dims(x);
        let at = axis(self.attrs.int("axis", 0)?, sizes.len())?;
        let Some(indices) = self.bounded(1) else {
            return match (data, updates) {
                (Some(own), None) => {
                    let results = self.run_with(0, own.value)?;
                    self.wrapped(results, own.axis, own.count)
                }
                _ => Err(Self::refused(2)),
            };
        };
        self.check_updates(updates, &indices)?;
        let new = self.value(2)?;
        let outside = self.number(&sizes[at])?;
        let valid = self.valid(&indices)?;
        let zero = self.c.scalar(DType::I64, 0.0)?;
        let g = self.c.g();
        let places = cast_to(g, indices.value, DType::I64)?;
        let from_end = g.plus(places, outside)?;
        let negative = g.compare(CompareFn::Lt, places, zero)?;
        let places = g.where_(negative, from_end, places)?;
        let places = g.where_(valid, places, outside)?;
        let longer = longer(g, x, at, sizes.len())?;
        let mut ins = self.ins.clone();
        ins[0] = longer.into();
        ins[1] = places.into();
        ins[2] = new.into();
        let results = self.run(&ins)?;
        self.shortened(results, at, data)
    }

    /// Updates must have the size of the indices.
    fn check_updates(
        &self,
        updates: Option<PaddedValue>,
        indices: &PaddedValue,
    ) -> Result<(), NodeErrorKind> {
        let fits = updates.is_some_and(|own| {
            own.axis == indices.axis && same_value(self.c.graph(), own.count, indices.count)
        });
        match fits {
            true => Ok(()),
            false => Err(Self::refused(2)),
        }
    }

    /// Results without their last row along an axis.
    fn shortened(
        &mut self,
        results: Vec<ImportedValue>,
        at: usize,
        data: Option<PaddedValue>,
    ) -> PaddedNodeResults {
        let y = self.c.place(&results[0], 0)?;
        let rank = self.c.dims(y).len();
        let mut ends = vec![i64::MAX; rank];
        ends[at] = -1;
        let y = self.c.g().slice(y, &vec![0; rank], &ends, &vec![1; rank])?;
        Ok(Some(vec![match data {
            Some(own) => PaddedValue::val(y, own.axis, own.count),
            None => y.into(),
        }]))
    }

    /// Indices with 0 after the valid ones, which is always valid.
    fn safe(&mut self, index: usize) -> Result<Option<PaddedValue>, NodeErrorKind> {
        let Some(own) = self.bounded(index) else {
            return Ok(None);
        };
        let value = self.filled(&own, Filler::Zero)?;
        Ok(Some(PaddedValue { value, ..own }))
    }

    pub(super) fn gather(&mut self) -> PaddedNodeResults {
        let indices = self.safe(1)?;
        if let Some(own) = indices {
            self.ins[1] = ImportedValue::Bounded(Rc::new(own));
        }
        let Some(data) = self.bounded(0) else {
            return self.rest();
        };
        let at = axis(self.attrs.int("axis", 0)?, self.c.dims(data.value).len())?;
        if at != data.axis {
            return match indices {
                Some(_) => Err(Self::refused(1)),
                None => self.rest(),
            };
        }
        // Negative indices count from the valid end.
        let places = self.value(1)?;
        let zero = self.c.scalar(DType::I64, 0.0)?;
        let g = self.c.g();
        let places = cast_to(g, places, DType::I64)?;
        let count = g.cast(data.count, DType::I64)?;
        let from_end = g.plus(places, count)?;
        let negative = g.compare(CompareFn::Lt, places, zero)?;
        let places = g.where_(negative, from_end, places)?;
        let ins = [data.value.into(), places.into()];
        let results = self.run(&ins)?;
        match indices {
            Some(own) => self.wrapped(results, at + own.axis, own.count),
            None => Ok(Some(results)),
        }
    }

    pub(super) fn gather_at(&mut self) -> PaddedNodeResults {
        let Some(own) = self.safe(1)? else {
            return Ok(None);
        };
        self.ins[1] = ImportedValue::Bounded(Rc::new(own));
        self.rest()
    }
}

/// `x` with one more element at the end of an axis.
fn longer(g: &mut Graph, x: Value, at: usize, rank: usize) -> Result<Value, NodeErrorKind> {
    let mut after = vec![0usize; rank];
    after[at] = 1;
    Ok(g.pad(x, &vec![0; rank], &after, PadMode::Constant, 0.0)?)
}
