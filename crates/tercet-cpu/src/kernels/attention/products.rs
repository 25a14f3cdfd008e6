//! Matmuls for a block of keys: scores, and weighted sums of values.

use std::ops::Range;

use super::{AttentionTask, KEY_BLOCK};
use crate::kernels::gemm::{self, GemmColumnReads, GemmMicroTile, MatView, Prefetch};
use crate::kernels::simd::Simd;

/// Minimum rows for which packing the keys is profitable.
pub(super) const TILED_ROWS: usize = 6;

/// `scores[r, j] = queries[r] . k[keys.start + j]`.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn score_block<S: Simd>(
    job: &AttentionTask<'_>,
    queries: &[f32],
    keys: Range<usize>,
    scores: &mut [f32],
    panel: &mut [f32],
) {
    let (dk, n) = (job.a.dk, job.rows.len());
    let nr = S::TILE_VECTORS * S::LANES;
    let base =
        job.b * job.k.strides[0] + job.kv_head * job.k.strides[1] + keys.start * job.k.strides[2];
    if n < TILED_ROWS || dk == 0 {
        for j in (0..keys.len()).step_by(4) {
            let count = 4.min(keys.len() - j);
            // With fewer than four remaining keys, the last one is repeated.
            let four = std::array::from_fn(|v| {
                let key = j + v.min(count - 1);
                job.k.data[base + key * job.k.strides[2]..][..dk].as_ptr()
            });
            for r in 0..n {
                let dots = gemm::dot4::<S>(dk, queries.as_ptr().add(r * dk), four);
                scores[r * KEY_BLOCK + j..][..count].copy_from_slice(&dots[..count]);
            }
        }
        return;
    }
    let view = MatView {
        data: &job.k.data[base..],
        rows: dk,
        cols: keys.len(),
        row_stride: 1,
        col_stride: job.k.strides[2],
    };
    for col in (0..keys.len()).step_by(nr) {
        gemm::pack_panel::<S>(&view, col, panel);
        let columns = col..keys.len().min(col + nr);
        let wanted = |rows: Range<usize>| {
            let seen = job.visible_keys(rows, &keys);
            match seen.start < columns.end && columns.start < seen.end {
                true => 0..dk,
                // If all keys of a tile are masked, its products are not computed: `mask_row`
                // writes these scores.
                false => 0..0,
            }
        };
        let product = AttentionPanelProduct {
            n,
            a: queries.as_ptr(),
            a_row: dk,
            b: panel.as_ptr(),
            b_step: nr,
            c: scores.as_mut_ptr().add(col),
            c_row: KEY_BLOCK,
            cols: columns.len(),
            columns: GemmColumnReads::Padded,
        };
        product.tiles::<S>(wanted);
    }
}

/// Computes `c[0..n, 0..cols] = a[0..n, 0..k] b` for a packed panel, or `+=` for a `b` of
/// [`GemmColumnReads::Exact`]. `cols` is at most the width of one panel. `b_step` is the row stride of `b`.
struct AttentionPanelProduct {
    n: usize,
    a: *const f32,
    a_row: usize,
    b: *const f32,
    b_step: usize,
    c: *mut f32,
    c_row: usize,
    cols: usize,
    columns: GemmColumnReads,
}

impl AttentionPanelProduct {
    /// Computes tile by tile. `wanted` maps the rows of a tile to the part of `0..k` that is
    /// summed; a tile with an empty range is not written.
    ///
    /// # Safety
    /// Requires the instructions of `S`; all operands are valid for these sizes.
    #[inline(always)]
    unsafe fn tiles<S: Simd>(&self, wanted: impl Fn(Range<usize>) -> Range<usize>) {
        let vectors = self.cols.div_ceil(S::LANES);
        let count = self.n.div_ceil(S::TILE_ROWS);
        for i in 0..count {
            let (row, end) = (i * self.n / count, (i + 1) * self.n / count);
            let ks = wanted(row..end);
            if ks.is_empty() {
                continue;
            }
            let b = self.b.add(ks.start * self.b_step);
            let tile = GemmMicroTile {
                k: ks.len(),
                a: self.a.add(row * self.a_row + ks.start),
                a_row: self.a_row,
                a_step: 1,
                b,
                b_step: self.b_step,
                c: self.c.add(row * self.c_row),
                c_row: self.c_row,
                // No prefetch if B is in cache: it is scratch memory, or the first tile has read
                // it.
                next: match self.columns == GemmColumnReads::Padded || i > 0 {
                    true => std::ptr::null(),
                    false => b,
                },
                prefetch: Prefetch::Steps,
                last_lanes: self.cols - (vectors - 1) * S::LANES,
                add: self.columns == GemmColumnReads::Exact,
                bias: std::ptr::null(),
            };
            gemm::tile_function(S::LEVEL, end - row, vectors, self.columns)(&tile);
        }
    }
}

/// `acc[r] += sum_j scores[r, j] v[keys.start + j]`.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn add_values<S: Simd>(
    job: &AttentionTask<'_>,
    n: usize,
    keys: Range<usize>,
    scores: &[f32],
    acc: &mut [f32],
) {
    let dv = job.a.dv;
    let nr = S::TILE_VECTORS * S::LANES;
    let stride = job.v.strides[2];
    let base = job.b * job.v.strides[0] + job.kv_head * job.v.strides[1] + keys.start * stride;
    if n < TILED_ROWS {
        for r in 0..n {
            let p = &scores[r * KEY_BLOCK..r * KEY_BLOCK + keys.len()];
            for col in (0..dv).step_by(S::LANES) {
                let lanes = S::LANES.min(dv - col);
                let to = acc.as_mut_ptr().add(r * dv + col);
                // Sums start from zero for each block: one chain over all keys would accumulate
                // rounding errors.
                let mut sum = S::splat(0.0);
                for (j, p) in p.iter().enumerate() {
                    let v = job.v.data[base + j * stride + col..][..lanes].as_ptr();
                    sum = S::fma(S::splat(*p), S::load_n(v, lanes), sum);
                }
                S::store_n(to, S::add(S::load_n(to, lanes), sum), lanes);
            }
        }
        return;
    }
    for col in (0..dv).step_by(nr) {
        let product = AttentionPanelProduct {
            n,
            a: scores.as_ptr(),
            a_row: KEY_BLOCK,
            b: job.v.data[base + col..].as_ptr(),
            b_step: stride,
            c: acc.as_mut_ptr().add(col),
            c_row: dv,
            cols: nr.min(dv - col),
            columns: GemmColumnReads::Exact,
        };
        // The weights of masked keys are zero, so tiles skip keys that are masked for all of their
        // rows.
        product.tiles::<S>(|rows| job.visible_keys(rows, &keys));
    }
}
