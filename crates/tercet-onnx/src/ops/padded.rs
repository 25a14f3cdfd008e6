//! Nodes with operands of data-dependent size that need more than the position of the padded axis:
//! reductions, scatters, concatenations along the axis, shapes that contain the size.
//!
//! Elements after the valid ones are replaced by a neutral element, or moved out of the result.

mod indexed;

use std::rc::Rc;

use tercet_ir::ops::ReduceFn;
use tercet_ir::scalar::{BinaryFn, CompareFn};
use tercet_ir::{DType, Dim, Tensor, Value};

use super::OpsetEntry;
use super::attention::steps;
use super::shape::{product, reshaped};
use crate::attrs::OnnxAttrs;
use crate::call::{NodeOutputs, axes, axis};
use crate::ctx::ImportCtx;
use crate::emulated_dtypes::cast_to;
use crate::error::NodeErrorKind;
use crate::padded_value::{self, PaddedValue, places, same_value};
use crate::proto::NodeProto;
use crate::val::{DataSize, ImportedValue, ShapeElem};

/// A node with operands of data-dependent size.
struct PaddedNode<'a, 'm> {
    c: &'a mut ImportCtx<'m>,
    entry: &'static OpsetEntry,
    opset: i64,
    node: &'m NodeProto,
    ins: Vec<ImportedValue>,
    attrs: &'a OnnxAttrs<'m>,
}

/// The element that replaces those after the valid ones.
#[derive(Clone, Copy)]
enum Filler {
    Zero,
    One,
    Lowest,
    Highest,
    Nan,
}

/// The results of a node; `None` if the node has no operands of data-dependent size, or if only the
/// position of their axis matters.
pub(crate) fn call<'m>(
    c: &mut ImportCtx<'m>,
    (entry, opset, node): (&'static OpsetEntry, i64, &'m NodeProto),
    ins: &[ImportedValue],
    attrs: &OnnxAttrs<'m>,
) -> Result<Option<Vec<ImportedValue>>, NodeErrorKind> {
    let has_data = |v: &ImportedValue| match v {
        ImportedValue::Bounded(_) => true,
        ImportedValue::ShapeValue(sizes) => sizes.nums.iter().any(|n| n.data().is_some()),
        _ => false,
    };
    if !entry.domain.is_empty() || !ins.iter().any(has_data) {
        return Ok(None);
    }
    // Shape arithmetic on such sizes concerns only operators with a target shape.
    let is_bounded = |v: &ImportedValue| matches!(v, ImportedValue::Bounded(_));
    let shaped = [
        "Expand",
        "Reshape",
        "ConstantOfShape",
        "Range",
        "Slice",
        "TopK",
    ];
    if !ins.iter().any(is_bounded) && !shaped.contains(&entry.name) {
        return Ok(None);
    }
    let ins = ins.to_vec();
    let mut node = PaddedNode {
        c,
        entry,
        opset,
        node,
        ins,
        attrs,
    };
    match entry.name {
        "Shape" => node.shape(),
        "Size" => node.size(),
        "Expand" | "Reshape" => node.sized(1),
        "ConstantOfShape" => node.sized(0),
        "Range" => node.range(),
        "NonZero" => node.non_zero(),
        "Compress" => node.compress(),
        "Concat" => node.concat(),
        "Slice" if opset >= 10 => node.slice(),
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1"
        | "ReduceL2" | "ReduceSumSquare" | "ReduceLogSum" | "ReduceLogSumExp" => node.reduce(),
        "ArgMax" | "ArgMin" => node.arg_extreme(),
        "Softmax" | "LogSoftmax" if opset >= 13 => node.softmax(),
        "TopK" => node.top_k(),
        "ScatterND" => node.scatter_nd(),
        "ScatterElements" => node.scatter_elements(),
        "Gather" => node.gather(),
        "GatherND" | "GatherElements" => node.gather_at(),
        "NonMaxSuppression" => node.non_max_suppression(),
        _ => Ok(None),
    }
}

/// A result for a node that needs no further handling.
type PaddedNodeResults = Result<Option<Vec<ImportedValue>>, NodeErrorKind>;

