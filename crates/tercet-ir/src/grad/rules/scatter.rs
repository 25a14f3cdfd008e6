//! Gradients of scatter operators. The reductions (replace, sum, extreme, product) share one rule
//! for all index forms. The rule uses two primitives that depend on the index form: gathering at
//! the updated elements, and scattering.

use crate::error::OpError;
use crate::grad::{NoGradient, Vjp, VjpResult};
use crate::graph::Value;
use crate::ops::{ScatterAdd, ScatterElements, ScatterNd, ScatterReduce};
use crate::scalar::CompareFn;

use super::index::numbered;

type ScatterGradResult = Result<Value, OpError>;

/// The index form: how indices map updates to elements.
#[derive(Clone, Copy)]
enum ScatterIndexing {
    Elements { axis: usize, idx: Value },
    Slices { idx: Value },
}

impl ScatterIndexing {
    /// For each update, the element of `data` at its index.
    fn read(self, v: &mut Vjp<'_>, data: Value) -> ScatterGradResult {
        match self {
            ScatterIndexing::Elements { axis, idx } => v.gather_elements(data, idx, axis),
            ScatterIndexing::Slices { idx } => v.gather_nd(data, idx, 0),
        }
    }

    fn scatter(
        self,
        v: &mut Vjp<'_>,
        data: Value,
        updates: Value,
        f: ScatterReduce,
    ) -> ScatterGradResult {
        match self {
            ScatterIndexing::Elements { axis, idx } => {
                v.scatter_elements(data, idx, updates, axis, f)
            }
            ScatterIndexing::Slices { idx } => v.scatter_nd(data, idx, updates, f),
        }
    }
}

pub(crate) fn elements(op: &ScatterElements, v: &mut Vjp<'_>) -> VjpResult {
    let idx = v.x(1);
    let axis = op.axis;
    combined(v, ScatterIndexing::Elements { axis, idx }, op.reduce)
}

pub(crate) fn nd(op: &ScatterNd, v: &mut Vjp<'_>) -> VjpResult {
    let idx = v.x(1);
    combined(v, ScatterIndexing::Slices { idx }, op.reduce)
}

fn combined(v: &mut Vjp<'_>, way: ScatterIndexing, f: ScatterReduce) -> VjpResult {
    let dy = v.dy(0)?;
    match f {
        ScatterReduce::Replace => replaced(v, way, dy),
        ScatterReduce::Add => {
            v.accumulate(0, dy)?;
            if v.needs_cotangent(2) {
                let du = way.read(v, dy)?;
                v.accumulate(2, du)?;
            }
            Ok(())
        }
        ScatterReduce::Max | ScatterReduce::Min => extreme(v, way, dy),
        ScatterReduce::Mul => multiplied(v, way, dy),
    }
}

/// The last update of an element receives its cotangent; the overwritten element receives none.
fn replaced(v: &mut Vjp<'_>, way: ScatterIndexing, dy: Value) -> VjpResult {
    let (data, updates) = (v.x(0), v.x(2));
    if v.needs_cotangent(0) {
        let zeros = v.zeros_like(updates)?;
        let dx = way.scatter(v, dy, zeros, ScatterReduce::Replace)?;
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(2) {
        let own = numbered(v, updates)?;
        let blank = v.ty(data).with_dtype(v.dtype(own));
        let blank = v.filled(&blank, 0.0)?;
        let last = way.scatter(v, blank, own, ScatterReduce::Replace)?;
        let last = way.read(v, last)?;
        let stays = v.compare(CompareFn::Eq, last, own)?;
        let du = way.read(v, dy)?;
        let du = v.only_where(stays, du)?;
        v.accumulate(2, du)?;
    }
    Ok(())
}

/// Operands equal to the result divide its cotangent equally.
fn extreme(v: &mut Vjp<'_>, way: ScatterIndexing, dy: Value) -> VjpResult {
    let (data, updates, y) = (v.x(0), v.x(2), v.y(0));
    let dtype = v.dtype(data);
    let of_data = v.compare(CompareFn::Eq, data, y)?;
    let y_at = way.read(v, y)?;
    let of_updates = v.compare(CompareFn::Eq, updates, y_at)?;
    let ones = v.in_dtype(of_data, dtype)?;
    let more = v.in_dtype(of_updates, dtype)?;
    let count = way.scatter(v, ones, more, ScatterReduce::Add)?;
    // If the result is NaN, no operand equals it, so the number of tied operands may be 0.
    let one = v.scalar(dtype, 1.0)?;
    let count = v.max(count, one)?;
    let share = v.div(dy, count)?;
    if v.needs_cotangent(0) {
        let dx = v.only_where(of_data, share)?;
        v.accumulate(0, dx)?;
    }
    if v.needs_cotangent(2) {
        let du = way.read(v, share)?;
        let du = v.only_where(of_updates, du)?;
        v.accumulate(2, du)?;
    }
    Ok(())
}

/// The product of all factors but one: the product of the nonzero factors, if none of the others is
/// 0.
fn multiplied(v: &mut Vjp<'_>, way: ScatterIndexing, dy: Value) -> VjpResult {
    let (data, updates) = (v.x(0), v.x(2));
    let dtype = v.dtype(data);
    if v.needs_cotangent(0) {
        let one = v.ty(data).clone();
        let ones = v.filled(&one, 1.0)?;
        let others = way.scatter(v, ones, updates, ScatterReduce::Mul)?;
        let dx = v.mul(dy, others)?;
        v.accumulate(0, dx)?;
    }
    if !v.needs_cotangent(2) {
        return Ok(());
    }
    let one = v.scalar(dtype, 1.0)?;
    let not_zero = |v: &mut Vjp<'_>, x: Value| -> Result<(Value, Value), NoGradient> {
        let zero = v.is(CompareFn::Eq, x, 0.0)?;
        let factor = v.where_(zero, one, x)?;
        Ok((v.in_dtype(zero, dtype)?, factor))
    };
    let (zeros_of_data, factors_of_data) = not_zero(v, data)?;
    let (own_zero, own_factor) = not_zero(v, updates)?;
    let zeros = way.scatter(v, zeros_of_data, own_zero, ScatterReduce::Add)?;
    let product = way.scatter(v, factors_of_data, own_factor, ScatterReduce::Mul)?;
    let zeros = way.read(v, zeros)?;
    let product = way.read(v, product)?;
    let other_zeros = v.sub(zeros, own_zero)?;
    let none = v.is(CompareFn::Eq, other_zeros, 0.0)?;
    let others = v.div(product, own_factor)?;
    let others = v.only_where(none, others)?;
    let du = way.read(v, dy)?;
    let du = v.mul(du, others)?;
    Ok(v.accumulate(2, du)?)
}

/// `du[i] = dy[idx[i]]`
pub(crate) fn add(_: &ScatterAdd, v: &mut Vjp<'_>) -> VjpResult {
    let (idx, dy) = (v.x(1), v.dy(0)?);
    let du = v.gather(dy, idx, 0)?;
    Ok(v.accumulate(0, du)?)
}
