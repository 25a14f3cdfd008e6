//! Weighted sums of rows and along rows, for interpolation.
//!
//! The kernels skip elements of weight 0, so that an infinity or NaN next to the interpolated elements does not change
//! the result.

use super::simd::{Simd, simd_dispatch};

simd_dispatch!(
    /// Computes the weighted sum of rows of the length of `out`; zero without rows.
    pub(crate) fn sum_rows(rows: &[(&[f32], f32)], out: &mut [f32]) = sum_rows_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn sum_rows_body<S: Simd>(rows: &[(&[f32], f32)], out: &mut [f32]) {
    match rows {
        [] => out.fill(0.0),
        [(a, v)] => out.iter_mut().zip(*a).for_each(|(y, a)| *y = v * a),
        [(a, v), (b, w), rest @ ..] => {
            let pairs = out.iter_mut().zip(*a).zip(*b);
            pairs.for_each(|((y, a), b)| *y = v * a + w * b);
            for (row, weight) in rest {
                out.iter_mut().zip(*row).for_each(|(y, x)| *y += weight * x);
            }
        }
    }
}

simd_dispatch!(
    /// Computes each element from `count` elements of a row, with `count` indices and weights per element.
    pub(crate) fn along(count: usize, indices: &[u32], weights: &[f32], row: &[f32], out: &mut [f32]) = along_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn along_body<S: Simd>(
    count: usize,
    indices: &[u32],
    weights: &[f32],
    row: &[f32],
    out: &mut [f32],
) {
    match count {
        1 => some_taps::<1>(indices, weights, row, out),
        2 => some_taps::<2>(indices, weights, row, out),
        4 => some_taps::<4>(indices, weights, row, out),
        count => {
            let taps = indices.chunks_exact(count).zip(weights.chunks_exact(count));
            for (y, (indices, weights)) in out.iter_mut().zip(taps) {
                let taps = indices.iter().zip(weights).filter(|(_, w)| **w != 0.0);
                *y = taps.fold(0.0, |sum, (at, w)| sum + w * row[*at as usize]);
            }
        }
    }
}

#[inline(always)]
fn some_taps<const N: usize>(indices: &[u32], weights: &[f32], row: &[f32], out: &mut [f32]) {
    let (indices, _) = indices.as_chunks::<N>();
    let (weights, _) = weights.as_chunks::<N>();
    for (y, (indices, weights)) in out.iter_mut().zip(indices.iter().zip(weights)) {
        let mut sum = 0.0;
        for (at, w) in indices.iter().zip(weights) {
            let part = w * row[*at as usize];
            sum += if *w != 0.0 { part } else { 0.0 };
        }
        *y = sum;
    }
}
