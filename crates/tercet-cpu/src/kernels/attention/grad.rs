//! Attention backward pass from the saved log-sum-exp (Dao et al., "FlashAttention", 2022).
//!
//! A task computes one key-value head of one batch entry. The task packs keys and values once, by
//! rows and by columns, and then loops over blocks of queries of the group's heads. For each block,
//! the weights `p` and the score cotangents `ds` stay in the L2 cache. While in cache, `p` and `ds`
//! are multiplied to get the contributions to dQ, dK and dV. Tiles that are masked by position are
//! skipped. No other task adds to the same sums, so the order of summation is fixed.

mod block;

use std::ops::Range;

use super::{AttentionArgs, AttentionKeyMask, HeadsView, HeadsViewMut};
use crate::kernels::gemm::{self, MatView};
use crate::kernels::parallel::{self, KernelThreads, SharedMut};
use crate::kernels::simd::{Simd, SimdLevel, simd_dispatch};
use block::{AttentionGradBlock, scores, sums, weights};

/// Queries per block.
const QUERY_BLOCK: usize = 64;
/// Keys per block, a multiple of every panel width.
const KEY_BLOCK: usize = 192;
/// Row stride of the scores: an odd number of cache lines, so that a column is spread over all
/// cache sets.
const ROW: usize = KEY_BLOCK + 16;

/// Inputs of the backward pass. `dy` has the shape of the attention result. `lse` and `delta` are
/// `[batch, q_heads, q_len]`: the log-sum-exp of each query's scores, and `dy . y`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "conventional names")]
pub struct AttentionGradArgs<'a> {
    pub q: HeadsView<'a>,
    pub k: HeadsView<'a>,
    pub v: HeadsView<'a>,
    pub dy: HeadsView<'a>,
    pub lse: &'a [f32],
    pub delta: &'a [f32],
}

/// Outputs of the backward pass.
#[derive(Debug)]
pub struct AttentionCotangents<'a> {
    /// dQ, if requested.
    pub queries: Option<HeadsViewMut<'a>>,
    /// dK and dV, if requested.
    pub keys: Option<[HeadsViewMut<'a>; 2]>,
}

/// Output memory that tasks share.
#[derive(Clone, Copy)]
struct AttentionGradOut {
    data: SharedMut<f32>,
    strides: [usize; 3],
}

impl AttentionGradOut {
    fn new(view: HeadsViewMut<'_>) -> AttentionGradOut {
        AttentionGradOut {
            data: SharedMut::new(view.data),
            strides: view.strides,
        }
    }

    /// Pointer to the first element of a head.
    fn head(&self, b: usize, head: usize) -> *mut f32 {
        let [of_batch, of_head, _] = self.strides;
        self.data.from(b * of_batch + head * of_head).ptr()
    }
}

/// Sizes of the parts of a task's scratch memory, in floats.
struct AttentionGradScratch {
    /// Keys and values packed by columns, and keys packed by rows.
    transposed_keys: usize,
    transposed_values: usize,
    keys: usize,
    /// Queries and cotangents of a block, packed by rows.
    queries: usize,
    dy: usize,
    /// Weights, and the same number of score cotangents.
    scores: usize,
}

impl AttentionGradScratch {
    fn new(nr: usize, a: &AttentionArgs<'_>) -> AttentionGradScratch {
        let keys = a.kv_lens.iter().copied().max().unwrap_or(0);
        let whole = |n: usize| n.next_multiple_of(nr);
        AttentionGradScratch {
            transposed_keys: whole(keys) * a.dk,
            transposed_values: whole(keys) * a.dv,
            keys: whole(a.dk) * keys,
            queries: whole(a.dk) * QUERY_BLOCK,
            dy: whole(a.dv) * QUERY_BLOCK,
            scores: QUERY_BLOCK * ROW,
        }
    }

    fn len(&self) -> usize {
        let packed = self.transposed_keys + self.transposed_values + self.keys;
        packed + self.queries + self.dy + 2 * self.scores
    }
}

/// Floats of scratch memory for [`attention_grad`]. The size for maximum lengths also suffices for
/// smaller ones.
#[must_use]
pub fn attention_grad_scratch_len(
    level: SimdLevel,
    threads: KernelThreads,
    a: &AttentionArgs<'_>,
) -> usize {
    threads.count() * AttentionGradScratch::new(gemm::tile_shape(level).1, a).len()
}

