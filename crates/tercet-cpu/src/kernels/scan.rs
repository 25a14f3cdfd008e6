//! Cumulative sums of F32 along an axis that is not contiguous, accumulated in f64.

use std::ops::Range;

use super::parallel::SharedMut;
use super::simd::{Simd, simd_dispatch};

/// Adjacent lines that are processed together, at most.
pub(crate) const TILE: usize = 256;

simd_dispatch!(
    /// Sums the adjacent lines `columns` of `x [len, inner]`, each element with those before it, or
    /// with those after it if `reverse`. An exclusive sum leaves out the element itself. `out` has
    /// as many elements as `x`, and no other thread accesses these lines.
    pub(crate) fn cumulative_sums(inner: usize, columns: Range<usize>, exclusive: bool, reverse: bool, x: &[f32], out: SharedMut<f32>) = cumulative_sums_body
);

/// # Safety
/// Requires the instructions of `S`, and exclusive access to the lines of `out`, which is as long
/// as `x`.
#[inline(always)]
unsafe fn cumulative_sums_body<S: Simd>(
    inner: usize,
    columns: Range<usize>,
    exclusive: bool,
    reverse: bool,
    x: &[f32],
    out: SharedMut<f32>,
) {
    let len = x.len() / inner;
    let (first, n) = (columns.start, columns.len());
    let mut sums = [0f64; TILE];
    let sums = &mut sums[..n];
    for step in 0..len {
        let row = if reverse { len - 1 - step } else { step };
        let at = row * inner + first;
        // SAFETY: the elements are inside the result, and belong to the lines of this thread.
        let y = unsafe { out.slice(at, n) };
        let pairs = sums.iter_mut().zip(&x[at..at + n]).zip(y);
        match exclusive {
            true => pairs.for_each(|((sum, x), y)| {
                *y = *sum as f32;
                *sum += f64::from(*x);
            }),
            false => pairs.for_each(|((sum, x), y)| {
                *sum += f64::from(*x);
                *y = *sum as f32;
            }),
        }
    }
}
