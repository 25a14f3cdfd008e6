//! Packs blocks of a column-major A, so that tiles read them contiguously.
//!
//! In a column-major matrix, each step of k is in a separate cache line, often at a power-of-two
//! stride. The L1 cache evicts these lines before the adjacent elements are read.

use std::ops::Range;

use super::super::simd::{Simd, SimdLevel};
use super::{MAX_SMALL_M_ROWS, MatView, ROWS_PER_TASK, k_block, tile_shape};

/// Steps of k that are copied for all tiles before the next steps; their cache lines stay in L1.
const STEPS: usize = 8;

/// Prefetch distance in steps of k: the hardware prefetcher does not follow such large strides.
const AHEAD: usize = 2 * STEPS;

/// True if a GEMM `[m, n, k]` should pack an A with this column stride, given enough scratch
/// memory. Packing is profitable if more than one panel of B reads each element.
pub(super) fn is_copied(level: SimdLevel, [m, n, k]: [usize; 3], col_stride: usize) -> bool {
    col_stride != 1 && m > MAX_SMALL_M_ROWS && k > 1 && n > tile_shape(level).1
}

/// Floats of a packed block of one task.
pub(super) fn block_len(level: SimdLevel, m: usize, k: usize) -> usize {
    m.min(ROWS_PER_TASK + tile_shape(level).0) * k_block(k)
}

/// Rows of tile `i` of `tiles`, split as evenly as possible so that no tile is very small.
#[inline(always)]
pub(super) fn tile_rows(rows: &Range<usize>, i: usize, tiles: usize) -> Range<usize> {
    rows.start + i * rows.len() / tiles..rows.start + (i + 1) * rows.len() / tiles
}

/// Packs `rows` and `ks` of `a`: tile by tile, then by steps of k, then by rows.
///
/// # Safety
/// Requires the instructions of `S`; the block is inside `a`, and `to` has room for it.
#[inline(always)]
pub(super) unsafe fn copy_block<S: Simd>(
    a: &MatView<'_>,
    rows: &Range<usize>,
    ks: &Range<usize>,
    to: *mut f32,
) {
    let tiles = rows.len().div_ceil(S::TILE_ROWS);
    for k0 in ks.clone().step_by(STEPS) {
        let steps = STEPS.min(ks.end - k0);
        if a.row_stride == 1 {
            let ahead = k0 + AHEAD..ks.end.min(k0 + AHEAD + STEPS);
            for p in ahead {
                let row = a.data.as_ptr().wrapping_add(p * a.col_stride);
                for i in (rows.start..rows.end + 15).step_by(16) {
                    S::prefetch(row.wrapping_add(i).cast());
                }
            }
        }
        for i in 0..tiles {
            let tile = tile_rows(rows, i, tiles);
            let from = a
                .data
                .as_ptr()
                .wrapping_add(tile.start * a.row_stride + k0 * a.col_stride);
            let at = (tile.start - rows.start) * ks.len() + (k0 - ks.start) * tile.len();
            let to = to.add(at);
            if a.row_stride != 1 {
                for p in 0..steps {
                    for row in 0..tile.len() {
                        let x = *from.wrapping_add(p * a.col_stride + row * a.row_stride);
                        *to.add(p * tile.len() + row) = x;
                    }
                }
                continue;
            }
            match tile.len() {
                8 => copy_rows::<8>(from, a.col_stride, to, steps),
                7 => copy_rows::<7>(from, a.col_stride, to, steps),
                6 => copy_rows::<6>(from, a.col_stride, to, steps),
                5 => copy_rows::<5>(from, a.col_stride, to, steps),
                4 => copy_rows::<4>(from, a.col_stride, to, steps),
                3 => copy_rows::<3>(from, a.col_stride, to, steps),
                2 => copy_rows::<2>(from, a.col_stride, to, steps),
                _ => copy_rows::<1>(from, a.col_stride, to, steps),
            }
        }
    }
}

/// # Safety
/// Same as [`copy_block`], for a tile of `R` rows.
#[inline(always)]
unsafe fn copy_rows<const R: usize>(
    from: *const f32,
    col_stride: usize,
    to: *mut f32,
    steps: usize,
) {
    for p in 0..steps {
        let rows = from
            .wrapping_add(p * col_stride)
            .cast::<[f32; R]>()
            .read_unaligned();
        to.add(p * R).cast::<[f32; R]>().write_unaligned(rows);
    }
}
