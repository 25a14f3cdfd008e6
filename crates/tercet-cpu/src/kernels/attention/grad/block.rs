//! One block of queries times one block of keys: weights, score cotangents, and their contributions
//! to dQ, dK and dV.

use std::ops::Range;

use super::{AttentionGradTask, AttentionKeyMask, PackedGradKv, PackedGradQueries, ROW};
use crate::kernels::gemm::{self, GemmColumnReads, GemmMicroTile, Prefetch};
use crate::kernels::simd::Simd;
use crate::kernels::vmath::scalar;

/// A block of queries of one head and a block of keys.
pub(super) struct AttentionGradBlock<'a> {
    pub(super) head: usize,
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
    /// Range of visible keys of each query, by position; both ends ascend.
    pub(super) visible: &'a [(usize, usize)],
}

impl AttentionGradBlock<'_> {
    /// Keys of the block that are visible by position to at least one of the queries `rows`.
    fn keys_of(&self, rows: Range<usize>) -> Range<usize> {
        let (first, last) = (self.visible[rows.start].0, self.visible[rows.end - 1].1);
        let of = |key: usize| key.clamp(self.keys.start, self.keys.end);
        of(first)..of(last).max(of(first))
    }

    /// Queries of the block to which at least one of the keys is visible by position.
    fn rows_of(&self, keys: &Range<usize>) -> Range<usize> {
        let from = self.visible.partition_point(|seen| seen.1 <= keys.start);
        let to = self.visible.partition_point(|seen| seen.0 < keys.end);
        from..to.max(from)
    }
}

/// A matmul tile: `rows` rows of A times one column panel of B, with `k` products per sum.
struct AttentionGradTile {
    rows: usize,
    k: usize,
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const f32,
    c: *mut f32,
    c_row: usize,
    cols: usize,
    add: bool,
}

impl AttentionGradTile {
    /// # Safety
    /// Requires the instructions of `S`; all operands are valid for these sizes.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let vectors = self.cols.div_ceil(S::LANES);
        let tile = GemmMicroTile {
            k: self.k,
            a: self.a,
            a_row: self.a_row,
            a_step: self.a_step,
            b: self.b,
            b_step: S::TILE_VECTORS * S::LANES,
            c: self.c,
            c_row: self.c_row,
            last_lanes: self.cols - (vectors - 1) * S::LANES,
            next: std::ptr::null(),
            prefetch: Prefetch::Steps,
            add: self.add,
            bias: std::ptr::null(),
        };
        gemm::tile_function(S::LEVEL, self.rows, vectors, GemmColumnReads::Padded)(&tile);
    }
}

/// Splits `0..n` into the minimum number of tiles, of nearly equal size.
fn tiles<S: Simd>(n: usize) -> impl Iterator<Item = Range<usize>> {
    let count = n.div_ceil(S::TILE_ROWS);
    (0..count).map(move |i| i * n / count..(i + 1) * n / count)
}

/// Computes `p = q kT` and `ds = dy vT` for the tiles that have visible keys by position.
///
/// # Safety
/// Same as [`run_job`](super::run_job).
#[inline(always)]
pub(super) unsafe fn scores<S: Simd>(
    job: &AttentionGradTask<'_>,
    block: &AttentionGradBlock<'_>,
    packed: &PackedGradKv,
    p: &mut [f32],
    ds: &mut [f32],
) {
    let nr = S::TILE_VECTORS * S::LANES;
    let sides = [
        (&job.of.q, packed.transposed_keys, p),
        (&job.of.dy, packed.transposed_values, ds),
    ];
    for (x, by, to) in sides {
        let rows = job.rows(x, block.head, block.queries.start).as_ptr();
        for col in block.keys.clone().step_by(nr) {
            let end = block.keys.end.min(col + nr);
            for tile in tiles::<S>(block.queries.len()) {
                let seen = block.keys_of(tile.clone());
                if seen.start >= end || seen.end <= col {
                    continue;
                }
                let at = tile.start * ROW + col - block.keys.start;
                let product = AttentionGradTile {
                    rows: tile.len(),
                    k: by.rows,
                    a: rows.wrapping_add(tile.start * x.strides[2]),
                    a_row: x.strides[2],
                    a_step: 1,
                    b: by.at::<S>(col, 0),
                    c: to.as_mut_ptr().add(at),
                    c_row: ROW,
                    cols: end - col,
                    add: false,
                };
                product.run::<S>();
            }
        }
    }
}

