//! Quantized matmul `y[m, n] = x[m, k] W[n, k]^T`, with W in GGUF blocks and `x` in f32.
//!
//! The kernel depends on the number of rows of x:
//!
//! - Up to `MAX_FEW_ROWS`: values of at most six bits are multiplied as integers with the rows in
//!   24-bit fixed point (`gemv_int_dot.rs`), if the machine has the instructions. A row has the same
//!   bits for any number of rows.
//! - Few rows of other values: each row of W is multiplied with several rows of `x` at once, so a
//!   block is decoded once for all of them.
//! - `MIN_ROWS_FOR_DEQUANT_PANEL` and more: some panels of W are decoded into scratch memory, and the GEMM
//!   micro-kernel multiplies them.
//!
//! Activations are not rounded to a smaller format. So the result differs from the product with
//! dequantized weights only by the order of summation. [`quant_matmul_i16`] is the exception:
//! it may round many rows to 16 bits (`gemm_i16.rs`).

#[cfg(tercet_int_dot)]
mod code_vector;
#[cfg(tercet_int_dot)]
mod codes;
mod decode;
#[cfg(target_arch = "x86_64")]
mod gemm_i16;
#[cfg(tercet_int_dot)]
mod gemv_int_dot;
mod gemv_q8_0;
mod repack_x8;
mod small_m;

use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use tercet_ir::Scheme;

use super::gemm::{self, GemmEpilogue, MatView, PackedB};
use super::parallel::{self, KernelThreads, SharedMut};
use super::simd::{Simd, SimdLevel, simd_dispatch};
use decode::{WeightSink, visit};
#[cfg(tercet_int_dot)]
use gemv_int_dot::FixedPointRow;
pub use repack_x8::{QuantRowLayout, pack_strips, repack_is_profitable, strips_scratch_len};
use repack_x8::{QuantRowReader, STRIP};
use small_m::small_m;

/// Maximum number of rows of `x` for integer dot products, and for [`Scheme::Q8_0`] in floats. Each row
/// takes the same time; more rows are faster with decoded panels.
const MAX_FEW_ROWS: usize = 16;
/// Number of rows of `x` from which decoding panels is profitable.
const MIN_ROWS_FOR_DEQUANT_PANEL: usize = 9;
/// Number of rows of `x` from which [`quant_matmul_i16`] rounds activations. The number is larger
/// than the rows of a decode or speculative-decoding step.
const ROUNDED_ROWS: usize = 16;
/// Columns of y per task for many rows: whole panels of every SIMD level.
const PANEL_COLS: usize = 96;
/// Weights per row of W that are decoded before they are transposed into a panel. The number is a
/// multiple of every scheme's block length, and small enough that decoded rows stay in cache.
const K_CHUNK: usize = 256;
/// Bytes of W per task for few rows.
const TASK_BYTES: usize = 32 * 1024;
/// Prefetch distance of W in bytes.
const AHEAD: usize = 1024;

/// View of quantized weights: `n` rows of `k`.
#[derive(Clone, Copy, Debug)]
pub struct QuantView<'a> {
    /// Quantization scheme.
    pub scheme: Scheme,
    /// `n` rows of `scheme.row_bytes(k)` bytes.
    pub bytes: &'a [u8],
    /// Number of rows (outputs).
    pub n: usize,
    /// Weights per row, a multiple of the block length.
    pub k: usize,
    /// Memory layout of the rows.
    pub arrangement: QuantRowLayout,
}

impl QuantView<'_> {
    fn row_bytes(&self) -> usize {
        self.at(self.k)
    }

    /// Byte offset, within a row, of the block that contains weight `k`.
    fn at(&self, k: usize) -> usize {
        k / self.scheme.block_len() * self.scheme.block_bytes()
    }

    fn check(&self) {
        assert_eq!(
            self.k % self.scheme.block_len(),
            0,
            "k is not a multiple of the block length"
        );
        assert!(
            self.bytes.len() >= self.n * self.row_bytes(),
            "the weights are too short"
        );
    }
}

