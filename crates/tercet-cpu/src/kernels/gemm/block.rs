//! One GEMM task: a rectangle of C over all of k.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name streams and vectors in several arrays at once"
)]

use std::ops::Range;

use super::super::parallel::SharedMut;
use super::super::simd::{Simd, simd_dispatch};
use super::pack_a::{copy_block, tile_rows};
use super::tile::{self, GemmColumnReads, GemmMicroTile, LINE, Prefetch, UNROLLED};
use super::{GemmEpilogue, MAX_SMALL_M_ROWS, MatView};

/// Rectangle of C to compute.
pub(super) struct TaskTile<'a> {
    pub(super) a: MatView<'a>,
    pub(super) b: &'a [f32],
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) kc: usize,
    pub(super) rows: Range<usize>,
    pub(super) panels: Range<usize>,
    pub(super) c: SharedMut<f32>,
    pub(super) c_stride: usize,
    /// Column of C, bias and residual that corresponds to column 0 of B.
    pub(super) col0: usize,
    pub(super) epilogue: &'a GemmEpilogue<'a>,
    /// Private memory of this task for its packed rows of A over one k block, if A is packed.
    pub(super) copy: Option<*mut f32>,
}

impl TaskTile<'_> {
    /// True for few rows, which are limited by the bandwidth of reading B. With few rows, a task
    /// reads B once in order, panel by panel instead of k block by k block.
    fn is_narrow(&self) -> bool {
        self.rows.len() <= MAX_SMALL_M_ROWS
    }
}

