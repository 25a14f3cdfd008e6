//! Attention in f32 without a full score matrix.
//!
//! A task computes one key-value head of one batch entry and up to `ROW_BLOCK` rows. A row is one
//! query of one of the grouped heads, so a single query still reads each key once for its whole
//! group. Keys are processed in blocks, with a running maximum and sum per row (Milakov and
//! Gimelshein, "Online normalizer calculation for softmax"). Blocks that are masked for all rows
//! are skipped. Many rows use the register-tile matmul kernel; few rows use dot products on
//! unpacked keys.

mod grad;
mod products;
mod scores;
mod single_block;

pub use grad::{
    AttentionCotangents, AttentionGradArgs, attention_grad, attention_grad_scratch_len,
};

use std::ops::Range;

use super::gemm;
use super::parallel::{self, KernelThreads, SharedMut};
use super::simd::{Simd, SimdLevel, simd_dispatch};
use super::vmath::scalar;
use products::{add_values, score_block};
use scores::{exp_row, mask_row};

/// Rows of one task.
const ROW_BLOCK: usize = 128;
/// Keys per block.
const KEY_BLOCK: usize = 128;
/// Multiply-adds that take one thread about 50 us.
const SERIAL_WORK: usize = 500_000;

/// A `[batch, head, sequence, dim]` operand with contiguous `dim`. Strides can express heads before
/// or after positions, and slices of a packed QKV projection.
#[derive(Clone, Copy, Debug)]
pub struct HeadsView<'a> {
    /// Elements of the operand.
    pub data: &'a [f32],
    /// Strides of batch entries, heads and positions.
    pub strides: [usize; 3],
}

/// Result with the strides of a [`HeadsView`].
#[derive(Debug)]
pub struct HeadsViewMut<'a> {
    /// Elements of the result.
    pub data: &'a mut [f32],
    /// Strides of batch entries, heads and positions.
    pub strides: [usize; 3],
}

/// Attention mask. Strides are for `[batch, q_head, query, key]`; 0 broadcasts.
#[derive(Clone, Copy, Debug)]
pub enum AttentionKeyMask<'a> {
    /// Every key is visible.
    None,
    /// Keys up to position `kv_len - q_len + query` are visible.
    Causal,
    /// Of the keys that a causal mask shows to a query, only the last `w` are visible.
    SlidingWindow(usize),
    /// Keys whose byte is not 0 are visible.
    Keep(&'a [u8], [usize; 4]),
    /// Bias that is added to the scores.
    Bias(&'a [f32], [usize; 4]),
}

/// Sizes and options of an attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs<'a> {
    /// Number of batch entries.
    pub batch: usize,
    /// Number of query heads, a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Number of queries.
    pub q_len: usize,
    /// Number of valid keys: one entry for the whole batch, or one per batch entry.
    pub kv_lens: &'a [usize],
    /// Head size of queries and keys.
    pub dk: usize,
    /// Head size of values.
    pub dv: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Softcap `c tanh(s / c)`, applied after the scale and before the mask.
    pub softcap: Option<f32>,
    /// Attention mask.
    pub mask: AttentionKeyMask<'a>,
}

