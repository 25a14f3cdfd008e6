//! Positions and formats of the scales in a block, and the maximum weight per unit of scale.

use super::Scheme;

/// The number format of a scale.
///
/// ```
/// use tercet_tensor::{Scheme, quant::ScaleFormat};
/// let (format, offsets) = Scheme::Q8_0.scales();
/// assert_eq!((format, offsets), (ScaleFormat::F16, &[0][..]));
/// let mut block = vec![0u8; Scheme::Q8_0.block_bytes()];
/// format.encode(&mut block, 0, 0.5);
/// assert_eq!(Scheme::Q8_0.greatest_scale(&block), 0.5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleFormat {
    /// IEEE binary16, little-endian.
    F16,
    /// IEEE binary32, little-endian.
    F32,
    /// A biased exponent: `2^(byte - 127)`.
    E8m0,
    /// An unsigned e4m3 float; the top bit does not count, and 0x7f is 0.
    E4m3,
    /// IEEE binary16 split into four nibbles, lowest first: the top nibbles of four `u16`.
    F16InNibbles,
}

impl ScaleFormat {
    /// The bits of the magnitude; a larger scale has larger bits.
    fn magnitude_bits(self, block: &[u8], at: usize) -> u32 {
        let b = &block[at..];
        match self {
            ScaleFormat::F16 => u32::from(u16::from_le_bytes([b[0], b[1]]) & 0x7fff),
            ScaleFormat::F32 => u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7fff_ffff,
            ScaleFormat::E8m0 => u32::from(b[0]),
            ScaleFormat::E4m3 if b[0] == 0x7f => 0,
            ScaleFormat::E4m3 => u32::from(b[0] & 0x7f),
            ScaleFormat::F16InNibbles => u32::from(nibbles16(b) & 0x7fff),
        }
    }

    fn decode_bits(self, bits: u32) -> f64 {
        match self {
            ScaleFormat::F16 | ScaleFormat::F16InNibbles => {
                half::f16::from_bits(bits as u16).to_f64()
            }
            ScaleFormat::F32 => f32::from_bits(bits).into(),
            ScaleFormat::E8m0 => 2f64.powi(bits as i32 - 127),
            ScaleFormat::E4m3 => f64::from(super::float4::scale(bits as u8 | 0x80)),
        }
    }

    /// Writes a scale, rounded to a positive normal number of the format. [`ScaleFormat::E8m0`]
    /// rounds down to a power of two.
    pub fn encode(self, block: &mut [u8], at: usize, scale: f64) {
        let to = &mut block[at..];
        let half = half::f16::from_f64(scale).to_bits();
        match self {
            ScaleFormat::F16 => to[..2].copy_from_slice(&half.to_le_bytes()),
            ScaleFormat::F32 => to[..4].copy_from_slice(&(scale as f32).to_le_bytes()),
            ScaleFormat::E8m0 => to[0] = (scale.log2().floor() as i32 + 127).clamp(0, 254) as u8,
            ScaleFormat::E4m3 => to[0] = super::float8::to_e4m3(scale as f32),
            ScaleFormat::F16InNibbles => {
                for (i, pair) in to[..8].chunks_exact_mut(2).enumerate() {
                    let nibble = (half >> (4 * i) & 15) as u8;
                    pair[1] = pair[1] & 15 | nibble << 4;
                }
            }
        }
    }
}

/// The binary16 in the top nibbles of four `u16`.
pub(super) fn nibbles16(b: &[u8]) -> u16 {
    (0..4).fold(0, |all, i| all | u16::from(b[2 * i + 1] >> 4) << (4 * i))
}

