//! `y[m, n] = x[m, k] W[n, k]^T` with W in GGUF blocks and `x` in f32.
//!
//! The activations keep their digits: weights become floats in registers (few
//! rows) or a few panels at a time in scratch (many rows), so the answer differs
//! from the dequantised product only by the order of its sums.
//!
//! [`quant_matmul_rounded`] may do otherwise with many rows (`rounded.rs`).
//!
//! One row: codes of at most six bits are multiplied as integers with the row in
//! 24-bit fixed point (`dots.rs`), where the machine has instructions for it.
//! Few rows: each row of W is a dot product with several rows of `x` at once, so
//! a block is decoded once for them. `MANY_ROWS` and more go through the packed
//! tile kernel.

mod bytes;
#[cfg(target_arch = "x86_64")]
mod codes;
mod decode;
#[cfg(target_arch = "x86_64")]
mod dots;
mod few;
#[cfg(target_arch = "x86_64")]
mod rounded;
mod strips;

use std::ops::Range;

use tercet_ir::Scheme;

use super::gemm::{self, Epilogue, MatView, PackedB};
use super::parallel::{self, SharedMut, Threads};
use super::simd::{Simd, SimdLevel, simd_dispatch};
use decode::{Sink, visit};
use few::few_rows;
pub use strips::{Arrangement, pack_strips, strips_pay, strips_scratch_len};
use strips::{Reader, STRIP};

/// Rows of `x` from which a dequantised panel pays.
const MANY_ROWS: usize = 9;
/// Rows of `x` from which [`quant_matmul_rounded`] rounds them: more than are written or tried at once.
const ROUNDED_ROWS: usize = 16;
/// Columns of y that one task covers when rows are many: whole panels of every level.
const PANEL_COLS: usize = 96;
/// Weights of a row of W that are decoded before they are transposed into a
/// panel: whole blocks of every scheme, and the decoded rows stay in cache.
const K_CHUNK: usize = 256;
/// Bytes of W that one task covers when rows are few.
const TASK_BYTES: usize = 32 * 1024;
/// Bytes of W asked for ahead of their use.
const AHEAD: usize = 1024;

/// Packed weights of `n` rows of `k`.
#[derive(Clone, Copy, Debug)]
pub struct QuantView<'a> {
    /// The block format.
    pub scheme: Scheme,
    /// `n` rows of `scheme.row_bytes(k)` bytes.
    pub bytes: &'a [u8],
    /// Rows: outputs.
    pub n: usize,
    /// Weights of a row: whole blocks.
    pub k: usize,
    /// How the rows lie.
    pub arrangement: Arrangement,
}

impl QuantView<'_> {
    fn row_bytes(&self) -> usize {
        self.at(self.k)
    }

    /// Where the block of weight `k` of a row begins.
    fn at(&self, k: usize) -> usize {
        k / self.scheme.block_len() * self.scheme.block_bytes()
    }

    fn check(&self) {
        assert_eq!(self.k % self.scheme.block_len(), 0, "k is not whole blocks");
        assert!(
            self.bytes.len() >= self.n * self.row_bytes(),
            "the weights are too short"
        );
    }
}

/// Floats of scratch that [`quant_matmul`] needs for `m` rows.
#[must_use]
pub fn quant_matmul_scratch_len(level: SimdLevel, threads: Threads, m: usize, k: usize) -> usize {
    if m == 1 {
        one_row_scratch(level, k)
    } else if m < MANY_ROWS {
        0
    } else {
        threads.count() * panel_scratch(level, k)
    }
}

/// Whether [`quant_matmul_rounded`] rounds anything at this level.
#[must_use]
pub fn rounding_pays(level: SimdLevel) -> bool {
    #[cfg(target_arch = "x86_64")]
    return rounded::has_level(level);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        false
    }
}

/// Floats of scratch that [`quant_matmul_rounded`] needs besides those of [`quant_matmul`], which may be the same: for
/// `m` rows on as many threads.
#[must_use]
pub fn rounded_scratch_len(level: SimdLevel, threads: usize, m: usize, k: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if m >= ROUNDED_ROWS && rounding_pays(level) {
        return rounded::scratch_len(threads, m, k);
    }
    let _ = (level, threads, m, k);
    0
}

