//! Cumulative sums of F32 along an axis that is not contiguous, accumulated in f64.

use super::simd::{Simd, simd_dispatch};

/// Adjacent lines that are processed together.
const TILE: usize = 128;

simd_dispatch!(
    /// Sums the lines of `x [len, inner]`, each element with those before it, or with those after it if `reverse`. An
    /// exclusive sum leaves out the element itself.
    pub(crate) fn cumulative_sums(inner: usize, exclusive: bool, reverse: bool, x: &[f32], out: &mut [f32]) = cumulative_sums_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn cumulative_sums_body<S: Simd>(
    inner: usize,
    exclusive: bool,
    reverse: bool,
    x: &[f32],
    out: &mut [f32],
) {
    let len = x.len() / inner;
    for first in (0..inner).step_by(TILE) {
        let n = TILE.min(inner - first);
        let mut sums = [0f64; TILE];
        for step in 0..len {
            let row = if reverse { len - 1 - step } else { step };
            let at = row * inner + first;
            let pairs = sums
                .iter_mut()
                .zip(&x[at..at + n])
                .zip(&mut out[at..at + n]);
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
}
