//! Like `strips.rs`, with the byte products of aarch64, and for up to [`MAX_ROWS`] activation rows that
//! share the decoding of weights.
//!
//! A word of a strip has four quantized values of each of eight rows of W, in two registers. `sdot` takes the
//! four activations from a lane of a register, so four words share one load of each limb.
//!
//! For two activation rows, the kernel uses `smmla`, which multiplies two rows of W by two rows of limbs, with
//! eight values in each row. The kernel interleaves words of adjacent values, and pairs the six limbs.
//!
//! The products of a weight group are summed in 32 bits and multiplied with the group's scale. These
//! integers are exact, as those of `strips.rs`, and the floats are added in the same order. A row
//! therefore has the same bits with all instructions, and for any number of rows.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name limbs, rows and groups in several arrays at once"
)]

use std::arch::aarch64::*;
use std::ops::Range;

use tercet_ir::Scheme;

use super::super::super::simd::neon::{load_halves, sdot_lane, smmla, widen8_f16};
use super::super::super::simd::{Neon, Simd, SimdLevel};
use super::super::QuantView;
use super::super::code_vector::{CodeVector, and, from_integers, integers, load, or, shift_right};
use super::super::repack_x8::STRIP;
use super::row::FixedPointRowTail;
use super::{CHUNK, FixedPointRow, GROUP, PLANES, SPAN, joined};

/// Rows of one call.
const MAX_ROWS: usize = 2;
/// Bytes of a word of eight rows.
const WORD: usize = 32;

/// Integers of eight rows of W.
type EightInts = int32x4x2_t;
/// Floats of eight rows of W.
type EightFloats = float32x4x2_t;
/// Exact sums of products, for each activation row and limb.
type LimbSums<const R: usize> = [[EightInts; 3]; R];
/// Exact sums of products of `smmla`: for each pair of limbs and each pair of rows of W, a 2 x 2 matrix.
type PairSums = [[int32x4_t; 4]; 3];

/// Computes `y[i * stride + j] = sum_p x[i, p] w[j, p]` for the rows `x` and the rows `rows` of W, in
/// whole strips.
///
/// # Safety
/// The level is of this machine and has `dotprod`. The rows of `x` are as long as a row of W, and W is
/// repacked as strips. `y` is valid for all rows of `x`, and no other task accesses their columns `rows`.
pub(super) unsafe fn dot_strips(
    level: SimdLevel,
    x: &[FixedPointRow<'_>],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    for (part, x) in x.chunks(MAX_ROWS).enumerate() {
        let y = y.add(part * MAX_ROWS * stride);
        let rows = rows.clone();
        match *x {
            [a] => by_sdot([a], w, rows, y, stride),
            [a, b] if level.matrices => by_smmla([a, b], w, rows, y, stride),
            [a, b] => by_sdot([a, b], w, rows, y, stride),
            _ => unreachable!("invariant: chunks have at most `MAX_ROWS` rows"),
        }
    }
}

/// # Safety
/// Same as [`dot_strips`].
#[target_feature(enable = "dotprod")]
unsafe fn by_sdot<const R: usize>(
    x: [FixedPointRow<'_>; R],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    match w.scheme {
        Scheme::Q4K => each_strip::<4, R, SdotTile>(x, w, rows, y, stride),
        Scheme::Q5K => each_strip::<5, R, SdotTile>(x, w, rows, y, stride),
        Scheme::Q6K => each_strip::<6, R, SdotTile>(x, w, rows, y, stride),
        scheme => unreachable!("{scheme:?} cannot be repacked"),
    }
}

/// # Safety
/// Same as [`dot_strips`]; the machine has `i8mm`.
#[target_feature(enable = "dotprod,i8mm")]
unsafe fn by_smmla(
    x: [FixedPointRow<'_>; 2],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    match w.scheme {
        Scheme::Q4K => each_strip::<4, 2, SmmlaTile>(x, w, rows, y, stride),
        Scheme::Q5K => each_strip::<5, 2, SmmlaTile>(x, w, rows, y, stride),
        Scheme::Q6K => each_strip::<6, 2, SmmlaTile>(x, w, rows, y, stride),
        scheme => unreachable!("{scheme:?} cannot be repacked"),
    }
}

