//! Determinants of small matrices.

use tercet_ir::{Dim, Value};

use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[op("Det", 11, det)];

/// Maximum number of rows; larger matrices would need a factorization operator.
const MAX_MATRIX_SIZE: usize = 4;

fn det(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let dims = k.dims(x);
    let n = match dims.as_slice() {
        [.., rows, cols] if rows == cols => {
            rows.known().filter(|n| (1..=MAX_MATRIX_SIZE).contains(n))
        }
        _ => None,
    };
    let n = n.ok_or_else(|| {
        let reason = format!("must be square matrices of at most {MAX_MATRIX_SIZE} rows");
        NodeErrorKind::operand(0, reason)
    })?;
    let outer = dims[..dims.len() - 2].to_vec();
    let elements = elements(k, x, n, &outer)?;
    let cols: Vec<usize> = (0..n).collect();
    one(expanded(k, &elements, 0, &cols)?)
}

/// The elements of the matrices, row by row.
fn elements(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    n: usize,
    outer: &[Dim],
) -> Result<Vec<Vec<Value>>, NodeErrorKind> {
    let (rows, cols) = (outer.len(), outer.len() + 1);
    let mut all = Vec::with_capacity(n);
    for i in 0..n {
        let row = k.g().narrow(x, rows, i, 1)?;
        let mut own = Vec::with_capacity(n);
        for j in 0..n {
            let element = k.g().narrow(row, cols, j, 1)?;
            own.push(reshaped(k.g(), element, outer)?);
        }
        all.push(own);
    }
    Ok(all)
}

/// Laplace expansion along the first remaining row.
fn expanded(
    k: &mut ImportNode<'_, '_>,
    elements: &[Vec<Value>],
    row: usize,
    cols: &[usize],
) -> Result<Value, NodeErrorKind> {
    if let [col] = cols {
        return Ok(elements[row][*col]);
    }
    let mut total: Option<Value> = None;
    for (at, col) in cols.iter().enumerate() {
        let rest: Vec<usize> = cols.iter().copied().filter(|c| c != col).collect();
        let minor = expanded(k, elements, row + 1, &rest)?;
        let term = k.g().mul(elements[row][*col], minor)?;
        total = Some(match total {
            None => term,
            Some(total) if at % 2 == 1 => k.g().sub(total, term)?,
            Some(total) => k.g().plus(total, term)?,
        });
    }
    total.ok_or_else(|| NodeErrorKind::operand(0, "has no columns"))
}