/// Floats of scratch memory of [`quant_matmul`] for `m` rows.
#[must_use]
pub fn quant_matmul_scratch_len(
    level: SimdLevel,
    threads: KernelThreads,
    m: usize,
    k: usize,
) -> usize {
    let int_dot = one_row_scratch(level, k) * m;
    if m == 1 {
        int_dot
    } else if m <= MAX_FEW_ROWS {
        // Not every scheme has integer dot products; the panels of the others need this memory.
        int_dot.max(threads.count() * panel_scratch(level, k))
    } else if m < MIN_ROWS_FOR_DEQUANT_PANEL {
        0
    } else {
        threads.count() * panel_scratch(level, k)
    }
}

/// True if [`quant_matmul_i16`] rounds activations at this SIMD level.
#[must_use]
pub fn i16_is_profitable(level: SimdLevel) -> bool {
    #[cfg(target_arch = "x86_64")]
    return gemm_i16::has_level(level);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        false
    }
}

/// Floats of scratch memory of [`quant_matmul_i16`] for `m` rows on `threads` threads.
/// [`quant_matmul`] and [`quant_matmul_i16`] may use the same scratch memory.
#[must_use]
pub fn i16_scratch_len(level: SimdLevel, threads: usize, m: usize, k: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if m >= ROUNDED_ROWS && i16_is_profitable(level) {
        return gemm_i16::scratch_len(threads, m, k);
    }
    let _ = (level, threads, m, k);
    0
}

/// Like [`quant_matmul`], but may round activations if `x` has many rows and the SIMD level profits
/// from it.
///
/// The error of an element is at most 2^-15 of the maximum in its range of 256 elements, counted
/// from the start of the row. Sums and results are F32. Rounding depends on the number of rows, but
/// the result of a rounded row depends only on that row.
///
/// # Panics
/// Same as [`quant_matmul`], or if `scratch` is shorter than [`i16_scratch_len`].
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn quant_matmul_i16(
    level: SimdLevel,
    threads: KernelThreads,
    x: MatView<'_>,
    w: QuantView<'_>,
    y: &mut [f32],
    y_stride: usize,
    epilogue: &GemmEpilogue<'_>,
    scratch: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if x.rows >= ROUNDED_ROWS
        && x.rows > max_few_rows(level, w.scheme)
        && w.k > 0
        && gemm_i16::supports(level, w.scheme)
    {
        assert!(x.col_stride == 1, "x must have contiguous columns");
        w.check();
        if !gemm::check(&x, w.n, w.k, y, y_stride, epilogue) {
            return;
        }
        let threads = gemm::threads_for(threads, x.rows, w.n, w.k);
        let y = SharedMut::new(y);
        // SAFETY: the level and the scheme are supported, and the operands were checked.
        if unsafe { gemm_i16::matmul(level, threads, &x, &w, y, y_stride, epilogue, scratch) } {
            return;
        }
    }
    quant_matmul(level, threads, x, w, y, y_stride, epilogue, scratch);
}

/// Whether `m` rows are multiplied as integers, in fixed point.
fn uses_int_dot(level: SimdLevel, scheme: Scheme, m: usize) -> bool {
    #[cfg(tercet_int_dot)]
    return m <= MAX_FEW_ROWS && gemv_int_dot::supports(level, scheme);
    #[cfg(not(tercet_int_dot))]
    {
        let _ = (level, scheme, m);
        false
    }
}

/// Maximum number of rows that are multiplied without decoding panels. A row has the same bits for any
/// number of rows up to this one.
fn max_few_rows(level: SimdLevel, scheme: Scheme) -> usize {
    match uses_int_dot(level, scheme, 1) || scheme == Scheme::Q8_0 {
        true => MAX_FEW_ROWS,
        false => MIN_ROWS_FOR_DEQUANT_PANEL - 1,
    }
}

/// Numbers of rows, in ascending order, up to which a matmul with weights of this scheme uses one kernel
/// each. A row has the same bits for all numbers of rows of one range. `rounded` selects
/// [`quant_matmul_i16`].
pub fn row_ranges(level: SimdLevel, scheme: Scheme, rounded: bool) -> SmallVec<[usize; 4]> {
    let few = max_few_rows(level, scheme);
    let mut ends: SmallVec<[usize; 4]> = smallvec![few];
    if rounded && i16_is_profitable(level) && few < ROUNDED_ROWS - 1 {
        ends.push(ROUNDED_ROWS - 1);
    }
    ends
}