impl<'m> PaddedNode<'_, 'm> {
    fn bounded(&self, index: usize) -> Option<PaddedValue> {
        match self.ins.get(index) {
            Some(ImportedValue::Bounded(own)) => Some(**own),
            _ => None,
        }
    }

    /// The operand as a graph value, without its valid size.
    fn value(&mut self, index: usize) -> Result<Value, NodeErrorKind> {
        match self.bounded(index) {
            Some(own) => Ok(own.value),
            None => {
                let val = self
                    .ins
                    .get(index)
                    .cloned()
                    .unwrap_or(ImportedValue::Absent);
                self.c.place(&val, index)
            }
        }
    }

    fn has(&self, index: usize) -> bool {
        !matches!(self.ins.get(index), None | Some(ImportedValue::Absent))
    }

    fn ints(&self, index: usize) -> Option<Vec<i64>> {
        match self.ins.get(index) {
            Some(ImportedValue::ConstTensor(k)) => Some(k.tensor.to_i64s()),
            _ => None,
        }
    }

    /// Runs the operator on plain operands.
    fn run(&mut self, ins: &[ImportedValue]) -> NodeOutputs {
        self.c
            .call(self.entry, self.opset, self.node, ins, self.attrs)
    }

    /// Runs the operator with operand `index` replaced.
    fn run_with(&mut self, index: usize, value: Value) -> NodeOutputs {
        let mut ins = self.ins.clone();
        ins[index] = value.into();
        self.run(&ins)
    }

    fn refused(index: usize) -> NodeErrorKind {
        let text = "has a data-dependent size, which this operator does not support here";
        NodeErrorKind::operand(index, text)
    }

    /// Whether elements along the padded axis are valid, shaped to broadcast: `[room, 1, ...]`.
    fn valid(&mut self, own: &PaddedValue) -> Result<Value, NodeErrorKind> {
        let dims = self.c.dims(own.value);
        let room = dims[own.axis].clone();
        let at = steps(self.c, &room)?;
        let count = self.c.g().cast(own.count, DType::I64)?;
        let inside = self.c.g().compare(CompareFn::Lt, at, count)?;
        let mut wide = vec![room];
        wide.resize(dims.len() - own.axis, Dim::Known(1));
        reshaped(self.c.g(), inside, &wide)
    }

    /// The value with a filler after the valid elements.
    fn filled(&mut self, own: &PaddedValue, filler: Filler) -> Result<Value, NodeErrorKind> {
        let valid = self.valid(own)?;
        let dtype = self.c.graph().ty(own.value).dtype;
        let range = dtype.int_range().filter(|_| !dtype.is_float());
        let (least, greatest) = match range {
            Some((least, greatest)) => (least as f64, greatest as f64),
            None => (f64::NEG_INFINITY, f64::INFINITY),
        };
        let filler = match filler {
            Filler::Zero => 0.0,
            Filler::One => 1.0,
            Filler::Lowest => least,
            Filler::Highest => greatest,
            Filler::Nan => f64::NAN,
        };
        let filler = match (range, filler) {
            // The first element is neutral for extremes and fits every device.
            (Some(_), n) if n.abs() > 2f64.powi(31) => {
                self.c.g().narrow(own.value, own.axis, 0, 1)?
            }
            (_, n) if dtype == DType::Bool => self.c.scalar(dtype, n.clamp(0.0, 1.0))?,
            (_, n) => self.c.scalar(dtype, n)?,
        };
        Ok(self.c.g().where_(valid, own.value, filler)?)
    }

    /// Wraps results with the axis of their valid size.
    fn wrapped(
        &mut self,
        results: Vec<ImportedValue>,
        axis: usize,
        count: Value,
    ) -> PaddedNodeResults {
        let mut all = Vec::with_capacity(results.len());
        for val in results {
            let value = self.c.place(&val, 0)?;
            all.push(PaddedValue::val(value, axis, count));
        }
        Ok(Some(all))
    }

    fn shape(&mut self) -> PaddedNodeResults {
        let Some(own) = self.bounded(0) else {
            return Ok(None);
        };
        let dims = self.c.dims(own.value);
        let rank = dims.len() as i64;
        let at = |i: i64| if i < 0 { i.saturating_add(rank) } else { i }.clamp(0, rank) as usize;
        let (start, end) = (
            at(self.attrs.int("start", 0)?),
            at(self.attrs.int("end", rank)?),
        );
        self.attrs.finish()?;
        let mut nums: Vec<ShapeElem> = dims.iter().map(ShapeElem::from_dim).collect();
        nums[own.axis] = ShapeElem::Data(DataSize {
            room: dims[own.axis].clone(),
            count: own.count,
        });
        let picked = nums.get(start..end).unwrap_or(&[]).to_vec();
        Ok(Some(vec![ImportedValue::sizes(picked, false)]))
    }

    fn size(&mut self) -> PaddedNodeResults {
        let Some(own) = self.bounded(0) else {
            return Ok(None);
        };
        let mut dims = self.c.dims(own.value);
        dims.remove(own.axis);
        let others = self.number(&product(&dims)?)?;
        let count = self.c.g().cast(own.count, DType::I64)?;
        Ok(Some(vec![self.c.g().mul(count, others)?.into()]))
    }

    /// A size as an I64 scalar of the graph.
    fn number(&mut self, dim: &Dim) -> Result<Value, NodeErrorKind> {
        let elem = ShapeElem::from_dim(dim);
        self.c.place(&ImportedValue::sizes(vec![elem], true), 0)
    }

    /// An operator with a target shape at operand `index` that contains a data-dependent size: the
    /// result has the maximum size there.
    fn sized(&mut self, index: usize) -> PaddedNodeResults {
        let Some(ImportedValue::ShapeValue(sizes)) = self.ins.get(index) else {
            return Ok(None);
        };
        let sizes = Rc::clone(sizes);
        let found = sizes.nums.iter().enumerate();
        let found: Vec<(usize, DataSize)> = found
            .filter_map(|(i, n)| Some((i, n.data()?.clone())))
            .collect();
        let (place, size) = match found.as_slice() {
            [] => return Ok(None),
            [(place, size)] => (*place, size.clone()),
            _ => return Err(Self::refused(index)),
        };
        let rooms = sizes.nums.iter().map(|n| match n {
            ShapeElem::Data(size) => ShapeElem::from_dim(&size.room),
            other => other.clone(),
        });
        let mut ins = self.ins.clone();
        ins[index] = ImportedValue::sizes_of(rooms.collect(), sizes.scalar, sizes.dtype);
        let operand = self.bounded(0).filter(|_| index > 0);
        if let Some(own) = operand {
            ins[0] = own.value.into();
        }
        let results = self.run(&ins)?;
        let value = self.c.place(&results[0], 0)?;
        let rank = self.c.dims(value).len();
        let at = place + rank.saturating_sub(sizes.nums.len());
        if let Some(own) = operand {
            // The operand's axis must be this axis, or be repeated along others.
            let own_rank = self.c.dims(own.value).len();
            let same = same_value(self.c.graph(), own.count, size.count);
            let there = match self.entry.name {
                "Expand" => rank.checked_sub(own_rank - own.axis) == Some(at),
                _ => true,
            };
            if !same || !there {
                return Err(Self::refused(index));
            }
        }
        self.wrapped(results, at, size.count)
    }

    /// `0, 1, ...` up to a data-dependent size.
    fn range(&mut self) -> PaddedNodeResults {
        let size = match self.ins.get(1) {
            Some(ImportedValue::ShapeValue(sizes)) => sizes.nums.first().and_then(ShapeElem::data),
            _ => None,
        };
        let (Some(size), Some([0]), Some([1])) = (
            size.cloned(),
            self.ints(0).as_deref(),
            self.ints(2).as_deref(),
        ) else {
            return Ok(None);
        };
        let at = steps(self.c, &size.room)?;
        Ok(Some(vec![PaddedValue::val(at, 0, size.count)]))
    }

    fn non_zero(&mut self) -> PaddedNodeResults {
        let Some(own) = self.bounded(0) else {
            return Ok(None);
        };
        let filled = self.filled(&own, Filler::Zero)?;
        self.run_with(0, filled).map(Some)
    }

    fn compress(&mut self) -> PaddedNodeResults {
        let (x, keep) = (self.bounded(0), self.bounded(1));
        let at = match (self.attrs.int_opt("axis")?, x) {
            (Some(at), Some(own)) => axis(at, self.c.dims(own.value).len())?,
            (Some(_), None) => 0,
            (None, Some(own)) if self.c.dims(own.value).len() > 1 => return Err(Self::refused(0)),
            (None, _) => 0,
        };
        let mut ins = self.ins.clone();
        let mut size = keep;
        if let Some(own) = x {
            if own.axis != at {
                return Err(Self::refused(0));
            }
            ins[0] = own.value.into();
            size = size.or(Some(own));
        }
        let mask = match (keep, size) {
            (Some(own), _) => self.filled(&own, Filler::Zero)?,
            (None, Some(own)) => {
                let keep = self.value(1)?;
                let vector = PaddedValue {
                    value: keep,
                    axis: 0,
                    count: own.count,
                };
                self.filled(&vector, Filler::Zero)?
            }
            (None, None) => return Ok(None),
        };
        ins[1] = mask.into();
        self.run(&ins).map(Some)
    }

    /// Concatenation along the padded axis: the valid elements move together.
    fn concat(&mut self) -> PaddedNodeResults {
        let all: Vec<Option<PaddedValue>> = (0..self.ins.len()).map(|i| self.bounded(i)).collect();
        let Some(first) = all.iter().flatten().next() else {
            return Ok(None);
        };
        let rank = self.c.dims(first.value).len();
        let at = axis(self.attrs.int_opt("axis")?.unwrap_or(0), rank)?;
        if all.iter().flatten().all(|own| own.axis != at) {
            return Ok(None);
        }
        let mut masks = Vec::with_capacity(all.len());
        let mut values = Vec::with_capacity(all.len());
        for (index, own) in all.iter().enumerate() {
            let value = self.value(index)?;
            let size = self.c.dims(value)[at].clone();
            masks.push(match own {
                Some(own) if own.axis != at => return Err(Self::refused(index)),
                Some(own) => {
                    let valid = self.valid(own)?;
                    reshaped(self.c.g(), valid, &[size])?
                }
                None => {
                    let yes = self.c.g().constant(Tensor::from_bools(&[], &[true])?)?;
                    self.c.g().expand(yes, [size])?
                }
            });
            values.push(value);
        }
        self.attrs.finish()?;
        let joined = self.c.g().concat(&values, at)?;
        let keep = self.c.g().concat(&masks, 0)?;
        let (order, count) = places(self.c, keep)?;
        let y = self.c.g().gather(joined, order, at)?;
        Ok(Some(vec![PaddedValue::val(y, at, count)]))
    }

    /// Slices of the padded axis with constant bounds, and slices up to a data-dependent size.
    fn slice(&mut self) -> PaddedNodeResults {
        let value = self.value(0)?;
        let dims = self.c.dims(value);
        let own = self.bounded(0);
        let bounds = |val: Option<&ImportedValue>| val.and_then(ImportedValue::as_sizes);
        let (starts, ends) = (bounds(self.ins.get(1)), bounds(self.ins.get(2)));
        let (Some(starts), Some(ends)) = (starts, ends) else {
            return Ok(None);
        };
        let along = match self.has(3) {
            true => self.ints(3),
            false => Some((0..starts.nums.len() as i64).collect()),
        };
        let Some(along) = along else { return Ok(None) };
        let along = axes(&along, dims.len())?;
        let data = ends.nums.iter().position(|n| n.data().is_some());
        let place = match (own, data) {
            (_, Some(place)) => Some(place),
            (Some(own), None) => along.iter().position(|a| *a == own.axis),
            (None, None) => None,
        };
        let Some(place) = place else { return Ok(None) };
        let steps = match self.has(4) {
            true => self.ints(4),
            false => Some(vec![1; along.len()]),
        };
        let at = *along.get(place).ok_or_else(|| Self::refused(0))?;
        let single = along.len() == 1 && steps.as_deref() == Some(&[1]);
        if !single || own.is_some_and(|own| own.axis != at) {
            return Err(Self::refused(0));
        }
        self.attrs.finish()?;
        let count = match own {
            Some(own) => self.c.g().cast(own.count, DType::I64)?,
            None => self.number(&dims[at])?,
        };
        // Clamped bounds; negative ones count from the valid end.
        let mut limits = [count; 2];
        for (limit, num) in limits
            .iter_mut()
            .zip([&starts.nums[place], &ends.nums[place]])
        {
            *limit = match num {
                ShapeElem::Int(n) => {
                    let n = (*n).clamp(-i64::from(i32::MAX), i32::MAX.into());
                    let given = self.c.g().constant(Tensor::scalar(n))?;
                    match n < 0 {
                        true => self.c.g().plus(count, given)?,
                        false => given,
                    }
                }
                ShapeElem::Dim(dim) => self.number(dim)?,
                ShapeElem::Data(size) => self.c.g().cast(size.count, DType::I64)?,
            };
            let zero = self.c.scalar(DType::I64, 0.0)?;
            let g = self.c.g();
            let low = g.max(*limit, zero)?;
            *limit = g.min(low, count)?;
        }
        let [start, end] = limits;
        let room = match &ends.nums[place] {
            ShapeElem::Int(n) if *n >= 0 => {
                let n = usize::try_from(*n).unwrap_or(usize::MAX);
                dims[at].known().map(|size| Dim::Known(size.min(n)))
            }
            ShapeElem::Data(size) if dims[at].is_at_least(&size.room) => Some(size.room.clone()),
            _ => None,
        };
        let room = room.unwrap_or_else(|| dims[at].clone());
        let offsets = super::attention::steps(self.c, &room)?;
        let zero = self.c.scalar(DType::I64, 0.0)?;
        let g = self.c.g();
        let length = g.sub(end, start)?;
        let length = g.max(length, zero)?;
        let moved = g.plus(offsets, start)?;
        let inside = g.compare(CompareFn::Lt, offsets, length)?;
        let order = g.where_(inside, moved, zero)?;
        let y = g.gather(value, order, at)?;
        let count = g.cast(length, DType::I32)?;
        Ok(Some(vec![PaddedValue::val(y, at, count)]))
    }

    /// The axes of a reduction, or `None` if they are unknown.
    fn reduced_axes(&self, rank: usize) -> Result<Option<Vec<usize>>, NodeErrorKind> {
        let since = if self.entry.name == "ReduceSum" {
            13
        } else {
            18
        };
        let list = match self.opset >= since {
            true if self.has(1) => match self.ints(1) {
                Some(list) => Some(list),
                None => return Ok(None),
            },
            true => None,
            false => self.attrs.ints_opt("axes")?.map(<[i64]>::to_vec),
        };
        let nothing = self.attrs.flag("noop_with_empty_axes", false)?;
        Ok(Some(match list.filter(|list| !list.is_empty()) {
            Some(list) => axes(&list, rank)?,
            None if nothing => Vec::new(),
            None => (0..rank).collect(),
        }))
    }

    fn reduce(&mut self) -> PaddedNodeResults {
        let Some(own) = self.bounded(0) else {
            return Ok(None);
        };
        let dims = self.c.dims(own.value);
        let list = self.reduced_axes(dims.len())?;
        let list = list.ok_or_else(|| Self::refused(0))?;
        let keep = self.attrs.flag("keepdims", true)?;
        if !list.contains(&own.axis) {
            let results = self.run_with(0, own.value)?;
            let before = list.iter().filter(|a| **a < own.axis).count();
            let at = if keep { own.axis } else { own.axis - before };
            return self.wrapped(results, at, own.count);
        }
        let filler = match self.entry.name {
            "ReduceMax" | "ReduceLogSumExp" => Filler::Lowest,
            "ReduceMin" => Filler::Highest,
            "ReduceProd" => Filler::One,
            _ => Filler::Zero,
        };
        let filled = self.filled(&own, filler)?;
        if self.entry.name != "ReduceMean" {
            return self.run_with(0, filled).map(Some);
        }
        self.attrs.finish()?;
        let sum = self.c.g().reduce(ReduceFn::Sum, filled, &list, keep)?;
        let others = list.iter().filter(|a| **a != own.axis);
        let others: Vec<Dim> = others.map(|a| dims[*a].clone()).collect();
        let others = self.number(&product(&others)?)?;
        let dtype = self.c.graph().ty(sum).dtype;
        let g = self.c.g();
        let count = g.cast(own.count, DType::I64)?;
        let total = g.mul(count, others)?;
        let total = g.cast(total, dtype)?;
        Ok(Some(vec![g.div(sum, total)?.into()]))
    }

    fn arg_extreme(&mut self) -> PaddedNodeResults {
        let Some(own) = self.bounded(0) else {
            return Ok(None);
        };
        let rank = self.c.dims(own.value).len();
        let at = axis(self.attrs.int("axis", 0)?, rank)?;
        let keep = self.attrs.flag("keepdims", true)?;
        if at != own.axis {
            let results = self.run_with(0, own.value)?;
            let moved = usize::from(!keep && at < own.axis);
            return self.wrapped(results, own.axis - moved, own.count);
        }
        let filler = match self.entry.name {
            "ArgMax" => Filler::Lowest,
            _ => Filler::Highest,
        };
        let filled = self.filled(&own, filler)?;
        self.run_with(0, filled).map(Some)
    }

    fn softmax(&mut self) -> PaddedNodeResults {
        let Some(own) = self.bounded(0) else {
            return Ok(None);
        };
        let rank = self.c.dims(own.value).len();
        let at = axis(self.attrs.int("axis", -1)?, rank)?;
        let x = match at == own.axis {
            true => self.filled(&own, Filler::Lowest)?,
            false => own.value,
        };
        let results = self.run_with(0, x)?;
        self.wrapped(results, own.axis, own.count)
    }

    /// Imports `TopK` along a padded axis, or with a number of elements that depends on data.
    fn top_k(&mut self) -> PaddedNodeResults {
        let own = self.bounded(0);
        let value = self.value(0)?;
        let dims = self.c.dims(value);
        let at = axis(self.attrs.int("axis", -1)?, dims.len())?;
        let largest = self.attrs.flag("largest", true)?;
        if let Some(own) = own.filter(|own| own.axis != at) {
            let results = self.run_with(0, own.value)?;
            return self.wrapped(results, own.axis, own.count);
        }
        let room = dims[at].known();
        let room = room.ok_or_else(|| Self::refused(0))? as i64;
        let (most, wanted) = match (self.ints(1), self.ins.get(1)) {
            (Some(k), _) => {
                let k = k.first().copied().unwrap_or(0);
                let wanted = self.c.g().constant(Tensor::scalar(k))?;
                (k.min(room), wanted)
            }
            (None, Some(ImportedValue::Graph(_) | ImportedValue::ShapeValue(_))) => {
                let wanted = self.value(1)?;
                let wanted = reshaped(self.c.g(), wanted, &[])?;
                (room, cast_to(self.c.g(), wanted, DType::I64)?)
            }
            _ => return Ok(None),
        };
        let count = match own {
            Some(own) => self.c.g().cast(own.count, DType::I64)?,
            None => self.number(&dims[at])?,
        };
        let count = self.c.g().min(count, wanted)?;
        let count = self.c.g().cast(count, DType::I32)?;
        let mut ins = self.ins.clone();
        if let Some(own) = own {
            let filler = if largest {
                Filler::Lowest
            } else {
                Filler::Highest
            };
            ins[0] = self.filled(&own, filler)?.into();
        }
        ins[1] = ImportedValue::known(Tensor::from_slice(&[1], &[most])?);
        let results = self.run(&ins)?;
        self.wrapped(results, at, count)
    }

    /// The results of a node for which the rules in `padded_value` suffice.
    fn rest(&mut self) -> PaddedNodeResults {
        let name = (self.entry.domain, self.entry.name);
        let Some(plan) = padded_value::plan(self.c, name, &self.ins)? else {
            return Ok(None);
        };
        let results = self.run(&plan.ins)?;
        plan.results(self.c, self.opset, self.attrs, results)
            .map(Some)
    }

    /// Scores after the valid ones become NaN, which is never selected.
    fn non_max_suppression(&mut self) -> PaddedNodeResults {
        let (boxes, scores) = (self.bounded(0), self.bounded(1));
        let mut ins = self.ins.clone();
        if let Some(own) = boxes {
            ins[0] = own.value.into();
        }
        let scores = match (scores, boxes) {
            (Some(own), _) => own,
            // Only the number of boxes is data-dependent, on axis 1 of the boxes; the same size is
            // axis 2 of the scores.
            (None, Some(own)) => PaddedValue {
                value: self.value(1)?,
                axis: if own.axis == 0 { 0 } else { 2 },
                count: own.count,
            },
            (None, None) => return Ok(None),
        };
        ins[1] = self.filled(&scores, Filler::Nan)?.into();
        self.run(&ins).map(Some)
    }
}

/// The valid size of an axis after a reshape: `times` is the size of the axes merged into it, `by`
/// that of the axes split from it.
pub(crate) fn scaled_count(
    c: &mut ImportCtx<'_>,
    count: Value,
    (times, by): (usize, usize),
) -> Result<Value, NodeErrorKind> {
    let mut y = count;
    if times != 1 {
        let factor = c.scalar(DType::I32, times as f64)?;
        y = c.g().binary(BinaryFn::Mul, y, factor)?;
    }
    if by != 1 {
        let factor = c.scalar(DType::I32, by as f64)?;
        y = c.g().binary(BinaryFn::Div, y, factor)?;
    }
    Ok(y)
}
