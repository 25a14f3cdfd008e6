//! Attention in f32 that never stores a whole score matrix.
//!
//! A task takes one key-value head of one batch entry and up to `ROW_BLOCK`
//! rows; a row is one query of one of the grouped heads, so that a single query
//! still shares each key among its group. Keys pass by in blocks, with a running
//! maximum and sum per row (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax"); blocks that no row may see are skipped. Many rows
//! multiply through the tile kernel, few by dot products in place.

mod grad;
mod products;
mod scores;
mod whole;

pub use grad::{Backward, Cotangents, attention_grad, attention_grad_scratch_len};

use std::ops::Range;

use super::gemm;
use super::parallel::{self, SharedMut, Threads};
use super::simd::{Simd, SimdLevel, simd_dispatch};
use super::vmath::scalar;
use products::{add_values, score_block};
use scores::{exp_row, mask_row};

/// Rows of one task.
const ROW_BLOCK: usize = 128;
/// Keys of one pass.
const KEY_BLOCK: usize = 128;
/// Multiply-adds that one thread does in about 50 us.
const SERIAL_WORK: usize = 500_000;

/// A `[batch, head, sequence, dim]` operand; `dim` is contiguous. Both layouts
/// and slices of a packed projection are strides.
#[derive(Clone, Copy, Debug)]
pub struct HeadsView<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Distance between batch entries, heads and positions.
    pub strides: [usize; 3],
}

/// Where the result goes, as [`HeadsView`].
#[derive(Debug)]
pub struct HeadsViewMut<'a> {
    /// The elements.
    pub data: &'a mut [f32],
    /// Distance between batch entries, heads and positions.
    pub strides: [usize; 3],
}

/// Which keys a query sees. Strides are for `[batch, q_head, query, key]`, 0 to broadcast.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// Every key.
    None,
    /// Keys up to `kv_len - q_len + query`.
    Causal,
    /// The last `w` of the causal keys.
    SlidingWindow(usize),
    /// Keys whose byte is not 0.
    Keep(&'a [u8], [usize; 4]),
    /// Added to the scores.
    Bias(&'a [f32], [usize; 4]),
}

/// Sizes and options of one attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Batch entries.
    pub batch: usize,
    /// Query heads: a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Queries.
    pub q_len: usize,
    /// Keys in use of each batch entry: one entry for all, or `batch` of them.
    pub kv_lens: &'a [usize],
    /// Size of a query and a key.
    pub dk: usize,
    /// Size of a value.
    pub dv: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// `c tanh(s / c)` after the scale, before the mask.
    pub softcap: Option<f32>,
    /// Which keys a query sees.
    pub mask: Mask<'a>,
}

