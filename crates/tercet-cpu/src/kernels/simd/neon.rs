//! The levels of aarch64: vectors of eight floats as pairs of NEON registers, and the instructions of
//! which stable Rust has no intrinsics, as assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Simd, SimdLevelKind};

/// Eight lanes, the number of [`super::PortableSimd`], so that both add in the same order. Every
/// aarch64 processor has NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// Loads `n < 4` floats; the other lanes are 0.
///
/// # Safety
/// `p` is valid for `n` floats.
#[inline(always)]
unsafe fn load_part(p: *const f32, n: usize) -> float32x4_t {
    let zero = vdupq_n_f32(0.0);
    match n {
        0 => zero,
        1 => vld1q_lane_f32::<0>(p, zero),
        2 => vcombine_f32(vld1_f32(p), vdup_n_f32(0.0)),
        _ => vld1q_lane_f32::<2>(p.add(2), vcombine_f32(vld1_f32(p), vdup_n_f32(0.0))),
    }
}

/// Stores the first `n < 4` lanes.
///
/// # Safety
/// `p` is valid for `n` floats.
#[inline(always)]
unsafe fn store_part(p: *mut f32, v: float32x4_t, n: usize) {
    if n == 1 {
        vst1q_lane_f32::<0>(p, v);
    } else if n >= 2 {
        vst1_f32(p, vget_low_f32(v));
        if n > 2 {
            vst1q_lane_f32::<2>(p.add(2), v);
        }
    }
}

/// The lanes of `a` that are greater than those of `b`, else those of `b`.
#[inline(always)]
unsafe fn greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

/// Computes `acc + column * x[LANE]`.
#[inline(always)]
unsafe fn fma_lane<const LANE: i32>(
    acc: float32x4x2_t,
    column: float32x4x2_t,
    x: float32x4_t,
) -> float32x4x2_t {
    float32x4x2_t(
        vfmaq_laneq_f32::<LANE>(acc.0, column.0, x),
        vfmaq_laneq_f32::<LANE>(acc.1, column.1, x),
    )
}

/// Widens eight 16-bit integers to floats.
#[inline(always)]
unsafe fn from_i16(x: int16x8_t) -> float32x4x2_t {
    let low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(x)));
    float32x4x2_t(low, vcvtq_f32_s32(vmovl_high_s16(x)))
}

/// Transposes four rows of four words.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of four rows with these strides in bytes.
#[inline(always)]
pub(crate) unsafe fn transpose4(src: *const u8, src_row: usize, dst: *mut u8, dst_row: usize) {
    let row = |i: usize| {
        // SAFETY: the requirements are those of this function.
        unsafe { vreinterpretq_u32_u8(vld1q_u8(src.add(i * src_row))) }
    };
    let (a, b, c, d) = (row(0), row(1), row(2), row(3));
    let wide = |v: uint32x4_t| vreinterpretq_u64_u32(v);
    let (ab0, ab1) = (wide(vtrn1q_u32(a, b)), wide(vtrn2q_u32(a, b)));
    let (cd0, cd1) = (wide(vtrn1q_u32(c, d)), wide(vtrn2q_u32(c, d)));
    let columns = [
        vtrn1q_u64(ab0, cd0),
        vtrn1q_u64(ab1, cd1),
        vtrn2q_u64(ab0, cd0),
        vtrn2q_u64(ab1, cd1),
    ];
    for (i, column) in columns.into_iter().enumerate() {
        vst1q_u8(dst.add(i * dst_row), vreinterpretq_u8_u64(column));
    }
}