impl Scheme {
    /// The format and byte offsets of the float scales of a block; empty for plain floats. Float
    /// minima are included.
    pub const fn scales(self) -> (ScaleFormat, &'static [usize]) {
        use ScaleFormat::{E4m3, E8m0, F16, F16InNibbles, F32};
        match self {
            Scheme::F16 | Scheme::BF16 => (F16, &[]),
            Scheme::Q4_0 | Scheme::Q5_0 | Scheme::Q8_0 => (F16, &[0]),
            Scheme::Q4_1 | Scheme::Q5_1 | Scheme::Q4K | Scheme::Q5K => (F16, &[0, 2]),
            Scheme::Q2K => (F16, &[80, 82]),
            Scheme::Q3K => (F16, &[108]),
            Scheme::Q6K => (F16, &[208]),
            Scheme::Iq2Xxs | Scheme::Iq2Xs | Scheme::Iq2S | Scheme::Iq3Xxs => (F16, &[0]),
            Scheme::Iq3S | Scheme::Iq1S | Scheme::Iq4Nl | Scheme::Iq4Xs => (F16, &[0]),
            Scheme::Iq1M => (F16InNibbles, &[48]),
            Scheme::Tq1_0 => (F16, &[52]),
            Scheme::Tq2_0 => (F16, &[64]),
            Scheme::Mxfp4 => (E8m0, &[0]),
            Scheme::Nvfp4 => (E4m3, &[0, 1, 2, 3]),
            Scheme::Fp8E4m3 | Scheme::Fp8E5m2 => (F32, &[0]),
            Scheme::Int8 | Scheme::Int8Asym | Scheme::Int4 | Scheme::Int4Asym => {
                (F16, &[0, 2, 4, 6])
            }
        }
    }

    /// The maximum magnitude of a weight per unit of [`Scheme::scales`].
    pub const fn greatest_code(self) -> f64 {
        match self {
            Scheme::F16 | Scheme::BF16 => 1.0,
            Scheme::Q4_0 | Scheme::Int4 => 8.0,
            Scheme::Q4_1 | Scheme::Int4Asym => 15.0,
            Scheme::Q5_0 => 16.0,
            Scheme::Q5_1 => 31.0,
            Scheme::Q8_0 | Scheme::Int8 => 128.0,
            Scheme::Int8Asym => 255.0,
            Scheme::Q2K => 15.0 * 3.0,
            Scheme::Q3K => 32.0 * 4.0,
            Scheme::Q4K => 63.0 * 15.0,
            Scheme::Q5K => 63.0 * 31.0,
            Scheme::Q6K => 128.0 * 32.0,
            Scheme::Iq2Xxs | Scheme::Iq2Xs | Scheme::Iq2S => 15.5 * 0.25 * 43.0,
            Scheme::Iq3Xxs => 15.5 * 0.5 * 62.0,
            Scheme::Iq3S => 31.0 * 15.0,
            Scheme::Iq1S | Scheme::Iq1M => 15.0 * 1.125,
            Scheme::Iq4Nl => 127.0,
            Scheme::Iq4Xs => 32.0 * 127.0,
            Scheme::Tq1_0 => 1.0,
            Scheme::Tq2_0 => 2.0,
            Scheme::Mxfp4 | Scheme::Nvfp4 => 6.0,
            Scheme::Fp8E4m3 => 448.0,
            Scheme::Fp8E5m2 => 57344.0,
        }
    }

    /// The maximum magnitude among the scales of whole blocks; infinite or NaN if one of them is.
    pub fn greatest_scale(self, blocks: &[u8]) -> f64 {
        let (format, places) = self.scales();
        let blocks = blocks.chunks_exact(self.block_bytes());
        let each = blocks.flat_map(|b| places.iter().map(move |&at| format.magnitude_bits(b, at)));
        format.decode_bits(each.max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_found_where_they_were_written() {
        for &scheme in Scheme::ALL {
            let (format, places) = scheme.scales();
            let mut block = vec![0xff; scheme.block_bytes()];
            for &at in places {
                format.encode(&mut block, at, 0.25);
            }
            for &at in places {
                let found = format.decode_bits(format.magnitude_bits(&block, at));
                assert_eq!(found, 0.25, "{scheme:?}");
            }
            let greatest = scheme.greatest_scale(&block.repeat(2));
            assert_eq!(
                greatest,
                if places.is_empty() { 0.0 } else { 0.25 },
                "{scheme:?}"
            );
        }
    }
}
