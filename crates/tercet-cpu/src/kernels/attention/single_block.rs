//! Attention for short sequences, whose keys fit in a single block (no online softmax).
//!
//! A task packs the keys and values of one head of one sequence, which stay in the L2 cache. The
//! task then processes its queries one register tile after the other. The scores over all keys,
//! masks, exponentials and weighted sums of a tile stay in the L1 cache.

use super::super::gemm::{self, GemmMicroTile, MatView, Prefetch};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::super::vmath::scalar::exp_of_negative;
use super::products::TILED_ROWS;
use super::scores::mask_row;
use super::{AttentionArgs, AttentionKeyMask, AttentionTask, finish_row, load_query};

/// Maximum number of keys of a single block; with head size 64 they take 256 KB.
const MAX_SINGLE_BLOCK_KEYS: usize = 512;

/// True if all keys of a sequence fit in a single block.
pub(super) fn is_single_block(a: &AttentionArgs<'_>) -> bool {
    max_keys(a) <= MAX_SINGLE_BLOCK_KEYS && has_tiles(a) && a.dk > 0
}

/// True if there are enough rows for packing the keys to be profitable.
fn has_tiles(a: &AttentionArgs<'_>) -> bool {
    a.q_heads / a.kv_heads * a.q_len >= TILED_ROWS
}

fn max_keys(a: &AttentionArgs<'_>) -> usize {
    a.kv_lens.iter().copied().max().unwrap_or(0)
}

/// Scratch floats of one task for the maximum number of keys.
pub(super) fn part_len(level: SimdLevel, a: &AttentionArgs<'_>) -> usize {
    if !has_tiles(a) {
        return 0;
    }
    let (mr, nr) = gemm::tile_shape(level);
    let keys = max_keys(a).min(MAX_SINGLE_BLOCK_KEYS).next_multiple_of(nr);
    let wide = a.dv.next_multiple_of(nr);
    keys * (a.dk + wide) + mr * (a.dk + keys + wide)
}

simd_dispatch!(
    /// Runs one task.
    pub(super) fn run_single_block(job: &AttentionTask<'_>, scratch: &mut [f32]) = run_whole_body
);

/// # Safety
/// Requires the instructions of `S`; no other task writes the rows of this job.
#[inline(always)]
unsafe fn run_whole_body<S: Simd>(job: &AttentionTask<'_>, scratch: &mut [f32]) {
    // A level with another shape does not compile.
    const {
        assert!(matches!(
            (S::TILE_ROWS, S::TILE_VECTORS),
            (8, 3) | (6, 2) | (5, 2) | (4, 1)
        ))
    };
    match (S::TILE_ROWS, S::TILE_VECTORS) {
        (8, 3) => run::<S, 8, 3>(job, scratch),
        (6, 2) => run::<S, 6, 2>(job, scratch),
        (5, 2) => run::<S, 5, 2>(job, scratch),
        _ => run::<S, 4, 1>(job, scratch),
    }
}

/// Operands shared by the tiles of a task: packed keys `[panel][dk][nr]` and values
/// `[panel][key][nr]`.
struct PackedKv<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    kv_len: usize,
}

/// # Safety
/// Same as [`run_whole_body`], for tiles of `R` rows and `NV` vectors.
#[inline(always)]
unsafe fn run<S: Simd, const R: usize, const NV: usize>(
    job: &AttentionTask<'_>,
    scratch: &mut [f32],
) {
    let (a, nr) = (job.a, NV * S::LANES);
    let kv_len = a.kv_len(job.b);
    let padded = kv_len.next_multiple_of(nr);
    let (keys, scratch) = scratch.split_at_mut(padded * a.dk);
    let (values, scratch) = scratch.split_at_mut(kv_len * a.dv.next_multiple_of(nr));
    let at = |strides: [usize; 3]| job.b * strides[0] + job.kv_head * strides[1];
    if kv_len > 0 {
        let view = MatView {
            data: &job.k.data[at(job.k.strides)..],
            rows: a.dk,
            cols: kv_len,
            row_stride: 1,
            col_stride: job.k.strides[2],
        };
        for (i, panel) in keys.chunks_exact_mut(nr * a.dk).enumerate() {
            gemm::pack_panel::<S>(&view, i * nr, panel);
        }
        let view = MatView {
            data: &job.v.data[at(job.v.strides)..],
            rows: kv_len,
            cols: a.dv,
            row_stride: job.v.strides[2],
            col_stride: 1,
        };
        for (i, panel) in values.chunks_exact_mut(nr * kv_len).enumerate() {
            gemm::pack_panel::<S>(&view, i * nr, panel);
        }
    }
    let packed = PackedKv {
        keys,
        values,
        kv_len,
    };
    for first in (0..job.rows.len()).step_by(R) {
        tile::<S, R, NV>(job, &packed, first, scratch);
    }
}

