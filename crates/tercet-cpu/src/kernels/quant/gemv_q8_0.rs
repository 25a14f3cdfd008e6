//! Q8_0 GEMV. Scales are applied to the sum of a block, not to each weight, so that only memory
//! bandwidth limits the kernel.

use std::ops::Range;

use super::super::gemm::CHAIN;
use super::super::simd::Simd;
use super::{AHEAD, QuantView};

/// Weights per block, and bytes per block.
const LEN: usize = 32;
const BYTES: usize = 34;

/// Computes `y[j] = sum_p x[p] w[j, p]` for the rows `rows` of a Q8_0 matrix W.
///
/// # Safety
/// Requires the instructions of `S`; `w` was checked; `x` is valid for its `k`, and `y` for `rows`,
/// which no other task accesses.
#[inline(always)]
pub(super) unsafe fn dot_row<S: Simd>(
    w: &QuantView<'_>,
    rows: Range<usize>,
    x: *const f32,
    y: *mut f32,
) {
    let row_bytes = w.row_bytes();
    // Number of blocks whose sums are added in one chain.
    let at_once = CHAIN;
    let blocks = w.k / LEN;
    for b0 in (0..blocks.max(1)).step_by(at_once) {
        let count = at_once.min(blocks - b0);
        for j in rows.clone() {
            let bytes = &w.bytes[j * row_bytes + b0 * BYTES..][..count * BYTES];
            let mut sums = [S::splat(0.0); 2];
            for i in 0..count {
                let b = bytes.as_ptr().add(i * BYTES);
                S::prefetch(b.wrapping_add(AHEAD));
                let x = x.add((b0 + i) * LEN);
                let mut part = [S::splat(0.0); 2];
                for at in (0..LEN).step_by(S::LANES) {
                    let q = S::from_i8(b.add(2 + at).cast());
                    let chain = at / S::LANES % 2;
                    part[chain] = S::fma(q, S::load(x.add(at)), part[chain]);
                }
                let d = S::splat(S::halves(b).0);
                sums[i % 2] = S::fma(S::add(part[0], part[1]), d, sums[i % 2]);
            }
            let sum = S::sum(S::add(sums[0], sums[1]));
            let to = y.add(j);
            *to = if b0 > 0 { *to + sum } else { sum };
        }
    }
}
