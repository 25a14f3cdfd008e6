//! The cotangents of attention from the logarithms of its sums (Dao et al., "FlashAttention", 2022).
//!
//! A task takes one key-value head of one batch entry: its keys and values are packed once, both ways, then blocks of queries of its group's heads
//! pass by. Of each block the weights `p` and the cotangents `ds` of scores lie in the second cache level, and feed the sums of
//! queries, keys and values at once. What no query of a tile sees by position is left out. No other task adds to the
//! same sums, whose order is fixed.

mod block;

use std::ops::Range;

use super::{Attention, HeadsView, HeadsViewMut, Mask};
use crate::kernels::gemm::{self, MatView};
use crate::kernels::parallel::{self, SharedMut, Threads};
use crate::kernels::simd::{Simd, SimdLevel, simd_dispatch};
use block::{Block, scores, sums, weights};

/// Queries of a block.
const QUERY_BLOCK: usize = 64;
/// Keys of a block: a multiple of the columns of any panel.
const KEY_BLOCK: usize = 192;
/// From one query's scores to the next: an odd number of cache lines, so that columns of them lie in all sets.
const ROW: usize = KEY_BLOCK + 16;

/// What the cotangents are made of. `dy` has the sizes of the result of the attention; `lse` and `delta` are `[batch, q_heads, q_len]`: the logarithm of the
/// sum of the exponentials of a query's scores, and `dy . y`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the usual names")]
pub struct Backward<'a> {
    pub q: HeadsView<'a>,
    pub k: HeadsView<'a>,
    pub v: HeadsView<'a>,
    pub dy: HeadsView<'a>,
    pub lse: &'a [f32],
    pub delta: &'a [f32],
}

/// Where cotangents go.
#[derive(Debug)]
pub struct Cotangents<'a> {
    /// Of the queries, where they are wanted.
    pub queries: Option<HeadsViewMut<'a>>,
    /// Of the keys and of the values.
    pub keys: Option<[HeadsViewMut<'a>; 2]>,
}

/// A result that tasks share.
#[derive(Clone, Copy)]
struct Out {
    data: SharedMut<f32>,
    strides: [usize; 3],
}

impl Out {
    fn new(view: HeadsViewMut<'_>) -> Out {
        Out {
            data: SharedMut::new(view.data),
            strides: view.strides,
        }
    }

    /// The first element of a head.
    fn head(&self, b: usize, head: usize) -> *mut f32 {
        let [of_batch, of_head, _] = self.strides;
        self.data.from(b * of_batch + head * of_head).ptr()
    }
}

/// The parts of a task's scratch memory, in floats.
struct Parts {
    /// Keys and values as columns, keys as rows.
    turned_keys: usize,
    turned_values: usize,
    keys: usize,
    /// Queries and cotangents of a block as rows.
    queries: usize,
    dy: usize,
    /// Weights, and as many cotangents of scores.
    scores: usize,
}

impl Parts {
    fn new(nr: usize, a: &Attention<'_>) -> Parts {
        let keys = a.kv_lens.iter().copied().max().unwrap_or(0);
        let whole = |n: usize| n.next_multiple_of(nr);
        Parts {
            turned_keys: whole(keys) * a.dk,
            turned_values: whole(keys) * a.dv,
            keys: whole(a.dk) * keys,
            queries: whole(a.dk) * QUERY_BLOCK,
            dy: whole(a.dv) * QUERY_BLOCK,
            scores: QUERY_BLOCK * ROW,
        }
    }

    fn len(&self) -> usize {
        let packed = self.turned_keys + self.turned_values + self.keys;
        packed + self.queries + self.dy + 2 * self.scores
    }
}

/// Floats of scratch memory that [`attention_grad`] needs; bounds for lengths give a bound.
#[must_use]
pub fn attention_grad_scratch_len(level: SimdLevel, threads: Threads, a: &Attention<'_>) -> usize {
    threads.count() * Parts::new(gemm::tile_shape(level).1, a).len()
}

/// With the weights `p = exp(s - lse)` of [`attention`](super::attention) and `ds = p (dy . v - delta)` times the derivative of a score by the
/// product of query and key: `dq = ds k`, `dk = dsT q`, `dv = pT dy`. Keys and values that no query sees have to be finite.
///
/// # Panics
/// If the mask is a bias, an operand or result is shorter than its sizes and strides say, or `scratch` is shorter than [`attention_grad_scratch_len`].
pub fn attention_grad(
    level: SimdLevel,
    threads: Threads,
    a: &Attention<'_>,
    of: &Backward<'_>,
    to: Cotangents<'_>,
    scratch: &mut [f32],
) {
    a.check(&of.q, &of.k, &of.v, (of.dy.data.len(), of.dy.strides));
    assert!(
        !matches!(a.mask, Mask::Bias(..)),
        "the cotangent of a bias is as large as the scores"
    );
    let queries = a.batch * a.q_heads * a.q_len;
    assert!(
        of.lse.len() >= queries && of.delta.len() >= queries,
        "lse or delta is too short"
    );
    let kv_len = a.kv_lens.iter().copied().max().unwrap_or(0);
    let check = |view: &HeadsViewMut<'_>, sizes: [usize; 3], name: &str| {
        let fits = a.fits(view.data.len(), sizes, view.strides);
        assert!(fits, "{name} is too short");
    };
    if let Some(dq) = &to.queries {
        check(dq, [a.q_heads, a.q_len, a.dk], "dq");
    }
    if let Some([dk, dv]) = &to.keys {
        check(dk, [a.kv_heads, kv_len, a.dk], "dk");
        check(dv, [a.kv_heads, kv_len, a.dv], "dv");
    }
    let outs = Outs {
        dq: to.queries.map(Out::new),
        dkv: to.keys.map(|both| both.map(Out::new)),
    };
    let each = Parts::new(gemm::tile_shape(level).1, a).len();
    let tasks = a.batch * a.kv_heads;
    let threads = a.threads(threads);
    parallel::for_each_with_scratch(threads, tasks, scratch, each, |task, scratch| {
        let job = Job {
            a,
            of,
            outs: &outs,
            b: task / a.kv_heads,
            kv_head: task % a.kv_heads,
        };
        run_job(level, &job, scratch);
    });
}