impl AttentionArgs<'_> {
    fn kv_len(&self, b: usize) -> usize {
        if self.kv_lens.len() == 1 {
            self.kv_lens[0]
        } else {
            self.kv_lens[b]
        }
    }

    /// Range of keys that are visible to `query` by position.
    fn visible(&self, query: usize, kv_len: usize) -> Range<usize> {
        let end = (kv_len + query + 1).saturating_sub(self.q_len).min(kv_len);
        match self.mask {
            AttentionKeyMask::None | AttentionKeyMask::Keep(..) | AttentionKeyMask::Bias(..) => {
                0..kv_len
            }
            AttentionKeyMask::Causal => 0..end,
            AttentionKeyMask::SlidingWindow(w) => end.saturating_sub(w)..end,
        }
    }

    /// True if an operand or result with these sizes and strides is inside `len` elements.
    fn is_in_bounds(&self, len: usize, [heads, seq, dim]: [usize; 3], s: [usize; 3]) -> bool {
        self.batch * heads * seq * dim == 0
            || (self.batch - 1) * s[0] + (heads - 1) * s[1] + (seq - 1) * s[2] + dim <= len
    }

    /// Panics if an operand or result is shorter than its sizes and strides require.
    fn check(
        &self,
        q: &HeadsView<'_>,
        k: &HeadsView<'_>,
        v: &HeadsView<'_>,
        out: (usize, [usize; 3]),
    ) {
        assert!(
            self.kv_heads > 0 && self.q_heads.is_multiple_of(self.kv_heads),
            "query heads must be a multiple of key-value heads"
        );
        assert!(
            self.kv_lens.len() == 1 || self.kv_lens.len() == self.batch,
            "kv_lens must have one entry, or one per batch entry"
        );
        let kv_len = self.kv_lens.iter().copied().max().unwrap_or(0);
        let queries = [self.q_heads, self.q_len, self.dk];
        let results = [self.q_heads, self.q_len, self.dv];
        let keys = [self.kv_heads, kv_len, self.dk];
        let values = [self.kv_heads, kv_len, self.dv];
        assert!(
            self.is_in_bounds(q.data.len(), queries, q.strides),
            "q is too short"
        );
        assert!(
            self.is_in_bounds(k.data.len(), keys, k.strides),
            "k is too short"
        );
        assert!(
            self.is_in_bounds(v.data.len(), values, v.strides),
            "v is too short"
        );
        assert!(self.is_in_bounds(out.0, results, out.1), "out is too short");
        let (len, strides) = match &self.mask {
            AttentionKeyMask::None
            | AttentionKeyMask::Causal
            | AttentionKeyMask::SlidingWindow(_) => return,
            AttentionKeyMask::Keep(keep, strides) => (keep.len(), strides),
            AttentionKeyMask::Bias(bias, strides) => (bias.len(), strides),
        };
        let sizes = [self.batch, self.q_heads, self.q_len, kv_len];
        let last = sizes
            .iter()
            .zip(strides)
            .map(|(n, s)| n.saturating_sub(1) * s);
        assert!(
            sizes.contains(&0) || last.sum::<usize>() < len,
            "the mask is too short"
        );
    }

    /// [`KernelThreads::Serial`] if the work is smaller than the cost of waking a thread.
    fn threads(&self, threads: KernelThreads) -> KernelThreads {
        let keys = self.kv_lens.iter().copied().max().unwrap_or(0);
        let rows = self.batch * self.q_heads * self.q_len;
        if rows * keys * (self.dk + self.dv) < SERIAL_WORK {
            KernelThreads::Serial
        } else {
            threads
        }
    }
}

/// Floats of scratch memory for [`attention`]. The size for a maximum `q_len` also suffices for
/// smaller ones.
#[must_use]
pub fn attention_scratch_len(
    level: SimdLevel,
    threads: KernelThreads,
    a: &AttentionArgs<'_>,
) -> usize {
    threads.count() * part_len(level, a)
}

fn rows_per_task(a: &AttentionArgs<'_>) -> usize {
    (a.q_heads / a.kv_heads * a.q_len).clamp(1, ROW_BLOCK)
}

/// Scratch floats of one task. The size for a maximum number of keys also suffices for fewer keys.
fn part_len(level: SimdLevel, a: &AttentionArgs<'_>) -> usize {
    let (_, nr) = gemm::tile_shape(level);
    let blocks = rows_per_task(a) * (a.dk + KEY_BLOCK + a.dv + 2) + nr * a.dk;
    blocks.max(single_block::part_len(level, a))
}

/// Computes `out = softmax(mask(softcap(scale q k^T))) v`. A row without visible keys is zero.
///
/// # Panics
/// If an operand is shorter than its sizes and strides require, or `scratch` is shorter than
/// [`attention_scratch_len`].
#[allow(clippy::too_many_arguments, reason = "operands, output, scratch")]
pub fn attention(
    level: SimdLevel,
    threads: KernelThreads,
    a: &AttentionArgs<'_>,
    q: HeadsView<'_>,
    k: HeadsView<'_>,
    v: HeadsView<'_>,
    out: HeadsViewMut<'_>,
    scratch: &mut [f32],
) {
    attention_with_lse(level, threads, a, q, k, v, out, None, scratch);
}

