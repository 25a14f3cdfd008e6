//! `C = epilogue(A B)` in f32.
//!
//! B is packed into column panels `[ceil(n / nr)][k][nr]` (the last one padded
//! with zeros): once for weights, into scratch otherwise. A tile of C of
//! `mr x nr` stays in registers over one block of k; the panel block stays in
//! the nearest caches while the rows of A pass by. A is read where it lies: a tile
//! has few rows, so broadcasts from them stay in cache; only rows that are stored
//! across columns are copied first (`across`).
//! Products of a few rows read an unpacked B in place (`small`).
//!
//! Each element of a packed product is a chain of `fma` over k in ascending
//! order, one for each block of k, added block by block: a chain over a long k
//! would gather the roundings of a growing sum. No result depends on tiles or
//! threads.

mod across;
mod block;
mod epilogue;
mod pack;
mod small;
mod tile;

use std::ops::Range;

pub use epilogue::{Activation, Epilogue};
pub use pack::{PackedB, pack_b, packed_b_len};

use super::parallel::{self, SharedMut, Threads};
#[cfg(target_arch = "x86_64")]
use super::simd::Avx2;
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
use super::simd::Avx512;
use super::simd::Portable;
use super::simd::{Level, Simd, SimdLevel};
use block::{Block, run_block};
pub(crate) use pack::{pack_b_by_taps, pack_panel};
pub(crate) use small::dot4;
pub(crate) use tile::{Asks, Columns, Tile, function as tile_function, tile as inline_tile};

/// A matrix of `f32` inside a slice, with any non-negative strides (in elements).
#[derive(Clone, Copy, Debug)]
pub struct MatView<'a> {
    /// The elements; `(i, j)` is at `i * row_stride + j * col_stride`.
    pub data: &'a [f32],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Distance between rows.
    pub row_stride: usize,
    /// Distance between columns.
    pub col_stride: usize,
}

impl<'a> MatView<'a> {
    /// A contiguous row-major matrix.
    #[must_use]
    pub fn row_major(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self {
            data,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
        }
    }

