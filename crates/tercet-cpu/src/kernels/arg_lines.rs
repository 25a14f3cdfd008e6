//! Indices of extreme elements along an axis that is not the last one: adjacent lines are searched together.

use super::simd::{Simd, simd_dispatch};

/// Lines that are searched together.
const TILE: usize = 128;

simd_dispatch!(
    /// Writes the index of the extreme element of the lines `first..first + out.len()` of a block `x` of rows of
    /// `inner` elements: the largest, or else the smallest. NaN is the most extreme, zeros of both signs are equal,
    /// and the first of equal elements wins.
    pub fn arg_lines(
        largest: bool,
        inner: usize,
        first: usize,
        x: &[f32],
        out: &mut [i32],
    ) = arg_lines_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn arg_lines_body<S: Simd>(
    largest: bool,
    inner: usize,
    first: usize,
    x: &[f32],
    out: &mut [i32],
) {
    for (tile, out) in out.chunks_mut(TILE).enumerate() {
        let first = first + tile * TILE;
        match largest {
            true => search::<true>(inner, first, x, out),
            false => search::<false>(inner, first, x, out),
        }
    }
}

#[inline(always)]
fn search<const LARGEST: bool>(inner: usize, first: usize, x: &[f32], out: &mut [i32]) {
    let mut best = [u32::MAX; TILE];
    let mut at = [0i32; TILE];
    for (i, row) in x.chunks_exact(inner).enumerate() {
        let row = &row[first..first + out.len()];
        for ((at, best), x) in at.iter_mut().zip(&mut best).zip(row) {
            let rank = rank::<LARGEST>(*x);
            let is_better = rank < *best;
            *best = if is_better { rank } else { *best };
            *at = if is_better { i as i32 } else { *at };
        }
    }
    out.copy_from_slice(&at[..out.len()]);
}

/// Key of an element, lowest for the one that wins. No key is `u32::MAX`.
#[inline(always)]
fn rank<const LARGEST: bool>(x: f32) -> u32 {
    const SIGN: u32 = 1 << 31;
    let bits = x.to_bits();
    let magnitude = bits & !SIGN;
    let ascending = if bits == magnitude {
        SIGN + magnitude
    } else {
        SIGN - magnitude
    };
    let rank = if LARGEST { !ascending } else { ascending };
    if magnitude > 0x7f80_0000 { 0 } else { rank }
}