/// Computes `dq = ds k`, `dk = dsT q` and `dv = pT dy` for [`attention`](super::attention).
///
/// The weights are `p = exp(s - lse)`. The score cotangents are `ds = p (dy . v - delta)`, times
/// the derivative of a score by the product of query and key. Keys and values must be finite even
/// if they are masked for all queries.
///
/// # Panics
/// If the mask is a bias, or an operand or result is shorter than its sizes and strides require.
/// Also panics if `scratch` is shorter than [`attention_grad_scratch_len`].
pub fn attention_grad(
    level: SimdLevel,
    threads: KernelThreads,
    a: &AttentionArgs<'_>,
    of: &AttentionGradArgs<'_>,
    to: AttentionCotangents<'_>,
    scratch: &mut [f32],
) {
    a.check(&of.q, &of.k, &of.v, (of.dy.data.len(), of.dy.strides));
    assert!(
        !matches!(a.mask, AttentionKeyMask::Bias(..)),
        "attention gradients do not support a bias mask"
    );
    let queries = a.batch * a.q_heads * a.q_len;
    assert!(
        of.lse.len() >= queries && of.delta.len() >= queries,
        "lse or delta is too short"
    );
    let kv_len = a.kv_lens.iter().copied().max().unwrap_or(0);
    let check = |view: &HeadsViewMut<'_>, sizes: [usize; 3], name: &str| {
        let fits = a.is_in_bounds(view.data.len(), sizes, view.strides);
        assert!(fits, "{name} is too short");
    };
    if let Some(dq) = &to.queries {
        check(dq, [a.q_heads, a.q_len, a.dk], "dq");
    }
    if let Some([dk, dv]) = &to.keys {
        check(dk, [a.kv_heads, kv_len, a.dk], "dk");
        check(dv, [a.kv_heads, kv_len, a.dv], "dv");
    }
    let outs = AttentionGradOuts {
        dq: to.queries.map(AttentionGradOut::new),
        dkv: to.keys.map(|both| both.map(AttentionGradOut::new)),
    };
    let each = AttentionGradScratch::new(gemm::tile_shape(level).1, a).len();
    let tasks = a.batch * a.kv_heads;
    let threads = a.threads(threads);
    parallel::for_each_with_scratch(threads, tasks, scratch, each, |task, scratch| {
        let job = AttentionGradTask {
            a,
            of,
            outs: &outs,
            b: task / a.kv_heads,
            kv_head: task % a.kv_heads,
        };
        run_job(level, &job, scratch);
    });
}

struct AttentionGradOuts {
    dq: Option<AttentionGradOut>,
    dkv: Option<[AttentionGradOut; 2]>,
}

/// One task of the backward pass.
struct AttentionGradTask<'a> {
    a: &'a AttentionArgs<'a>,
    of: &'a AttentionGradArgs<'a>,
    outs: &'a AttentionGradOuts,
    b: usize,
    kv_head: usize,
}

impl AttentionGradTask<'_> {
    /// Elements of an operand from position `at` of a head on.
    fn rows<'x>(&self, x: &HeadsView<'x>, head: usize, at: usize) -> &'x [f32] {
        let [of_batch, of_head, of_row] = x.strides;
        let start = self.b * of_batch + head * of_head + at * of_row;
        x.data.get(start..).unwrap_or(&[])
    }

    /// Positions of a head as rows of a matrix.
    fn matrix<'x>(
        &self,
        x: &HeadsView<'x>,
        head: usize,
        at: Range<usize>,
        cols: usize,
    ) -> MatView<'x> {
        MatView {
            data: self.rows(x, head, at.start),
            rows: at.len(),
            cols,
            row_stride: x.strides[2],
            col_stride: 1,
        }
    }
}

/// A matrix packed into column panels: pointer and number of rows.
#[derive(Clone, Copy)]
struct AttentionGradPanels {
    data: *const f32,
    rows: usize,
}

impl AttentionGradPanels {
    /// Packs `view` into `to`, which must have room for whole panels.
    ///
    /// # Safety
    /// Requires the instructions of `S`; the view was checked.
    #[inline(always)]
    unsafe fn pack<S: Simd>(view: &MatView<'_>, to: &mut [f32]) -> AttentionGradPanels {
        let nr = S::TILE_VECTORS * S::LANES;
        if view.rows > 0 {
            for (i, panel) in to.chunks_exact_mut(view.rows * nr).enumerate() {
                if i * nr < view.cols {
                    gemm::pack_panel::<S>(view, i * nr, panel);
                }
            }
        }
        AttentionGradPanels {
            data: to.as_ptr(),
            rows: view.rows,
        }
    }

    /// Pointer to row `row` of the panel whose first column is `col`.
    fn at<S: Simd>(self, col: usize, row: usize) -> *const f32 {
        let nr = S::TILE_VECTORS * S::LANES;
        self.data.wrapping_add(col * self.rows + row * nr)
    }
}