simd_dispatch!(
    /// Computes a block. No other task may write its rectangle of C, and the caller must have
    /// checked its bounds.
    pub(super) fn run_block(block: &TaskTile<'_>) = run_block_body
);

/// # Safety
/// Same as [`run_block`]; requires the instructions of `S`.
#[inline(always)]
unsafe fn run_block_body<S: Simd>(block: &TaskTile<'_>) {
    let nr = S::TILE_VECTORS * S::LANES;
    let at_once = match block.rows.len() {
        1 => STREAMS,
        _ if block.is_narrow() => 1,
        _ => block.panels.len().max(1),
    };
    for first in block.panels.clone().step_by(at_once) {
        let panels = first..block.panels.end.min(first + at_once);
        let mut k0 = 0;
        loop {
            let ks = k0..block.k.min(k0 + block.kc);
            let last = ks.end == block.k;
            if let Some(copy) = block.copy {
                copy_block::<S>(&block.a, &block.rows, &ks, copy);
            }
            let is_whole = panels.len() == STREAMS && panels.end * nr <= block.n;
            let side_by_side = block.rows.len() == 1 && is_whole;
            if side_by_side {
                match S::TILE_VECTORS {
                    1 => run_streams::<S, 1>(block, panels.start, ks.clone()),
                    2 => run_streams::<S, 2>(block, panels.start, ks.clone()),
                    _ => run_streams::<S, 3>(block, panels.start, ks.clone()),
                }
            }
            for panel in panels.clone() {
                if !side_by_side {
                    run_panel::<S>(block, panel, ks.clone());
                }
                if last {
                    let col = block.col0 + panel * nr;
                    let cols = col..col + nr.min(block.n - panel * nr);
                    let rows = block.rows.clone();
                    // Tiles add the bias themselves; only `run_streams` leaves it to the epilogue.
                    let bias = block.epilogue.bias.filter(|_| side_by_side);
                    let epilogue = GemmEpilogue {
                        bias,
                        ..*block.epilogue
                    };
                    epilogue.finish::<S>(rows, cols, block.c, block.c_stride);
                }
            }
            k0 = ks.end;
            if last {
                break;
            }
        }
    }
}

/// Panels that a single row reads in parallel. Several address streams use more memory bandwidth
/// than one, even with prefetching.
pub(super) const STREAMS: usize = 4;

/// Multiplies one row by [`STREAMS`] whole panels of `NV` vectors over one k block.
///
/// # Safety
/// Same as [`run_block`]; requires the instructions of `S`, and panels of `NV` vectors.
#[inline(always)]
unsafe fn run_streams<S: Simd, const NV: usize>(
    block: &TaskTile<'_>,
    first: usize,
    ks: Range<usize>,
) {
    let nr = NV * S::LANES;
    let (a, row) = (&block.a, block.rows.start);
    let mut x = a
        .data
        .as_ptr()
        .add(row * a.row_stride + ks.start * a.col_stride);
    let mut b = block.b.as_ptr().add((first * block.k + ks.start) * nr);
    let mut sums = [[S::splat(0.0); NV]; STREAMS];
    for _ in ks.clone() {
        let value = S::splat(*x);
        for i in 0..STREAMS {
            for v in 0..NV {
                let column = S::load(b.add(i * block.k * nr + v * S::LANES));
                sums[i][v] = S::fma(value, column, sums[i][v]);
            }
        }
        x = x.wrapping_add(a.col_stride);
        b = b.wrapping_add(nr);
    }
    let c = block
        .c
        .ptr()
        .add(row * block.c_stride + block.col0 + first * nr);
    for i in 0..STREAMS {
        for v in 0..NV {
            let to = c.add(i * nr + v * S::LANES);
            let sum = match ks.start > 0 {
                true => S::add(sums[i][v], S::load(to)),
                false => sums[i][v],
            };
            S::store(to, sum);
        }
    }
}

/// Computes the tiles of one panel over one k block.
///
/// # Safety
/// Same as [`run_block`]; requires the instructions of `S`.
#[inline(always)]
unsafe fn run_panel<S: Simd>(block: &TaskTile<'_>, panel: usize, ks: Range<usize>) {
    let nr = S::TILE_VECTORS * S::LANES;
    let col = panel * nr;
    let cols = nr.min(block.n - col);
    let vectors = cols.div_ceil(S::LANES);
    let a = &block.a;
    let a0 = a.data.as_ptr();
    let tiles = block.rows.len().div_ceil(S::TILE_ROWS);
    let b = block
        .b
        .as_ptr()
        .wrapping_add((panel * block.k + ks.start) * nr);
    let len = ks.len() * nr;
    // With few tiles, the first ones prefetch the data that follows in memory. With many tiles, the
    // last ones prefetch the next panel. An earlier prefetch would be evicted, and a later burst
    // would exceed the memory bandwidth.
    let is_narrow = block.is_narrow();
    let next = b.wrapping_add(if is_narrow { len } else { block.k * nr });
    let (asking, each) = match is_narrow {
        true => (0, ks.len() * LINE),
        false => (tiles.saturating_sub(UNROLLED), ks.len() / UNROLLED * LINE),
    };
    let last_ks = ks.end == block.k;
    let bias = match block.epilogue.bias {
        Some(bias) if last_ks => bias[block.col0 + col..].as_ptr(),
        Some(_) | None => std::ptr::null(),
    };
    for i in 0..tiles {
        let rows = tile_rows(&block.rows, i, tiles);
        let (row, count) = (rows.start, rows.len());
        let (a, a_row, a_step) = match block.copy {
            Some(copy) => {
                let at = (row - block.rows.start) * ks.len();
                (copy.wrapping_add(at).cast_const(), 1, count)
            }
            None => {
                let at = row * a.row_stride + ks.start * a.col_stride;
                (a0.wrapping_add(at), a.row_stride, a.col_stride)
            }
        };
        let tile = GemmMicroTile {
            k: ks.len(),
            a,
            a_row,
            a_step,
            b,
            b_step: nr,
            c: block.c.ptr().add(row * block.c_stride + block.col0 + col),
            c_row: block.c_stride,
            next: match i.checked_sub(asking) {
                Some(i) if i * each < len => next.wrapping_add(i * each),
                // The first tile reads a panel that is not in cache yet, so it prefetches that
                // panel.
                None if i == 0 => b,
                Some(_) | None => std::ptr::null(),
            },
            prefetch: match is_narrow || i == 0 {
                true => Prefetch::Steps,
                false => Prefetch::EveryUnroll,
            },
            last_lanes: cols - (vectors - 1) * S::LANES,
            add: ks.start > 0,
            bias,
        };
        tile::function(S::LEVEL, count, vectors, GemmColumnReads::Padded)(&tile);
    }
}
