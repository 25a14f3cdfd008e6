//! Code vectors of NEON.
//!
//! # Safety
//! Pointers are valid for the bytes that a function reads.

use std::arch::aarch64::*;

/// 32 bytes, or eight 32-bit integers.
pub(in super::super) type CodeVector = uint8x16x2_t;

/// The integers of a code vector.
#[inline(always)]
pub(in super::super) unsafe fn integers(v: CodeVector) -> int32x4x2_t {
    int32x4x2_t(vreinterpretq_s32_u8(v.0), vreinterpretq_s32_u8(v.1))
}

/// A code vector of integers.
#[inline(always)]
pub(in super::super) unsafe fn from_integers(v: int32x4x2_t) -> CodeVector {
    uint8x16x2_t(vreinterpretq_u8_s32(v.0), vreinterpretq_u8_s32(v.1))
}

#[inline(always)]
pub(in super::super) unsafe fn zero() -> CodeVector {
    uint8x16x2_t(vdupq_n_u8(0), vdupq_n_u8(0))
}

#[inline(always)]
pub(in super::super) unsafe fn load(p: *const u8) -> CodeVector {
    uint8x16x2_t(vld1q_u8(p), vld1q_u8(p.add(16)))
}

#[inline(always)]
pub(in super::super) unsafe fn and(v: CodeVector, mask: i8) -> CodeVector {
    let mask = vdupq_n_u8(mask as u8);
    uint8x16x2_t(vandq_u8(v.0, mask), vandq_u8(v.1, mask))
}

#[inline(always)]
pub(in super::super) unsafe fn or(a: CodeVector, b: CodeVector) -> CodeVector {
    uint8x16x2_t(vorrq_u8(a.0, b.0), vorrq_u8(a.1, b.1))
}

/// Shifts bytes left.
#[inline(always)]
pub(in super::super) unsafe fn shift_left<const N: i32>(v: CodeVector) -> CodeVector {
    uint8x16x2_t(vshlq_n_u8::<N>(v.0), vshlq_n_u8::<N>(v.1))
}

/// Shifts bytes right.
#[inline(always)]
pub(in super::super) unsafe fn shift_right<const N: i32>(v: CodeVector) -> CodeVector {
    // Variable shifts with a negative constant allow 0; the compiler makes immediate shifts of them.
    let by = vdupq_n_s8(-(N as i8));
    uint8x16x2_t(vshlq_u8(v.0, by), vshlq_u8(v.1, by))
}

/// Low nibbles of 16 bytes, then their high nibbles.
#[inline(always)]
pub(in super::super) unsafe fn nibbles(p: *const u8) -> CodeVector {
    let q = vld1q_u8(p);
    uint8x16x2_t(vandq_u8(q, vdupq_n_u8(15)), vshrq_n_u8::<4>(q))
}

/// 16 in the bytes whose bit is set in the 32-bit word at `p`, 0 in the others.
#[inline(always)]
pub(in super::super) unsafe fn fifth_bits(p: *const u8) -> CodeVector {
    // Byte i of the vector gets byte i / 8 of the word; the mask tests its bit i % 8.
    let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let part = |i: usize| {
        // SAFETY: the requirements are those of this function.
        unsafe {
            let bytes = vcombine_u8(vdup_n_u8(*p.add(i)), vdup_n_u8(*p.add(i + 1)));
            vandq_u8(vtstq_u8(bytes, bit), vdupq_n_u8(16))
        }
    };
    uint8x16x2_t(part(0), part(2))
}

/// Subtracts integers times `2^N`: `a - b * 2^N`.
#[inline(always)]
pub(in super::super) unsafe fn sub_shifted<const N: i32>(
    a: CodeVector,
    b: CodeVector,
) -> CodeVector {
    let (a, b) = (integers(a), integers(b));
    let by = vdupq_n_s32(-(1 << N));
    from_integers(int32x4x2_t(
        vmlaq_s32(a.0, b.0, by),
        vmlaq_s32(a.1, b.1, by),
    ))
}

/// Converts integers to floats.
#[inline(always)]
pub(in super::super) unsafe fn to_floats(v: CodeVector) -> float32x4x2_t {
    let v = integers(v);
    float32x4x2_t(vcvtq_f32_s32(v.0), vcvtq_f32_s32(v.1))
}

/// A vector of four times `a`, then four times `b`.
#[inline(always)]
pub(in super::super) unsafe fn two_halves(a: f32, b: f32) -> float32x4x2_t {
    float32x4x2_t(vdupq_n_f32(a), vdupq_n_f32(b))
}
