//! B packed into column panels.

use super::super::parallel::{self, SharedMut, Threads};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::{MatView, tile_shape};

/// A packed B of `k x n`: made by [`pack_b`] for one level.
#[derive(Clone, Copy, Debug)]
pub struct PackedB<'a> {
    pub(super) data: &'a [f32],
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) nr: usize,
}

impl<'a> PackedB<'a> {
    /// Views what [`pack_b`] wrote for a matrix of `k x n` at this level.
    ///
    /// # Panics
    /// If `data` is shorter than [`packed_b_len`].
    #[must_use]
    pub fn new(level: SimdLevel, data: &'a [f32], k: usize, n: usize) -> Self {
        let len = packed_b_len(level, k, n);
        assert!(
            data.len() >= len,
            "packed matrix {k}x{n} needs {len} floats, got {}",
            data.len()
        );
        Self {
            data,
            k,
            n,
            nr: tile_shape(level).1,
        }
    }
}

/// Floats that a packed B of `k x n` takes at this level.
#[must_use]
pub fn packed_b_len(level: SimdLevel, k: usize, n: usize) -> usize {
    n.next_multiple_of(tile_shape(level).1) * k
}

/// Packs `b` for [`super::gemm_packed`]. A weight stored `[n, k]` is passed as
/// its transposed view.
///
/// # Panics
/// If `out` is shorter than [`packed_b_len`].
pub fn pack_b(level: SimdLevel, threads: Threads, b: MatView<'_>, out: &mut [f32]) {
    b.check();
    let (k, n) = (b.rows, b.cols);
    let nr = tile_shape(level).1;
    let out = &mut out[..packed_b_len(level, k, n)];
    let shared = SharedMut::new(out);
    let panels = n.div_ceil(nr);
    if k == 0 {
        return;
    }
    parallel::for_each(threads, panels, |panel| {
        // SAFETY: each task owns its own panel, `k * nr` floats inside `out`.
        let dst = unsafe { shared.slice(panel * k * nr, k * nr) };
        pack_one(level, &b, panel * nr, dst);
    });
}

/// Rows that are asked for ahead.
const AHEAD: usize = 16;

simd_dispatch!(fn pack_one(b: &MatView<'_>, col0: usize, dst: &mut [f32]) = pack_panel);

/// Packs the columns `col0..col0 + nr` of `b` into `dst`, all of its `rows * nr`,
/// padding with zeros.
///
/// # Safety
/// Needs the instructions of `S`; `b` was checked.
#[inline(always)]
pub(crate) unsafe fn pack_panel<S: Simd>(b: &MatView<'_>, col0: usize, dst: &mut [f32]) {
    let nr = S::TILE_VECTORS * S::LANES;
    let (k, cols) = (b.rows, nr.min(b.cols - col0));
    let dst = &mut dst[..k * nr];
    if b.col_stride == 1 {
        let src = b.data.as_ptr().wrapping_add(col0);
        for p in 0..k {
            let (src, dst) = (
                src.wrapping_add(p * b.row_stride),
                dst.as_mut_ptr().add(p * nr),
            );
            // The hardware does not follow lines that lie a row apart.
            S::prefetch(src.wrapping_add(AHEAD * b.row_stride).cast());
            for v in 0..S::TILE_VECTORS {
                let lanes = cols.saturating_sub(v * S::LANES).min(S::LANES);
                // No lanes, no access: only the address is made.
                S::store(
                    dst.add(v * S::LANES),
                    S::load_n(src.wrapping_add(v * S::LANES), lanes),
                );
            }
        }
        return;
    }
    if cols < nr {
        dst.fill(0.0);
    }
    let whole = |n: usize| if b.row_stride == 1 { n / 8 * 8 } else { 0 };
    for p in (0..whole(k)).step_by(8) {
        for j in (0..whole(cols)).step_by(8) {
            let src = b.data.as_ptr().add((col0 + j) * b.col_stride + p);
            S::transpose8(src, b.col_stride, dst.as_mut_ptr().add(p * nr + j), nr);
        }
    }
    let mut one = |p: usize, j: usize| {
        dst[p * nr + j] = b.data[p * b.row_stride + (col0 + j) * b.col_stride];
    };
    (whole(k)..k).for_each(|p| (0..cols).for_each(|j| one(p, j)));
    (0..whole(k)).for_each(|p| (whole(cols)..cols).for_each(|j| one(p, j)));
}