/// Computes `R` rows of a task, starting at `first`. If fewer remain, the last row is repeated.
///
/// # Safety
/// Same as [`run`].
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const NV: usize>(
    job: &AttentionTask<'_>,
    packed: &PackedKv<'_>,
    first: usize,
    scratch: &mut [f32],
) {
    let (a, nr, kv_len) = (job.a, NV * S::LANES, packed.kv_len);
    let wide = a.dv.next_multiple_of(nr);
    let row_len = kv_len.next_multiple_of(nr);
    let (queries, scratch) = scratch.split_at_mut(R * a.dk);
    let (scores, scratch) = scratch.split_at_mut(R * row_len);
    let results = &mut scratch[..R * wide];
    let count = R.min(job.rows.len() - first);
    let (mut from, mut end) = (kv_len, 0);
    for i in 0..R {
        let r = first + i.min(count - 1);
        load_query(job, r, &mut queries[i * a.dk..][..a.dk]);
        let seen = a.visible(job.row(r).1, kv_len);
        (from, end) = (from.min(seen.start), end.max(seen.end));
    }
    // Whole panels of keys that are visible by position to at least one of the rows.
    from = from.min(end) / nr * nr;
    let to = end.next_multiple_of(nr);
    for col in (from..to).step_by(nr) {
        let to = scores.as_mut_ptr().add(col);
        let keys = packed.keys.as_ptr().add(col * a.dk);
        product::<S, R, NV>(a.dk, (queries.as_ptr(), a.dk), keys, (to, row_len));
    }
    let (mut most, mut sums) = ([f32::NEG_INFINITY; R], [0.0; R]);
    let is_masked = a.softcap.is_some() || !matches!(a.mask, AttentionKeyMask::None);
    let last = to.min(kv_len);
    for i in 0..count {
        let row = &mut scores[i * row_len..][from..to];
        if is_masked {
            let row = &mut row[..last - from];
            mask_row::<S>(job, first + i, from..last, kv_len, row);
        }
        row[last - from..].fill(f32::NEG_INFINITY);
        most[i] = greatest::<S>(row);
    }
    for i in 0..count {
        let row = &mut scores[i * row_len..][from..to];
        sums[i] = exponentials::<S>(row, most[i]);
    }
    let scores = scores.as_ptr().add(from);
    for col in (0..a.dv).step_by(nr) {
        let values = packed.values.as_ptr().add(col * kv_len + from * nr);
        let to = results.as_mut_ptr().add(col);
        product::<S, R, NV>(last - from, (scores, row_len), values, (to, wide));
    }
    for i in 0..count {
        let row = &results[i * wide..][..a.dv];
        finish_row::<S>(job, first + i, kv_len, row, (most[i], sums[i]));
    }
}

/// Computes `c = a b` for one tile; `a` and `c` have row strides, `b` is a panel.
///
/// # Safety
/// Requires the instructions of `S`; all operands are valid for these sizes.
#[inline(always)]
unsafe fn product<S: Simd, const R: usize, const NV: usize>(
    k: usize,
    (a, a_row): (*const f32, usize),
    b: *const f32,
    (c, c_row): (*mut f32, usize),
) {
    gemm::inline_tile::<S, R, NV, false>(&GemmMicroTile {
        k,
        a,
        a_row,
        a_step: 1,
        b,
        b_step: NV * S::LANES,
        c,
        c_row,
        last_lanes: S::LANES,
        next: std::ptr::null(),
        prefetch: Prefetch::Steps,
        add: false,
        bias: std::ptr::null(),
    });
}

/// Maximum of a row of whole vectors; `-inf` if it is empty.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn greatest<S: Simd>(row: &[f32]) -> f32 {
    let mut most = S::splat(f32::NEG_INFINITY);
    for x in row.chunks_exact(S::LANES) {
        most = S::max(S::load(x.as_ptr()), most);
    }
    S::greatest(most)
}

/// Replaces whole vectors by `e^(x - most)` and returns their sum. Writes zeros if all elements are
/// `-inf`.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn exponentials<S: Simd>(row: &mut [f32], most: f32) -> f32 {
    if most == f32::NEG_INFINITY && !row.iter().any(|x| x.is_nan()) {
        row.fill(0.0);
        return 0.0;
    }
    let most = S::splat(-most);
    let mut sum = S::splat(0.0);
    for x in row.chunks_exact_mut(S::LANES) {
        let e = exp_of_negative::<S>(S::add(S::load(x.as_ptr()), most));
        S::store(x.as_mut_ptr(), e);
        sum = S::add(sum, e);
    }
    S::sum(sum)
}
