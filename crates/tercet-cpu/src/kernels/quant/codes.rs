//! Decodes quantized weights into vectors of bytes with their scales and offsets, for the integer
//! kernels.

use tercet_ir::Scheme;

use super::super::simd::Simd;
use super::AHEAD;
use super::code_vector::{
    CodeVector, Lanes, and, fifth_bits, load, nibbles, or, shift_left, shift_right, zero,
};
use super::decode::{four_halves, q3_k_scales, scale16, scales_apart};

/// Receives the groups of 32 weights of a block; group `g` starts at weight `32 g`.
///
/// # Safety
/// All methods require the instructions of [`Lanes`]; the sink has room for the block's weights.
pub(super) trait WeightGroupSink {
    /// Receives the 32 weights of group `g`: `d (code - 2^CENTER)`, or `d code` if `CENTER` is 0.
    unsafe fn group<const CENTER: i32>(&mut self, g: usize, codes: CodeVector, d: f32);

    /// Receives the offset that is added to all weights of group `g`.
    unsafe fn offset(&mut self, g: usize, m: f32);

    /// Receives 256 weights `d s code + offset`, with one scale `s` and one offset per 32 weights.
    /// `s` has one byte (below 64) per group, lowest byte first.
    unsafe fn by_32(&mut self, codes: [CodeVector; 8], s: u64, d: f32, offsets: &[f32; 8]);

    /// Receives 256 weights `d s (code - 2^CENTER)`, or `d s code` if `CENTER` is 0, with one scale
    /// `s` per 16 weights.
    unsafe fn by_16<const CENTER: i32>(&mut self, codes: [CodeVector; 8], s: &[i8; 16], d: f32);

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
                $crate::kernels::quant::code_vector::Lanes::prefetch(
                    b.wrapping_add(AHEAD + 64 * line),
                );
            }
            $groups.$block(b);
            $groups.advance($len);
        }
    };
}
#[cfg(target_arch = "x86_64")]
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
        let d = Lanes::halves(b).0;
        self.group::<3>(0, nibbles(b.add(2)), d);
    }

    #[inline(always)]
    unsafe fn q4_1(&mut self, b: *const u8) {
        let (d, m) = Lanes::halves(b);
        self.group::<0>(0, nibbles(b.add(4)), d);
        self.offset(0, m);
    }

    #[inline(always)]
    unsafe fn q5_0(&mut self, b: *const u8) {
        let d = Lanes::halves(b).0;
        self.group::<4>(0, five_bits(b.add(2), b.add(6)), d);
    }

    #[inline(always)]
    unsafe fn q5_1(&mut self, b: *const u8) {
        let (d, m) = Lanes::halves(b);
        self.group::<0>(0, five_bits(b.add(4), b.add(8)), d);
        self.offset(0, m);
    }

    #[inline(always)]
    unsafe fn int4(&mut self, b: *const u8) {
        for (g, d) in four_halves::<Lanes>(b).into_iter().enumerate() {
            self.group::<3>(g, nibbles(b.add(8 + 16 * g)), d);
        }
    }

    #[inline(always)]
    unsafe fn int4_asym(&mut self, b: *const u8) {
        let zeros = &*b.add(8).cast::<[u8; 4]>();
        for (g, d) in four_halves::<Lanes>(b).into_iter().enumerate() {
            self.group::<0>(g, nibbles(b.add(12 + 16 * g)), d);
            self.offset(g, -f32::from(zeros[g] & 15) * d);
        }
    }

    #[inline(always)]
    unsafe fn q4_k(&mut self, b: *const u8) {
        let (d, s, offsets) = scales_apart::<Lanes>(b);
        let mut codes = [zero(); 8];
        for pair in 0..4 {
            let q = load(b.add(16 + 32 * pair));
            codes[2 * pair] = and(q, 15);
            codes[2 * pair + 1] = low_bits::<4, 15>(q);
        }
        self.by_32(codes, s, d, &offsets);
    }

    #[inline(always)]
    unsafe fn q5_k(&mut self, b: *const u8) {
        let (d, s, offsets) = scales_apart::<Lanes>(b);
        let mut fifth = load(b.add(16));
        let mut codes = [zero(); 8];
        for pair in 0..4 {
            let q = load(b.add(48 + 32 * pair));
            let bits = shift_left::<4>(fifth);
            codes[2 * pair] = or(and(q, 15), and(bits, 16));
            let bits = shift_left::<3>(fifth);
            codes[2 * pair + 1] = or(low_bits::<4, 15>(q), and(bits, 16));
            fifth = shift_right::<2>(fifth);
        }
        self.by_32(codes, s, d, &offsets);
    }

    #[inline(always)]
    unsafe fn q2_k(&mut self, b: *const u8) {
        let (d, m) = Lanes::halves(b.add(80));
        let packed = &*b.cast::<[u8; 16]>();
        let scales = packed.map(|p| (p & 15) as i8);
        let offsets = scale16::<Lanes>(&packed.map(|p| (p >> 4) as i8), -m);
        self.by_16::<0>(two_bits(b.add(16)), &scales, d);
        self.offsets_16(&offsets);
    }

    #[inline(always)]
    unsafe fn q3_k(&mut self, b: *const u8) {
        let (_, d) = Lanes::halves(b.add(106));
        let mut codes = two_bits(b.add(32));
        let mut third = load(b);
        for code in &mut codes {
            let bit = shift_left::<2>(third);
            *code = or(*code, and(bit, 4));
            third = shift_right::<1>(third);
        }
        self.by_16::<2>(codes, &q3_k_scales(b.add(96)), d);
    }

    #[inline(always)]
    unsafe fn q6_k(&mut self, b: *const u8) {
        let (_, d) = Lanes::halves(b.add(206));
        let scales = &*b.add(192).cast::<[i8; 16]>();
        let mut codes = [zero(); 8];
        for half in 0..2 {
            let (l0, l1) = (load(b.add(64 * half)), load(b.add(64 * half + 32)));
            let h = load(b.add(128 + 32 * half));
            let upper = [
                and(shift_left::<4>(h), 48),
                and(shift_left::<2>(h), 48),
                and(h, 48),
                low_bits::<2, 48>(h),
            ];
            codes[4 * half] = or(and(l0, 15), upper[0]);
            codes[4 * half + 1] = or(and(l1, 15), upper[1]);
            codes[4 * half + 2] = or(low_bits::<4, 15>(l0), upper[2]);
            codes[4 * half + 3] = or(low_bits::<4, 15>(l1), upper[3]);
        }
        self.by_16::<5>(codes, scales, d);
    }
}