/// [`attention`] with an optional log-sum-exp of the scores of each query, `[batch, q_heads,
/// q_len]`. The log-sum-exp of a query without visible keys is `-inf`.
///
/// # Panics
/// Same as [`attention`], or if `lse` is too short.
#[allow(clippy::too_many_arguments, reason = "operands, outputs, scratch")]
pub fn attention_with_lse(
    level: SimdLevel,
    threads: KernelThreads,
    a: &AttentionArgs<'_>,
    q: HeadsView<'_>,
    k: HeadsView<'_>,
    v: HeadsView<'_>,
    out: HeadsViewMut<'_>,
    lse: Option<&mut [f32]>,
    scratch: &mut [f32],
) {
    a.check(&q, &k, &v, (out.data.len(), out.strides));
    let queries = a.batch * a.q_heads * a.q_len;
    assert!(
        lse.as_ref().is_none_or(|lse| lse.len() >= queries),
        "lse is too short"
    );
    if queries * a.dv == 0 {
        if let Some(lse) = lse {
            lse.fill(f32::NEG_INFINITY);
        }
        return;
    }
    let strides = out.strides;
    let out = SharedMut::new(out.data);
    let lse = lse.map(SharedMut::new);
    let rows = a.q_heads / a.kv_heads * a.q_len;
    let blocks = rows.div_ceil(rows_per_task(a));
    let tasks = a.batch * a.kv_heads * blocks;
    let run = match single_block::is_single_block(a) {
        true => single_block::run_single_block,
        false => run_job,
    };
    parallel::for_each_with_scratch(
        a.threads(threads),
        tasks,
        scratch,
        part_len(level, a),
        |task, scratch| {
            let (pair, block) = (task / blocks, task % blocks);
            let job = AttentionTask {
                a,
                q,
                k,
                v,
                out,
                out_strides: strides,
                lse,
                b: pair / a.kv_heads,
                kv_head: pair % a.kv_heads,
                rows: block * rows_per_task(a)..rows.min((block + 1) * rows_per_task(a)),
            };
            run(level, &job, scratch);
        },
    );
}

/// One task. An index in `rows` enumerates pairs of a query head of the group and a query; the
/// query varies fastest.
struct AttentionTask<'a> {
    a: &'a AttentionArgs<'a>,
    q: HeadsView<'a>,
    k: HeadsView<'a>,
    v: HeadsView<'a>,
    out: SharedMut<f32>,
    out_strides: [usize; 3],
    lse: Option<SharedMut<f32>>,
    b: usize,
    kv_head: usize,
    rows: Range<usize>,
}

impl AttentionTask<'_> {
    /// Query head and query of row `r`.
    #[inline(always)]
    fn row(&self, r: usize) -> (usize, usize) {
        let row = self.rows.start + r;
        let group = self.a.q_heads / self.a.kv_heads;
        (
            self.kv_head * group + row / self.a.q_len,
            row % self.a.q_len,
        )
    }

    /// Range of keys in a block, relative to its start, that are visible by position to at least
    /// one of the rows.
    #[inline(always)]
    fn visible_keys(&self, rows: Range<usize>, keys: &Range<usize>) -> Range<usize> {
        if matches!(
            self.a.mask,
            AttentionKeyMask::None | AttentionKeyMask::Keep(..) | AttentionKeyMask::Bias(..)
        ) {
            return 0..keys.len();
        }
        let kv_len = self.a.kv_len(self.b);
        let (mut first, mut end) = (keys.end, keys.start);
        for r in rows {
            let seen = self.a.visible(self.row(r).1, kv_len);
            (first, end) = (first.min(seen.start), end.max(seen.end));
        }
        let of = |key: usize| key.clamp(keys.start, keys.end) - keys.start;
        of(first)..of(end).max(of(first))
    }
}