#[rustfmt::skip]
impl Simd for Neon {
    const LANES: usize = 8;
    const FMA: bool = true;
    const LEVEL: SimdLevelKind = SimdLevelKind::Neon;
    // 20 accumulators, four registers of B, and one with four elements of each row of A.
    const TILE_ROWS: usize = 5;
    const TILE_VECTORS: usize = 2;
    const DOT_ROWS: usize = 4;
    type V = float32x4x2_t;
    type Table = (float32x4_t, float32x4_t);
    #[inline(always)] unsafe fn splat(x: f32) -> float32x4x2_t { float32x4x2_t(vdupq_n_f32(x), vdupq_n_f32(x)) }
    #[inline(always)] unsafe fn load(p: *const f32) -> float32x4x2_t { float32x4x2_t(vld1q_f32(p), vld1q_f32(p.add(4))) }
    #[inline(always)] unsafe fn load_n(p: *const f32, n: usize) -> float32x4x2_t {
        match n {
            0..4 => float32x4x2_t(load_part(p, n), vdupq_n_f32(0.0)),
            4..8 => float32x4x2_t(vld1q_f32(p), load_part(p.add(4), n - 4)),
            _ => Self::load(p),
        }
    }
    #[inline(always)] unsafe fn store(p: *mut f32, v: float32x4x2_t) { vst1q_f32(p, v.0); vst1q_f32(p.add(4), v.1); }
    #[inline(always)] unsafe fn store_n(p: *mut f32, v: float32x4x2_t, n: usize) {
        match n {
            0..4 => store_part(p, v.0, n),
            4..8 => { vst1q_f32(p, v.0); store_part(p.add(4), v.1, n - 4); }
            _ => Self::store(p, v),
        }
    }
    #[inline(always)] unsafe fn add(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t { float32x4x2_t(vaddq_f32(a.0, b.0), vaddq_f32(a.1, b.1)) }
    #[inline(always)] unsafe fn mul(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t { float32x4x2_t(vmulq_f32(a.0, b.0), vmulq_f32(a.1, b.1)) }
    #[inline(always)] unsafe fn fma(a: float32x4x2_t, b: float32x4x2_t, c: float32x4x2_t) -> float32x4x2_t {
        float32x4x2_t(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1))
    }
    // Products with a lane need no broadcast of the elements of A.
    #[inline(always)] unsafe fn add_outer<const R: usize, const NV: usize>(acc: &mut [[float32x4x2_t; NV]; R], a: *const f32, columns: &[float32x4x2_t; NV]) {
        for first in (0..R).step_by(4) {
            let x = match R - first {
                1..4 => load_part(a.add(first), R - first),
                _ => vld1q_f32(a.add(first)),
            };
            for (i, acc) in acc[first..].iter_mut().take(4).enumerate() {
                for (acc, column) in acc.iter_mut().zip(columns) {
                    *acc = match i {
                        0 => fma_lane::<0>(*acc, *column, x),
                        1 => fma_lane::<1>(*acc, *column, x),
                        2 => fma_lane::<2>(*acc, *column, x),
                        _ => fma_lane::<3>(*acc, *column, x),
                    };
                }
            }
        }
    }
    // `fmax` returns NaN if one operand is NaN, and orders zeros by sign; comparisons do as the other levels.
    #[inline(always)] unsafe fn max(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t { float32x4x2_t(greater(a.0, b.0), greater(a.1, b.1)) }
    #[inline(always)] unsafe fn greatest(v: float32x4x2_t) -> f32 { vmaxvq_f32(vmaxq_f32(v.0, v.1)) }
    #[inline(always)] unsafe fn power_of_two(v: float32x4x2_t) -> float32x4x2_t {
        let one = |v: float32x4_t| {
            let n = vshlq_n_s32::<23>(vreinterpretq_s32_f32(v));
            vreinterpretq_f32_s32(vaddq_s32(n, vdupq_n_s32(127 << 23)))
        };
        float32x4x2_t(one(v.0), one(v.1))
    }
    #[inline(always)] unsafe fn clamp(v: float32x4x2_t, lo: float32x4x2_t, hi: float32x4x2_t) -> float32x4x2_t {
        let one = |v: float32x4_t, lo: float32x4_t, hi: float32x4_t| {
            let v = vbslq_f32(vcgtq_f32(lo, v), lo, v);
            vbslq_f32(vcgtq_f32(v, hi), hi, v)
        };
        float32x4x2_t(one(v.0, lo.0, hi.0), one(v.1, lo.1, hi.1))
    }
    #[inline(always)] unsafe fn sum(v: float32x4x2_t) -> f32 {
        let h = vaddq_f32(v.0, v.1);
        vpadds_f32(vadd_f32(vget_low_f32(h), vget_high_f32(h)))
    }
    #[inline(always)] unsafe fn from_i8(p: *const i8) -> float32x4x2_t { from_i16(vmovl_s8(vld1_s8(p))) }
    #[inline(always)] unsafe fn from_f16(p: *const u16) -> float32x4x2_t {
        widen8_f16(vld1q_u16(p))
    }
    #[inline(always)] unsafe fn from_bf16(p: *const u16) -> float32x4x2_t {
        let (x, zero) = (vld1q_u16(p), vdupq_n_u16(0));
        float32x4x2_t(vreinterpretq_f32_u16(vzip1q_u16(zero, x)), vreinterpretq_f32_u16(vzip2q_u16(zero, x)))
    }
    #[inline(always)] unsafe fn table(scale: f32, offset: f32) -> (float32x4_t, float32x4_t) { (vdupq_n_f32(scale), vdupq_n_f32(offset)) }
    #[inline(always)] unsafe fn decode(p: *const u8, low: Self::Table, high: Self::Table) -> (float32x4x2_t, float32x4x2_t) {
        let bytes = vld1_u8(p);
        let one = |codes: uint8x8_t, (scale, offset): Self::Table| {
            // SAFETY: every aarch64 processor has NEON.
            let codes = unsafe { from_i16(vreinterpretq_s16_u16(vmovl_u8(codes))) };
            float32x4x2_t(vfmaq_f32(offset, codes.0, scale), vfmaq_f32(offset, codes.1, scale))
        };
        (one(vand_u8(bytes, vdup_n_u8(15)), low), one(vshr_n_u8::<4>(bytes), high))
    }
    #[inline(always)] unsafe fn halves(p: *const u8) -> (f32, f32) {
        let both = widen_f16(vreinterpret_u16_u32(vdup_n_u32(p.cast::<u32>().read_unaligned())));
        (vgetq_lane_f32::<0>(both), vgetq_lane_f32::<1>(both))
    }
    #[inline(always)] unsafe fn scale8(codes: [i8; 8], factor: f32) -> [f32; 8] {
        let mut out = [0.0; 8];
        Self::store(out.as_mut_ptr(), Self::mul(Self::from_i8(codes.as_ptr()), Self::splat(factor)));
        out
    }
    #[inline(always)] unsafe fn sum4(v: [float32x4x2_t; 4]) -> [f32; 4] {
        let h = v.map(|v| vreinterpretq_f64_f32(vaddq_f32(v.0, v.1)));
        let pair = |a: float64x2_t, b: float64x2_t| {
            vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a, b)), vreinterpretq_f32_f64(vzip2q_f64(a, b)))
        };
        let mut out = [0.0; 4];
        vst1q_f32(out.as_mut_ptr(), vpaddq_f32(pair(h[0], h[1]), pair(h[2], h[3])));
        out
    }
    // The prefetchers of these processors follow the streams of the kernels, whose loops are limited by
    // the number of instructions.
    #[inline(always)] unsafe fn prefetch(_: *const u8) {}
    #[inline(always)] unsafe fn prefetch_far(_: *const u8) {}
    #[inline(always)] unsafe fn transpose8(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
        for i in [0, 4] {
            for j in [0, 4] {
                let (from, to) = (src.add(i * src_stride + j), dst.add(j * dst_stride + i));
                transpose4(from.cast(), 4 * src_stride, to.cast(), 4 * dst_stride);
            }
        }
    }
}