impl<G: WeightGroupSink> QuantFormatDecoder for G {}

/// Shifts bytes right by `SHIFT` and masks them with `MASK`, which must clear the bits shifted in
/// from the adjacent byte.
///
/// # Safety
/// Requires the instructions of [`Lanes`].
#[inline(always)]
unsafe fn low_bits<const SHIFT: i32, const MASK: i8>(v: CodeVector) -> CodeVector {
    and(shift_right::<SHIFT>(v), MASK)
}

/// Decodes 32 5-bit values: the low four bits are nibbles at `low`, the fifth bits are in the
/// 32-bit word at `fifth`.
///
/// # Safety
/// Requires the instructions of [`Lanes`]; `low` is valid for 16 bytes, `fifth` for 4.
#[inline(always)]
unsafe fn five_bits(fifth: *const u8, low: *const u8) -> CodeVector {
    or(nibbles(low), fifth_bits(fifth))
}

/// Decodes eight groups of 32 2-bit values from 64 bytes. Each 32 bytes contain four groups, the
/// first in the lowest two bits of each byte.
///
/// # Safety
/// Requires the instructions of [`Lanes`]; `p` is valid for 64 bytes.
#[inline(always)]
unsafe fn two_bits(p: *const u8) -> [CodeVector; 8] {
    let (a, b) = (load(p), load(p.add(32)));
    [
        and(a, 3),
        low_bits::<2, 3>(a),
        low_bits::<4, 3>(a),
        low_bits::<6, 3>(a),
        and(b, 3),
        low_bits::<2, 3>(b),
        low_bits::<4, 3>(b),
        low_bits::<6, 3>(b),
    ]
}
