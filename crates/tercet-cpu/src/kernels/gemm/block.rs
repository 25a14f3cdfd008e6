//! One task of a product: a rectangle of C, all of k.

use std::ops::Range;

use super::super::parallel::SharedMut;
use super::super::simd::{Simd, simd_dispatch};
use super::{Epilogue, MatView};

/// Where the tile kernel reads A.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OperandA {
    /// In the caller's matrix, rows contiguous.
    InPlace,
    /// In scratch, tiles of `[k][rows of the tile]`.
    Packed,
}

/// A rectangle of C to compute.
pub(super) struct Block<'a> {
    pub(super) a: OperandA,
    pub(super) view: MatView<'a>,
    pub(super) b: &'a [f32],
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) kc: usize,
    pub(super) rows: Range<usize>,
    pub(super) panels: Range<usize>,
    pub(super) c: SharedMut<f32>,
    pub(super) c_stride: usize,
    /// The column of C, bias and residual where column 0 of B goes.
    pub(super) col0: usize,
    pub(super) epilogue: &'a Epilogue<'a>,
}

simd_dispatch!(
    /// Computes a block; no other task may touch its rectangle of C, and its
    /// bounds were checked by the caller.
    pub(super) fn run_block(block: &Block<'_>, a_scratch: &mut [f32]) = run_block_body
);

/// The rows of the tiles that cover `rows`: as even as they can be, so that no
/// tile is a sliver.
#[inline(always)]
fn tile_rows(rows: usize, mr: usize, tile: usize, tiles: usize) -> Range<usize> {
    debug_assert!(tiles * mr >= rows);
    tile * rows / tiles..(tile + 1) * rows / tiles
}

/// # Safety
/// As [`run_block`]; needs the instructions of `S`.
#[inline(always)]
unsafe fn run_block_body<S: Simd>(block: &Block<'_>, a_scratch: &mut [f32]) {
    let (mr, nrv) = (S::TILE_ROWS, S::TILE_VECTORS);
    let nr = nrv * S::LANES;
    let rows = block.rows.len();
    let tiles = rows.div_ceil(mr);
    let mut k0 = 0;
    loop {
        let kc = block.kc.min(block.k - k0);
        let last = k0 + kc == block.k;
        if block.a == OperandA::Packed {
            for tile in 0..tiles {
                let r = tile_rows(rows, mr, tile, tiles);
                pack_a(
                    block,
                    k0,
                    kc,
                    r.clone(),
                    &mut a_scratch[r.start * kc..r.end * kc],
                );
            }
        }
        for panel in block.panels.clone() {
            let b = block.b.as_ptr().add((panel * block.k + k0) * nr);
            let col = panel * nr;
            let cols = nr.min(block.n - col);
            for tile in 0..tiles {
                let r = tile_rows(rows, mr, tile, tiles);
                let row = block.rows.start + r.start;
                let c = block.c.ptr().add(row * block.c_stride + block.col0 + col);
                let add = k0 > 0;
                let view = &block.view;
                match block.a {
                    OperandA::Packed => {
                        let a = a_scratch.as_ptr().add(r.start * kc);
                        tile_any::<S, true>(r.len(), kc, a, 0, b, c, block.c_stride, cols, add);
                    }
                    OperandA::InPlace => {
                        let a = view.data.as_ptr().add(row * view.row_stride + k0);
                        tile_any::<S, false>(
                            r.len(),
                            kc,
                            a,
                            view.row_stride,
                            b,
                            c,
                            block.c_stride,
                            cols,
                            add,
                        );
                    }
                }
                if last && !block.epilogue.is_none() {
                    for i in 0..r.len() {
                        let c = block
                            .c
                            .slice((row + i) * block.c_stride + block.col0 + col, cols);
                        block.epilogue.apply::<S>(c, row + i, block.col0 + col);
                    }
                }
            }
        }
        k0 += kc;
        if last {
            break;
        }
    }
}

/// Copies one tile of A as `[kc][rows]`.
#[inline(always)]
fn pack_a(block: &Block<'_>, k0: usize, kc: usize, rows: Range<usize>, dst: &mut [f32]) {
    let view = &block.view;
    let count = rows.len();
    for (i, row) in rows.enumerate() {
        let base = (block.rows.start + row) * view.row_stride + k0 * view.col_stride;
        for p in 0..kc {
            dst[p * count + i] = view.data[base + p * view.col_stride];
        }
    }
}

/// Calls the tile kernel instantiated for `rows`.
///
/// # Safety
/// As [`tile`], with `1 <= rows <= S::TILE_ROWS`.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "a register kernel over raw parts"
)]
pub(crate) unsafe fn tile_any<S: Simd, const PACKED: bool>(
    rows: usize,
    k: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    c: *mut f32,
    c_stride: usize,
    cols: usize,
    add: bool,
) {
    macro_rules! rows_of {
        ($($r:literal)*) => {
            match rows {
                $($r if $r <= S::TILE_ROWS => {
                    if S::TILE_VECTORS == 2 {
                        tile::<S, $r, 2, PACKED>(k, a, a_stride, b, c, c_stride, cols, add)
                    } else {
                        tile::<S, $r, 1, PACKED>(k, a, a_stride, b, c, c_stride, cols, add)
                    }
                })*
                _ => unreachable!("a tile has at most {} rows", S::TILE_ROWS),
            }
        };
    }
    rows_of!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

/// `c[0..R, 0..cols] (+)= a[0..R, 0..k] b[0..k, 0..cols]`, all in registers.
///
/// # Safety
/// `a` is valid for `R x k` (`PACKED`: `[k][R]`, else rows at `a_stride`), `b`
/// for `k * NV * LANES`, `c` for `R` rows of `cols` at `c_stride`.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "a register kernel over raw parts"
)]
unsafe fn tile<S: Simd, const R: usize, const NV: usize, const PACKED: bool>(
    k: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    c: *mut f32,
    c_stride: usize,
    cols: usize,
    add: bool,
) {
    let nr = NV * S::LANES;
    let mut acc = [[S::splat(0.0); NV]; R];
    if add {
        for (i, row) in acc.iter_mut().enumerate() {
            for (v, acc) in row.iter_mut().enumerate() {
                let n = cols.saturating_sub(v * S::LANES);
                *acc = S::load_n(c.wrapping_add(i * c_stride + v * S::LANES), n);
            }
        }
    }
    let step = |acc: &mut [[S::V; NV]; R], p: usize| {
        let mut bv = [S::splat(0.0); NV];
        for (v, bv) in bv.iter_mut().enumerate() {
            *bv = S::load(b.add(p * nr + v * S::LANES));
        }
        for (i, row) in acc.iter_mut().enumerate() {
            let x = S::splat(*if PACKED {
                a.add(p * R + i)
            } else {
                a.add(i * a_stride + p)
            });
            for (acc, bv) in row.iter_mut().zip(bv) {
                *acc = S::fma(x, bv, *acc);
            }
        }
    };
    // Four steps per turn share the row addresses of an A read in place.
    let mut p = 0;
    while p + 4 <= k {
        step(&mut acc, p);
        step(&mut acc, p + 1);
        step(&mut acc, p + 2);
        step(&mut acc, p + 3);
        p += 4;
    }
    while p < k {
        step(&mut acc, p);
        p += 1;
    }
    for (i, row) in acc.iter().enumerate() {
        let c = c.wrapping_add(i * c_stride);
        for (v, acc) in row.iter().enumerate() {
            if cols == nr {
                S::store(c.wrapping_add(v * S::LANES), *acc);
            } else {
                S::store_n(
                    c.wrapping_add(v * S::LANES),
                    *acc,
                    cols.saturating_sub(v * S::LANES),
                );
            }
        }
    }
}