/// Scratch floats for one row, for any scheme.
fn one_row_scratch(level: SimdLevel, k: usize) -> usize {
    #[cfg(tercet_int_dot)]
    if gemv_int_dot::has_level(level) {
        return gemv_int_dot::scratch_len(k);
    }
    let _ = (level, k);
    0
}

/// Scratch floats for the decoded rows and packed panels of one task.
fn panel_scratch(level: SimdLevel, k: usize) -> usize {
    PANEL_COLS * K_CHUNK.min(k) + gemm::packed_b_len(level, k, PANEL_COLS)
}

/// Computes `y[i * y_stride + j] = epilogue(sum_p x[i, p] w[j, p])`.
///
/// # Panics
/// If `k` is not a multiple of the block length, sizes disagree, or `x` has a column stride other
/// than 1. Also panics if `scratch` is shorter than [`quant_matmul_scratch_len`] or, for repacked
/// weights, [`strips_scratch_len`].
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn quant_matmul(
    level: SimdLevel,
    threads: KernelThreads,
    x: MatView<'_>,
    w: QuantView<'_>,
    y: &mut [f32],
    y_stride: usize,
    epilogue: &GemmEpilogue<'_>,
    scratch: &mut [f32],
) {
    let (m, n, k) = (x.rows, w.n, w.k);
    assert!(
        x.col_stride == 1 || k <= 1,
        "x must have contiguous columns"
    );
    w.check();
    if !gemm::check(&x, n, k, y, y_stride, epilogue) {
        return;
    }
    let threads = gemm::threads_for(threads, m, n, k);
    let out = SharedMut::new(y);
    #[cfg(tercet_int_dot)]
    if uses_int_dot(level, w.scheme, m) {
        int_dot(level, threads, &x, &w, out, y_stride, epilogue, scratch);
        return;
    }
    quant_matmul_floats(level, threads, x, w, out, y_stride, epilogue, scratch);
}

