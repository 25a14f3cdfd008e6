//! Skinny GEMM: at most eight rows times an unpacked B. With few rows, a GEMM is limited by the
//! bandwidth of reading B once, so B is read in place.
//!
//! If rows of B are contiguous, rows of C stay in cache while the kernel iterates over B. Each
//! element is then a chain of `fma` per k block, the same as in the packed product. If columns of B
//! are contiguous, as in a weight stored `[n, k]`, the kernel computes dot products in lanes and
//! adds the lanes as a tree.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::parallel::{self, KernelThreads, SharedMut};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::{CHAIN, GemmEpilogue, MAX_SMALL_M_ROWS, MatView, check, k_block, threads_for};

/// Columns of C per task; eight rows of them stay in the L1 cache.
const COLS_PER_TASK: usize = 512;
/// Rows of B that are added to C in one pass.
const STEPS: usize = 4;

/// True if [`gemm_small_m`] supports `b`.
pub(super) fn reads_in_place(b: &MatView<'_>) -> bool {
    b.col_stride == 1 || b.row_stride == 1
}

/// Same as [`super::gemm`], for a `b` with one unit stride and at most [`MAX_SMALL_M_ROWS`] rows of `a`.
pub(super) fn gemm_small_m(
    level: SimdLevel,
    threads: KernelThreads,
    a: MatView<'_>,
    b: MatView<'_>,
    c: &mut [f32],
    c_stride: usize,
    epilogue: &GemmEpilogue<'_>,
) {
    let (m, n, k) = (a.rows, b.cols, b.rows);
    b.check();
    // The buffer for the sums of all k blocks after the first has room for this many rows.
    assert!(
        m <= MAX_SMALL_M_ROWS,
        "a has {m} rows, more than {MAX_SMALL_M_ROWS}"
    );
    if !check(&a, n, k, c, c_stride, epilogue) {
        return;
    }
    let out = SharedMut::new(c);
    let threads = threads_for(threads, m, n, k);
    // Use fewer columns per task, a multiple of 32, if every thread then gets a task.
    let width = n.div_ceil(4 * threads.count()).next_multiple_of(32);
    let width = width.min(COLS_PER_TASK);
    parallel::for_each(threads, n.div_ceil(width), |task| {
        let cols = task * width..n.min((task + 1) * width);
        if b.col_stride == 1 {
            axpy(level, &a, &b, cols, out, c_stride, epilogue);
        } else {
            dots(level, &a, &b, cols, out, c_stride, epilogue);
        }
    });
}

simd_dispatch!(
    fn axpy(
        a: &MatView<'_>,
        b: &MatView<'_>,
        cols: Range<usize>,
        c: SharedMut<f32>,
        c_stride: usize,
        epilogue: &GemmEpilogue<'_>,
    ) = axpy_body
);

/// # Safety
/// Requires the instructions of `S`; views were checked; no other task touches
/// these columns of C.
#[inline(always)]
unsafe fn axpy_body<S: Simd>(
    a: &MatView<'_>,
    b: &MatView<'_>,
    cols: Range<usize>,
    c: SharedMut<f32>,
    c_stride: usize,
    epilogue: &GemmEpilogue<'_>,
) {
    let n = cols.len();
    let to = c.ptr().add(cols.start);
    // Sums of each k block after the first; written before they are read.
    let mut part = MaybeUninit::<[f32; MAX_SMALL_M_ROWS * COLS_PER_TASK]>::uninit();
    let part = part.as_mut_ptr().cast::<f32>();
    let block = k_block(b.rows);
    add_block::<S>(a, b, 0..b.rows.min(block), &cols, to, c_stride);
    for k0 in (block..b.rows).step_by(block) {
        let ks = k0..b.rows.min(k0 + block);
        add_block::<S>(a, b, ks, &cols, part, COLS_PER_TASK);
        for i in 0..a.rows {
            let sums = part.add(i * COLS_PER_TASK);
            add_rows::<S, 1>(n, [1.0], [sums], to.add(i * c_stride));
        }
    }
    epilogue.finish::<S>(0..a.rows, cols, c, c_stride);
}

/// Computes the sums over `ks` for the columns `cols`, and writes them as rows of `to`.
///
/// # Safety
/// Same as [`axpy_body`]; `to` is valid for one row per row of A, with one float per column.
#[inline(always)]
unsafe fn add_block<S: Simd>(
    a: &MatView<'_>,
    b: &MatView<'_>,
    ks: Range<usize>,
    cols: &Range<usize>,
    to: *mut f32,
    stride: usize,
) {
    let n = cols.len();
    for i in 0..a.rows {
        to.add(i * stride).write_bytes(0, n);
    }
    let mut p = ks.start;
    while p < ks.end {
        let steps = STEPS.min(ks.end - p);
        let row = |s: usize| {
            b.data
                .as_ptr()
                .wrapping_add((p + s) * b.row_stride + cols.start)
        };
        for i in 0..a.rows {
            let x = |s: usize| a.data[i * a.row_stride + (p + s) * a.col_stride];
            let to = to.add(i * stride);
            if steps == STEPS {
                add_rows::<S, STEPS>(n, std::array::from_fn(x), std::array::from_fn(row), to);
            } else {
                for s in 0..steps {
                    add_rows::<S, 1>(n, [x(s)], [row(s)], to);
                }
            }
        }
        p += steps;
    }
}

