//! Decodes quantized weights into vectors of bytes with their scales and offsets, for the integer
//! kernels (AVX2).

use std::arch::x86_64::*;

use tercet_ir::Scheme;

use super::super::simd::{Avx2, Simd};
use super::AHEAD;
use super::decode::{four_halves, q3_k_scales, scale16, scales_apart};

/// Receives the groups of 32 weights of a block; group `g` starts at weight `32 g`.
///
/// # Safety
/// All methods require AVX2 and FMA; the sink has room for the block's weights.
pub(super) trait WeightGroupSink {
    /// Receives the 32 weights of group `g`: `d (code - 2^CENTER)`, or `d code` if `CENTER` is 0.
    unsafe fn group<const CENTER: i32>(&mut self, g: usize, codes: __m256i, d: f32);

    /// Receives the offset that is added to all weights of group `g`.
    unsafe fn offset(&mut self, g: usize, m: f32);

    /// Receives 256 weights `d s code + offset`, with one scale `s` and one offset per 32 weights.
    /// `s` has one byte (below 64) per group, lowest byte first.
    unsafe fn by_32(&mut self, codes: [__m256i; 8], s: u64, d: f32, offsets: &[f32; 8]);

    /// Receives 256 weights `d s (code - 2^CENTER)`, or `d s code` if `CENTER` is 0, with one scale
    /// `s` per 16 weights.
    unsafe fn by_16<const CENTER: i32>(&mut self, codes: [__m256i; 8], s: &[i8; 16], d: f32);

    /// Receives the offsets of 256 weights: one offset is added to each 16 weights.
    unsafe fn offsets_16(&mut self, offsets: &[f32; 16]);

    /// Advances by a block of `len` weights.
    unsafe fn advance(&mut self, len: usize);
}

/// True if the quantized values of the scheme are unsigned and have at most six bits.
pub(super) fn has_small_codes(scheme: Scheme) -> bool {
    match scheme {
        Scheme::Q4_0
        | Scheme::Q4_1
        | Scheme::Q5_0
        | Scheme::Q5_1
        | Scheme::Q2K
        | Scheme::Q3K
        | Scheme::Q4K
        | Scheme::Q5K
        | Scheme::Q6K
        | Scheme::Int4
        | Scheme::Int4Asym => true,
        Scheme::F16
        | Scheme::BF16
        | Scheme::Q8_0
        | Scheme::Int8
        | Scheme::Int8Asym
        | Scheme::Iq2Xxs
        | Scheme::Iq2Xs
        | Scheme::Iq2S
        | Scheme::Iq3Xxs
        | Scheme::Iq3S
        | Scheme::Iq1S
        | Scheme::Iq1M
        | Scheme::Iq4Nl
        | Scheme::Iq4Xs
        | Scheme::Tq1_0
        | Scheme::Tq2_0
        | Scheme::Mxfp4
        | Scheme::Nvfp4
        | Scheme::Fp8E4m3
        | Scheme::Fp8E5m2 => false,
    }
}

/// Calls a method for each block of `$len` weights in `$size` bytes. This is a macro because the
/// method must be inlined into the function that has the target features.
macro_rules! each_block {
    ($groups:ident, $bytes:ident, $len:literal, $size:literal, $block:ident) => {
        for i in 0..$bytes.len() / $size {
            let b = $bytes.as_ptr().add(i * $size);
            for line in 0..($size as usize).div_ceil(64) {
                Avx2::prefetch(b.wrapping_add(AHEAD + 64 * line));
            }
            $groups.$block(b);
            $groups.advance($len);
        }
    };
}
pub(super) use each_block;