/// [`quant_matmul`] of at most [`MAX_FEW_ROWS`] rows as integers. The float kernels compute the rows
/// that fixed point cannot represent, one at a time: whether a row is among them depends on that row
/// alone.
#[cfg(tercet_int_dot)]
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
fn int_dot(
    level: SimdLevel,
    threads: KernelThreads,
    x: &MatView<'_>,
    w: &QuantView<'_>,
    out: SharedMut<f32>,
    y_stride: usize,
    epilogue: &GemmEpilogue<'_>,
    scratch: &mut [f32],
) {
    let (n, k) = (w.n, w.k);
    let part = gemv_int_dot::scratch_len(k);
    let source = |i: usize| &x.data[i * x.row_stride..][..k];
    let mut rest = &mut scratch[..];
    let mut fixed: SmallVec<[FixedPointRow<'_>; MAX_FEW_ROWS]> = SmallVec::new();
    // The first row of each run of adjacent rows in fixed point, with the run's rows in `fixed`.
    let mut runs: SmallVec<[(usize, Range<usize>); 2]> = SmallVec::new();
    for i in 0..x.rows {
        let (own, left) = rest.split_at_mut(part);
        rest = left;
        // SAFETY: the level has integer dot products.
        let Some(row) = (unsafe { FixedPointRow::new(source(i), own) }) else {
            continue;
        };
        fixed.push(row);
        let end = fixed.len();
        match runs.last_mut() {
            Some((first, run)) if *first + run.len() == i => run.end = end,
            _ => runs.push((i, end - 1..end)),
        }
    }
    let step = columns_per_task(threads, w);
    parallel::for_each(threads, n.div_ceil(step), |task| {
        let cols = task * step..n.min((task + 1) * step);
        for (first, run) in &runs {
            let (x, y) = (&fixed[run.clone()], out.from(first * y_stride));
            // SAFETY: the level is of this machine; tasks write disjoint columns of y.
            unsafe { gemv_int_dot::dot_rows(level, x, w, cols.clone(), y.ptr(), y_stride) };
            let rows = *first..first + run.len();
            finish_rows(level, rows, cols.clone(), out, y_stride, epilogue);
        }
    });
    drop(fixed);
    let is_fixed = |i: usize| {
        runs.iter()
            .any(|(first, run)| (*first..first + run.len()).contains(&i))
    };
    for i in (0..x.rows).filter(|i| !is_fixed(*i)) {
        let own = MatView {
            data: source(i),
            rows: 1,
            ..*x
        };
        let (y, none) = (out.from(i * y_stride), &GemmEpilogue::NONE);
        quant_matmul_floats(level, threads, own, *w, y, y_stride, none, scratch);
        finish_rows(level, i..i + 1, 0..n, out, y_stride, epilogue);
    }
}

/// Rows of W per task for few rows of `x`.
fn columns_per_task(threads: KernelThreads, w: &QuantView<'_>) -> usize {
    let step = (TASK_BYTES / w.row_bytes().max(1)).clamp(4, 256);
    // Use fewer rows of W per task if every thread then gets a task.
    let step = step.min(w.n.div_ceil(4 * threads.count()).next_multiple_of(4));
    match w.arrangement {
        QuantRowLayout::Strips => step.next_multiple_of(STRIP),
        QuantRowLayout::Rows => step,
    }
}

/// [`quant_matmul`] in floats. The operands were checked.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
fn quant_matmul_floats(
    level: SimdLevel,
    threads: KernelThreads,
    x: MatView<'_>,
    w: QuantView<'_>,
    out: SharedMut<f32>,
    y_stride: usize,
    epilogue: &GemmEpilogue<'_>,
    scratch: &mut [f32],
) {
    let (m, n, k) = (x.rows, w.n, w.k);
    let strips = w.arrangement == QuantRowLayout::Strips;
    if m <= max_few_rows(level, w.scheme) {
        let step = columns_per_task(threads, &w);
        if strips {
            small_m_repacked(
                level, threads, &x, &w, step, out, y_stride, epilogue, scratch,
            );
            return;
        }
        parallel::for_each(threads, n.div_ceil(step), |task| {
            let rows = task * step..n.min((task + 1) * step);
            small_m(level, &x, &w, rows, out, y_stride, epilogue);
        });
        return;
    }
    let part = panel_scratch(level, k);
    let tasks = n.div_ceil(PANEL_COLS);
    parallel::for_each_with_scratch(threads, tasks, scratch, part, |task, scratch| {
        let cols = task * PANEL_COLS..n.min((task + 1) * PANEL_COLS);
        let (chunk, panels) = scratch.split_at_mut(PANEL_COLS * K_CHUNK.min(k));
        decode_panels(level, &w, cols.clone(), chunk, panels);
        let b = PackedB::new(level, panels, k, cols.len());
        // Tasks have disjoint columns of y.
        gemm::gemm_packed_columns(level, x, b, out, y_stride, cols.start, epilogue);
    });
}

/// Like [`small_m`] for all of y, for repacked weights: each task first unpacks `step` rows of W.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
fn small_m_repacked(
    level: SimdLevel,
    threads: KernelThreads,
    x: &MatView<'_>,
    w: &QuantView<'_>,
    step: usize,
    y: SharedMut<f32>,
    y_stride: usize,
    epilogue: &GemmEpilogue<'_>,
    scratch: &mut [f32],
) {
    let part = repack_x8::strip_floats(w.row_bytes());
    let strips = w.n / STRIP;
    let none = &GemmEpilogue::NONE;
    parallel::for_each_with_scratch(threads, w.n.div_ceil(step), scratch, part, |task, own| {
        let cols = task * step..w.n.min((task + 1) * step);
        let rows: &mut [u8] = bytemuck::cast_slice_mut(own);
        for strip in cols.start / STRIP..strips.min(cols.end.div_ceil(STRIP)) {
            repack_x8::unpack_strip(w, strip, rows);
            let eight = QuantView {
                bytes: rows,
                n: STRIP,
                arrangement: QuantRowLayout::Rows,
                ..*w
            };
            let y = y.from(strip * STRIP);
            small_m(level, x, &eight, 0..STRIP, y, y_stride, none);
        }
        let rest = cols.start.max(strips * STRIP)..cols.end;
        if !rest.is_empty() {
            small_m(level, x, w, rest, y, y_stride, none);
        }
        finish_rows(level, 0..x.rows, cols, y, y_stride, epilogue);
    });
}

/// Writes the rows `rows` of W as floats.
///
/// # Panics
/// If `k` is not a multiple of the block length, the weights have fewer than `rows.end` rows, or
/// `out` is shorter than `rows.len() * k`.
pub fn dequantize_rows(level: SimdLevel, w: &QuantView<'_>, rows: Range<usize>, out: &mut [f32]) {
    w.check();
    assert!(
        rows.end <= w.n,
        "row range exceeds the {} rows of the weights",
        w.n
    );
    let (whole, stride) = (0..w.k, w.k);
    decode_chunk(level, w, rows, whole, out, stride);
}

simd_dispatch!(
    /// Decodes the weights `ks` (whole blocks) of the rows `rows`, with row stride `stride` in
    /// `out`.
    fn decode_chunk(
        w: &QuantView<'_>,
        rows: Range<usize>,
        ks: Range<usize>,
        out: &mut [f32],
        stride: usize,
    ) = decode_chunk_body
);

/// # Safety
/// Requires the instructions of `S`; `w` was checked.
#[inline(always)]
unsafe fn decode_chunk_body<S: Simd>(
    w: &QuantView<'_>,
    rows: Range<usize>,
    ks: Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    let mut reader = QuantRowReader::new(w);
    for (i, row) in rows.enumerate() {
        let out = &mut out[i * stride..i * stride + ks.len()];
        let mut write = DequantWriter(out.as_mut_ptr());
        visit::<S>(w.scheme, reader.row(row, &ks), ks.len(), &mut write);
    }
}

simd_dispatch!(
    /// Decodes the rows `cols` of W into packed panels; `chunk` is scratch memory for decoded rows.
    fn decode_panels(
        w: &QuantView<'_>,
        cols: Range<usize>,
        chunk: &mut [f32],
        panels: &mut [f32],
    ) = decode_panels_body
);

/// # Safety
/// Requires the instructions of `S`; `w` was checked.
#[inline(always)]
unsafe fn decode_panels_body<S: Simd>(
    w: &QuantView<'_>,
    cols: Range<usize>,
    chunk: &mut [f32],
    panels: &mut [f32],
) {
    let nr = S::TILE_VECTORS * S::LANES;
    let stride = K_CHUNK.min(w.k);
    let mut k0 = 0;
    while k0 < w.k {
        let ks = k0..w.k.min(k0 + K_CHUNK);
        decode_chunk_body::<S>(w, cols.clone(), ks.clone(), chunk, stride);
        let view = MatView {
            data: chunk,
            rows: ks.len(),
            cols: cols.len(),
            row_stride: 1,
            col_stride: stride,
        };
        for panel in 0..cols.len().div_ceil(nr) {
            let to = (panel * w.k + k0) * nr;
            gemm::pack_panel::<S>(&view, panel * nr, &mut panels[to..to + ks.len() * nr]);
        }
        k0 = ks.end;
    }
}

simd_dispatch!(
    /// Applies the epilogue to the columns `cols` of the rows `rows` of y.
    fn finish_rows(
        rows: Range<usize>,
        cols: Range<usize>,
        out: SharedMut<f32>,
        stride: usize,
        epilogue: &GemmEpilogue<'_>,
    ) = finish_rows_body
);

/// # Safety
/// Requires the instructions of `S`; the elements of y exist, and no other task accesses them.
#[inline(always)]
unsafe fn finish_rows_body<S: Simd>(
    rows: Range<usize>,
    cols: Range<usize>,
    out: SharedMut<f32>,
    stride: usize,
    epilogue: &GemmEpilogue<'_>,
) {
    epilogue.finish::<S>(rows, cols, out, stride);
}

/// Writes decoded weights one after another.
struct DequantWriter(*mut f32);

impl<S: Simd> WeightSink<S> for DequantWriter {
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, _: usize, weights: S::V) {
        S::store(self.0.add(at), weights);
    }

    #[inline(always)]
    unsafe fn put_n(&mut self, at: usize, n: usize, weights: S::V) {
        S::store_n(self.0.add(at), weights, n);
    }

    #[inline(always)]
    unsafe fn advance(&mut self, len: usize) {
        self.0 = self.0.wrapping_add(len);
    }
}
