//! Packs B into column panels.

use super::super::parallel::{self, KernelThreads, SharedMut};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::{MatView, tile_shape};

/// A packed B of `k x n`, made by [`pack_b`] for one SIMD level.
#[derive(Clone, Copy, Debug)]
pub struct PackedB<'a> {
    pub(super) data: &'a [f32],
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) nr: usize,
}

impl<'a> PackedB<'a> {
    /// Views data that [`pack_b`] wrote for a `k x n` matrix at this level.
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

/// Floats of a packed `k x n` B at this level.
#[must_use]
pub fn packed_b_len(level: SimdLevel, k: usize, n: usize) -> usize {
    n.next_multiple_of(tile_shape(level).1) * k
}

/// Packs `b` for [`super::gemm_packed`]. A weight stored as `[n, k]` is passed as its transposed
/// view.
///
/// # Panics
/// If `out` is shorter than [`packed_b_len`].
pub fn pack_b(level: SimdLevel, threads: KernelThreads, b: MatView<'_>, out: &mut [f32]) {
    panels(level, threads, b, out, pack_one);
}

/// Like [`pack_b`], but reorders the rows of `b` from `[channel][tap]` to `[tap][channel]`, with
/// `taps` taps per channel.
///
/// # Panics
/// If `out` is shorter than [`packed_b_len`].
pub(crate) fn pack_b_by_taps(
    level: SimdLevel,
    threads: KernelThreads,
    b: MatView<'_>,
    taps: usize,
    out: &mut [f32],
) {
    panels(level, threads, b, out, |level, b, col0, dst| {
        pack_one_by_taps(level, b, taps, col0, dst);
    });
}

/// Calls `pack` for each panel, with its first column.
fn panels(
    level: SimdLevel,
    threads: KernelThreads,
    b: MatView<'_>,
    out: &mut [f32],
    pack: impl Fn(SimdLevel, &MatView<'_>, usize, &mut [f32]) + Send + Sync,
) {
    b.check();
    let (k, n) = (b.rows, b.cols);
    let nr = tile_shape(level).1;
    let out = &mut out[..packed_b_len(level, k, n)];
    let shared = SharedMut::new(out);
    if k == 0 {
        return;
    }
    parallel::for_each(threads, n.div_ceil(nr), |panel| {
        // SAFETY: each task writes its own panel, `k * nr` floats inside `out`.
        let dst = unsafe { shared.slice(panel * k * nr, k * nr) };
        pack(level, &b, panel * nr, dst);
    });
}

/// Prefetch distance in rows.
const AHEAD: usize = 16;

simd_dispatch!(fn pack_one(b: &MatView<'_>, col0: usize, dst: &mut [f32]) = pack_panel);
simd_dispatch!(fn pack_one_by_taps(b: &MatView<'_>, taps: usize, col0: usize, dst: &mut [f32]) = panel_by_taps);

/// Rows that are transposed together.
const TRANSPOSE_ROWS: usize = 8;
/// Maximum panel width of any SIMD level.
const WIDEST: usize = 64;

/// Like [`pack_panel`], with reordered rows: see [`pack_b_by_taps`].
///
/// # Safety
/// Requires the instructions of `S`; `b` was checked.
#[inline(always)]
unsafe fn panel_by_taps<S: Simd>(b: &MatView<'_>, taps: usize, col0: usize, dst: &mut [f32]) {
    const { assert!(S::TILE_VECTORS * S::LANES <= WIDEST) };
    let nr = S::TILE_VECTORS * S::LANES;
    let channels = b.rows / taps;
    assert!(dst.len() >= b.rows * nr && channels * taps == b.rows);
    let mut stage = [0.0; TRANSPOSE_ROWS * WIDEST];
    let (mut channel, mut tap) = (0, 0);
    for p in (0..b.rows).step_by(TRANSPOSE_ROWS) {
        let part = MatView {
            data: &b.data[p * b.row_stride..],
            rows: TRANSPOSE_ROWS.min(b.rows - p),
            ..*b
        };
        let stage = &mut stage[..part.rows * nr];
        pack_panel::<S>(&part, col0, stage);
        for row in stage.chunks_exact(nr) {
            let to = dst.as_mut_ptr().add((tap * channels + channel) * nr);
            for v in (0..nr).step_by(S::LANES) {
                S::store(to.add(v), S::load(row.as_ptr().add(v)));
            }
            tap += 1;
            if tap == taps {
                (channel, tap) = (channel + 1, 0);
            }
        }
    }
}

/// Packs the columns `col0..col0 + nr` of `b` into the `rows * nr` floats of `dst`, padded with
/// zeros.
///
/// # Safety
/// Requires the instructions of `S`; `b` was checked.
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
            // The hardware prefetcher does not follow accesses with a stride of a row.
            S::prefetch(src.wrapping_add(AHEAD * b.row_stride).cast());
            for v in 0..S::TILE_VECTORS {
                let lanes = cols.saturating_sub(v * S::LANES).min(S::LANES);
                // With zero lanes only the address is computed; nothing is accessed.
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