struct Outs {
    dq: Option<Out>,
    dkv: Option<[Out; 2]>,
}

/// One task.
struct Job<'a> {
    a: &'a Attention<'a>,
    of: &'a Backward<'a>,
    outs: &'a Outs,
    b: usize,
    kv_head: usize,
}

impl Job<'_> {
    /// The elements of an operand from the head's position `at` on.
    fn rows<'x>(&self, x: &HeadsView<'x>, head: usize, at: usize) -> &'x [f32] {
        let [of_batch, of_head, of_row] = x.strides;
        let start = self.b * of_batch + head * of_head + at * of_row;
        x.data.get(start..).unwrap_or(&[])
    }

    /// Positions of a head as rows of so many elements.
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

/// A matrix in panels of columns: where it begins, and its rows.
#[derive(Clone, Copy)]
struct Panels {
    data: *const f32,
    rows: usize,
}

impl Panels {
    /// Packs `view` into `to`, which has room for whole panels.
    ///
    /// # Safety
    /// Needs the instructions of `S`; the view was checked.
    #[inline(always)]
    unsafe fn pack<S: Simd>(view: &MatView<'_>, to: &mut [f32]) -> Panels {
        let nr = S::TILE_VECTORS * S::LANES;
        if view.rows > 0 {
            for (i, panel) in to.chunks_exact_mut(view.rows * nr).enumerate() {
                if i * nr < view.cols {
                    gemm::pack_panel::<S>(view, i * nr, panel);
                }
            }
        }
        Panels {
            data: to.as_ptr(),
            rows: view.rows,
        }
    }

    /// The rows from `row` of the panel with the column `col`, its first.
    fn at<S: Simd>(self, col: usize, row: usize) -> *const f32 {
        let nr = S::TILE_VECTORS * S::LANES;
        self.data.wrapping_add(col * self.rows + row * nr)
    }
}

simd_dispatch!(fn run_job(job: &Job<'_>, scratch: &mut [f32]) = run_job_body);

/// # Safety
/// Needs the instructions of `S`; operands and results were checked, and no other task writes what belongs to the head.
#[inline(always)]
unsafe fn run_job_body<S: Simd>(job: &Job<'_>, scratch: &mut [f32]) {
    let (a, of) = (job.a, job.of);
    let nr = S::TILE_VECTORS * S::LANES;
    let kv_len = a.kv_len(job.b);
    let parts = Parts::new(nr, a);
    let (kt, scratch) = scratch.split_at_mut(parts.turned_keys);
    let (vt, scratch) = scratch.split_at_mut(parts.turned_values);
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
    let packed = Packed {
        turned_keys: Panels::pack::<S>(&keys.transposed(), kt),
        turned_values: Panels::pack::<S>(&values.transposed(), vt),
        keys: Panels::pack::<S>(&keys, kp),
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
            let lines = Lines {
                queries: Panels::pack::<S>(&own, qp),
                dy: Panels::pack::<S>(&dy, yp),
            };
            // Blocks begin where panels do.
            let (from, to) = (seen[0].0 / nr * nr, seen[seen.len() - 1].1);
            for key in (from..to).step_by(KEY_BLOCK) {
                let block = Block {
                    head,
                    queries: queries.clone(),
                    keys: key..to.min(key + KEY_BLOCK),
                    seen,
                };
                scores::<S>(job, &block, &packed, p, ds);
                weights::<S>(job, &block, p, ds);
                sums::<S>(job, &block, &packed, &lines, p, ds);
            }
        }
    }
}

/// What a task packs of its keys and values.
struct Packed {
    turned_keys: Panels,
    turned_values: Panels,
    keys: Panels,
}

/// What it packs of a block of queries.
struct Lines {
    queries: Panels,
    dy: Panels,
}

/// Sums begin at zero.
///
/// # Safety
/// As [`run_job`].
unsafe fn clear(job: &Job<'_>, group: usize) {
    let a = job.a;
    let keys = a.kv_lens.iter().copied().max().unwrap_or(0);
    let clear = |out: &Out, head: usize, rows: usize, len: usize| {
        for row in 0..rows {
            let to = out.head(job.b, head).wrapping_add(row * out.strides[2]);
            // SAFETY: a row of the head.
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
