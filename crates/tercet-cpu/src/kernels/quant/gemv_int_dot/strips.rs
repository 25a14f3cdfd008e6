//! Quantized GEMV with repacked weights: a vector contains four quantized values of each of eight
//! rows, and each lane accumulates one row.
//!
//! All lanes multiply the same four activations, whose limbs are broadcast. Sums of products stay
//! in 16 bits as long as they fit: eight products of 4-bit values, four of 5-bit values, or two of
//! 6-bit values. The integer scales are multiplied while sums are widened to 32 bits. So the sums
//! of a tile are exact, as in the kernel for a single row.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name planes, groups and words in several arrays at once"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use tercet_ir::Scheme;

use super::super::super::simd::{Avx2, Simd};
use super::super::QuantView;
use super::super::repack_x8::STRIP;
use super::row::FixedPointRowTail;
use super::{CHUNK, FixedPointRow, GROUP, PLANES, SPAN, joined};

/// Bytes of a vector, which contains one word of each row.
pub(super) const WORD: usize = 32;
/// Prefetch distance of W in bytes.
const AHEAD: usize = 4096;

/// Computes `y[j] = sum_p x[p] w[j, p]` for the rows `rows` of W, in whole strips.
///
/// # Safety
/// The machine has AVX2, FMA and F16C. `row` is as long as a row of W, and W is repacked as strips.
/// `y` is valid for `rows`, which no other task accesses.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn dot_strips(
    row: FixedPointRow<'_>,
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
) {
    let (row_bytes, tile_bytes) = (w.row_bytes(), STRIP * w.scheme.block_bytes());
    for j in rows.step_by(STRIP) {
        let strip = &w.bytes[j * row_bytes..][..STRIP * row_bytes];
        let mut all = Avx2::splat(0.0);
        for k0 in (0..w.k).step_by(CHUNK) {
            let from = FixedPointRowTail::new(&row, k0);
            let tiles = (w.k - k0).min(CHUNK) / SPAN;
            let at = strip.as_ptr().add(k0 / SPAN * tile_bytes);
            let sums = match w.scheme {
                Scheme::Q4K => by_32::<4>(from, at, tiles),
                Scheme::Q5K => by_32::<5>(from, at, tiles),
                Scheme::Q6K => q6_k(from, at, tiles),
                scheme => unreachable!("{scheme:?} cannot be repacked"),
            };
            all = Avx2::add(all, sums);
        }
        Avx2::store(y.add(j), all);
    }
}

impl FixedPointRowTail {
    /// Broadcasts limb `plane` (0 is the lowest) of the elements `4 quad` to `4 quad + 3` of group
    /// `g` to all lanes.
    ///
    /// # Safety
    /// Requires AVX2; the group and the elements exist.
    #[inline(always)]
    pub(super) unsafe fn quad(self, g: usize, plane: usize, quad: usize) -> __m256i {
        let at = self.planes.add(PLANES * g + GROUP * plane + 4 * quad);
        _mm256_set1_epi32(at.cast::<i32>().read_unaligned())
    }

    /// Adds products of quantized values and limbs to the 16-bit pair sums.
    ///
    /// # Safety
    /// Same as [`Self::quad`].
    #[inline(always)]
    unsafe fn products(self, sums: &mut [__m256i; 3], codes: __m256i, g: usize, quad: usize) {
        for plane in 0..3 {
            let pairs = _mm256_maddubs_epi16(codes, self.quad(g, plane, quad));
            sums[plane] = _mm256_add_epi16(sums[plane], pairs);
        }
    }
}

/// Prefetches the `bytes` bytes [`AHEAD`] of `b`.
#[inline(always)]
pub(super) fn prefetch(b: *const u8, bytes: usize) {
    for i in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch does not access memory.
        unsafe { Avx2::prefetch(b.wrapping_add(AHEAD + 64 * i)) };
    }
}

/// # Safety
/// `p` is valid for 32 bytes.
#[inline(always)]
pub(super) unsafe fn word(p: *const u8, i: usize) -> __m256i {
    _mm256_loadu_si256(p.add(WORD * i).cast())
}

/// Shuffle masks for `i` from 0 to 3, which copy byte `i` of each 32-bit lane into both of its
/// 16-bit halves: into the low bytes, or into the high bytes if `UPPER`.
const fn places<const UPPER: bool>() -> [[u8; WORD]; 4] {
    // Indices above 127 give zero.
    let mut places = [[255; WORD]; 4];
    let mut i = 0;
    while i < 4 {
        let mut lane = 0;
        while lane < 8 {
            let at = 4 * lane + UPPER as usize;
            places[i][at] = (4 * (lane % 4) + i) as u8;
            places[i][at + 2] = places[i][at];
            lane += 1;
        }
        i += 1;
    }
    places
}

