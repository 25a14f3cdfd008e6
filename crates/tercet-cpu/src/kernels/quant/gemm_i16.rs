//! Quantized GEMM `y = x W^T` for many rows, with activations in 16-bit fixed point (AVX2).
//!
//! Each 256 elements of a row become 16-bit integers times a power of two ([`rows`]). Quantized
//! weights become 16-bit integers too. A panel contains 16 rows of W, with adjacent elements along
//! k as pairs in a word ([`panel`]). One instruction multiplies 16 pairs of numbers and adds
//! adjacent products. So the sum of a weight group with one scale is an exact integer, at twice the
//! rate of float products ([`tile`]). Scales and offsets are applied once per group.
//!
//! The rounding error of an element is at most 2^-15 of the maximum of its 256 elements. Elements
//! within a factor of 16 of the maximum keep at least the 11 bits of F16. The sums are computed as
//! in F32. See `docs/lab/2026-11-cpu-kernels.md`.
//!
//! The results of an activation row do not depend on the other rows.

mod panel;
mod rows;
mod tile;

use tercet_ir::Scheme;

use super::super::gemm::{GemmEpilogue, MatView};
use super::super::parallel::{self, KernelThreads, SharedMut};
use super::super::simd::{SimdLevel, SimdLevelKind};
use super::codes::has_small_codes;
use super::{K_CHUNK, PANEL_COLS, QuantView, finish_rows};
use panel::{I16CodeFormat, I16WeightPanel};
use rows::FixedPointRows;
use tile::{MR, NR};

/// True if 16-bit integer products are faster than float products at this SIMD level; with AVX-512
/// they are not.
pub(crate) fn has_level(level: SimdLevel) -> bool {
    level.kind == SimdLevelKind::Avx2
}

/// True if weights of this scheme are multiplied with rounded activations.
pub(super) fn supports(level: SimdLevel, scheme: Scheme) -> bool {
    let has_codes =
        has_small_codes(scheme) || matches!(scheme, Scheme::Q8_0 | Scheme::Int8 | Scheme::Int8Asym);
    has_codes && has_level(level)
}

/// Scratch floats for `m` rows: the fixed-point rows, and one panel per thread.
pub(super) fn scratch_len(threads: usize, m: usize, k: usize) -> usize {
    FixedPointRows::len(m, k) + threads * I16WeightPanel::LEN
}

/// Computes `y[i * y_stride + j] = epilogue(sum_p x[i, p] w[j, p])` in fixed point. Returns false,
/// without writing anything, if an element of `x` is not finite.
///
/// # Safety
/// The level is AVX2, [`supports`] accepts the scheme, operands were checked, and `scratch` has
/// [`scratch_len`] floats.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub(super) unsafe fn matmul(
    level: SimdLevel,
    threads: KernelThreads,
    x: &MatView<'_>,
    w: &QuantView<'_>,
    y: SharedMut<f32>,
    y_stride: usize,
    epilogue: &GemmEpilogue<'_>,
    scratch: &mut [f32],
) -> bool {
    let (own, scratch) = scratch.split_at_mut(FixedPointRows::len(x.rows, w.k));
    let sum_of = I16CodeFormat::for_scheme(w.scheme).offset_of.max(16);
    let Some(rows) = FixedPointRows::new(threads, x, sum_of, own) else {
        return false;
    };
    let tasks = w.n.div_ceil(PANEL_COLS);
    parallel::for_each_with_scratch(
        threads,
        tasks,
        scratch,
        I16WeightPanel::LEN,
        |task, scratch| {
            let cols = task * PANEL_COLS..w.n.min((task + 1) * PANEL_COLS);
            let mut panel = I16WeightPanel::new(scratch);
            for k0 in (0..w.k).step_by(K_CHUNK) {
                let ks = k0..w.k.min(k0 + K_CHUNK);
                for col in cols.clone().step_by(NR) {
                    let count = NR.min(cols.end - col);
                    // SAFETY: the requirements are those of this function; tasks write disjoint columns
                    // of y.
                    unsafe {
                        panel.fill(w, col..col + count, ks.clone());
                        multiply(&rows, &panel, k0, y.ptr().add(col), y_stride, count);
                    }
                }
            }
            finish_rows(level, 0..x.rows, cols, y, y_stride, epilogue);
        },
    );
    true
}

/// Computes the products of all rows with a panel of weights that starts at `k0`, in `count`
/// columns of `y`. Adds the products to `y`, but overwrites `y` if `k0` is 0.
///
/// # Safety
/// Same as [`matmul`]; `y` points to the element of the first row in the panel's first column.
unsafe fn multiply(
    rows: &FixedPointRows<'_>,
    panel: &I16WeightPanel<'_>,
    k0: usize,
    y: *mut f32,
    y_stride: usize,
    count: usize,
) {
    let mut sums = [[0.0; NR]; MR];
    // Rows are split into tiles as evenly as possible, so that no tile is very small.
    let tiles = rows.m.div_ceil(MR);
    for i in 0..tiles {
        let first = i * rows.m / tiles;
        let r = (i + 1) * rows.m / tiles - first;
        tile::run(rows, first, r, panel, k0, &mut sums);
        for (i, sums) in sums[..r].iter().enumerate() {
            let y = std::slice::from_raw_parts_mut(y.add((first + i) * y_stride), count);
            match k0 {
                0 => y.copy_from_slice(&sums[..count]),
                _ => y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum),
            }
        }
    }
}
