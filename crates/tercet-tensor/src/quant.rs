//! Block-quantized weights: the formats of GGUF, and Tercet's blocks of integers and small floats.
//!
//! A row of `k` weights consists of `k / block_len` blocks of `block_bytes` bytes each. The F32
//! values of a block are defined bitwise: every product and sum rounds once, in the order of its
//! formula. Executors may compute differently, but their results must match these values.
//!
//! One file contains the formulas of one group of formats:
//!
//! - `float`: 16-bit floats
//! - `blocks32`: one level of scales
//! - `blocks256`: the K-quants, with scales of scales
//! - `codebook`: the IQ formats, with indices of codebook rows
//! - `ternary`, `float8`, `float4`, `integers`
//!
//! `scales` describes the positions of the scales in a block.

use crate::dtype::DType;

mod blocks256;
mod blocks32;
mod codebook;
mod encode;
mod float;
mod float4;
mod float8;
mod grids;
mod integers;
mod scales;
mod ternary;

pub use blocks32::{quantize_q4_0, quantize_q8_0};
pub use blocks256::scale_and_min;
pub use encode::QuantizeError;
pub use float4::{quantize_mxfp4, quantize_nvfp4};
pub use float8::{quantize_fp8_e4m3, quantize_fp8_e5m2};
pub use grids::{QuantCodebook, iq4_levels};
pub use integers::{quantize_int4, quantize_int4_asym, quantize_int8, quantize_int8_asym};
pub use scales::ScaleFormat;

/// Bytes or values that are not whole blocks of a scheme.
///
/// ```
/// use tercet_tensor::Scheme;
/// let mut weights = vec![0f32; 32];
/// let error = Scheme::Q8_0.dequantize(&[0; 30], &mut weights).unwrap_err();
/// assert_eq!((error.scheme, error.bytes, error.elements), (Scheme::Q8_0, 30, 32));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes do not match {elements} elements of {}: each block has {} bytes and {} elements",
    .scheme.name(), .scheme.block_bytes(), .scheme.block_len()
)]
pub struct QuantError {
    /// The quantization scheme.
    pub scheme: Scheme,
    /// The number of bytes passed in.
    pub bytes: usize,
    /// The number of elements passed in or requested.
    pub elements: usize,
}

/// Declares an enum with a name per variant.
macro_rules! named {
    ($(#[$m:meta])* pub enum $E:ident { $($(#[$vm:meta])* $V:ident $name:literal),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $E { $($(#[$vm])* $V),* }

        impl $E {
            /// Every variant, in declaration order.
            pub const ALL: &'static [$E] = &[$($E::$V),*];

            /// The variant's name in the text form.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$V => $name),* }
            }
        }
    };
}