static LOWER: [[u8; WORD]; 4] = places::<false>();
static UPPER: [[u8; WORD]; 4] = places::<true>();

/// Byte `i` of each lane, zero-extended into both of its 16-bit halves.
///
/// # Safety
/// Requires AVX2.
#[inline(always)]
pub(super) unsafe fn unsigned(v: __m256i, i: usize) -> __m256i {
    _mm256_shuffle_epi8(v, word(LOWER[i].as_ptr(), 0))
}

/// Byte `i` of each lane, sign-extended into both of its 16-bit halves.
///
/// # Safety
/// Requires AVX2.
#[inline(always)]
pub(super) unsafe fn signed(v: __m256i, i: usize) -> __m256i {
    _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(v, word(UPPER[i].as_ptr(), 0)))
}

/// # Safety
/// Requires AVX2.
#[inline(always)]
pub(super) unsafe fn and(v: __m256i, mask: i8) -> __m256i {
    _mm256_and_si256(v, _mm256_set1_epi8(mask))
}

/// Converts eight F16 values to floats.
///
/// # Safety
/// Requires F16C; `p` is valid for 16 bytes.
#[inline(always)]
pub(super) unsafe fn eight_halves(p: *const u8) -> __m256 {
    _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
}

/// The 6-bit scales and offsets of a tile of Q4_K or Q5_K. Byte `i` of each lane of vector `v` belongs to
/// group `4 v + i`.
///
/// # Safety
/// Requires AVX2; `b` is valid for the words of a tile.
#[inline(always)]
pub(super) unsafe fn by_32_scales(b: *const u8) -> ([__m256i; 2], [__m256i; 2]) {
    let (s, m, rest) = (word(b, 1), word(b, 2), word(b, 3));
    let scales = [
        and(s, 63),
        _mm256_or_si256(and(rest, 15), and(_mm256_srli_epi32::<2>(s), 48)),
    ];
    let mins = [
        and(m, 63),
        _mm256_or_si256(
            and(_mm256_srli_epi32::<4>(rest), 15),
            and(_mm256_srli_epi32::<2>(m), 48),
        ),
    ];
    (scales, mins)
}

/// The factors of the scales and of the offsets of a tile of Q4_K or Q5_K. Each lane of its first word has
/// both as F16 numbers of one row.
///
/// # Safety
/// Requires AVX2 and F16C; `b` is valid for 32 bytes.
#[inline(always)]
pub(super) unsafe fn factors(b: *const u8) -> (__m256, __m256) {
    let both = word(b, 0);
    let d = _mm256_and_si256(both, _mm256_set1_epi32(0xFFFF));
    let both = _mm256_packus_epi32(d, _mm256_srli_epi32::<16>(both));
    let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
    let d = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
    (d, _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(both)))
}

/// Computes tiles of Q4_K and Q5_K (4 or 5 `BITS`), which have one scale and offset per 32 weights.
///
/// # Safety
/// Requires AVX2, FMA and F16C; `tiles` tiles and their elements exist.
#[inline(always)]
unsafe fn by_32<const BITS: usize>(
    mut x: FixedPointRowTail,
    mut b: *const u8,
    tiles: usize,
) -> __m256 {
    // Index of the first word of each part of a tile: `tercet_ir::quant`.
    let (fifth, codes, words) = if BITS == 5 { (4, 12, 44) } else { (4, 4, 36) };
    // Number of products whose sum stays in 16 bits.
    let at_once = if BITS == 5 { 4 } else { 8 };
    let (mut products, mut offsets) = (Avx2::splat(0.0), Avx2::splat(0.0));
    for _ in 0..tiles {
        prefetch(b, WORD * words);
        let (scales, mins) = by_32_scales(b);
        let mut sums = [_mm256_setzero_si256(); 3];
        let mut below = Avx2::splat(0.0);
        for pair in 0..4 {
            let g = 2 * pair;
            let low_scale = unsigned(scales[pair / 2], g % 4);
            let high_scale = unsigned(scales[pair / 2], g % 4 + 1);
            for part in 0..8 / at_once {
                let mut low_sums = [_mm256_setzero_si256(); 3];
                let mut high_sums = [_mm256_setzero_si256(); 3];
                for quad in at_once * part..at_once * (part + 1) {
                    let q = word(b, codes + 8 * pair + quad);
                    let mut low = and(q, 15);
                    let mut high = and(_mm256_srli_epi16::<4>(q), 15);
                    if BITS == 5 {
                        let h = word(b, fifth + quad);
                        let h = _mm256_srl_epi16(h, _mm_cvtsi32_si128(g as i32));
                        low = _mm256_or_si256(low, and(_mm256_slli_epi16::<4>(h), 16));
                        high = _mm256_or_si256(high, and(_mm256_slli_epi16::<3>(h), 16));
                    }
                    // The 16-bit sums are at most 8 * 2 * 15 * 128 (4-bit values) or 4 * 2 * 31 *
                    // 128 (5-bit values).
                    x.products(&mut low_sums, low, g, quad);
                    x.products(&mut high_sums, high, g + 1, quad);
                }
                for plane in 0..3 {
                    let low = _mm256_madd_epi16(low_sums[plane], low_scale);
                    let high = _mm256_madd_epi16(high_sums[plane], high_scale);
                    sums[plane] = _mm256_add_epi32(sums[plane], _mm256_add_epi32(low, high));
                }
            }
            for i in 0..2 {
                let m = unsigned(mins[pair / 2], g % 4 + i);
                let m = _mm256_cvtepi32_ps(_mm256_srli_epi32::<16>(m));
                below = Avx2::fma(m, Avx2::splat(*x.sums32.add(g + i)), below);
            }
        }
        let (d, m) = factors(b);
        let factor = Avx2::mul(d, Avx2::splat(*x.scales));
        products = Avx2::fma(joined(sums), factor, products);
        offsets = Avx2::fma(below, m, offsets);
        x.advance();
        b = b.wrapping_add(WORD * words);
    }
    _mm256_sub_ps(products, offsets)
}

