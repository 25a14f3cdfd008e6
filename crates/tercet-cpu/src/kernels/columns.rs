//! Folding rows into columns: `acc[j] = f(acc[j], x[j])`, the step of a reduction along a leading
//! axis. Callers fix the order of the rows, so that results do not depend on threads.

use super::rows;
use super::simd::{Simd, simd_dispatch};
use super::vmath::scalar;

/// What a column holds of the rows so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Their sum.
    Sum,
    /// The greatest; NaN if any is.
    Max,
    /// The least; NaN if any is.
    Min,
}

impl Column {
    /// The value over no rows.
    #[must_use]
    pub const fn identity(self) -> f32 {
        match self {
            Column::Sum => 0.0,
            Column::Max => f32::NEG_INFINITY,
            Column::Min => f32::INFINITY,
        }
    }
}

simd_dispatch!(
    /// Folds one row into the columns.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn fold_row(column: Column, acc: &mut [f32], x: &[f32]) = fold_row_body
);

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn fold_row_body<S: Simd>(column: Column, acc: &mut [f32], x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "columns and row differ in length");
    let pairs = acc.iter_mut().zip(x);
    match column {
        Column::Sum => pairs.for_each(|(acc, x)| *acc += x),
        Column::Max => pairs.for_each(|(acc, x)| *acc = scalar::maximum(*acc, *x)),
        Column::Min => pairs.for_each(|(acc, x)| *acc = scalar::minimum(*acc, *x)),
    }
}

simd_dispatch!(
    /// One row folded to one value: many lanes, which are then folded in order.
    pub fn fold_all(column: Column, x: &[f32]) -> f32 = fold_all_body
);

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn fold_all_body<S: Simd>(column: Column, x: &[f32]) -> f32 {
    const LANES: usize = 128;
    match column {
        Column::Sum => {
            let mut acc = [0.0; LANES];
            for x in x.chunks(LANES) {
                fold_row_body::<S>(column, &mut acc[..x.len()], x);
            }
            acc.into_iter().fold(0.0, |a, b| a + b)
        }
        Column::Max => rows::max_body::<S>(x),
        Column::Min => rows::min_body::<S>(x),
    }
}
