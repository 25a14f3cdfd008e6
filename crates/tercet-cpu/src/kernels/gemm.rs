//! GEMM `C = epilogue(A B)` in f32.
//!
//! B is packed into column panels `[ceil(n / nr)][k][nr]`, the last one padded with zeros. Weights
//! are packed once; other operands are packed into scratch memory. A tile of C of `mr x nr` stays
//! in registers over one k block. The panel block stays in cache while the kernel iterates over the
//! rows of A.
//!
//! A is read in place: a tile has few rows, so broadcasts from them hit the cache. Only a
//! column-major A is packed first (`pack_a`). Skinny GEMMs (few rows) read an unpacked B in place
//! (`small`).
//!
//! Each element of a packed product is a chain of `fma` over k in ascending order, one chain per k
//! block, and the blocks are added. A single chain over a long k would accumulate rounding errors.
//! Results do not depend on tiles or threads.

mod block;
mod epilogue;
mod pack;
mod pack_a;
mod small;
mod tile;

use std::ops::Range;

pub use epilogue::{GemmActivation, GemmEpilogue};
pub use pack::{PackedB, pack_b, packed_b_len};

use super::parallel::{self, KernelThreads, SharedMut};
#[cfg(target_arch = "x86_64")]
use super::simd::Avx2;
#[cfg(all(target_arch = "x86_64", tercet_avx512))]
use super::simd::Avx512;
#[cfg(target_arch = "aarch64")]
use super::simd::Neon;
use super::simd::PortableSimd;
use super::simd::{Simd, SimdLevel, SimdLevelKind};
use block::{TaskTile, run_block};
pub(crate) use pack::{pack_b_by_taps, pack_panel};
pub(crate) use small::dot4;
pub(crate) use tile::{
    GemmColumnReads, GemmMicroTile, Prefetch, function as tile_function, tile as inline_tile,
};

/// View of an `f32` matrix inside a slice, with any non-negative strides (in elements).
#[derive(Clone, Copy, Debug)]
pub struct MatView<'a> {
    /// Elements; `(i, j)` is at `i * row_stride + j * col_stride`.
    pub data: &'a [f32],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Stride between rows.
    pub row_stride: usize,
    /// Stride between columns.
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

    /// Panics if an element is outside the slice.
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

/// Register tile of a SIMD level: rows and columns.
pub(crate) fn tile_shape(level: SimdLevel) -> (usize, usize) {
    fn shape_of<S: Simd>() -> (usize, usize) {
        (S::TILE_ROWS, S::TILE_VECTORS * S::LANES)
    }
    match level.kind {
        #[cfg(all(target_arch = "x86_64", tercet_avx512))]
        SimdLevelKind::Avx512 => shape_of::<Avx512>(),
        #[cfg(target_arch = "x86_64")]
        SimdLevelKind::Avx2 => shape_of::<Avx2>(),
        #[cfg(target_arch = "aarch64")]
        SimdLevelKind::Neon => shape_of::<Neon>(),
        SimdLevelKind::Portable => shape_of::<PortableSimd>(),
    }
}

/// Maximum number of products that are summed in one chain.
pub(crate) const CHAIN: usize = 512;

/// Length of one k block.
fn k_block(k: usize) -> usize {
    k.div_ceil(k.div_ceil(CHAIN).max(1)).max(1)
}

/// Maximum number of rows for which B is read in place instead of packed.
const MAX_SMALL_M_ROWS: usize = 8;

/// Maximum rows per task; their block of A stays in the L2 cache.
const ROWS_PER_TASK: usize = 256;

/// Multiply-adds below which waking another thread is not profitable.
const SERIAL_WORK: usize = 50_000;

/// [`KernelThreads::Serial`] if there is little work.
pub(crate) fn threads_for(threads: KernelThreads, m: usize, n: usize, k: usize) -> KernelThreads {
    if m * n * k < SERIAL_WORK {
        KernelThreads::Serial
    } else {
        threads
    }
}

/// Optimal scratch floats of [`gemm_packed`] for an A of `m x k` with this column stride.
///
/// If columns are contiguous, no scratch memory is needed. If columns have another stride, each
/// thread packs the rows of A that it multiplies. If the scratch memory is smaller than this, A is
/// read in place.
#[must_use]
pub fn gemm_packed_scratch_len(
    level: SimdLevel,
    threads: usize,
    [m, n, k]: [usize; 3],
    col_stride: usize,
) -> usize {
    match pack_a::is_copied(level, [m, n, k], col_stride) {
        true => threads * pack_a::block_len(level, m, k),
        false => 0,
    }
}

/// Scratch floats of [`gemm`]: the packed B, if B is packed. Any surplus is used by
/// [`gemm_packed`].
#[must_use]
pub fn gemm_scratch_len(
    level: SimdLevel,
    _: KernelThreads,
    _m: usize,
    n: usize,
    k: usize,
) -> usize {
    packed_b_len(level, k, n)
}

/// Computes `c[i * c_stride + j] = epilogue(sum_p a[i, p] b[p, j])` with packed `b`.
///
/// # Panics
/// If shapes disagree or `c` is too short.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn gemm_packed(
    level: SimdLevel,
    threads: KernelThreads,
    a: MatView<'_>,
    b: PackedB<'_>,
    c: &mut [f32],
    c_stride: usize,
    epilogue: &GemmEpilogue<'_>,
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