/// As [`quant_matmul`], but that many rows are rounded where the level gains by it: an element by at most 2^-15 of
/// the greatest of the 256 that it is among, counted from the row's begin. Sums and results are F32. Whether a row is
/// rounded depends on the number of rows, what comes out on the row only.
///
/// # Panics
/// As [`quant_matmul`]; `scratch` must have [`rounded_scratch_len`], too.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn quant_matmul_rounded(
    level: SimdLevel,
    threads: Threads,
    x: MatView<'_>,
    w: QuantView<'_>,
    y: &mut [f32],
    y_stride: usize,
    epilogue: &Epilogue<'_>,
    scratch: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if x.rows >= ROUNDED_ROWS && w.k > 0 && rounded::supports(level, w.scheme) {
        assert!(x.col_stride == 1, "x must have contiguous columns");
        w.check();
        if !gemm::check(&x, w.n, w.k, y, y_stride, epilogue) {
            return;
        }
        let threads = gemm::threads_for(threads, x.rows, w.n, w.k);
        let y = SharedMut::new(y);
        // SAFETY: the level and the scheme were asked for, operands checked.
        if unsafe { rounded::matmul(level, threads, &x, &w, y, y_stride, epilogue, scratch) } {
            return;
        }
    }
    quant_matmul(level, threads, x, w, y, y_stride, epilogue, scratch);
}

/// Floats of scratch for one row, whatever the scheme.
fn one_row_scratch(level: SimdLevel, k: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if level != SimdLevel::portable() {
        return dots::scratch_len(k);
    }
    let _ = (level, k);
    0
}

/// Decoded rows and packed panels of one task.
fn panel_scratch(level: SimdLevel, k: usize) -> usize {
    PANEL_COLS * K_CHUNK.min(k) + gemm::packed_b_len(level, k, PANEL_COLS)
}