simd_dispatch!(fn run_job(job: &AttentionTask<'_>, scratch: &mut [f32]) = run_job_body);

/// # Safety
/// Requires the instructions of `S`; no other task writes the rows of this job.
#[inline(always)]
unsafe fn run_job_body<S: Simd>(job: &AttentionTask<'_>, scratch: &mut [f32]) {
    let (a, n) = (job.a, job.rows.len());
    let nr = S::TILE_VECTORS * S::LANES;
    let (queries, scratch) = scratch.split_at_mut(n * a.dk);
    let (scores, scratch) = scratch.split_at_mut(n * KEY_BLOCK);
    let (acc, scratch) = scratch.split_at_mut(n * a.dv);
    let (max, scratch) = scratch.split_at_mut(n);
    let (sum, scratch) = scratch.split_at_mut(n);
    let (panel, _) = scratch.split_at_mut(nr * a.dk);
    let kv_len = a.kv_len(job.b);
    let (mut first, mut end) = (kv_len, 0);
    for r in 0..n {
        load_query(job, r, &mut queries[r * a.dk..(r + 1) * a.dk]);
        let seen = a.visible(job.row(r).1, kv_len);
        (first, end) = (first.min(seen.start), end.max(seen.end));
    }
    acc.fill(0.0);
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    let mut key = first;
    while key < end {
        let keys = key..end.min(key + KEY_BLOCK);
        score_block::<S>(job, queries, keys.clone(), scores, panel);
        for r in 0..n {
            let scores = &mut scores[r * KEY_BLOCK..r * KEY_BLOCK + keys.len()];
            mask_row::<S>(job, r, keys.clone(), kv_len, scores);
            let seen = job.visible_keys(r..r + 1, &keys);
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
            let grown = exp_row::<S>(&mut scores[seen], &mut max[r], &mut sum[r]);
            if grown != 1.0 {
                acc[r * a.dv..(r + 1) * a.dv]
                    .iter_mut()
                    .for_each(|x| *x *= grown);
            }
        }
        add_values::<S>(job, n, keys.clone(), scores, acc);
        key = keys.end;
    }
    for r in 0..n {
        let acc = &acc[r * a.dv..(r + 1) * a.dv];
        finish_row::<S>(job, r, kv_len, acc, (max[r], sum[r]));
    }
}

/// Copies the query of row `r`, multiplied by the scale.
#[inline(always)]
fn load_query(job: &AttentionTask<'_>, r: usize, to: &mut [f32]) {
    let (head, query) = job.row(r);
    let start = job.b * job.q.strides[0] + head * job.q.strides[1] + query * job.q.strides[2];
    for (to, from) in to.iter_mut().zip(&job.q.data[start..]) {
        *to = from * job.a.scale;
    }
}

/// Writes the result of row `r`: its weighted sum of values divided by the sum of its weights, and
/// its log-sum-exp if requested.
///
/// # Safety
/// Requires the instructions of `S`; no other task writes this row.
#[inline(always)]
unsafe fn finish_row<S: Simd>(
    job: &AttentionTask<'_>,
    r: usize,
    kv_len: usize,
    values: &[f32],
    (max, sum): (f32, f32),
) {
    let a = job.a;
    let (head, query) = job.row(r);
    let [sb, sh, sq] = job.out_strides;
    let out = job.out.slice(job.b * sb + head * sh + query * sq, a.dv);
    let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    if let Some(lse) = job.lse {
        let at = (job.b * a.q_heads + head) * a.q_len + query;
        // If the query has no visible keys, `max` and `sum.ln()` are both `-inf`. No other task
        // writes this element, because each query belongs to one task.
        lse.slice(at, 1)[0] = max + sum.ln();
    }
    let mut poisoned = false;
    for (out, x) in out.iter_mut().zip(values) {
        *out = x * scale;
        poisoned |= out.is_nan();
    }
    if poisoned && !matches!(a.mask, AttentionKeyMask::None) {
        masked_row::<S>(job, r, kv_len, out);
    }
}

/// Recomputes one row key by key, skipping masked keys. The block kernel gives masked keys the
/// weight zero, and zero times a non-finite value is NaN.
#[inline(always)]
fn masked_row<S: Simd>(job: &AttentionTask<'_>, r: usize, kv_len: usize, out: &mut [f32]) {
    let a = job.a;
    let (head, query) = job.row(r);
    let start = job.b * job.q.strides[0] + head * job.q.strides[1] + query * job.q.strides[2];
    let q = &job.q.data[start..start + a.dk];
    let at = |s: &[usize; 3], j: usize| job.b * s[0] + job.kv_head * s[1] + j * s[2];
    let masked = |s: &[usize; 4], j: usize| job.b * s[0] + head * s[1] + query * s[2] + j * s[3];
    let score = |j: usize| {
        let k = &job.k.data[at(&job.k.strides, j)..][..a.dk];
        let mut s = a.scale * q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>();
        if let Some(cap) = a.softcap {
            s = cap * scalar::tanh::<S>(s / cap);
        }
        match &a.mask {
            AttentionKeyMask::Keep(keep, strides) if keep[masked(strides, j)] == 0 => None,
            AttentionKeyMask::Bias(bias, strides) => {
                let bias = bias[masked(strides, j)];
                (bias != f32::NEG_INFINITY).then_some(s + bias)
            }
            AttentionKeyMask::None
            | AttentionKeyMask::Causal
            | AttentionKeyMask::SlidingWindow(_)
            | AttentionKeyMask::Keep(..) => Some(s),
        }
    };
    let keys = a.visible(query, kv_len);
    let max = keys
        .clone()
        .filter_map(score)
        .fold(f32::NEG_INFINITY, scalar::maximum);
    out.fill(0.0);
    if max == f32::NEG_INFINITY {
        return;
    }
    let mut sum = 0.0;
    for j in keys {
        let Some(s) = score(j) else { continue };
        let p = scalar::exp::<S>(s - max);
        sum += p;
        let v = &job.v.data[at(&job.v.strides, j)..][..a.dv];
        out.iter_mut().zip(v).for_each(|(o, v)| *o += p * v);
    }
    out.iter_mut().for_each(|o| *o /= sum);
}
