//! Decomposition of `Unique`: sorts the list; an element that differs from its predecessor begins a
//! new value.

use tercet_tensor::DType;

use super::util::ValueResult;
use super::{LegalizeRule, RuleResult};
use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{CumSum, Gather, Op, OpKind, ReduceFn, ScanFn, Sort};
use crate::scalar::{BinaryFn, CompareFn};

pub(super) const RULES: &[LegalizeRule] = &[LegalizeRule {
    name: "unique_as_sorts",
    on: OpKind::Unique,
    apply: unique,
}];

/// Sorts the elements of a list, ascending or descending, and returns their indices too. The sort
/// is stable.
fn sorted(b: &mut LegalizeBuilder<'_>, x: Value, descending: bool) -> Result<[Value; 2], OpError> {
    let axis = 0;
    let both = b.add_all(Sort { axis, descending }, &[x])?;
    Ok([both[0], both[1]])
}

fn gather(b: &mut LegalizeBuilder<'_>, x: Value, at: Value) -> ValueResult {
    b.add(Gather { axis: 0 }, &[x, at])
}

/// For each element of a sorted list, whether it differs from its predecessor; true for the first
/// one.
fn begins(b: &mut LegalizeBuilder<'_>, x: Value, at: Value) -> ValueResult {
    let (zero, one) = (b.scalar(DType::I32, 0.0)?, b.scalar(DType::I32, 1.0)?);
    let before = b.binary(BinaryFn::Sub, at, one)?;
    let before = b.binary(BinaryFn::Max, before, zero)?;
    let last = gather(b, x, before)?;
    let mut differs = b.compare(CompareFn::Ne, x, last)?;
    if DType::FLOATS.contains(&b.dtype(x)) {
        // All NaNs count as one value.
        let is_nan = b.compare(CompareFn::Ne, x, x)?;
        let was_nan = b.compare(CompareFn::Ne, last, last)?;
        let same = b.binary(BinaryFn::And, is_nan, was_nan)?;
        let no = b.scalar(DType::Bool, 0.0)?;
        differs = b.select(same, no, differs)?;
    }
    let is_first = b.compare(CompareFn::Eq, at, zero)?;
    b.binary(BinaryFn::Or, differs, is_first)
}

fn unique(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Unique(_), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let shape = b.shape(x);
    let Some(n) = shape.numel() else {
        return Ok(None);
    };
    let flat = b.reshape(x, vec![n.clone()])?;
    let [values, from] = sorted(b, flat, false)?;
    let at = b.iota(&n, false)?;
    let (zero, one) = (b.scalar(DType::I32, 0.0)?, b.scalar(DType::I32, 1.0)?);
    let begins = begins(b, values, at)?;
    let begins = b.cast(begins, DType::I32)?;
    let ones = b.expand(one, vec![n])?;
    let [count, all] = [begins, ones].map(|list| b.reduce(ReduceFn::Sum, list, &[0]));
    let (count, all) = (count?, all?);
    // A descending sort of the flags puts the first element of each distinct value first, in order.
    let [_, starts] = sorted(b, begins, true)?;
    let is_value = b.compare(CompareFn::Lt, at, count)?;
    let listed = |b: &mut LegalizeBuilder<'_>, list: Value| {
        let list = gather(b, list, starts)?;
        let zero = b.scalar(b.dtype(list), 0.0)?;
        b.select(is_value, list, zero)
    };
    let (values, firsts) = (listed(b, values)?, listed(b, from)?);
    // The run of a value ends before the next value begins; the last one ends with the list.
    let next = b.binary(BinaryFn::Add, at, one)?;
    let has_next = b.compare(CompareFn::Lt, next, count)?;
    let next = b.select(has_next, next, zero)?;
    let next = gather(b, starts, next)?;
    let end = b.select(has_next, next, all)?;
    let counts = b.binary(BinaryFn::Sub, end, starts)?;
    let counts = b.select(is_value, counts, zero)?;
    let sums = CumSum {
        axis: 0,
        f: ScanFn::Sum,
        exclusive: false,
        reverse: false,
    };
    let numbers = b.add(sums, &[begins])?;
    let numbers = b.binary(BinaryFn::Sub, numbers, one)?;
    let [_, places] = sorted(b, from, false)?;
    let numbers = gather(b, numbers, places)?;
    let numbers = b.reshape(numbers, shape)?;
    let count = b.reshape(count, Vec::new())?;
    Ok(Some(vec![values, firsts, counts, numbers, count]))
}