impl Attention<'_> {
    fn kv_len(&self, b: usize) -> usize {
        if self.kv_lens.len() == 1 {
            self.kv_lens[0]
        } else {
            self.kv_lens[b]
        }
    }

    /// The keys that `query` may see by position.
    fn visible(&self, query: usize, kv_len: usize) -> Range<usize> {
        let end = (kv_len + query + 1).saturating_sub(self.q_len).min(kv_len);
        match self.mask {
            Mask::None | Mask::Keep(..) | Mask::Bias(..) => 0..kv_len,
            Mask::Causal => 0..end,
            Mask::SlidingWindow(w) => end.saturating_sub(w)..end,
        }
    }

    /// Whether an operand or result of so many heads and positions lies inside so many elements.
    fn fits(&self, len: usize, [heads, seq, dim]: [usize; 3], s: [usize; 3]) -> bool {
        self.batch * heads * seq * dim == 0
            || (self.batch - 1) * s[0] + (heads - 1) * s[1] + (seq - 1) * s[2] + dim <= len
    }

    /// Panics unless operands and result are as long as sizes and strides say.
    fn check(
        &self,
        q: &HeadsView<'_>,
        k: &HeadsView<'_>,
        v: &HeadsView<'_>,
        out: (usize, [usize; 3]),
    ) {
        assert!(
            self.kv_heads > 0 && self.q_heads.is_multiple_of(self.kv_heads),
            "query heads must be a multiple of key heads"
        );
        assert!(
            self.kv_lens.len() == 1 || self.kv_lens.len() == self.batch,
            "one kv_len, or one per batch entry"
        );
        let kv_len = self.kv_lens.iter().copied().max().unwrap_or(0);
        let queries = [self.q_heads, self.q_len, self.dk];
        let results = [self.q_heads, self.q_len, self.dv];
        let keys = [self.kv_heads, kv_len, self.dk];
        let values = [self.kv_heads, kv_len, self.dv];
        assert!(
            self.fits(q.data.len(), queries, q.strides),
            "q is too short"
        );
        assert!(self.fits(k.data.len(), keys, k.strides), "k is too short");
        assert!(self.fits(v.data.len(), values, v.strides), "v is too short");
        assert!(self.fits(out.0, results, out.1), "out is too short");
        let (len, strides) = match &self.mask {
            Mask::None | Mask::Causal | Mask::SlidingWindow(_) => return,
            Mask::Keep(keep, strides) => (keep.len(), strides),
            Mask::Bias(bias, strides) => (bias.len(), strides),
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

    /// [`Threads::Serial`] where the work is less than waking a thread costs.
    fn threads(&self, threads: Threads) -> Threads {
        let keys = self.kv_lens.iter().copied().max().unwrap_or(0);
        let rows = self.batch * self.q_heads * self.q_len;
        if rows * keys * (self.dk + self.dv) < SERIAL_WORK {
            Threads::Serial
        } else {
            threads
        }
    }
}

/// Floats of scratch that [`attention`] needs; bounds for `q_len` give a bound.
#[must_use]
pub fn attention_scratch_len(level: SimdLevel, threads: Threads, a: &Attention<'_>) -> usize {
    threads.count() * part_len(level, a)
}

fn rows_per_task(a: &Attention<'_>) -> usize {
    (a.q_heads / a.kv_heads * a.q_len).clamp(1, ROW_BLOCK)
}

/// Scratch memory of one task. A bound for more keys is one for fewer.
fn part_len(level: SimdLevel, a: &Attention<'_>) -> usize {
    let (_, nr) = gemm::tile_shape(level);
    let blocks = rows_per_task(a) * (a.dk + KEY_BLOCK + a.dv + 2) + nr * a.dk;
    blocks.max(whole::part_len(level, a))
}

/// `out = softmax(mask(softcap(scale q k^T))) v`; a row that sees no key is zeros.
///
/// # Panics
/// If an operand is shorter than its sizes and strides say, or `scratch` is
/// shorter than [`attention_scratch_len`].
#[allow(clippy::too_many_arguments, reason = "operands, output, scratch")]
pub fn attention(
    level: SimdLevel,
    threads: Threads,
    a: &Attention<'_>,
    q: HeadsView<'_>,
    k: HeadsView<'_>,
    v: HeadsView<'_>,
    out: HeadsViewMut<'_>,
    scratch: &mut [f32],
) {
    attention_with_lse(level, threads, a, q, k, v, out, None, scratch);
}

/// [`attention`], with the logarithm of the sum of the exponentials of each query's scores, `[batch, q_heads, q_len]`, where it is wanted:
/// `-inf` of a query that sees no key.
///
/// # Panics
/// As [`attention`], or if `lse` is shorter than that.
#[allow(clippy::too_many_arguments, reason = "operands, outputs, scratch")]
pub fn attention_with_lse(
    level: SimdLevel,
    threads: Threads,
    a: &Attention<'_>,
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
    let run = match whole::is_whole(a) {
        true => whole::run_whole,
        false => run_job,
    };
    parallel::for_each_with_scratch(
        a.threads(threads),
        tasks,
        scratch,
        part_len(level, a),
        |task, scratch| {
            let (pair, block) = (task / blocks, task % blocks);
            let job = Job {
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

/// One task: `rows` index (head of the group, query), query fastest.
struct Job<'a> {
    a: &'a Attention<'a>,
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

impl Job<'_> {
    /// The query head and the query of the `r`-th row.
    #[inline(always)]
    fn row(&self, r: usize) -> (usize, usize) {
        let row = self.rows.start + r;
        let group = self.a.q_heads / self.a.kv_heads;
        (
            self.kv_head * group + row / self.a.q_len,
            row % self.a.q_len,
        )
    }

    /// The keys of a block that one of some rows sees by position, from the block's first.
    #[inline(always)]
    fn seen(&self, rows: Range<usize>, keys: &Range<usize>) -> Range<usize> {
        if matches!(self.a.mask, Mask::None | Mask::Keep(..) | Mask::Bias(..)) {
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

simd_dispatch!(fn run_job(job: &Job<'_>, scratch: &mut [f32]) = run_job_body);

/// # Safety
/// Needs the instructions of `S`; no other task writes the rows of this job.
#[inline(always)]
unsafe fn run_job_body<S: Simd>(job: &Job<'_>, scratch: &mut [f32]) {
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
            let seen = job.seen(r..r + 1, &keys);
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

/// The query of the `r`-th row, scaled.
#[inline(always)]
fn load_query(job: &Job<'_>, r: usize, to: &mut [f32]) {
    let (head, query) = job.row(r);
    let start = job.b * job.q.strides[0] + head * job.q.strides[1] + query * job.q.strides[2];
    for (to, from) in to.iter_mut().zip(&job.q.data[start..]) {
        *to = from * job.a.scale;
    }
}

/// Writes the result of the `r`-th row: its weighted values, with the greatest score and the sum of the weights.
///
/// # Safety
/// Needs the instructions of `S`; no other task writes this row.
#[inline(always)]
unsafe fn finish_row<S: Simd>(
    job: &Job<'_>,
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
        // Of no keys `-inf + -inf`. Each query belongs to one task.
        lse.slice(at, 1)[0] = max + sum.ln();
    }
    let mut poisoned = false;
    for (out, x) in out.iter_mut().zip(values) {
        *out = x * scale;
        poisoned |= out.is_nan();
    }
    if poisoned && !matches!(a.mask, Mask::None) {
        masked_row::<S>(job, r, kv_len, out);
    }
}

/// One row again, key by key, leaving out the keys that are not seen: blocks give those the weight
/// zero, which does not hide what is not finite.
#[inline(always)]
fn masked_row<S: Simd>(job: &Job<'_>, r: usize, kv_len: usize, out: &mut [f32]) {
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
            Mask::Keep(keep, strides) if keep[masked(strides, j)] == 0 => None,
            Mask::Bias(bias, strides) => {
                let bias = bias[masked(strides, j)];
                (bias != f32::NEG_INFINITY).then_some(s + bias)
            }
            Mask::None | Mask::Causal | Mask::SlidingWindow(_) | Mask::Keep(..) => Some(s),
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
