//! Row operations on scores: softcap, mask, exponentials.

use std::ops::Range;

use super::{AttentionKeyMask, AttentionTask};
use crate::kernels::simd::Simd;
use crate::kernels::vmath::scalar;

/// Applies the softcap and the mask to one row of scores.
#[inline(always)]
pub(super) fn mask_row<S: Simd>(
    job: &AttentionTask<'_>,
    r: usize,
    keys: Range<usize>,
    kv_len: usize,
    scores: &mut [f32],
) {
    let (head, query) = job.row(r);
    if let Some(cap) = job.a.softcap {
        for s in scores.iter_mut() {
            *s = cap * scalar::tanh::<S>(*s / cap);
        }
    }
    let start = |s: &[usize; 4]| job.b * s[0] + head * s[1] + query * s[2] + keys.start * s[3];
    match &job.a.mask {
        AttentionKeyMask::None => {}
        AttentionKeyMask::Causal | AttentionKeyMask::SlidingWindow(_) => {
            let seen = job.a.visible(query, kv_len);
            let from = seen.start.clamp(keys.start, keys.end) - keys.start;
            let to = seen.end.clamp(keys.start, keys.end) - keys.start;
            scores[..from].fill(f32::NEG_INFINITY);
            scores[to.max(from)..].fill(f32::NEG_INFINITY);
        }
        AttentionKeyMask::Keep(keep, strides) => {
            let keep = &keep[start(strides)..];
            masked(scores, keep, strides[3], |s, keep| {
                if keep == 0 { f32::NEG_INFINITY } else { s }
            });
        }
        AttentionKeyMask::Bias(bias, strides) => {
            let bias = &bias[start(strides)..];
            masked(scores, bias, strides[3], |s, bias| s + bias);
        }
    }
}

/// `scores[j] = f(scores[j], mask[j * step])`.
#[inline(always)]
fn masked<T: Copy>(scores: &mut [f32], mask: &[T], step: usize, f: impl Fn(f32, T) -> f32) {
    match step {
        0 => scores.iter_mut().for_each(|s| *s = f(*s, mask[0])),
        1 => {
            for (s, mask) in scores.iter_mut().zip(mask) {
                *s = f(*s, *mask);
            }
        }
        _ => {
            for (s, mask) in scores.iter_mut().zip(mask.iter().step_by(step)) {
                *s = f(*s, *mask);
            }
        }
    }
}

/// Replaces the scores by `e^(s - max)` with the row's new maximum, and adds them to `sum`. Returns
/// the factor that rescales previous results.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn exp_row<S: Simd>(scores: &mut [f32], max: &mut f32, sum: &mut f32) -> f32 {
    let new = (*max).max(crate::kernels::rows::max_ignoring_nan(scores));
    if new == f32::NEG_INFINITY && !scores.iter().any(|s| s.is_nan()) {
        scores.fill(0.0);
        return 1.0;
    }
    for s in scores.iter_mut() {
        *s = scalar::exp::<S>(*s - new);
    }
    let shrink = if *max == new {
        1.0
    } else {
        scalar::exp::<S>(*max - new)
    };
    *sum = *sum * shrink + crate::kernels::rows::sum_body::<S>(scores);
    *max = new;
    shrink
}