/// Computes `c[j] += x[0] b[0][j] + x[1] b[1][j] ...` as a chain.
///
/// # Safety
/// Requires the instructions of `S`; all pointers are valid for `n` floats.
#[inline(always)]
unsafe fn add_rows<S: Simd, const N: usize>(
    n: usize,
    x: [f32; N],
    b: [*const f32; N],
    c: *mut f32,
) {
    let mut xs = [S::splat(0.0); N];
    for s in 0..N {
        xs[s] = S::splat(x[s]);
    }
    let whole = n / S::LANES * S::LANES;
    let mut j = 0;
    while j < whole {
        let mut sum = S::load(c.add(j));
        for s in 0..N {
            sum = S::fma(xs[s], S::load(b[s].add(j)), sum);
        }
        S::store(c.add(j), sum);
        j += S::LANES;
    }
    if j < n {
        let mut sum = S::load_n(c.add(j), n - j);
        for s in 0..N {
            sum = S::fma(xs[s], S::load_n(b[s].add(j), n - j), sum);
        }
        S::store_n(c.add(j), sum, n - j);
    }
}

simd_dispatch!(
    fn dots(
        a: &MatView<'_>,
        b: &MatView<'_>,
        cols: Range<usize>,
        c: SharedMut<f32>,
        c_stride: usize,
        epilogue: &GemmEpilogue<'_>,
    ) = dots_body
);

/// # Safety
/// Same as [`axpy_body`].
#[inline(always)]
unsafe fn dots_body<S: Simd>(
    a: &MatView<'_>,
    b: &MatView<'_>,
    cols: Range<usize>,
    c: SharedMut<f32>,
    c_stride: usize,
    epilogue: &GemmEpilogue<'_>,
) {
    let k = b.rows;
    let column = |j: usize| b.data.as_ptr().wrapping_add(j * b.col_stride);
    let mut j = cols.start;
    while j < cols.end {
        let count = 4.min(cols.end - j);
        // With fewer than four remaining columns, the last one is repeated.
        let four = std::array::from_fn(|v| column(j + v.min(count - 1)));
        for i in 0..a.rows {
            let row = a.data.as_ptr().wrapping_add(i * a.row_stride);
            let sums = if a.col_stride == 1 || k <= 1 {
                dot4::<S>(k, row, four)
            } else {
                strided_dots::<S>(k, row, a.col_stride, four)
            };
            for (v, sum) in sums.iter().enumerate().take(count) {
                *c.ptr().add(i * c_stride + j + v) = *sum;
            }
        }
        j += count;
    }
    epilogue.finish::<S>(0..a.rows, cols, c, c_stride);
}

/// # Safety
/// `x` is valid for `k` floats with stride `step`, and each of `columns` for `k` contiguous floats.
#[inline(always)]
unsafe fn strided_dots<S: Simd>(
    k: usize,
    x: *const f32,
    step: usize,
    columns: [*const f32; 4],
) -> [f32; 4] {
    let mut sums = [0.0; 4];
    for k0 in (0..k).step_by(CHAIN) {
        let mut part = [0.0; 4];
        for p in k0..k.min(k0 + CHAIN) {
            for v in 0..4 {
                part[v] = S::fmaf(*x.add(p * step), *columns[v].add(p), part[v]);
            }
        }
        for v in 0..4 {
            sums[v] += part[v];
        }
    }
    sums
}

/// Dot products of one row with four columns.
///
/// # Safety
/// Requires the instructions of `S`; all pointers are valid for `k` floats.
#[inline(always)]
pub(crate) unsafe fn dot4<S: Simd>(k: usize, x: *const f32, columns: [*const f32; 4]) -> [f32; 4] {
    let mut sums = [0.0; 4];
    let block = 2 * S::LANES * CHAIN;
    for k0 in (0..k).step_by(block) {
        let mut from = columns;
        for v in 0..4 {
            from[v] = columns[v].add(k0);
        }
        let part = dot4_block::<S>(block.min(k - k0), x.add(k0), from);
        for v in 0..4 {
            sums[v] += part[v];
        }
    }
    sums
}

/// [`dot4`] with `2 * LANES` independent chains.
///
/// # Safety
/// Same as [`dot4`].
#[inline(always)]
unsafe fn dot4_block<S: Simd>(k: usize, x: *const f32, columns: [*const f32; 4]) -> [f32; 4] {
    let mut acc = [[S::splat(0.0); 4]; 2];
    let mut p = 0;
    while p + 2 * S::LANES <= k {
        for (h, acc) in acc.iter_mut().enumerate() {
            let at = p + h * S::LANES;
            let x = S::load(x.add(at));
            for v in 0..4 {
                S::prefetch(columns[v].wrapping_add(at + 256).cast());
                acc[v] = S::fma(x, S::load(columns[v].add(at)), acc[v]);
            }
        }
        p += 2 * S::LANES;
    }
    while p < k {
        let lanes = S::LANES.min(k - p);
        let x = S::load_n(x.add(p), lanes);
        for v in 0..4 {
            acc[0][v] = S::fma(x, S::load_n(columns[v].add(p), lanes), acc[0][v]);
        }
        p += lanes;
    }
    let mut sums = acc[0];
    for v in 0..4 {
        sums[v] = S::add(acc[0][v], acc[1][v]);
    }
    S::sum4(sums)
}