/// Computes tiles of Q6_K: one scale per 16 weights, quantized values minus 32.
///
/// # Safety
/// Same as [`by_32`].
#[inline(always)]
unsafe fn q6_k(mut x: FixedPointRowTail, mut b: *const u8, tiles: usize) -> __m256 {
    let (upper, scales, factors) = (32, 48, 52);
    let bytes = WORD * factors + 2 * STRIP;
    let (mut products, mut centers) = (Avx2::splat(0.0), Avx2::splat(0.0));
    for _ in 0..tiles {
        prefetch(b, bytes);
        let mut s = [_mm256_setzero_si256(); 16];
        let mut center = Avx2::splat(0.0);
        for i in 0..16 {
            s[i] = signed(word(b, scales + i / 4), i % 4);
            let each = _mm256_cvtepi32_ps(_mm256_srai_epi32::<16>(s[i]));
            center = Avx2::fma(each, Avx2::splat(*x.sums16.add(i)), center);
        }
        let mut sums = [_mm256_setzero_si256(); 3];
        for half in 0..2 {
            for quad in (0..8).step_by(2) {
                let at = 16 * half + quad;
                let h = word(b, upper + 8 * half + quad);
                let first = six_bits(word(b, at), word(b, at + 8), h);
                let h = word(b, upper + 8 * half + quad + 1);
                let second = six_bits(word(b, at + 1), word(b, at + 9), h);
                for i in 0..4 {
                    let g = 4 * half + i;
                    // The 16-bit sums are at most 2 * 2 * 63 * 128.
                    let mut pairs = [_mm256_setzero_si256(); 3];
                    x.products(&mut pairs, first[i], g, quad);
                    x.products(&mut pairs, second[i], g, quad + 1);
                    for plane in 0..3 {
                        let by_scale = _mm256_madd_epi16(pairs[plane], s[2 * g + quad / 4]);
                        sums[plane] = _mm256_add_epi32(sums[plane], by_scale);
                    }
                }
            }
        }
        let d = eight_halves(b.add(WORD * factors));
        let factor = Avx2::mul(d, Avx2::splat(*x.scales));
        products = Avx2::fma(joined(sums), factor, products);
        centers = Avx2::fma(center, d, centers);
        x.advance();
        b = b.wrapping_add(bytes);
    }
    _mm256_fnmadd_ps(centers, Avx2::splat(32.0), products)
}

/// Assembles 6-bit values of four groups from their low four bits and their high two bits, which
/// are stored separately.
///
/// # Safety
/// Requires AVX2.
#[inline(always)]
unsafe fn six_bits(l0: __m256i, l1: __m256i, h: __m256i) -> [__m256i; 4] {
    [
        _mm256_or_si256(and(l0, 15), and(_mm256_slli_epi16::<4>(h), 48)),
        _mm256_or_si256(and(l1, 15), and(_mm256_slli_epi16::<2>(h), 48)),
        _mm256_or_si256(and(_mm256_srli_epi16::<4>(l0), 15), and(h, 48)),
        _mm256_or_si256(
            and(_mm256_srli_epi16::<4>(l1), 15),
            and(_mm256_srli_epi16::<2>(h), 48),
        ),
    ]
}