/// # Safety
/// Same as [`dot_strips`], with the instructions of `T`; values have `BITS` bits.
#[inline(always)]
unsafe fn each_strip<const BITS: usize, const R: usize, T: StripTile<R>>(
    x: [FixedPointRow<'_>; R],
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
    stride: usize,
) {
    let (row_bytes, tile_bytes) = (w.row_bytes(), STRIP * w.scheme.block_bytes());
    for j in rows.step_by(STRIP) {
        let strip = &w.bytes[j * row_bytes..][..STRIP * row_bytes];
        let mut all = [Neon::splat(0.0); R];
        for k0 in (0..w.k).step_by(CHUNK) {
            let from = x.map(|row| FixedPointRowTail::new(&row, k0));
            let count = (w.k - k0).min(CHUNK) / SPAN;
            let at = strip.as_ptr().add(k0 / SPAN * tile_bytes);
            let sums = match BITS {
                6 => q6_k::<R, T>(from, at, count, tile_bytes),
                _ => by_32::<BITS, R, T>(from, at, count, tile_bytes),
            };
            for (all, sums) in all.iter_mut().zip(sums) {
                *all = Neon::add(*all, sums);
            }
        }
        for (i, all) in all.into_iter().enumerate() {
            Neon::store(y.add(i * stride + j), all);
        }
    }
}

/// Exact sums of a tile of 8 x 256 weights with `R` activation rows.
trait StripTile<const R: usize> {
    /// Sums of products times integer scales. Formats of 4 and 5 bits have a scale per 32 weights, the one of
    /// 6 bits per 16 weights.
    ///
    /// # Safety
    /// Requires the instructions of the implementation; `b` is valid for a tile, and `x` for its elements.
    unsafe fn sums<const BITS: usize>(
        x: &[FixedPointRowTail; R],
        b: *const u8,
        scales: &[EightInts; 16],
    ) -> LimbSums<R>;
}

/// Computes tiles of Q4_K and Q5_K, which have one scale and offset per 32 weights.
///
/// # Safety
/// Requires the instructions of `T`; `count` tiles and their elements exist.
#[inline(always)]
unsafe fn by_32<const BITS: usize, const R: usize, T: StripTile<R>>(
    mut x: [FixedPointRowTail; R],
    mut b: *const u8,
    count: usize,
    tile_bytes: usize,
) -> [EightFloats; R] {
    let (mut products, mut offsets) = ([Neon::splat(0.0); R], [Neon::splat(0.0); R]);
    for _ in 0..count {
        let (s, m, rest) = (word(b, 1), word(b, 2), word(b, 3));
        let packed = [
            and(s, 63),
            or(and(rest, 15), and(shift_right::<2>(s), 48)),
            and(m, 63),
            or(shift_right::<4>(rest), and(shift_right::<2>(m), 48)),
        ];
        let mut scales = [ints(); 16];
        let mut below = [Neon::splat(0.0); R];
        for g in 0..8 {
            scales[g] = unsigned_byte(packed[g / 4], g % 4);
            let m = unsigned_byte(packed[2 + g / 4], g % 4);
            let m = float32x4x2_t(vcvtq_f32_s32(m.0), vcvtq_f32_s32(m.1));
            for (below, x) in below.iter_mut().zip(&x) {
                *below = Neon::fma(m, Neon::splat(*x.sums32.add(g)), *below);
            }
        }
        let sums = T::sums::<BITS>(&x, b, &scales);
        // Each word has the factors of the scales and of the offsets of one row, as F16 numbers.
        let both = word(b, 0);
        let (low, high) = (vreinterpretq_u16_u8(both.0), vreinterpretq_u16_u8(both.1));
        let d = widen8_f16(vuzp1q_u16(low, high));
        let m = widen8_f16(vuzp2q_u16(low, high));
        for i in 0..R {
            let factor = Neon::mul(d, Neon::splat(*x[i].scales));
            products[i] = Neon::fma(joined(codes(sums[i])), factor, products[i]);
            offsets[i] = Neon::fma(below[i], m, offsets[i]);
            x[i].advance();
        }
        b = b.wrapping_add(tile_bytes);
    }
    std::array::from_fn(|i| {
        let (a, b) = (products[i], offsets[i]);
        float32x4x2_t(vsubq_f32(a.0, b.0), vsubq_f32(a.1, b.1))
    })
}

/// Computes tiles of Q6_K: one scale per 16 weights, quantized values minus 32.
///
/// # Safety
/// Same as [`by_32`].
#[inline(always)]
unsafe fn q6_k<const R: usize, T: StripTile<R>>(
    mut x: [FixedPointRowTail; R],
    mut b: *const u8,
    count: usize,
    tile_bytes: usize,
) -> [EightFloats; R] {
    /// First word of the scales, and word of the factors.
    const SCALES: usize = 48;
    const FACTORS: usize = 52;
    let (mut products, mut centers) = ([Neon::splat(0.0); R], [Neon::splat(0.0); R]);
    for _ in 0..count {
        let mut scales = [ints(); 16];
        let mut center = [Neon::splat(0.0); R];
        for (i, s) in scales.iter_mut().enumerate() {
            *s = signed_byte(word(b, SCALES + i / 4), i % 4);
            let each = float32x4x2_t(vcvtq_f32_s32(s.0), vcvtq_f32_s32(s.1));
            for (center, x) in center.iter_mut().zip(&x) {
                *center = Neon::fma(each, Neon::splat(*x.sums16.add(i)), *center);
            }
        }
        let sums = T::sums::<6>(&x, b, &scales);
        let d = widen8_f16(vld1q_u16(b.add(WORD * FACTORS).cast()));
        for i in 0..R {
            let factor = Neon::mul(d, Neon::splat(*x[i].scales));
            products[i] = Neon::fma(joined(codes(sums[i])), factor, products[i]);
            centers[i] = Neon::fma(center[i], d, centers[i]);
            x[i].advance();
        }
        b = b.wrapping_add(tile_bytes);
    }
    std::array::from_fn(|i| {
        let (a, b, by) = (products[i], centers[i], vdupq_n_f32(32.0));
        float32x4x2_t(vfmsq_f32(a.0, b.0, by), vfmsq_f32(a.1, b.1, by))
    })
}

/// # Safety
/// `p` is valid for a tile with word `i`.
#[inline(always)]
unsafe fn word(p: *const u8, i: usize) -> CodeVector {
    load(p.add(WORD * i))
}

#[inline(always)]
unsafe fn ints() -> EightInts {
    int32x4x2_t(vdupq_n_s32(0), vdupq_n_s32(0))
}

/// The sums of the limbs as code vectors.
#[inline(always)]
unsafe fn codes(sums: [EightInts; 3]) -> [CodeVector; 3] {
    let [low, middle, high] = sums;
    [
        from_integers(low),
        from_integers(middle),
        from_integers(high),
    ]
}

/// Byte `i` of each 32-bit lane, without sign.
#[inline(always)]
unsafe fn unsigned_byte(v: CodeVector, i: usize) -> EightInts {
    let one = |v: uint8x16_t| {
        let by = vdupq_n_s32(-8 * i as i32);
        let byte = vandq_u32(vshlq_u32(vreinterpretq_u32_u8(v), by), vdupq_n_u32(255));
        vreinterpretq_s32_u32(byte)
    };
    int32x4x2_t(one(v.0), one(v.1))
}

/// Byte `i` of each 32-bit lane, with sign.
#[inline(always)]
unsafe fn signed_byte(v: CodeVector, i: usize) -> EightInts {
    let v = integers(v);
    let one = |v: int32x4_t| vshrq_n_s32::<24>(vshlq_s32(v, vdupq_n_s32(24 - 8 * i as i32)));
    int32x4x2_t(one(v.0), one(v.1))
}

/// Position of a group of 32 weights in a tile.
#[derive(Clone, Copy)]
struct GroupWords {
    /// First word of its low four bits; eight words follow each other.
    codes: usize,
    /// First word of the upper bits.
    upper: usize,
    /// Left shift of the upper bits, negative for a right shift.
    shift: i8,
    group: usize,
}

impl GroupWords {
    /// The group in the low or the high nibbles of eight words, the `pair`th of a tile. Layouts:
    /// `tercet_ir::quant`.
    #[inline(always)]
    fn new<const BITS: usize, const HIGH: bool>(pair: usize) -> GroupWords {
        let high = usize::from(HIGH);
        match BITS {
            4 => GroupWords {
                codes: 4 + 8 * pair,
                upper: 0,
                shift: 0,
                group: 2 * pair + high,
            },
            5 => GroupWords {
                codes: 12 + 8 * pair,
                upper: 4,
                shift: 4 - (2 * pair + high) as i8,
                group: 2 * pair + high,
            },
            _ => {
                let (half, i) = (pair / 2, pair % 2 + 2 * high);
                GroupWords {
                    codes: 8 * pair,
                    upper: 32 + 8 * half,
                    shift: 4 - 2 * i as i8,
                    group: 4 * half + i,
                }
            }
        }
    }

    /// The values of word `quad` of the group.
    ///
    /// # Safety
    /// `b` is valid for a tile.
    #[inline(always)]
    unsafe fn values<const BITS: usize, const HIGH: bool>(
        self,
        b: *const u8,
        quad: usize,
    ) -> CodeVector {
        let q = word(b, self.codes + quad);
        let low = if HIGH {
            shift_right::<4>(q)
        } else {
            and(q, 15)
        };
        if BITS == 4 {
            return low;
        }
        let by = vdupq_n_s8(self.shift);
        let h = word(b, self.upper + quad);
        let h = uint8x16x2_t(vshlq_u8(h.0, by), vshlq_u8(h.1, by));
        or(low, and(h, if BITS == 5 { 16 } else { 48 }))
    }
}

/// Sums by `sdot`.
struct SdotTile;

impl<const R: usize> StripTile<R> for SdotTile {
    #[inline(always)]
    unsafe fn sums<const BITS: usize>(
        x: &[FixedPointRowTail; R],
        b: *const u8,
        scales: &[EightInts; 16],
    ) -> LimbSums<R> {
        let mut sums = [[ints(); 3]; R];
        for pair in 0..4 {
            add_group::<BITS, false, R>(&mut sums, x, b, pair, scales);
            add_group::<BITS, true, R>(&mut sums, x, b, pair, scales);
        }
        sums
    }
}

/// Adds the products of a group, times its scales.
///
/// # Safety
/// Same as [`StripTile::sums`].
#[inline(always)]
unsafe fn add_group<const BITS: usize, const HIGH: bool, const R: usize>(
    sums: &mut LimbSums<R>,
    x: &[FixedPointRowTail; R],
    b: *const u8,
    pair: usize,
    scales: &[EightInts; 16],
) {
    let at = GroupWords::new::<BITS, HIGH>(pair);
    let mut group = [[ints(); 3]; R];
    for part in 0..2 {
        let mut limbs = [[vdupq_n_s8(0); 3]; R];
        for (limbs, x) in limbs.iter_mut().zip(x) {
            for (plane, limb) in limbs.iter_mut().enumerate() {
                *limb = vld1q_s8(x.planes.add(PLANES * at.group + GROUP * plane + 16 * part));
            }
        }
        let quad = 4 * part;
        add_lane::<0, R>(&mut group, at.values::<BITS, HIGH>(b, quad), &limbs);
        add_lane::<1, R>(&mut group, at.values::<BITS, HIGH>(b, quad + 1), &limbs);
        add_lane::<2, R>(&mut group, at.values::<BITS, HIGH>(b, quad + 2), &limbs);
        add_lane::<3, R>(&mut group, at.values::<BITS, HIGH>(b, quad + 3), &limbs);
        if BITS == 6 {
            add_scaled(sums, &group, scales[2 * at.group + part]);
            group = [[ints(); 3]; R];
        }
    }
    if BITS != 6 {
        add_scaled(sums, &group, scales[at.group]);
    }
}

/// Adds the products of a word with lane `LANE` of the limbs.
///
/// # Safety
/// Requires `dotprod`.
#[inline(always)]
unsafe fn add_lane<const LANE: usize, const R: usize>(
    sums: &mut LimbSums<R>,
    codes: CodeVector,
    limbs: &[[int8x16_t; 3]; R],
) {
    let (low, high) = (vreinterpretq_s8_u8(codes.0), vreinterpretq_s8_u8(codes.1));
    for r in 0..R {
        for plane in 0..3 {
            let (sum, limb) = (&mut sums[r][plane], limbs[r][plane]);
            sum.0 = sdot_lane::<LANE>(sum.0, low, limb);
            sum.1 = sdot_lane::<LANE>(sum.1, high, limb);
        }
    }
}

/// Adds `group * scale` to the sums of a tile.
#[inline(always)]
unsafe fn add_scaled<const R: usize>(
    sums: &mut LimbSums<R>,
    group: &LimbSums<R>,
    scale: EightInts,
) {
    for r in 0..R {
        for plane in 0..3 {
            let (sum, group) = (&mut sums[r][plane], group[r][plane]);
            sum.0 = vmlaq_s32(sum.0, group.0, scale.0);
            sum.1 = vmlaq_s32(sum.1, group.1, scale.1);
        }
    }
}

/// Sums by `smmla`.
struct SmmlaTile;

impl StripTile<2> for SmmlaTile {
    #[inline(always)]
    unsafe fn sums<const BITS: usize>(
        x: &[FixedPointRowTail; 2],
        b: *const u8,
        scales: &[EightInts; 16],
    ) -> LimbSums<2> {
        let mut sums = [[vdupq_n_s32(0); 4]; 3];
        for pair in 0..4 {
            add_pairs::<BITS, false>(&mut sums, x, b, pair, scales);
            add_pairs::<BITS, true>(&mut sums, x, b, pair, scales);
        }
        // The columns of the matrices are the limbs.
        let first = |p: [int32x4_t; 4]| int32x4x2_t(vuzp1q_s32(p[0], p[1]), vuzp1q_s32(p[2], p[3]));
        let second =
            |p: [int32x4_t; 4]| int32x4x2_t(vuzp2q_s32(p[0], p[1]), vuzp2q_s32(p[2], p[3]));
        let [a, tops, b] = sums;
        [
            [first(a), second(a), first(tops)],
            [first(b), second(b), second(tops)],
        ]
    }
}

/// Adds the products of a group, times its scales.
///
/// # Safety
/// Same as [`StripTile::sums`].
#[inline(always)]
unsafe fn add_pairs<const BITS: usize, const HIGH: bool>(
    sums: &mut PairSums,
    x: &[FixedPointRowTail; 2],
    b: *const u8,
    pair: usize,
    scales: &[EightInts; 16],
) {
    let at = GroupWords::new::<BITS, HIGH>(pair);
    let mut group = [[vdupq_n_s32(0); 4]; 3];
    for part in 0..2 {
        for quad in [4 * part, 4 * part + 2] {
            let first = integers(at.values::<BITS, HIGH>(b, quad));
            let second = integers(at.values::<BITS, HIGH>(b, quad + 1));
            // Eight adjacent values of two rows of W each.
            let rows = [
                vreinterpretq_s8_s32(vzip1q_s32(first.0, second.0)),
                vreinterpretq_s8_s32(vzip2q_s32(first.0, second.0)),
                vreinterpretq_s8_s32(vzip1q_s32(first.1, second.1)),
                vreinterpretq_s8_s32(vzip2q_s32(first.1, second.1)),
            ];
            let from = PLANES * at.group + 4 * quad;
            let (first, second) = (x[0].planes.add(from), x[1].planes.add(from));
            let limbs = [
                load_halves(first, first.add(GROUP)),
                load_halves(first.add(2 * GROUP), second.add(2 * GROUP)),
                load_halves(second, second.add(GROUP)),
            ];
            for j in 0..3 {
                for i in 0..4 {
                    group[j][i] = smmla(group[j][i], rows[i], limbs[j]);
                }
            }
        }
        if BITS == 6 {
            add_scaled_pairs(sums, &group, scales[2 * at.group + part]);
            group = [[vdupq_n_s32(0); 4]; 3];
        }
    }
    if BITS != 6 {
        add_scaled_pairs(sums, &group, scales[at.group]);
    }
}

/// Adds `group * scale` to the sums of a tile.
#[inline(always)]
unsafe fn add_scaled_pairs(sums: &mut PairSums, group: &PairSums, scale: EightInts) {
    let scales = [
        vzip1q_s32(scale.0, scale.0),
        vzip2q_s32(scale.0, scale.0),
        vzip1q_s32(scale.1, scale.1),
        vzip2q_s32(scale.1, scale.1),
    ];
    for j in 0..3 {
        for i in 0..4 {
            sums[j][i] = vmlaq_s32(sums[j][i], group[j][i], scales[i]);
        }
    }
}
