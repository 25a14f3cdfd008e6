//! Register micro-kernel: a few rows times a panel.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name the rows and vectors of the tile in several arrays at once"
)]

use std::arch::x86_64::*;

use super::panel::{I16PanelTile, I16WeightPanel};
use super::rows::{CHUNK, FixedPointRows};

/// Maximum rows of a tile: with two vectors per row, the sums leave enough registers for the
/// operands.
pub(super) const MR: usize = 6;
/// Columns of a tile.
pub(super) const NR: usize = 16;

/// Pointers to the activation rows that a tile reads, with their scales and sums.
#[derive(Clone, Copy)]
struct I16GemmLhs {
    /// Activations in words of two elements.
    t: *const i32,
    /// Row stride in words.
    t_row: usize,
    scales: *const f32,
    scales_row: usize,
    sums: *const f32,
    sums_row: usize,
}

/// Computes the products of `count` rows, from `first` on, with a panel of weights that starts at
/// `k0`.
///
/// # Safety
/// The machine has AVX2 and FMA; the rows and weights exist; `1 <= count <= MR`.
pub(super) unsafe fn run(
    rows: &FixedPointRows<'_>,
    first: usize,
    count: usize,
    panel: &I16WeightPanel<'_>,
    k0: usize,
    out: &mut [[f32; NR]; MR],
) {
    let b = panel.parts();
    let scales_row = rows.k.div_ceil(CHUNK);
    let sum_of = b.kind.offset_of.max(16);
    let sums_row = rows.k / sum_of;
    let a = I16GemmLhs {
        t: rows.t.as_ptr().add(first * rows.k + k0).cast(),
        t_row: rows.k / 2,
        scales: rows.scales.as_ptr().add(first * scales_row + k0 / CHUNK),
        scales_row,
        // If the scheme has no offsets, sums may be missing, and the tile does not read them.
        sums: rows
            .sums
            .as_ptr()
            .wrapping_add(first * sums_row + k0 / sum_of),
        sums_row,
    };
    match count {
        1 => by_group::<1>(&a, &b, out),
        2 => by_group::<2>(&a, &b, out),
        3 => by_group::<3>(&a, &b, out),
        4 => by_group::<4>(&a, &b, out),
        5 => by_group::<5>(&a, &b, out),
        6 => by_group::<6>(&a, &b, out),
        _ => unreachable!("a tile has one to six rows"),
    }
}

/// # Safety
/// Same as [`run`], for `R` rows.
unsafe fn by_group<const R: usize>(a: &I16GemmLhs, b: &I16PanelTile, out: &mut [[f32; NR]; MR]) {
    match b.kind.group {
        16 => codes::<R, 16>(a, b, out),
        64 => codes::<R, 64>(a, b, out),
        _ => codes::<R, 32>(a, b, out),
    }
    finish::<R>(a, b, out);
}

/// Computes `sum_g scale[g] sum_p t[p] code[p]`, with one scale per `G` weights.
///
/// # Safety
/// Same as [`run`], for `R` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn codes<const R: usize, const G: usize>(
    a: &I16GemmLhs,
    b: &I16PanelTile,
    out: &mut [[f32; NR]; MR],
) {
    for sums in &mut out[..R] {
        sums.fill(0.0);
    }
    let out: *mut f32 = out.as_mut_ptr().cast();
    let mut rows = [a.t; R];
    for i in 1..R {
        rows[i] = a.t.add(i * a.t_row);
    }
    let mut words = b.words;
    for g in 0..b.len / G {
        let mut acc = [[_mm256_setzero_si256(); 2]; R];
        for p in 0..G / 2 {
            let columns = [
                _mm256_loadu_si256(words.cast()),
                _mm256_loadu_si256(words.add(8).cast()),
            ];
            for i in 0..R {
                let x = _mm256_set1_epi32(*rows[i].add(p));
                for v in 0..2 {
                    // The sum stays below 2^31: at most 64 weights of magnitude 945 (Q4_K) or 32 of
                    // magnitude 255, times activations up to 2^15 - 1.
                    acc[i][v] = _mm256_add_epi32(acc[i][v], _mm256_madd_epi16(x, columns[v]));
                }
            }
            words = words.add(NR);
        }
        for i in 0..R {
            rows[i] = rows[i].add(G / 2);
        }
        for v in 0..2 {
            let scale = _mm256_loadu_ps(b.scales.add(g * NR + 8 * v));
            for i in 0..R {
                let at = out.add(i * NR + 8 * v);
                let exact = _mm256_cvtepi32_ps(acc[i][v]);
                _mm256_storeu_ps(at, _mm256_fmadd_ps(exact, scale, _mm256_loadu_ps(at)));
            }
        }
    }
}

/// Multiplies by the row scales, and adds the products of offsets and sums.
///
/// # Safety
/// Same as [`run`], for `R` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn finish<const R: usize>(a: &I16GemmLhs, b: &I16PanelTile, out: &mut [[f32; NR]; MR]) {
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    for i in 0..R {
        let scale = _mm256_set1_ps(*a.scales.add(i * a.scales_row));
        for v in 0..2 {
            let sum = _mm256_loadu_ps(out[i].as_ptr().add(8 * v));
            acc[i][v] = _mm256_mul_ps(sum, scale);
        }
    }
    for g in 0..b.len.checked_div(b.kind.offset_of).unwrap_or(0) {
        let offsets = [
            _mm256_loadu_ps(b.offsets.add(g * NR)),
            _mm256_loadu_ps(b.offsets.add(g * NR + 8)),
        ];
        for i in 0..R {
            let all = _mm256_set1_ps(*a.sums.add(i * a.sums_row + g));
            for v in 0..2 {
                acc[i][v] = _mm256_fmadd_ps(all, offsets[v], acc[i][v]);
            }
        }
    }
    for i in 0..R {
        for v in 0..2 {
            _mm256_storeu_ps(out[i].as_mut_ptr().add(8 * v), acc[i][v]);
        }
    }
}