/// `y[i * y_stride + j] = epilogue(sum_p x[i, p] w[j, p])`.
///
/// # Panics
/// If `k` is not whole blocks, sizes disagree, `x` has a column stride other
/// than 1, or `scratch` is shorter than [`quant_matmul_scratch_len`] and, for strips, [`strips_scratch_len`].
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub fn quant_matmul(
    level: SimdLevel,
    threads: Threads,
    x: MatView<'_>,
    w: QuantView<'_>,
    y: &mut [f32],
    y_stride: usize,
    epilogue: &Epilogue<'_>,
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
    if m < MANY_ROWS {
        let step = (TASK_BYTES / w.row_bytes().max(1)).clamp(4, 256);
        // Fewer where that gives every thread some.
        let step = step.min(n.div_ceil(4 * threads.count()).next_multiple_of(4));
        let strips = w.arrangement == Arrangement::Strips;
        let step = if strips {
            step.next_multiple_of(STRIP)
        } else {
            step
        };
        #[cfg(target_arch = "x86_64")]
        if m == 1 && dots::supports(level, w.scheme) {
            // SAFETY: a level that is supported has AVX2.
            if let Some(row) = unsafe { dots::Row::new(&x.data[..k], scratch) } {
                parallel::for_each(threads, n.div_ceil(step), |task| {
                    let rows = task * step..n.min((task + 1) * step);
                    // SAFETY: the level is this machine's; tasks own disjoint elements of y, of which there are `n`.
                    unsafe { dots::dot_rows(level, row, &w, rows.clone(), out.ptr()) };
                    finish_rows(level, 0..1, rows, out, y_stride, epilogue);
                });
                return;
            }
        }
        if strips {
            few_from_strips(
                level, threads, &x, &w, step, out, y_stride, epilogue, scratch,
            );
            return;
        }
        parallel::for_each(threads, n.div_ceil(step), |task| {
            let rows = task * step..n.min((task + 1) * step);
            few_rows(level, &x, &w, rows, out, y_stride, epilogue);
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
        // Tasks own disjoint columns of y.
        gemm::gemm_packed_columns(level, x, b, out, y_stride, cols.start, epilogue);
    });
}

/// As [`few_rows`] for all of y, from strips that become rows first, `step` rows of W a task.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
fn few_from_strips(
    level: SimdLevel,
    threads: Threads,
    x: &MatView<'_>,
    w: &QuantView<'_>,
    step: usize,
    y: SharedMut<f32>,
    y_stride: usize,
    epilogue: &Epilogue<'_>,
    scratch: &mut [f32],
) {
    let part = strips::strip_floats(w.row_bytes());
    let strips = w.n / STRIP;
    let none = &Epilogue::NONE;
    parallel::for_each_with_scratch(threads, w.n.div_ceil(step), scratch, part, |task, own| {
        let cols = task * step..w.n.min((task + 1) * step);
        let rows: &mut [u8] = bytemuck::cast_slice_mut(own);
        for strip in cols.start / STRIP..strips.min(cols.end.div_ceil(STRIP)) {
            strips::unpack_strip(w, strip, rows);
            let eight = QuantView {
                bytes: rows,
                n: STRIP,
                arrangement: Arrangement::Rows,
                ..*w
            };
            let y = y.from(strip * STRIP);
            few_rows(level, x, &eight, 0..STRIP, y, y_stride, none);
        }
        let rest = cols.start.max(strips * STRIP)..cols.end;
        if !rest.is_empty() {
            few_rows(level, x, w, rest, y, y_stride, none);
        }
        finish_rows(level, 0..x.rows, cols, y, y_stride, epilogue);
    });
}

/// Writes the rows `rows` of W as floats.
///
/// # Panics
/// If `k` is not whole blocks, the weights are short of `rows.end` rows, or `out`
/// is shorter than `rows.len() * k`.
pub fn dequantize_rows(level: SimdLevel, w: &QuantView<'_>, rows: Range<usize>, out: &mut [f32]) {
    w.check();
    assert!(rows.end <= w.n, "the weights have {} rows", w.n);
    let (whole, stride) = (0..w.k, w.k);
    decode_chunk(level, w, rows, whole, out, stride);
}

simd_dispatch!(
    /// Writes the weights `ks` (from a block's first to a block's last) of the
    /// rows `rows`, each row at `stride` of `out`.
    fn decode_chunk(
        w: &QuantView<'_>,
        rows: Range<usize>,
        ks: Range<usize>,
        out: &mut [f32],
        stride: usize,
    ) = decode_chunk_body
);

/// # Safety
/// Needs the instructions of `S`; `w` was checked.
#[inline(always)]
unsafe fn decode_chunk_body<S: Simd>(
    w: &QuantView<'_>,
    rows: Range<usize>,
    ks: Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    let mut reader = Reader::new(w);
    for (i, row) in rows.enumerate() {
        let out = &mut out[i * stride..i * stride + ks.len()];
        let mut write = Write(out.as_mut_ptr());
        visit::<S>(w.scheme, reader.row(row, &ks), ks.len(), &mut write);
    }
}

simd_dispatch!(
    /// Writes the rows `cols` of W as packed panels; `chunk` holds decoded rows.
    fn decode_panels(
        w: &QuantView<'_>,
        cols: Range<usize>,
        chunk: &mut [f32],
        panels: &mut [f32],
    ) = decode_panels_body
);

/// # Safety
/// Needs the instructions of `S`; `w` was checked.
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
    /// The epilogue of the elements `cols` of the rows `rows` of y.
    fn finish_rows(
        rows: Range<usize>,
        cols: Range<usize>,
        out: SharedMut<f32>,
        stride: usize,
        epilogue: &Epilogue<'_>,
    ) = finish_rows_body
);

/// # Safety
/// Needs the instructions of `S`; the elements of y are there, and no other task touches them.
#[inline(always)]
unsafe fn finish_rows_body<S: Simd>(
    rows: Range<usize>,
    cols: Range<usize>,
    out: SharedMut<f32>,
    stride: usize,
    epilogue: &Epilogue<'_>,
) {
    epilogue.finish::<S>(rows, cols, out, stride);
}

/// Writes weights one after another.
struct Write(*mut f32);

impl<S: Simd> Sink<S> for Write {
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