    /// The transpose, without a copy.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Panics unless every element lies inside the slice.
    pub(crate) fn check(&self) {
        if self.rows > 0 && self.cols > 0 {
            let last = (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride;
            assert!(
                last < self.data.len(),
                "matrix view {}x{} (strides {}, {}) exceeds its {} elements",
                self.rows,
                self.cols,
                self.row_stride,
                self.col_stride,
                self.data.len()
            );
        }
    }
}

/// The register tile of a level: rows and columns.
pub(crate) fn tile_shape(level: SimdLevel) -> (usize, usize) {
    fn of<S: Simd>() -> (usize, usize) {
        (S::TILE_ROWS, S::TILE_VECTORS * S::LANES)
    }
    match level.0 {
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        Level::Avx512 => of::<Avx512>(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => of::<Avx2>(),
        Level::Portable => of::<Portable>(),
    }
}

/// Products that are summed as one chain.
pub(crate) const CHAIN: usize = 512;

/// Columns of k that one pass covers.
fn k_block(k: usize) -> usize {
    k.div_ceil(k.div_ceil(CHAIN).max(1)).max(1)
}

/// Rows up to which B is read in place rather than packed.
const FEW_ROWS: usize = 8;

/// Rows that one task covers at most: their block of A stays in the second-level cache.
const ROWS_PER_TASK: usize = 256;

/// Multiply-adds below which waking another thread costs more than it gains.
const SERIAL_WORK: usize = 50_000;

/// [`Threads::Serial`] for little work.
pub(crate) fn threads_for(threads: Threads, m: usize, n: usize, k: usize) -> Threads {
    if m * n * k < SERIAL_WORK {
        Threads::Serial
    } else {
        threads
    }
}

/// Scratch (in floats) with which [`gemm_packed`] is fastest for an A of `m x k` with this stride of columns, on so many threads: none where
/// columns lie side by side; otherwise each thread copies the rows that it multiplies. With less, they are read where they lie.
#[must_use]
pub fn gemm_packed_scratch_len(
    level: SimdLevel,
    threads: usize,
    [m, n, k]: [usize; 3],
    col_stride: usize,
) -> usize {
    match across::is_copied(level, [m, n, k], col_stride) {
        true => threads * across::block_len(level, m, k),
        false => 0,
    }
}

/// Scratch (in floats) of [`gemm`]: the packed B, where it is packed. What is longer serves [`gemm_packed`].
#[must_use]
pub fn gemm_scratch_len(level: SimdLevel, _: Threads, _m: usize, n: usize, k: usize) -> usize {
    packed_b_len(level, k, n)
}

/// `c[i * c_stride + j] = epilogue(sum_p a[i, p] b[p, j])` with packed `b`.
///
/// # Panics
/// If shapes disagree or `c` is too short.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn gemm_packed(
    level: SimdLevel,
    threads: Threads,
    a: MatView<'_>,
    b: PackedB<'_>,
    c: &mut [f32],
    c_stride: usize,
    epilogue: &Epilogue<'_>,
    scratch: &mut [f32],
) {
    assert_eq!(b.nr, tile_shape(level).1, "b was packed for another level");
    if check(&a, b.n, b.k, c, c_stride, epilogue) {
        let threads = threads_for(threads, a.rows, b.n, b.k);
        run_packed(
            level,
            threads,
            a,
            b,
            SharedMut::new(c),
            c_stride,
            0,
            epilogue,
            scratch,
        );
    }
}

/// Panics unless A has `k` columns, and C, bias and residual are as large as a product of `n` columns; false if
/// C is empty.
pub(crate) fn check(
    a: &MatView<'_>,
    n: usize,
    k: usize,
    c: &[f32],
    c_stride: usize,
    epilogue: &Epilogue<'_>,
) -> bool {
    let m = a.rows;
    a.check();
    assert_eq!(a.cols, k, "a has {} columns, b has {k} rows", a.cols);
    epilogue.check(m, n);
    let is_empty = m == 0 || n == 0;
    assert!(
        is_empty || (c_stride >= n && (m - 1) * c_stride + n <= c.len()),
        "c is too short"
    );
    !is_empty
}

/// A product by one task for the columns from `col0` of a wider `c`: for callers
/// that make B a few panels at a time. The caller checked all bounds, and no
/// other task touches these columns.
pub(crate) fn gemm_packed_columns(
    level: SimdLevel,
    a: MatView<'_>,
    b: PackedB<'_>,
    c: SharedMut<f32>,
    c_stride: usize,
    col0: usize,
    epilogue: &Epilogue<'_>,
) {
    let serial = Threads::Serial;
    run_packed(level, serial, a, b, c, c_stride, col0, epilogue, &mut []);
}

/// The columns `cols` of a product by one task, from a row-major `b` that is read where it lies: for A of few tiles,
/// which do not make up for packing it. `k` is one chain; bounds and columns as those of [`gemm_packed_columns`].
pub(crate) fn gemm_columns_in_place(
    level: SimdLevel,
    a: MatView<'_>,
    b: MatView<'_>,
    cols: Range<usize>,
    c: SharedMut<f32>,
    c_stride: usize,
    col0: usize,
) {
    a.check();
    b.check();
    let (mr, nr) = tile_shape(level);
    let (lanes, tiles) = (level.lanes(), a.rows.div_ceil(mr));
    assert!(b.col_stride == 1 && b.rows == a.cols && b.rows <= CHAIN && cols.end <= b.cols);
    for first in cols.clone().step_by(nr) {
        let count = nr.min(cols.end - first);
        let vectors = count.div_ceil(lanes);
        let columns = match count == vectors * lanes {
            true => Columns::Padded,
            false => Columns::Exact,
        };
        let from = b.data.as_ptr().wrapping_add(first);
        for i in 0..tiles {
            let row = i * a.rows / tiles;
            let rows = (i + 1) * a.rows / tiles - row;
            let tile = Tile {
                k: b.rows,
                a: a.data.as_ptr().wrapping_add(row * a.row_stride),
                a_row: a.row_stride,
                a_step: a.col_stride,
                b: from,
                b_step: b.row_stride,
                c: c.ptr()
                    .wrapping_add(row * c_stride + col0 + first - cols.start),
                c_row: c_stride,
                last: count - (vectors - 1) * lanes,
                next: from,
                asks: Asks::Steps,
                add: false,
                bias: std::ptr::null(),
            };
            // SAFETY: the level was detected; views were checked, and C by the caller; full vectors lie inside B.
            unsafe { tile::function(level.0, rows, vectors, columns)(&tile) };
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "operands, output, epilogue")]
fn run_packed(
    level: SimdLevel,
    threads: Threads,
    a: MatView<'_>,
    b: PackedB<'_>,
    c: SharedMut<f32>,
    c_stride: usize,
    col0: usize,
    epilogue: &Epilogue<'_>,
    scratch: &mut [f32],
) {
    let (mr, nr) = tile_shape(level);
    let (m, n, k) = (a.rows, b.n, b.k);
    let each = across::block_len(level, m, k);
    let is_copied = across::is_copied(level, [m, n, k], a.col_stride)
        && scratch.len() >= threads.count() * each;
    let grid = Grid::new(threads, [m, n, k], (mr, nr), is_copied);
    let part = if is_copied { each } else { 0 };
    parallel::for_each_with_scratch(threads, grid.tasks(), scratch, part, |task, copy| {
        let (rows, panels) = grid.task(task, m, n.div_ceil(nr));
        // Tasks cover disjoint rectangles of C.
        let block = Block {
            copy: is_copied.then_some(copy.as_mut_ptr()),
            a,
            b: b.data,
            k,
            n,
            kc: k_block(k),
            rows,
            panels,
            c,
            c_stride,
            col0,
            epilogue,
        };
        run_block(level, &block);
    });
}

/// `c = epilogue(a b)` for operands of any strides; see [`gemm_packed`].
///
/// # Panics
/// As [`gemm_packed`]; `scratch` as [`gemm_scratch_len`] asks.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn gemm(
    level: SimdLevel,
    threads: Threads,
    a: MatView<'_>,
    b: MatView<'_>,
    c: &mut [f32],
    c_stride: usize,
    epilogue: &Epilogue<'_>,
    scratch: &mut [f32],
) {
    if a.rows <= FEW_ROWS && small::reads_in_place(&b) {
        return small::gemm_few_rows(level, threads, a, b, c, c_stride, epilogue);
    }
    let (packed, rest) = scratch.split_at_mut(packed_b_len(level, b.rows, b.cols));
    pack_b(level, threads, b, packed);
    let packed = PackedB::new(level, packed, b.rows, b.cols);
    gemm_packed(level, threads, a, packed, c, c_stride, epilogue, rest);
}

/// How C is cut into tasks.
struct Grid {
    row_tasks: usize,
    col_tasks: usize,
    tile_rows: usize,
    panels_per_task: usize,
}

impl Grid {
    fn new(
        threads: Threads,
        [m, n, k]: [usize; 3],
        (mr, nr): (usize, usize),
        is_copied: bool,
    ) -> Self {
        /// Multiply-adds of a task that make taking it negligible.
        const TASK_WORK: usize = 1 << 18;
        /// Rows whose products take as long as reading B from beyond the caches.
        const ROWS_OF_READING: usize = 16;
        /// Tiles of rows for which a task of copied rows reads B.
        const COPIED_TILES: usize = 4;
        let workers = threads.count();
        let panels = n.div_ceil(nr);
        let wanted = if workers == 1 { 1 } else { 4 * workers };
        // Few rows are bound by reading B.
        let by_work = (m.max(ROWS_OF_READING) * n * k / TASK_WORK).max(1);
        let wanted = wanted.min(by_work);
        // Rows that are copied are so once for all columns.
        let by_rows = match is_copied {
            true => wanted.min(m / (COPIED_TILES * mr)),
            false => 1,
        };
        let row_tasks = m.div_ceil(ROWS_PER_TASK).max(by_rows);
        let col_tasks = wanted.div_ceil(row_tasks).clamp(1, panels);
        let panels_per_task = match (m, panels.div_ceil(col_tasks)) {
            (1, count) if count >= block::STREAMS => count.next_multiple_of(block::STREAMS),
            (_, count) => count,
        };
        Self {
            row_tasks,
            col_tasks: panels.div_ceil(panels_per_task),
            tile_rows: mr,
            panels_per_task,
        }
    }

    fn tasks(&self) -> usize {
        self.row_tasks * self.col_tasks
    }

    /// The rows and panels of a task: as many whole tiles of rows as the others, or one more.
    fn task(&self, i: usize, m: usize, panels: usize) -> (Range<usize>, Range<usize>) {
        let tiles = m.div_ceil(self.tile_rows);
        let row = |task: usize| m.min(task * tiles / self.row_tasks * self.tile_rows);
        let (r, p) = (
            i / self.col_tasks,
            i % self.col_tasks * self.panels_per_task,
        );
        (row(r)..row(r + 1), p..panels.min(p + self.panels_per_task))
    }
}
