//! `y = x W^T` for many rows of `x` that are rounded to 16 digits on their way (AVX2).
//!
//! Each 256 elements of a row become integers of 16 bits times a power of two ([`rows`]). The codes of weights become
//! integers of 16 bits, too, 16 rows of W side by side with neighbours along k as pairs in a word ([`panel`]): one
//! instruction multiplies 16 numbers by 16 and adds up pairs, so that sums of a group of weights with one scale are
//! exact integers, at twice the rate of products of floats ([`tile`]). Scales and offsets join once for each group.
//!
//! What is rounded: an element by at most 2^-15 of the greatest of its 256, which an element within four binades of it
//! does not notice if it has the 11 digits of F16. The sums are as in F32. See `docs/adr/0043-rows-of-16-digits.md`.
//!
//! A row's results depend on nothing but the row.

mod panel;
mod rows;
mod tile;

use tercet_ir::Scheme;

use super::super::gemm::{Epilogue, MatView};
use super::super::parallel::{self, SharedMut, Threads};
use super::super::simd::{Level, SimdLevel};
use super::codes::has_small_codes;
use super::{K_CHUNK, PANEL_COLS, QuantView, finish_rows};
use panel::{Kind, Panel};
use rows::Rows;
use tile::{MR, NR};

/// Whether the level gains by it: products of floats are as fast with AVX-512.
pub(crate) fn has_level(level: SimdLevel) -> bool {
    level.0 == Level::Avx2
}

/// Whether weights of this scheme are multiplied with rounded rows.
pub(super) fn supports(level: SimdLevel, scheme: Scheme) -> bool {
    let has_codes =
        has_small_codes(scheme) || matches!(scheme, Scheme::Q8_0 | Scheme::Int8 | Scheme::Int8Asym);
    has_codes && has_level(level)
}

/// Floats of scratch for `m` rows: the rows, and a panel for each thread.
pub(super) fn scratch_len(threads: usize, m: usize, k: usize) -> usize {
    Rows::len(m, k) + threads * Panel::LEN
}

/// `y[i * y_stride + j] = epilogue(sum_p x[i, p] w[j, p])` for rows in fixed point; false, and nothing is written,
/// where one of them is not finite.
///
/// # Safety
/// The level is AVX2, the scheme [`supports`] it, operands were checked, and `scratch` has [`scratch_len`] floats.
#[allow(
    clippy::too_many_arguments,
    reason = "operands, output, epilogue, scratch"
)]
pub(super) unsafe fn matmul(
    level: SimdLevel,
    threads: Threads,
    x: &MatView<'_>,
    w: &QuantView<'_>,
    y: SharedMut<f32>,
    y_stride: usize,
    epilogue: &Epilogue<'_>,
    scratch: &mut [f32],
) -> bool {
    let (own, scratch) = scratch.split_at_mut(Rows::len(x.rows, w.k));
    let sum_of = Kind::of(w.scheme).offset_of.max(16);
    let Some(rows) = Rows::new(threads, x, sum_of, own) else {
        return false;
    };
    let tasks = w.n.div_ceil(PANEL_COLS);
    parallel::for_each_with_scratch(threads, tasks, scratch, Panel::LEN, |task, scratch| {
        let cols = task * PANEL_COLS..w.n.min((task + 1) * PANEL_COLS);
        let mut panel = Panel::new(scratch);
        for k0 in (0..w.k).step_by(K_CHUNK) {
            let ks = k0..w.k.min(k0 + K_CHUNK);
            for col in cols.clone().step_by(NR) {
                let count = NR.min(cols.end - col);
                // SAFETY: this function's; tasks own disjoint columns of y.
                unsafe {
                    panel.fill(w, col..col + count, ks.clone());
                    multiply(&rows, &panel, k0, y.ptr().add(col), y_stride, count);
                }
            }
        }
        finish_rows(level, 0..x.rows, cols, y, y_stride, epilogue);
    });
    true
}

/// The products of all rows with a panel of weights from `k0` on, in `count` columns of `y`: added to what is there,
/// but for the first.
///
/// # Safety
/// As [`matmul`]; `y` is the panel's first column of the first row.
unsafe fn multiply(
    rows: &Rows<'_>,
    panel: &Panel<'_>,
    k0: usize,
    y: *mut f32,
    y_stride: usize,
    count: usize,
) {
    let mut sums = [[0.0; NR]; MR];
    // As even as can be: no tile is a sliver.
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
