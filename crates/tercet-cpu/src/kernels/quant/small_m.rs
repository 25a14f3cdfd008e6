//! Quantized matmul of a few activation rows in floats: each weight block is decoded once for up to
//! four rows.

use std::ops::Range;

use tercet_ir::Scheme;

use super::super::gemm::{self, GemmEpilogue, MatView};
use super::super::parallel::SharedMut;
use super::super::simd::{Simd, simd_dispatch};
use super::decode::{WeightSink, visit};
use super::{QuantView, gemv_q8_0};

simd_dispatch!(
    pub(super) fn small_m(
        x: &MatView<'_>,
        w: &QuantView<'_>,
        rows: Range<usize>,
        out: SharedMut<f32>,
        stride: usize,
        epilogue: &GemmEpilogue<'_>,
    ) = small_m_body
);

/// # Safety
/// Requires the instructions of `S`; operands were checked; no other task accesses the columns
/// `rows` of y.
#[inline(always)]
unsafe fn small_m_body<S: Simd>(
    x: &MatView<'_>,
    w: &QuantView<'_>,
    rows: Range<usize>,
    out: SharedMut<f32>,
    stride: usize,
    epilogue: &GemmEpilogue<'_>,
) {
    let mut i = 0;
    while w.scheme == Scheme::Q8_0 && i < x.rows {
        let from = x.data.as_ptr().wrapping_add(i * x.row_stride);
        gemv_q8_0::dot_row::<S>(w, rows.clone(), from, out.ptr().add(i * stride));
        i += 1;
    }
    while i < x.rows {
        let count = S::DOT_ROWS.min(x.rows - i);
        let to = out.ptr().add(i * stride);
        let from = x.data.as_ptr().wrapping_add(i * x.row_stride);
        match count {
            1 => dot_rows::<S, 1>(w, rows.clone(), from, x.row_stride, to, stride),
            2 => dot_rows::<S, 2>(w, rows.clone(), from, x.row_stride, to, stride),
            3 => dot_rows::<S, 3>(w, rows.clone(), from, x.row_stride, to, stride),
            4 => dot_rows::<S, 4>(w, rows.clone(), from, x.row_stride, to, stride),
            _ => unreachable!("SIMD levels process at most four rows at once"),
        }
        i += count;
    }
    epilogue.finish::<S>(0..x.rows, rows, out, stride);
}

/// Computes `y[i, j]` for `R` rows of x and the rows `rows` of W.
///
/// # Safety
/// Same as [`small_m_body`]; `x` and `y` point to the first of the `R` rows.
#[inline(always)]
unsafe fn dot_rows<S: Simd, const R: usize>(
    w: &QuantView<'_>,
    rows: Range<usize>,
    x: *const f32,
    x_stride: usize,
    y: *mut f32,
    y_stride: usize,
) {
    let row_bytes = w.row_bytes();
    // Weights that are multiplied before the next: a multiple of every scheme's block length.
    let block = 2 * S::LANES * gemm::CHAIN;
    for k0 in (0..w.k.max(1)).step_by(block) {
        let k1 = w.k.min(k0 + block);
        let (start, end) = (w.at(k0), w.at(k1));
        for j in rows.clone() {
            let bytes = &w.bytes[j * row_bytes + start..j * row_bytes + end];
            let mut dot = SmallMDot::<S, R> {
                x: x.wrapping_add(k0),
                x_stride,
                acc: [[S::splat(0.0); 2]; R],
            };
            visit::<S>(w.scheme, bytes, k1 - k0, &mut dot);
            for (i, [a, b]) in dot.acc.into_iter().enumerate() {
                let (y, sum) = (y.add(i * y_stride + j), S::sum(S::add(a, b)));
                *y = if k0 > 0 { *y + sum } else { sum };
            }
        }
    }
}

/// Sink that multiplies decoded weights with `R` activation rows.
struct SmallMDot<S: Simd, const R: usize> {
    x: *const f32,
    x_stride: usize,
    acc: [[S::V; 2]; R],
}

impl<S: Simd, const R: usize> WeightSink<S> for SmallMDot<S, R> {
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, chain: usize, weights: S::V) {
        for i in 0..R {
            let x = S::load(self.x.add(i * self.x_stride + at));
            self.acc[i][chain] = S::fma(weights, x, self.acc[i][chain]);
        }
    }

    #[inline(always)]
    unsafe fn put_n(&mut self, at: usize, n: usize, weights: S::V) {
        for i in 0..R {
            let x = S::load_n(self.x.add(i * self.x_stride + at), n);
            self.acc[i][0] = S::fma(weights, x, self.acc[i][0]);
        }
    }

    #[inline(always)]
    unsafe fn advance(&mut self, len: usize) {
        self.x = self.x.wrapping_add(len);
    }
}
