//! Code vectors of AVX2.
//!
//! # Safety
//! All functions require AVX2. Pointers are valid for the bytes that a function reads.

use std::arch::x86_64::*;

/// 32 bytes, or eight 32-bit integers.
pub(in super::super) type CodeVector = __m256i;

#[inline(always)]
pub(in super::super) unsafe fn zero() -> CodeVector {
    _mm256_setzero_si256()
}

#[inline(always)]
pub(in super::super) unsafe fn load(p: *const u8) -> CodeVector {
    _mm256_loadu_si256(p.cast())
}

#[inline(always)]
pub(in super::super) unsafe fn and(v: CodeVector, mask: i8) -> CodeVector {
    _mm256_and_si256(v, _mm256_set1_epi8(mask))
}

#[inline(always)]
pub(in super::super) unsafe fn or(a: CodeVector, b: CodeVector) -> CodeVector {
    _mm256_or_si256(a, b)
}

/// Shifts bytes left; bits may move to the adjacent byte.
#[inline(always)]
pub(in super::super) unsafe fn shift_left<const N: i32>(v: CodeVector) -> CodeVector {
    _mm256_slli_epi16::<N>(v)
}

/// Shifts bytes right; bits may move to the adjacent byte.
#[inline(always)]
pub(in super::super) unsafe fn shift_right<const N: i32>(v: CodeVector) -> CodeVector {
    _mm256_srli_epi16::<N>(v)
}

/// Low nibbles of 16 bytes, then their high nibbles.
#[inline(always)]
pub(in super::super) unsafe fn nibbles(p: *const u8) -> CodeVector {
    let q = _mm_loadu_si128(p.cast());
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(q), q);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// 16 in the bytes whose bit is set in the 32-bit word at `p`, 0 in the others.
#[inline(always)]
pub(in super::super) unsafe fn fifth_bits(p: *const u8) -> CodeVector {
    // Byte i of the vector gets byte i / 8 of the word; the mask tests its bit i % 8.
    let word = _mm256_set1_epi32(i32::from_le_bytes(*p.cast()));
    let bytes = _mm256_setr_epi64x(
        0,
        0x0101_0101_0101_0101,
        0x0202_0202_0202_0202,
        0x0303_0303_0303_0303,
    );
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_and_si256(_mm256_shuffle_epi8(word, bytes), bit);
    let set = _mm256_cmpeq_epi8(set, bit);
    _mm256_and_si256(set, _mm256_set1_epi8(16))
}

/// Subtracts integers times `2^N`: `a - b * 2^N`.
#[inline(always)]
pub(in super::super) unsafe fn sub_shifted<const N: i32>(
    a: CodeVector,
    b: CodeVector,
) -> CodeVector {
    _mm256_sub_epi32(a, _mm256_slli_epi32::<N>(b))
}

/// Converts integers to floats.
#[inline(always)]
pub(in super::super) unsafe fn to_floats(v: CodeVector) -> __m256 {
    _mm256_cvtepi32_ps(v)
}

/// A vector of four times `a`, then four times `b`.
#[inline(always)]
pub(in super::super) unsafe fn two_halves(a: f32, b: f32) -> __m256 {
    _mm256_setr_ps(a, a, a, a, b, b, b, b)
}
