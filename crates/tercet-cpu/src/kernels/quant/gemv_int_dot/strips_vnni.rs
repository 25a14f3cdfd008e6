//! Like `strips.rs`, with VNNI, and for up to [`ByteDot::MAX_ROWS`] activation rows that share the decoding
//! of weights.
//!
//! The products of a weight group are summed in 32 bits and multiplied with the group's scale. These
//! integers are exact, as those of `strips.rs`, and the floats are added in the same order. A row
//! therefore has the same bits as there, and for any number of rows.

use std::arch::x86_64::*;
use std::ops::Range;

use tercet_ir::Scheme;

use super::super::super::simd::{Avx2, Simd, SimdLevel, SimdLevelKind};
use super::super::QuantView;
use super::super::repack_x8::STRIP;
use super::dots_x86::{ByteDot, EvexByteDot, VexByteDot};
use super::row::FixedPointRowTail;
use super::strips::{
    WORD, and, by_32_scales, eight_halves, factors, prefetch, signed, unsigned, word,
};
use super::{CHUNK, FixedPointRow, SPAN, joined};

/// Exact sums of products, for each row and limb.
type LimbSums<const R: usize> = [[__m256i; 3]; R];

/// Computes `y[i * stride + j] = sum_p x[i, p] w[j, p]` for the rows `x` and the rows `rows` of W, in
/// whole strips.
///
/// # Safety
/// The level is of this machine and has VNNI. The rows of `x` are as long as a row of W, and W is
/// repacked as strips. `y` is valid for all rows of `x`, and no other task accesses their columns `rows`.
pub(super) unsafe fn dot_strips(
    level: SimdLevel,
    x: &[FixedPointRow<'_>],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    let is_evex = level.kind == SimdLevelKind::Avx512;
    let most = match is_evex {
        true => EvexByteDot::MAX_ROWS,
        false => VexByteDot::MAX_ROWS,
    };
    for (part, x) in x.chunks(most).enumerate() {
        let y = y.add(part * most * stride);
        let rows = rows.clone();
        match (is_evex, x) {
            (true, &[a]) => evex([a], w, rows, y, stride),
            (true, &[a, b]) => evex([a, b], w, rows, y, stride),
            (true, &[a, b, c]) => evex([a, b, c], w, rows, y, stride),
            (true, &[a, b, c, d]) => evex([a, b, c, d], w, rows, y, stride),
            (false, &[a]) => vex([a], w, rows, y, stride),
            (false, &[a, b]) => vex([a, b], w, rows, y, stride),
            _ => unreachable!("invariant: chunks have at most `MAX_ROWS` rows"),
        }
    }
}

/// # Safety
/// Same as [`dot_strips`], with AVX-512 VNNI.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn evex<const R: usize>(
    x: [FixedPointRow<'_>; R],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    dot_some::<EvexByteDot, R>(x, w, rows, y, stride);
}

/// # Safety
/// Same as [`dot_strips`], with AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn vex<const R: usize>(
    x: [FixedPointRow<'_>; R],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    dot_some::<VexByteDot, R>(x, w, rows, y, stride);
}

/// # Safety
/// Same as [`dot_strips`], with the instruction of `D`.
#[inline(always)]
unsafe fn dot_some<D: ByteDot, const R: usize>(
    x: [FixedPointRow<'_>; R],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    let (row_bytes, tile_bytes) = (w.row_bytes(), STRIP * w.scheme.block_bytes());
    for j in rows.step_by(STRIP) {
        let strip = &w.bytes[j * row_bytes..][..STRIP * row_bytes];
        let mut all = [Avx2::splat(0.0); R];
        for k0 in (0..w.k).step_by(CHUNK) {
            let from = x.map(|row| FixedPointRowTail::new(&row, k0));
            let tiles = (w.k - k0).min(CHUNK) / SPAN;
            let at = strip.as_ptr().add(k0 / SPAN * tile_bytes);
            let sums = match w.scheme {
                Scheme::Q4K => by_32::<D, 4, R>(from, at, tiles),
                Scheme::Q5K => by_32::<D, 5, R>(from, at, tiles),
                Scheme::Q6K => q6_k::<D, R>(from, at, tiles),
                scheme => unreachable!("{scheme:?} cannot be repacked"),
            };
            for (all, sums) in all.iter_mut().zip(sums) {
                *all = Avx2::add(*all, sums);
            }
        }
        for (i, all) in all.into_iter().enumerate() {
            Avx2::store(y.add(i * stride + j), all);
        }
    }
}

/// Adds the products of four weights of group `g` with each limb of each row.
///
/// # Safety
/// Requires the instruction of `D`; the elements exist.
#[inline(always)]
unsafe fn add_products<D: ByteDot, const R: usize>(
    sums: &mut LimbSums<R>,
    x: &[FixedPointRowTail; R],
    codes: __m256i,
    (g, quad): (usize, usize),
) {
    for (sums, x) in sums.iter_mut().zip(x) {
        for (plane, sum) in sums.iter_mut().enumerate() {
            *sum = D::add(*sum, codes, x.quad(g, plane, quad));
        }
    }
}

/// Adds `group * scale` to the sums of a tile.
///
/// # Safety
/// Requires AVX2.
#[inline(always)]
unsafe fn add_scaled<const R: usize>(sums: &mut LimbSums<R>, group: &LimbSums<R>, scale: __m256i) {
    for (sums, group) in sums.iter_mut().flatten().zip(group.iter().flatten()) {
        *sums = _mm256_add_epi32(*sums, _mm256_mullo_epi32(*group, scale));
    }
}

/// # Safety
/// Requires AVX2.
#[inline(always)]
unsafe fn zeros<const R: usize>() -> LimbSums<R> {
    [[_mm256_setzero_si256(); 3]; R]
}

/// Computes tiles of Q4_K and Q5_K (4 or 5 `BITS`).
///
/// # Safety
/// Requires the instructions of [`dot_strips`]; `tiles` tiles and their elements exist.
#[inline(always)]
unsafe fn by_32<D: ByteDot, const BITS: usize, const R: usize>(
    mut x: [FixedPointRowTail; R],
    mut b: *const u8,
    tiles: usize,
) -> [__m256; R] {
    let (fifth, codes, words) = if BITS == 5 { (4, 12, 44) } else { (4, 4, 36) };
    let (mut products, mut offsets) = ([Avx2::splat(0.0); R], [Avx2::splat(0.0); R]);
    for _ in 0..tiles {
        prefetch(b, WORD * words);
        let (scales, mins) = by_32_scales(b);
        let mut sums = zeros::<R>();
        let mut below = [Avx2::splat(0.0); R];
        for pair in 0..4 {
            let g = 2 * pair;
            let mut groups = [zeros::<R>(); 2];
            for quad in 0..8 {
                let q = word(b, codes + 8 * pair + quad);
                let mut low = and(q, 15);
                let mut high = and(_mm256_srli_epi16::<4>(q), 15);
                if BITS == 5 {
                    let h = word(b, fifth + quad);
                    let h = _mm256_srl_epi16(h, _mm_cvtsi32_si128(g as i32));
                    low = _mm256_or_si256(low, and(_mm256_slli_epi16::<4>(h), 16));
                    high = _mm256_or_si256(high, and(_mm256_slli_epi16::<3>(h), 16));
                }
                add_products::<D, R>(&mut groups[0], &x, low, (g, quad));
                add_products::<D, R>(&mut groups[1], &x, high, (g + 1, quad));
            }
            for (i, group) in groups.iter().enumerate() {
                let s = unsigned(scales[pair / 2], g % 4 + i);
                add_scaled(&mut sums, group, _mm256_srli_epi32::<16>(s));
                let m = unsigned(mins[pair / 2], g % 4 + i);
                let m = _mm256_cvtepi32_ps(_mm256_srli_epi32::<16>(m));
                for (below, x) in below.iter_mut().zip(&x) {
                    *below = Avx2::fma(m, Avx2::splat(*x.sums32.add(g + i)), *below);
                }
            }
        }
        let (d, m) = factors(b);
        for i in 0..R {
            let factor = Avx2::mul(d, Avx2::splat(*x[i].scales));
            products[i] = Avx2::fma(joined(sums[i]), factor, products[i]);
            offsets[i] = Avx2::fma(below[i], m, offsets[i]);
            x[i].advance();
        }
        b = b.wrapping_add(WORD * words);
    }
    std::array::from_fn(|i| _mm256_sub_ps(products[i], offsets[i]))
}

/// Computes tiles of Q6_K: one scale per 16 weights, quantized values minus 32.
///
/// # Safety
/// Same as [`by_32`].
#[inline(always)]
unsafe fn q6_k<D: ByteDot, const R: usize>(
    mut x: [FixedPointRowTail; R],
    mut b: *const u8,
    tiles: usize,
) -> [__m256; R] {
    let (upper, scales, factors) = (32, 48, 52);
    let bytes = WORD * factors + 2 * STRIP;
    let (mut products, mut centers) = ([Avx2::splat(0.0); R], [Avx2::splat(0.0); R]);
    for _ in 0..tiles {
        prefetch(b, bytes);
        let mut s = [_mm256_setzero_si256(); 16];
        let mut center = [Avx2::splat(0.0); R];
        for (i, s) in s.iter_mut().enumerate() {
            *s = _mm256_srai_epi32::<16>(signed(word(b, scales + i / 4), i % 4));
            let each = _mm256_cvtepi32_ps(*s);
            for (center, x) in center.iter_mut().zip(&x) {
                *center = Avx2::fma(each, Avx2::splat(*x.sums16.add(i)), *center);
            }
        }
        let mut sums = zeros::<R>();
        for half in 0..2 {
            for i in 0..4 {
                let g = 4 * half + i;
                for part in 0..2 {
                    let mut group = zeros::<R>();
                    for quad in 4 * part..4 * (part + 1) {
                        let low = word(b, 16 * half + 8 * (i % 2) + quad);
                        let h = word(b, upper + 8 * half + quad);
                        let codes = match i {
                            0 => _mm256_or_si256(and(low, 15), and(_mm256_slli_epi16::<4>(h), 48)),
                            1 => _mm256_or_si256(and(low, 15), and(_mm256_slli_epi16::<2>(h), 48)),
                            2 => _mm256_or_si256(and(_mm256_srli_epi16::<4>(low), 15), and(h, 48)),
                            _ => _mm256_or_si256(
                                and(_mm256_srli_epi16::<4>(low), 15),
                                and(_mm256_srli_epi16::<2>(h), 48),
                            ),
                        };
                        add_products::<D, R>(&mut group, &x, codes, (g, quad));
                    }
                    add_scaled(&mut sums, &group, s[2 * g + part]);
                }
            }
        }
        let d = eight_halves(b.add(WORD * factors));
        for i in 0..R {
            let factor = Avx2::mul(d, Avx2::splat(*x[i].scales));
            products[i] = Avx2::fma(joined(sums[i]), factor, products[i]);
            centers[i] = Avx2::fma(center[i], d, centers[i]);
            x[i].advance();
        }
        b = b.wrapping_add(bytes);
    }
    std::array::from_fn(|i| _mm256_fnmadd_ps(centers[i], Avx2::splat(32.0), products[i]))
}
