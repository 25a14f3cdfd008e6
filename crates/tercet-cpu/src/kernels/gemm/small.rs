//! Products of at most eight rows with a B that is not packed: bound by reading
//! B once, so it is read where it lies.
//!
//! Rows of B contiguous: rows of C stay in cache while B passes by (one chain of
//! `fma` over k per element, as in the packed product). Columns of B contiguous,
//! as in a weight stored `[n, k]`: dot products in lanes, summed as a tree.

use std::ops::Range;

use super::super::parallel::{self, SharedMut, Threads};
use super::super::simd::{Simd, SimdLevel, simd_dispatch};
use super::{Epilogue, MatView, threads_for};

/// Columns of C that one task covers: eight rows of them stay in the
/// first-level cache.
const COLS_PER_TASK: usize = 512;
/// Rows of B that pass over C at once.
const STEPS: usize = 4;

/// Whether [`gemm_few_rows`] takes `b`.
pub(super) fn reads_in_place(b: &MatView<'_>) -> bool {
    b.col_stride == 1 || b.row_stride == 1
}

/// As [`super::gemm`], for `b` with one unit stride.
pub(super) fn gemm_few_rows(
    level: SimdLevel,
    threads: Threads,
    a: MatView<'_>,
    b: MatView<'_>,
    c: &mut [f32],
    c_stride: usize,
    epilogue: &Epilogue<'_>,
) {
    let (m, n, k) = (a.rows, b.cols, b.rows);
    a.check();
    b.check();
    assert_eq!(a.cols, k, "a has {} columns, b has {k} rows", a.cols);
    epilogue.check(m, n);
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        c_stride >= n && (m - 1) * c_stride + n <= c.len(),
        "c is too short"
    );
    let out = SharedMut::new(c);
    let threads = threads_for(threads, m, n, k);
    // Fewer columns where that gives every thread some; a multiple of 32 of them.
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
        epilogue: &Epilogue<'_>,
    ) = axpy_body
);

/// # Safety
/// Needs the instructions of `S`; views were checked; no other task touches
/// these columns of C.
#[inline(always)]
unsafe fn axpy_body<S: Simd>(
    a: &MatView<'_>,
    b: &MatView<'_>,
    cols: Range<usize>,
    c: SharedMut<f32>,
    c_stride: usize,
    epilogue: &Epilogue<'_>,
) {
    let n = cols.len();
    for i in 0..a.rows {
        c.slice(i * c_stride + cols.start, n).fill(0.0);
    }
    let mut p = 0;
    while p < b.rows {
        let steps = STEPS.min(b.rows - p);
        let row = |s: usize| {
            b.data
                .as_ptr()
                .wrapping_add((p + s) * b.row_stride + cols.start)
        };
        for i in 0..a.rows {
            let x = |s: usize| a.data[i * a.row_stride + (p + s) * a.col_stride];
            let to = c.ptr().add(i * c_stride + cols.start);
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
    finish::<S>(a.rows, cols, c, c_stride, epilogue);
}

/// `c[j] += x[0] b[0][j] + x[1] b[1][j] ...`, as a chain.
///
/// # Safety
/// Needs the instructions of `S`; all pointers are valid for `n` floats.
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

/// # Safety
/// Needs the instructions of `S`; no other task touches these columns of C.
#[inline(always)]
unsafe fn finish<S: Simd>(
    rows: usize,
    cols: Range<usize>,
    c: SharedMut<f32>,
    c_stride: usize,
    epilogue: &Epilogue<'_>,
) {
    if epilogue.is_none() {
        return;
    }
    for i in 0..rows {
        let row = c.slice(i * c_stride + cols.start, cols.len());
        epilogue.apply::<S>(row, i, cols.start);
    }
}

simd_dispatch!(
    fn dots(
        a: &MatView<'_>,
        b: &MatView<'_>,
        cols: Range<usize>,
        c: SharedMut<f32>,
        c_stride: usize,
        epilogue: &Epilogue<'_>,
    ) = dots_body
);

/// # Safety
/// As [`axpy_body`].
#[inline(always)]
unsafe fn dots_body<S: Simd>(
    a: &MatView<'_>,
    b: &MatView<'_>,
    cols: Range<usize>,
    c: SharedMut<f32>,
    c_stride: usize,
    epilogue: &Epilogue<'_>,
) {
    let k = b.rows;
    let column = |j: usize| b.data.as_ptr().wrapping_add(j * b.col_stride);
    let mut j = cols.start;
    while j < cols.end {
        let count = 4.min(cols.end - j);
        // The last columns repeat where fewer than four are left.
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
    finish::<S>(a.rows, cols, c, c_stride, epilogue);
}

/// # Safety
/// `x` is valid for `k` floats at `step`, `columns` for `k` floats each.
#[inline(always)]
unsafe fn strided_dots<S: Simd>(
    k: usize,
    x: *const f32,
    step: usize,
    columns: [*const f32; 4],
) -> [f32; 4] {
    let mut sums = [0.0; 4];
    for p in 0..k {
        for v in 0..4 {
            sums[v] = S::fmaf(*x.add(p * step), *columns[v].add(p), sums[v]);
        }
    }
    sums
}

/// The dot products of one row with four columns.
///
/// # Safety
/// Needs the instructions of `S`; all pointers are valid for `k` floats.
#[inline(always)]
pub(crate) unsafe fn dot4<S: Simd>(k: usize, x: *const f32, columns: [*const f32; 4]) -> [f32; 4] {
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