/// Loads eight bytes each from two addresses.
///
/// # Safety
/// Both are valid for eight bytes.
#[inline(always)]
pub(crate) unsafe fn load_halves(low: *const i8, high: *const i8) -> int8x16_t {
    let both = vcombine_s64(vld1_s64(low.cast()), vdup_n_s64(0));
    vreinterpretq_s8_s64(vld1q_lane_s64::<1>(high.cast(), both))
}

/// Converts four F16 values to floats.
#[inline(always)]
unsafe fn widen_f16(x: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    asm!(
        "fcvtl {0:v}.4s, {1:v}.4h",
        lateout(vreg) wide, in(vreg) x,
        options(pure, nomem, nostack, preserves_flags),
    );
    wide
}

/// Converts the upper four F16 values to floats.
#[inline(always)]
unsafe fn widen_high_f16(x: uint16x8_t) -> float32x4_t {
    let wide: float32x4_t;
    asm!(
        "fcvtl2 {0:v}.4s, {1:v}.8h",
        lateout(vreg) wide, in(vreg) x,
        options(pure, nomem, nostack, preserves_flags),
    );
    wide
}

/// Converts eight F16 values to floats.
#[inline(always)]
pub(crate) unsafe fn widen8_f16(x: uint16x8_t) -> float32x4x2_t {
    float32x4x2_t(widen_f16(vget_low_u16(x)), widen_high_f16(x))
}

/// Converts four floats to F16 values, rounded to nearest even.
#[inline(always)]
pub(crate) unsafe fn narrow_f16(x: float32x4_t) -> uint16x4_t {
    let narrow: uint16x4_t;
    asm!(
        "fcvtn {0:v}.4h, {1:v}.4s",
        lateout(vreg) narrow, in(vreg) x,
        options(pure, nomem, nostack, preserves_flags),
    );
    narrow
}

/// Adds to lane `i` of `sum` the products of the four signed bytes `4 i` to `4 i + 3` of `a` and `b`.
///
/// # Safety
/// Requires `dotprod`.
#[inline(always)]
pub(crate) unsafe fn sdot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    asm!(
        ".arch_extension dotprod",
        "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
        inout(vreg) sum, in(vreg) a, in(vreg) b,
        options(pure, nomem, nostack, preserves_flags),
    );
    sum
}

/// Like [`sdot`], with the bytes `4 LANE` to `4 LANE + 3` of `b` for all lanes of `a`.
///
/// # Safety
/// Requires `dotprod`; `LANE` is below 4.
#[inline(always)]
pub(crate) unsafe fn sdot_lane<const LANE: usize>(
    sum: int32x4_t,
    a: int8x16_t,
    b: int8x16_t,
) -> int32x4_t {
    let mut sum = sum;
    asm!(
        ".arch_extension dotprod",
        "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{lane}]",
        inout(vreg) sum, in(vreg) a, in(vreg) b, lane = const LANE,
        options(pure, nomem, nostack, preserves_flags),
    );
    sum
}

/// Adds to element `(i, j)` of the 2 x 2 matrix `sum` the products of the eight signed bytes of row `i`
/// of `a` and of row `j` of `b`.
///
/// # Safety
/// Requires `i8mm`.
#[inline(always)]
pub(crate) unsafe fn smmla(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    asm!(
        ".arch_extension i8mm",
        "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
        inout(vreg) sum, in(vreg) a, in(vreg) b,
        options(pure, nomem, nostack, preserves_flags),
    );
    sum
}
