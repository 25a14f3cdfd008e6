//! Decompositions of `Tile`, `Roll` and `Trilu` into views, gathers and a selection.

use tercet_tensor::{DType, Dim};

use super::util::ValueResult;
use super::{LegalizeRule, RuleResult};
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{Concat, Gather, Op, OpKind};
use crate::scalar::{BinaryFn, CompareFn};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "tile_as_expanded_axes",
        on: OpKind::Tile,
        apply: tile,
    },
    LegalizeRule {
        name: "roll_as_exchanged_parts",
        on: OpKind::Roll,
        apply: roll,
    },
    LegalizeRule {
        name: "trilu_as_choice_by_diagonal",
        on: OpKind::Trilu,
        apply: trilu,
    },
];

/// Repeats each axis in turn: inserts an axis before it, expands it and merges both.
fn tile(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Tile(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let mut y = x;
    for (axis, &reps) in o.reps.iter().enumerate().filter(|(_, reps)| **reps != 1) {
        let mut shape = b.shape(y);
        let n = shape[axis].clone();
        let (outer, inner) = (numel(&shape[..axis]), numel(&shape[axis + 1..]));
        let (Some(outer), Some(inner)) = (outer, inner) else {
            return Ok(None);
        };
        let reps = Dim::Known(reps);
        let Some(all) = n.checked_mul(&reps) else {
            return Ok(None);
        };
        y = b.reshape(
            y,
            vec![outer.clone(), Dim::Known(1), n.clone(), inner.clone()],
        )?;
        y = b.expand(y, vec![outer, reps, n, inner])?;
        shape.dims_mut()[axis] = all;
        y = b.reshape(y, shape)?;
    }
    Ok(Some(vec![y]))
}

fn numel(dims: &[Dim]) -> Option<Dim> {
    let mut dims = dims.iter();
    dims.try_fold(Dim::Known(1), |n, d| n.checked_mul(d))
}

fn roll(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Roll(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let mut y = x;
    for (axis, &shift) in o.shifts.iter().enumerate() {
        let n = b.ty(y).shape[axis].clone();
        y = match n.known() {
            Some(0) => y,
            Some(n) => match shift.rem_euclid(n as i64) {
                0 => y,
                shift => {
                    let last = b.slice(y, axis, n as i64 - shift, i64::MAX, 1)?;
                    let first = b.slice(y, axis, 0, n as i64 - shift, 1)?;
                    b.add(Concat { axis }, &[last, first])?
                }
            },
            None if shift == 0 => y,
            None => {
                let from = rolled_places(b, &n, shift)?;
                b.add(Gather { axis }, &[y, from])?
            }
        };
    }
    Ok(Some(vec![y]))
}

/// `(i - shift) mod n` for each `i` of an axis whose size `n` is known only at run time.
fn rolled_places(b: &mut LegalizeBuilder<'_>, n: &Dim, shift: i64) -> ValueResult {
    let (up, down) = (b.iota(n, false)?, b.iota(n, true)?);
    let one = b.scalar(DType::I32, 1.0)?;
    let others = b.binary(BinaryFn::Add, up, down)?;
    let size = b.binary(BinaryFn::Add, others, one)?;
    let modulo = |b: &mut LegalizeBuilder<'_>, x: Value| -> ValueResult {
        let rest = b.binary(BinaryFn::Rem, x, size)?;
        let zero = b.scalar(DType::I32, 0.0)?;
        let is_negative = b.compare(CompareFn::Lt, rest, zero)?;
        let from_end = b.binary(BinaryFn::Add, rest, size)?;
        b.select(is_negative, from_end, rest)
    };
    // Type inference limits shifts of axes of unknown size to I32.
    let shift = b.scalar(DType::I32, shift as f64)?;
    let shift = modulo(b, shift)?;
    let from = b.binary(BinaryFn::Sub, up, shift)?;
    modulo(b, from)
}

fn trilu(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::Trilu(o), &[x]) = (op, inputs) else {
        return Ok(None);
    };
    let shape = b.shape(x);
    let [.., rows, columns] = &shape[..] else {
        return Ok(None);
    };
    let row = b.iota(rows, false)?;
    let row = b.reshape(row, vec![rows.clone(), Dim::Known(1)])?;
    let column = b.iota(columns, false)?;
    let diagonal = b.binary(BinaryFn::Sub, column, row)?;
    // Diagonals of I32 sizes fit I32; a bound beyond them selects all or none of the elements.
    let k = o.k.clamp(i32::MIN.into(), i32::MAX.into());
    let k = b.scalar(DType::I32, k as f64)?;
    let kept = match o.upper {
        true => b.compare(CompareFn::Ge, diagonal, k)?,
        false => b.compare(CompareFn::Le, diagonal, k)?,
    };
    let zero = b.scalar(b.dtype(x), 0.0)?;
    Ok(Some(vec![b.select(kept, x, zero)?]))
}