/// Passes the whole blocks of `bytes` to `groups`.
///
/// # Safety
/// Same as [`WeightGroupSink`]; the scheme has small codes.
#[inline(always)]
pub(super) unsafe fn visit(groups: &mut impl QuantFormatDecoder, scheme: Scheme, bytes: &[u8]) {
    match scheme {
        Scheme::Q4_0 => each_block!(groups, bytes, 32, 18, q4_0),
        Scheme::Q4_1 => each_block!(groups, bytes, 32, 20, q4_1),
        Scheme::Q5_0 => each_block!(groups, bytes, 32, 22, q5_0),
        Scheme::Q5_1 => each_block!(groups, bytes, 32, 24, q5_1),
        Scheme::Int4 => each_block!(groups, bytes, 128, 72, int4),
        Scheme::Int4Asym => each_block!(groups, bytes, 128, 76, int4_asym),
        Scheme::Q2K => each_block!(groups, bytes, 256, 84, q2_k),
        Scheme::Q3K => each_block!(groups, bytes, 256, 110, q3_k),
        Scheme::Q4K => each_block!(groups, bytes, 256, 144, q4_k),
        Scheme::Q5K => each_block!(groups, bytes, 256, 176, q5_k),
        Scheme::Q6K => each_block!(groups, bytes, 256, 210, q6_k),
        Scheme::F16
        | Scheme::BF16
        | Scheme::Q8_0
        | Scheme::Int8
        | Scheme::Int8Asym
        | Scheme::Iq2Xxs
        | Scheme::Iq2Xs
        | Scheme::Iq2S
        | Scheme::Iq3Xxs
        | Scheme::Iq3S
        | Scheme::Iq1S
        | Scheme::Iq1M
        | Scheme::Iq4Nl
        | Scheme::Iq4Xs
        | Scheme::Tq1_0
        | Scheme::Tq2_0
        | Scheme::Mxfp4
        | Scheme::Nvfp4
        | Scheme::Fp8E4m3
        | Scheme::Fp8E5m2 => unreachable!("these schemes do not have small unsigned codes"),
    }
}

/// Decoders of the formats, one block per call; layouts: `tercet_ir::quant`.
///
/// # Safety
/// Same as [`WeightGroupSink`], `b` is valid for the block.
pub(super) trait QuantFormatDecoder: WeightGroupSink {
    #[inline(always)]
    unsafe fn q4_0(&mut self, b: *const u8) {
        let d = Avx2::halves(b).0;
        self.group::<3>(0, nibbles(b.add(2)), d);
    }

    #[inline(always)]
    unsafe fn q4_1(&mut self, b: *const u8) {
        let (d, m) = Avx2::halves(b);
        self.group::<0>(0, nibbles(b.add(4)), d);
        self.offset(0, m);
    }

    #[inline(always)]
    unsafe fn q5_0(&mut self, b: *const u8) {
        let d = Avx2::halves(b).0;
        self.group::<4>(0, five_bits(b.add(2), b.add(6)), d);
    }

    #[inline(always)]
    unsafe fn q5_1(&mut self, b: *const u8) {
        let (d, m) = Avx2::halves(b);
        self.group::<0>(0, five_bits(b.add(4), b.add(8)), d);
        self.offset(0, m);
    }

    #[inline(always)]
    unsafe fn int4(&mut self, b: *const u8) {
        for (g, d) in four_halves::<Avx2>(b).into_iter().enumerate() {
            self.group::<3>(g, nibbles(b.add(8 + 16 * g)), d);
        }
    }

    #[inline(always)]
    unsafe fn int4_asym(&mut self, b: *const u8) {
        let zeros = &*b.add(8).cast::<[u8; 4]>();
        for (g, d) in four_halves::<Avx2>(b).into_iter().enumerate() {
            self.group::<0>(g, nibbles(b.add(12 + 16 * g)), d);
            self.offset(g, -f32::from(zeros[g] & 15) * d);
        }
    }

    #[inline(always)]
    unsafe fn q4_k(&mut self, b: *const u8) {
        let (d, s, offsets) = scales_apart::<Avx2>(b);
        let mut codes = [_mm256_setzero_si256(); 8];
        for pair in 0..4 {
            let q = load(b.add(16 + 32 * pair));
            codes[2 * pair] = low_bits::<0, 15>(q);
            codes[2 * pair + 1] = low_bits::<4, 15>(q);
        }
        self.by_32(codes, s, d, &offsets);
    }

    #[inline(always)]
    unsafe fn q5_k(&mut self, b: *const u8) {
        let (d, s, offsets) = scales_apart::<Avx2>(b);
        let mut fifth = load(b.add(16));
        let mut codes = [_mm256_setzero_si256(); 8];
        for pair in 0..4 {
            let q = load(b.add(48 + 32 * pair));
            let bits = _mm256_slli_epi16::<4>(fifth);
            codes[2 * pair] = _mm256_or_si256(low_bits::<0, 15>(q), low_bits::<0, 16>(bits));
            let bits = _mm256_slli_epi16::<3>(fifth);
            codes[2 * pair + 1] = _mm256_or_si256(low_bits::<4, 15>(q), low_bits::<0, 16>(bits));
            fifth = _mm256_srli_epi16::<2>(fifth);
        }
        self.by_32(codes, s, d, &offsets);
    }

    #[inline(always)]
    unsafe fn q2_k(&mut self, b: *const u8) {
        let (d, m) = Avx2::halves(b.add(80));
        let packed = &*b.cast::<[u8; 16]>();
        let scales = packed.map(|p| (p & 15) as i8);
        let offsets = scale16::<Avx2>(&packed.map(|p| (p >> 4) as i8), -m);
        self.by_16::<0>(two_bits(b.add(16)), &scales, d);
        self.offsets_16(&offsets);
    }