/// Replaces the products in place by the weights and the score cotangents of the block.
///
/// # Safety
/// Same as [`run_job`](super::run_job).
#[inline(always)]
pub(super) unsafe fn weights<S: Simd>(
    job: &AttentionGradTask<'_>,
    block: &AttentionGradBlock<'_>,
    p: &mut [f32],
    ds: &mut [f32],
) {
    let (a, of) = (job.a, job.of);
    let width = block.keys.len();
    let lines = p.chunks_exact_mut(ROW);
    let lines = lines.zip(ds.chunks_exact_mut(ROW));
    for ((row, (p, ds)), query) in lines.enumerate().zip(block.queries.clone()) {
        let keys = block.keys_of(row..row + 1);
        let seen = keys.start - block.keys.start..keys.end - block.keys.start;
        for x in [&mut *p, &mut *ds] {
            x[..seen.start].fill(0.0);
            x[seen.end..width].fill(0.0);
        }
        let at = (job.b * a.q_heads + block.head) * a.q_len + query;
        let (lse, delta) = (of.lse[at], of.delta[at]);
        let pairs = p[seen.clone()].iter_mut().zip(&mut ds[seen]);
        match (a.softcap, &a.mask) {
            (
                None,
                AttentionKeyMask::None
                | AttentionKeyMask::Causal
                | AttentionKeyMask::SlidingWindow(_)
                | AttentionKeyMask::Bias(..),
            ) => {
                for (p, ds) in pairs {
                    *p = scalar::exp::<S>(a.scale * *p - lse);
                    *ds = *p * (*ds - delta) * a.scale;
                }
            }
            (cap, mask) => {
                let keep = |key: usize| match mask {
                    AttentionKeyMask::Keep(keep, s) => {
                        keep[job.b * s[0] + block.head * s[1] + query * s[2] + key * s[3]] != 0
                    }
                    AttentionKeyMask::None
                    | AttentionKeyMask::Causal
                    | AttentionKeyMask::SlidingWindow(_)
                    | AttentionKeyMask::Bias(..) => true,
                };
                for ((p, ds), key) in pairs.zip(keys) {
                    let score = a.scale * *p;
                    let (score, slope) = match cap {
                        None => (score, a.scale),
                        Some(cap) => {
                            let part = scalar::tanh::<S>(score / cap);
                            (cap * part, a.scale * (1.0 - part * part))
                        }
                    };
                    let weight = scalar::exp::<S>(score - lse);
                    *p = if keep(key) { weight } else { 0.0 };
                    *ds = *p * (*ds - delta) * slope;
                }
            }
        }
    }
}

/// Adds the block's contributions to the cotangents.
///
/// # Safety
/// Same as [`run_job`](super::run_job).
#[inline(always)]
pub(super) unsafe fn sums<S: Simd>(
    job: &AttentionGradTask<'_>,
    block: &AttentionGradBlock<'_>,
    packed: &PackedGradKv,
    lines: &PackedGradQueries,
    p: &[f32],
    ds: &[f32],
) {
    let nr = S::TILE_VECTORS * S::LANES;
    let first = block.keys.start;
    if let Some(dq) = &job.outs.dq {
        let to = dq.head(job.b, block.head);
        for col in (0..job.a.dk).step_by(nr) {
            for tile in tiles::<S>(block.queries.len()) {
                let keys = block.keys_of(tile.clone());
                if keys.is_empty() {
                    continue;
                }
                let row = block.queries.start + tile.start;
                let product = AttentionGradTile {
                    rows: tile.len(),
                    k: keys.len(),
                    a: ds.as_ptr().add(tile.start * ROW + keys.start - first),
                    a_row: ROW,
                    a_step: 1,
                    b: packed.keys.at::<S>(col, keys.start),
                    c: to.wrapping_add(row * dq.strides[2] + col),
                    c_row: dq.strides[2],
                    cols: nr.min(job.a.dk - col),
                    add: true,
                };
                product.run::<S>();
            }
        }
    }
    let Some([dk, dv]) = &job.outs.dkv else {
        return;
    };
    let sides = [
        (dk, job.a.dk, ds, lines.queries),
        (dv, job.a.dv, p, lines.dy),
    ];
    for (out, width, by, lines) in sides {
        let to = out.head(job.b, job.kv_head);
        for col in (0..width).step_by(nr) {
            for tile in tiles::<S>(block.keys.len()) {
                let keys = first + tile.start..first + tile.end;
                let rows = block.rows_of(&keys);
                if rows.is_empty() {
                    continue;
                }
                let product = AttentionGradTile {
                    rows: tile.len(),
                    k: rows.len(),
                    a: by.as_ptr().add(rows.start * ROW + tile.start),
                    a_row: 1,
                    a_step: ROW,
                    b: lines.at::<S>(col, rows.start),
                    c: to.wrapping_add(keys.start * out.strides[2] + col),
                    c_row: out.strides[2],
                    cols: nr.min(width - col),
                    add: true,
                };
                product.run::<S>();
            }
        }
    }
}