/// Panics if A does not have `k` columns, or if C, bias or residual is too small for a product of
/// `n` columns. Returns false if C is empty.
pub(crate) fn check(
    a: &MatView<'_>,
    n: usize,
    k: usize,
    c: &[f32],
    c_stride: usize,
    epilogue: &GemmEpilogue<'_>,
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

/// Computes the product with `b` as columns of `c`, from column `col0` on. Tasks that generate B a
/// few panels at once call this function. The caller must have checked all bounds, and no other
/// task may write these columns.
pub(crate) fn gemm_packed_columns(
    level: SimdLevel,
    a: MatView<'_>,
    b: PackedB<'_>,
    c: SharedMut<f32>,
    c_stride: usize,
    col0: usize,
    epilogue: &GemmEpilogue<'_>,
) {
    let serial = KernelThreads::Serial;
    run_packed(level, serial, a, b, c, c_stride, col0, epilogue, &mut []);
}

/// Computes the columns `cols` of a product in one task, from an unpacked row-major `b`. Used if A
/// has so few tiles that packing B is not profitable. All of `k` is summed as one chain; the
/// requirements are the same as for [`gemm_packed_columns`].
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
            true => GemmColumnReads::Padded,
            false => GemmColumnReads::Exact,
        };
        let from = b.data.as_ptr().wrapping_add(first);
        for i in 0..tiles {
            let row = i * a.rows / tiles;
            let rows = (i + 1) * a.rows / tiles - row;
            let tile = GemmMicroTile {
                k: b.rows,
                a: a.data.as_ptr().wrapping_add(row * a.row_stride),
                a_row: a.row_stride,
                a_step: a.col_stride,
                b: from,
                b_step: b.row_stride,
                c: c.ptr()
                    .wrapping_add(row * c_stride + col0 + first - cols.start),
                c_row: c_stride,
                last_lanes: count - (vectors - 1) * lanes,
                next: from,
                prefetch: Prefetch::Steps,
                add: false,
                bias: std::ptr::null(),
            };
            // SAFETY: the level was detected. Views were checked, and the caller checked C. Only
            // full vectors inside B are read.
            unsafe { tile::function(level.kind, rows, vectors, columns)(&tile) };
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "operands, output, epilogue")]
fn run_packed(
    level: SimdLevel,
    threads: KernelThreads,
    a: MatView<'_>,
    b: PackedB<'_>,
    c: SharedMut<f32>,
    c_stride: usize,
    col0: usize,
    epilogue: &GemmEpilogue<'_>,
    scratch: &mut [f32],
) {
    let (mr, nr) = tile_shape(level);
    let (m, n, k) = (a.rows, b.n, b.k);
    let each = pack_a::block_len(level, m, k);
    let is_copied = pack_a::is_copied(level, [m, n, k], a.col_stride)
        && scratch.len() >= threads.count() * each;
    let grid = GemmGrid::new(threads, [m, n, k], (mr, nr), is_copied);
    let part = if is_copied { each } else { 0 };
    parallel::for_each_with_scratch(threads, grid.tasks(), scratch, part, |task, copy| {
        let (rows, panels) = grid.task(task, m, n.div_ceil(nr));
        // Tasks have disjoint rectangles of C.
        let block = TaskTile {
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

/// Computes `c = epilogue(a b)` for operands of any strides; see [`gemm_packed`].
///
/// # Panics
/// Same as [`gemm_packed`], or if `scratch` is shorter than [`gemm_scratch_len`].
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn gemm(
    level: SimdLevel,
    threads: KernelThreads,
    a: MatView<'_>,
    b: MatView<'_>,
    c: &mut [f32],
    c_stride: usize,
    epilogue: &GemmEpilogue<'_>,
    scratch: &mut [f32],
) {
    if a.rows <= MAX_SMALL_M_ROWS && small::reads_in_place(&b) {
        return small::gemm_small_m(level, threads, a, b, c, c_stride, epilogue);
    }
    let (packed, rest) = scratch.split_at_mut(packed_b_len(level, b.rows, b.cols));
    pack_b(level, threads, b, packed);
    let packed = PackedB::new(level, packed, b.rows, b.cols);
    gemm_packed(level, threads, a, packed, c, c_stride, epilogue, rest);
}

/// Partition of C into tasks.
struct GemmGrid {
    row_tasks: usize,
    col_tasks: usize,
    tile_rows: usize,
    panels_per_task: usize,
}

impl GemmGrid {
    fn new(
        threads: KernelThreads,
        [m, n, k]: [usize; 3],
        (mr, nr): (usize, usize),
        is_copied: bool,
    ) -> Self {
        /// Multiply-adds per task for which the scheduling cost is negligible.
        const TASK_WORK: usize = 1 << 18;
        /// Number of rows for which computing takes as long as reading B from memory.
        const ROWS_OF_READING: usize = 16;
        /// Minimum row tiles per task if A is packed, so that packed rows amortize the reading of
        /// B.
        const COPIED_TILES: usize = 4;
        let workers = threads.count();
        let panels = n.div_ceil(nr);
        let wanted = if workers == 1 { 1 } else { 4 * workers };
        // Few rows are limited by the bandwidth of reading B.
        let by_work = (m.max(ROWS_OF_READING) * n * k / TASK_WORK).max(1);
        let wanted = wanted.min(by_work);
        // A packed row block is packed once for all columns, so tasks are also split by rows.
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

    /// Rows and panels of a task. The numbers of row tiles of two tasks differ by at most one.
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