    #[inline(always)]
    unsafe fn q3_k(&mut self, b: *const u8) {
        let (_, d) = Avx2::halves(b.add(106));
        let mut codes = two_bits(b.add(32));
        let mut third = load(b);
        for code in &mut codes {
            let bit = _mm256_slli_epi16::<2>(third);
            *code = _mm256_or_si256(*code, low_bits::<0, 4>(bit));
            third = _mm256_srli_epi16::<1>(third);
        }
        self.by_16::<2>(codes, &q3_k_scales(b.add(96)), d);
    }

    #[inline(always)]
    unsafe fn q6_k(&mut self, b: *const u8) {
        let (_, d) = Avx2::halves(b.add(206));
        let scales = &*b.add(192).cast::<[i8; 16]>();
        let mut codes = [_mm256_setzero_si256(); 8];
        for half in 0..2 {
            let (l0, l1) = (load(b.add(64 * half)), load(b.add(64 * half + 32)));
            let h = load(b.add(128 + 32 * half));
            let upper = [
                low_bits::<0, 48>(_mm256_slli_epi16::<4>(h)),
                low_bits::<0, 48>(_mm256_slli_epi16::<2>(h)),
                low_bits::<0, 48>(h),
                low_bits::<2, 48>(h),
            ];
            codes[4 * half] = _mm256_or_si256(low_bits::<0, 15>(l0), upper[0]);
            codes[4 * half + 1] = _mm256_or_si256(low_bits::<0, 15>(l1), upper[1]);
            codes[4 * half + 2] = _mm256_or_si256(low_bits::<4, 15>(l0), upper[2]);
            codes[4 * half + 3] = _mm256_or_si256(low_bits::<4, 15>(l1), upper[3]);
        }
        self.by_16::<5>(codes, scales, d);
    }
}

impl<G: WeightGroupSink> QuantFormatDecoder for G {}

/// # Safety
/// Requires AVX2; `p` is valid for 32 bytes.
#[inline(always)]
unsafe fn load(p: *const u8) -> __m256i {
    _mm256_loadu_si256(p.cast())
}

/// Shifts bytes right by `SHIFT` and masks them with `MASK`, which must clear the bits shifted in
/// from the adjacent byte.
///
/// # Safety
/// Requires AVX2.
#[inline(always)]
unsafe fn low_bits<const SHIFT: i32, const MASK: i8>(v: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(v), _mm256_set1_epi8(MASK))
}

/// Low nibbles of 16 bytes, then their high nibbles.
///
/// # Safety
/// Requires AVX2; `p` is valid for 16 bytes.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    let q = _mm_loadu_si128(p.cast());
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(q), q);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Decodes 32 5-bit values: the low four bits are nibbles at `low`, the fifth bits are in the
/// 32-bit word at `fifth`.
///
/// # Safety
/// Requires AVX2; `low` is valid for 16 bytes, `fifth` for 4.
#[inline(always)]
unsafe fn five_bits(fifth: *const u8, low: *const u8) -> __m256i {
    // Byte i of the vector gets byte i / 8 of the word; the mask tests its bit i % 8.
    let word = _mm256_set1_epi32(i32::from_le_bytes(*fifth.cast()));
    let bytes = _mm256_setr_epi64x(
        0,
        0x0101_0101_0101_0101,
        0x0202_0202_0202_0202,
        0x0303_0303_0303_0303,
    );
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_and_si256(_mm256_shuffle_epi8(word, bytes), bit);
    let set = _mm256_cmpeq_epi8(set, bit);
    _mm256_or_si256(nibbles(low), _mm256_and_si256(set, _mm256_set1_epi8(16)))
}

/// Decodes eight groups of 32 2-bit values from 64 bytes. Each 32 bytes contain four groups, the
/// first in the lowest two bits of each byte.
///
/// # Safety
/// Requires AVX2; `p` is valid for 64 bytes.
#[inline(always)]
unsafe fn two_bits(p: *const u8) -> [__m256i; 8] {
    let (a, b) = (load(p), load(p.add(32)));
    [
        low_bits::<0, 3>(a),
        low_bits::<2, 3>(a),
        low_bits::<4, 3>(a),
        low_bits::<6, 3>(a),
        low_bits::<0, 3>(b),
        low_bits::<2, 3>(b),
        low_bits::<4, 3>(b),
        low_bits::<6, 3>(b),
    ]
}