/// Declares the schemes: variant, name, elements and bytes of a block, decoder.
macro_rules! schemes {
    ($($(#[$doc:meta])* $V:ident $name:literal $len:literal $bytes:literal $decode:path),* $(,)?) => {
        named! {
            /// A block format of quantized weights.
            ///
            /// ```
            /// use tercet_tensor::{DType, Scheme};
            /// let scheme = Scheme::Q4K;
            /// assert_eq!((scheme.block_len(), scheme.block_bytes()), (256, 144));
            /// assert_eq!(scheme.row_bytes(4096), Some(16 * 144));
            /// assert_eq!((scheme.storage(), scheme.name()), (DType::U8, "q4_k"));
            /// ```
            pub enum Scheme { $($(#[$doc])* $V $name),* }
        }
        impl Scheme {
            /// Number of elements in a block.
            pub const fn block_len(self) -> usize { match self { $(Self::$V => $len),* } }
            /// Number of bytes in a block.
            pub const fn block_bytes(self) -> usize { match self { $(Self::$V => $bytes),* } }
            /// Decodes whole blocks; the lengths must match.
            fn decode(self, bytes: &[u8], out: &mut [f32]) {
                match self { $(Self::$V => each_block::<$bytes, $len>(bytes, out, $decode)),* }
            }
        }
    };
}

fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<LEN>();
    blocks.iter().zip(outs).for_each(|(b, o)| decode(b, o));
}

schemes! {
    /// IEEE binary16, not packed.
    F16 "f16" 1 2 float::f16,
    /// bfloat16, not packed.
    BF16 "bf16" 1 2 float::bf16,
    /// 4 bits, one f16 scale for 32 weights.
    Q4_0 "q4_0" 32 18 blocks32::q4_0,
    /// 4 bits, f16 scale and minimum for 32 weights.
    Q4_1 "q4_1" 32 20 blocks32::q4_1,
    /// 5 bits, one f16 scale for 32 weights.
    Q5_0 "q5_0" 32 22 blocks32::q5_0,
    /// 5 bits, f16 scale and minimum for 32 weights.
    Q5_1 "q5_1" 32 24 blocks32::q5_1,
    /// 8 bits, one f16 scale for 32 weights.
    Q8_0 "q8_0" 32 34 blocks32::q8_0,
    /// 2 bits, 4-bit scales and minima for 16 weights, f16 super-scales for 256.
    Q2K "q2_k" 256 84 blocks256::q2_k,
    /// 3 bits, 6-bit scales for 16 weights, an f16 super-scale for 256.
    Q3K "q3_k" 256 110 blocks256::q3_k,
    /// 4 bits, 6-bit scales and minima for 32 weights, f16 super-scales for 256.
    Q4K "q4_k" 256 144 blocks256::q4_k,
    /// 5 bits, 6-bit scales and minima for 32 weights, f16 super-scales for 256.
    Q5K "q5_k" 256 176 blocks256::q5_k,
    /// 6 bits, 8-bit scales for 16 weights, an f16 super-scale for 256.
    Q6K "q6_k" 256 210 blocks256::q6_k,
    /// 2 bits: a codebook of 256 rows of 8, signs in 7 bits, 4-bit scales for 32 weights, an f16
    /// super-scale for 256.
    Iq2Xxs "iq2_xxs" 256 66 codebook::iq2_xxs,
    /// 2 bits: a codebook of 512 rows of 8, signs in 7 bits, 4-bit scales for 16 weights, an f16
    /// super-scale for 256.
    Iq2Xs "iq2_xs" 256 74 codebook::iq2_xs,
    /// 2 bits: a codebook of 1024 rows of 8, any signs, 4-bit scales for 16 weights, an f16
    /// super-scale for 256.
    Iq2S "iq2_s" 256 82 codebook::iq2_s,
    /// 3 bits: a codebook of 256 rows of 4, signs in 7 bits, 4-bit scales for 32 weights, an f16
    /// super-scale for 256.
    Iq3Xxs "iq3_xxs" 256 98 codebook::iq3_xxs,
    /// 3 bits: a codebook of 512 rows of 4, any signs, 4-bit scales for 32 weights, an f16
    /// super-scale for 256.
    Iq3S "iq3_s" 256 110 codebook::iq3_s,
    /// 1.6 bits: a codebook of 2048 rows of 8, 3-bit scales and a shift for 32 weights, an f16
    /// super-scale for 256.
    Iq1S "iq1_s" 256 50 codebook::iq1_s,
    /// 1.8 bits: the codebook of `Iq1S`, 3-bit scales for 16 weights and shifts for 8, an f16
    /// super-scale for 256.
    Iq1M "iq1_m" 256 56 codebook::iq1_m,
    /// 4 bits for 16 nonuniform levels, one f16 scale for 32 weights.
    Iq4Nl "iq4_nl" 32 18 codebook::iq4_nl,
    /// 4 bits for the levels of `Iq4Nl`, 6-bit scales for 32 weights, an f16 super-scale for 256.
    Iq4Xs "iq4_xs" 256 136 codebook::iq4_xs,
    /// Ternary values -1, 0 and 1, five per byte, one f16 scale for 256 weights.
    Tq1_0 "tq1_0" 256 54 ternary::tq1_0,
    /// Ternary values -1, 0 and 1 (and 2) in 2 bits, one f16 scale for 256 weights.
    Tq2_0 "tq2_0" 256 66 ternary::tq2_0,
    /// OCP microscaling: e2m1 floats, a power-of-two scale for 32 weights.
    Mxfp4 "mxfp4" 32 17 float4::mxfp4,
    /// e2m1 floats, an e4m3 scale for 16 weights. A tensor may have an additional factor, which is
    /// not stored in the blocks.
    Nvfp4 "nvfp4" 64 36 float4::nvfp4,
    /// OCP e4m3 floats, an f32 scale for 128 weights: the scale, then a byte for each weight.
    Fp8E4m3 "fp8_e4m3" 128 132 float8::e4m3,
    /// OCP e5m2 floats, an f32 scale for 128 weights: the scale, then a byte for each weight.
    Fp8E5m2 "fp8_e5m2" 128 132 float8::e5m2,
    /// Signed bytes, an f16 scale for 32 weights: four scales, then 128 bytes.
    Int8 "int8" 128 136 integers::int8,
    /// Bytes minus a zero point, an f16 scale and an 8-bit zero point for 32 weights: four scales,
    /// four zero points, then 128 bytes.
    Int8Asym "int8_asym" 128 140 integers::int8_asym,
    /// 4-bit values minus 8, an f16 scale for 32 weights: four scales, then 64 bytes of nibbles.
    Int4 "int4" 128 72 integers::int4,
    /// 4-bit values minus a 4-bit zero point, an f16 scale and a zero point for 32 weights: four
    /// scales, four bytes of zero points, then 64 bytes of nibbles.
    Int4Asym "int4_asym" 128 76 integers::int4_asym,
}

impl Scheme {
    /// The dtype of the tensor that stores weights of this scheme: the float itself for `F16` and
    /// `BF16`, bytes `[.., row_bytes]` for packed blocks.
    pub const fn storage(self) -> DType {
        match self {
            Scheme::F16 => DType::F16,
            Scheme::BF16 => DType::BF16,
            Scheme::Q4_0
            | Scheme::Q4_1
            | Scheme::Q5_0
            | Scheme::Q5_1
            | Scheme::Q8_0
            | Scheme::Q2K
            | Scheme::Q3K
            | Scheme::Q4K
            | Scheme::Q5K
            | Scheme::Q6K
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
            | Scheme::Fp8E5m2
            | Scheme::Int8
            | Scheme::Int8Asym
            | Scheme::Int4
            | Scheme::Int4Asym => DType::U8,
        }
    }

    /// Bytes of a row of `k` weights; `None` if `k` is not a multiple of the block length or the
    /// byte count overflows.
    pub const fn row_bytes(self, k: usize) -> Option<usize> {
        if !k.is_multiple_of(self.block_len()) {
            return None;
        }
        (k / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The size of the last axis of the tensor that stores rows of `k` weights: `k` for floats,
    /// else [`Scheme::row_bytes`].
    pub const fn stored_len(self, k: usize) -> Option<usize> {
        match self.row_bytes(k) {
            Some(bytes) => Some(bytes / self.storage().size_bytes()),
            None => None,
        }
    }

    /// The number of weights in a row whose stored axis has size `stored`: the inverse of
    /// [`Scheme::stored_len`]. `None` if `stored` is not the size of whole blocks.
    pub const fn row_len(self, stored: usize) -> Option<usize> {
        let (unit, len) = (
            self.block_bytes() / self.storage().size_bytes(),
            self.block_len(),
        );
        if !stored.is_multiple_of(unit) {
            return None;
        }
        (stored / unit).checked_mul(len)
    }

    /// Decodes one block.
    ///
    /// # Panics
    /// When `block` is not [`Scheme::block_bytes`] long or `out` not [`Scheme::block_len`].
    pub fn dequantize_block(self, block: &[u8], out: &mut [f32]) {
        assert_eq!(
            block.len(),
            self.block_bytes(),
            "invariant: one {self:?} block"
        );
        assert_eq!(out.len(), self.block_len(), "invariant: one {self:?} block");
        self.decode(block, out);
    }

    /// Decodes any number of whole blocks, row after row.
    ///
    /// # Errors
    /// [`QuantError`] when `bytes` are not the blocks of `out.len()` values.
    ///
    /// ```
    /// use tercet_tensor::{Scheme, quant::quantize_q8_0};
    /// let weights: Vec<f32> = (0..64).map(|i| i as f32).collect();
    /// let bytes = quantize_q8_0(&weights)?;
    /// let mut back = vec![0.0; 64];
    /// Scheme::Q8_0.dequantize(&bytes, &mut back)?;
    /// assert!(weights.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.3));
    /// # Ok::<(), tercet_tensor::quant::QuantError>(())
    /// ```
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
        if self.row_bytes(out.len()) != Some(bytes.len()) {
            return Err(QuantError {
                scheme: self,
                bytes: bytes.len(),
                elements: out.len(),
            });
        }
        self.decode(bytes, out);
        Ok(())
    }
}

/// The f16 at byte `at`, as f32.
fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Quantizes weights to blocks; `encode` appends each block.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of `LEN` elements.
fn quantize<const LEN: usize>(
    scheme: Scheme,
    x: &[f32],
    mut encode: impl FnMut(&[f32; LEN], &mut Vec<u8>),
) -> Result<Vec<u8>, QuantError> {
    debug_assert_eq!(LEN, scheme.block_len());
    let error = QuantError {
        scheme,
        bytes: 0,
        elements: x.len(),
    };
    let mut bytes = Vec::with_capacity(scheme.row_bytes(x.len()).ok_or(error)?);
    let (blocks, _) = x.as_chunks::<LEN>();
    blocks.iter().for_each(|b| encode(b, &mut bytes));
    Ok(bytes)
}

/// The maximum magnitude.
fn greatest(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |m, x| m.max(x.abs()))
}

/// `x / d` rounded to the nearest integer; 0 if the scale is 0.
fn scaled(x: f32, d: half::f16) -> f32 {
    let d = d.to_f32();
    if d == 0.0 {
        0.0
    } else {
        (x / d).round_ties_even()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_sizes_are_inverse() {
        for &s in Scheme::ALL {
            let k = 3 * s.block_len();
            assert_eq!(s.row_bytes(k), Some(3 * s.block_bytes()), "{s:?}");
            assert_eq!(s.stored_len(k).and_then(|n| s.row_len(n)), Some(k), "{s:?}");
            assert_eq!(s.row_bytes(0), Some(0));
            if s.block_len() > 1 {
                assert_eq!(s.row_bytes(k + 1), None, "{s:?}");
                assert_eq!(s.row_len(s.block_bytes() + 1), None, "{s:?}");
            }
        }
        assert_eq!(Scheme::Q8_0.row_bytes(usize::MAX - 31), None);
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let e = Scheme::Q4_0.dequantize(&[0; 18], &mut [0.0; 31]);
        assert_eq!(
            e.map_err(|e| e.to_string()),
            Err(
                "18 bytes do not match 31 elements of q4_0: each block has 18 bytes and 32 elements"
                    .into()
            )
        );
    }
}
