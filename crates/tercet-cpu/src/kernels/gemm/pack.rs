//! B packed into column panels.

use super::super::parallel::{self, SharedMut, Threads};
use super::super::simd::SimdLevel;
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
        pack_panel(&b, panel * nr, nr, dst);
    });
}

/// Packs the columns `col0..col0 + nr` of `b`, padding with zeros.
pub(crate) fn pack_panel(b: &MatView<'_>, col0: usize, nr: usize, dst: &mut [f32]) {
    let cols = nr.min(b.cols - col0);
    if cols < nr {
        dst.fill(0.0);
    }
    if b.col_stride == 1 {
        for (p, row) in dst.chunks_exact_mut(nr).enumerate() {
            let src = p * b.row_stride + col0;
            row[..cols].copy_from_slice(&b.data[src..src + cols]);
        }
        return;
    }
    // Blocks of k keep both the lines read and the lines written in cache.
    const K_STEP: usize = 16;
    for (block, rows) in dst.chunks_mut(nr * K_STEP).enumerate() {
        let p0 = block * K_STEP;
        for j in 0..cols {
            let base = (col0 + j) * b.col_stride;
            for (p, row) in rows.chunks_exact_mut(nr).enumerate() {
                row[j] = b.data[base + (p0 + p) * b.row_stride];
            }
        }
    }
}
