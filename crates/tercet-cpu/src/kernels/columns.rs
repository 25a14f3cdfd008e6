//! Column reductions: `acc[j] = f(acc[j], x[j])`, the step of a reduction along a leading axis.
//! Callers fix the order of the rows, so results do not depend on threads.

use super::rows;
use super::simd::{Simd, simd_dispatch};
use super::vmath::scalar;

/// Reduction function of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnReduction {
    /// Sum.
    Sum,
    /// Maximum; NaN if any element is NaN.
    Max,
    /// Minimum; NaN if any element is NaN.
    Min,
}

impl ColumnReduction {
    /// Identity element.
    #[must_use]
    pub const fn identity(self) -> f32 {
        match self {
            ColumnReduction::Sum => 0.0,
            ColumnReduction::Max => f32::NEG_INFINITY,
            ColumnReduction::Min => f32::INFINITY,
        }
    }
}

simd_dispatch!(
    /// Folds one row into the accumulators.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn fold_row(column: ColumnReduction, acc: &mut [f32], x: &[f32]) = fold_row_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn fold_row_body<S: Simd>(column: ColumnReduction, acc: &mut [f32], x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "columns and row differ in length");
    let pairs = acc.iter_mut().zip(x);
    match column {
        ColumnReduction::Sum => pairs.for_each(|(acc, x)| *acc += x),
        ColumnReduction::Max => pairs.for_each(|(acc, x)| *acc = scalar::maximum(*acc, *x)),
        ColumnReduction::Min => pairs.for_each(|(acc, x)| *acc = scalar::minimum(*acc, *x)),
    }
}

simd_dispatch!(
    /// Folds one row to a single value: several lanes in parallel, then the lanes in order.
    pub fn fold_all(column: ColumnReduction, x: &[f32]) -> f32 = fold_all_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn fold_all_body<S: Simd>(column: ColumnReduction, x: &[f32]) -> f32 {
    const LANES: usize = 128;
    match column {
        ColumnReduction::Sum => {
            let mut acc = [0.0; LANES];
            for x in x.chunks(LANES) {
                fold_row_body::<S>(column, &mut acc[..x.len()], x);
            }
            acc.into_iter().fold(0.0, |a, b| a + b)
        }
        ColumnReduction::Max => rows::max_body::<S>(x),
        ColumnReduction::Min => rows::min_body::<S>(x),
    }
}