simd_dispatch!(fn run_job(job: &AttentionGradTask<'_>, scratch: &mut [f32]) = run_job_body);

/// # Safety
/// Requires the instructions of `S`, checked operands and results, and exclusive access to the
/// results of the head.
#[inline(always)]
unsafe fn run_job_body<S: Simd>(job: &AttentionGradTask<'_>, scratch: &mut [f32]) {
    let (a, of) = (job.a, job.of);
    let nr = S::TILE_VECTORS * S::LANES;
    let kv_len = a.kv_len(job.b);
    let parts = AttentionGradScratch::new(nr, a);
    let (kt, scratch) = scratch.split_at_mut(parts.transposed_keys);
    let (vt, scratch) = scratch.split_at_mut(parts.transposed_values);
    let (kp, scratch) = scratch.split_at_mut(parts.keys);
    let (qp, scratch) = scratch.split_at_mut(parts.queries);
    let (yp, scratch) = scratch.split_at_mut(parts.dy);
    let (p, scratch) = scratch.split_at_mut(parts.scores);
    let (ds, _) = scratch.split_at_mut(parts.scores);
    let group = a.q_heads / a.kv_heads;
    clear(job, group);
    if kv_len == 0 || a.q_len == 0 {
        return;
    }
    let keys = job.matrix(&of.k, job.kv_head, 0..kv_len, a.dk);
    let values = job.matrix(&of.v, job.kv_head, 0..kv_len, a.dv);
    let packed = PackedGradKv {
        transposed_keys: AttentionGradPanels::pack::<S>(&keys.transposed(), kt),
        transposed_values: AttentionGradPanels::pack::<S>(&values.transposed(), vt),
        keys: AttentionGradPanels::pack::<S>(&keys, kp),
    };
    let mut seen = [(0, 0); QUERY_BLOCK];
    for head in job.kv_head * group..(job.kv_head + 1) * group {
        for first in (0..a.q_len).step_by(QUERY_BLOCK) {
            let queries = first..a.q_len.min(first + QUERY_BLOCK);
            let seen = &mut seen[..queries.len()];
            for (seen, query) in seen.iter_mut().zip(queries.clone()) {
                let keys = a.visible(query, kv_len);
                *seen = (keys.start, keys.end);
            }
            let own = job.matrix(&of.q, head, queries.clone(), a.dk);
            let dy = job.matrix(&of.dy, head, queries.clone(), a.dv);
            let lines = PackedGradQueries {
                queries: AttentionGradPanels::pack::<S>(&own, qp),
                dy: AttentionGradPanels::pack::<S>(&dy, yp),
            };
            // Blocks start at panel boundaries.
            let (from, to) = (seen[0].0 / nr * nr, seen[seen.len() - 1].1);
            for key in (from..to).step_by(KEY_BLOCK) {
                let block = AttentionGradBlock {
                    head,
                    queries: queries.clone(),
                    keys: key..to.min(key + KEY_BLOCK),
                    visible: seen,
                };
                scores::<S>(job, &block, &packed, p, ds);
                weights::<S>(job, &block, p, ds);
                sums::<S>(job, &block, &packed, &lines, p, ds);
            }
        }
    }
}

/// Packed keys and values of a task.
struct PackedGradKv {
    transposed_keys: AttentionGradPanels,
    transposed_values: AttentionGradPanels,
    keys: AttentionGradPanels,
}

/// Packed queries of a block.
struct PackedGradQueries {
    queries: AttentionGradPanels,
    dy: AttentionGradPanels,
}

/// Sets the output sums to zero.
///
/// # Safety
/// Same as [`run_job`].
unsafe fn clear(job: &AttentionGradTask<'_>, group: usize) {
    let a = job.a;
    let keys = a.kv_lens.iter().copied().max().unwrap_or(0);
    let clear = |out: &AttentionGradOut, head: usize, rows: usize, len: usize| {
        for row in 0..rows {
            let to = out.head(job.b, head).wrapping_add(row * out.strides[2]);
            // SAFETY: the range is a row of the head.
            unsafe { to.write_bytes(0, len) };
        }
    };
    if let Some(dq) = &job.outs.dq {
        for head in job.kv_head * group..(job.kv_head + 1) * group {
            clear(dq, head, a.q_len, a.dk);
        }
    }
    if let Some([dk, dv]) = &job.outs.dkv {
        clear(dk, job.kv_head, keys, a.dk);
        clear(dv, job.kv_head, keys, a.dv);
    }
}
