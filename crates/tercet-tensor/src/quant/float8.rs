//! 8-bit floats (OCP OFP8): an f32 scale, then 128 bytes. A weight is the scale times its float.

use super::{QuantError, Scheme, greatest, quantize};

const LEN: usize = 128;

/// The value of an e4m3 float: bias 7, no infinities, NaN if all bits but the sign are set.
pub(super) fn e4m3_value(byte: u8) -> f32 {
    let size = byte & 0x7f;
    if size == 0x7f {
        return f32::NAN;
    }
    // Builds a binary16 from the bits; its bias is larger by 8.
    let half = u16::from(byte & 0x80) << 8 | u16::from(size) << 7;
    half::f16::from_bits(half).to_f32() * 256.0
}

/// The value of an e5m2 float: the top byte of a binary16.
fn e5m2_value(byte: u8) -> f32 {
    half::f16::from_bits(u16::from(byte) << 8).to_f32()
}

/// The nearest float with `fraction` fraction bits and this bias, ties to even, without its sign.
/// Larger values and NaN become the float of value `most`.
pub(super) fn nearest(x: f32, fraction: i32, bias: i32, most: f32) -> u8 {
    let size = x.abs().min(most);
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(1 - bias);
    let units = (f64::from(size) * 2f64.powi(fraction - exponent)).round_ties_even();
    // Adding `units` carries the leading bit of a normal number into the exponent.
    (((exponent + bias - 1) << fraction) + units as i32) as u8
}

/// The nearest e4m3 float; values beyond the maximum become the maximum.
pub(super) fn to_e4m3(x: f32) -> u8 {
    nearest(x, 3, 7, 448.0) | u8::from(x.is_sign_negative()) << 7
}

fn to_e5m2(x: f32) -> u8 {
    nearest(x, 2, 15, 57344.0) | u8::from(x.is_sign_negative()) << 7
}

fn decode(b: &[u8; 132], out: &mut [f32; LEN], value: impl Fn(u8) -> f32) {
    let d = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    for (out, &byte) in out.iter_mut().zip(&b[4..]) {
        *out = d * value(byte);
    }
}

/// FP8 e4m3, `d v`: d as f32, 128 e4m3 floats.
pub(super) fn e4m3(b: &[u8; 132], out: &mut [f32; LEN]) {
    decode(b, out, e4m3_value);
}

/// FP8 e5m2, `d v`: d as f32, 128 e5m2 floats.
pub(super) fn e5m2(b: &[u8; 132], out: &mut [f32; LEN]) {
    decode(b, out, e5m2_value);
}

fn encode(
    scheme: Scheme,
    x: &[f32],
    max: f32,
    code: impl Fn(f32) -> u8,
) -> Result<Vec<u8>, QuantError> {
    quantize(scheme, x, |x: &[f32; LEN], bytes| {
        let d = greatest(x) / max;
        bytes.extend(d.to_le_bytes());
        let of = |x: f32| if d == 0.0 { 0 } else { code(x / d) };
        bytes.extend(x.iter().map(|&x| of(x)));
    })
}

/// Quantizes finite weights to e4m3 floats; the maximum magnitude of a block maps to 448.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 128.
pub fn quantize_fp8_e4m3(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    encode(Scheme::Fp8E4m3, x, 448.0, to_e4m3)
}

/// Quantizes finite weights to e5m2 floats; the maximum magnitude of a block maps to 57344.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 128.
pub fn quantize_fp8_e5m2(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    encode(Scheme::Fp8E5m2, x, 57344.0, to_e5m2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_standard() {
        for (byte, value) in [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x07, 0.875 * 2f32.powi(-6)),
            (0x08, 2f32.powi(-6)),
            (0x38, 1.0),
            (0xb9, -1.125),
            (0x7e, 448.0),
        ] {
            assert_eq!(e4m3_value(byte), value, "{byte:#x}");
        }
        assert!(e4m3_value(0x7f).is_nan() && e4m3_value(0xff).is_nan());
        for (byte, value) in [
            (0x01, 2f32.powi(-16)),
            (0x3c, 1.0),
            (0xbd, -1.25),
            (0x7b, 57344.0),
            (0xfc, f32::NEG_INFINITY),
        ] {
            assert_eq!(e5m2_value(byte), value, "{byte:#x}");
        }
    }

    #[test]
    fn every_float_rounds_to_itself_and_halves_to_even() {
        for byte in 0..=0x7e_u8 {
            let value = e4m3_value(byte);
            assert_eq!((to_e4m3(value), to_e4m3(-value)), (byte, byte | 0x80));
            if byte < 0x7e {
                let half = (value + e4m3_value(byte + 1)) / 2.0;
                assert_eq!(to_e4m3(half), byte + (byte & 1), "{half}");
            }
        }
        for byte in 0..=0x7b_u8 {
            assert_eq!(to_e5m2(e5m2_value(byte)), byte);
        }
        assert_eq!((to_e4m3(1e9), to_e5m2(-1e9)), (0x7e, 0xfb));
    }

    #[test]
    fn rounding_errs_by_half_a_step() {
        let x: Vec<f32> = (0..256)
            .map(|i| ((i * 37) % 61) as f32 / 7.0 - 4.0)
            .collect();
        for (scheme, bytes, steps) in [
            (Scheme::Fp8E4m3, quantize_fp8_e4m3(&x).unwrap(), 16.0),
            (Scheme::Fp8E5m2, quantize_fp8_e5m2(&x).unwrap(), 8.0),
        ] {
            let mut back = vec![0.0; x.len()];
            scheme.dequantize(&bytes, &mut back).unwrap();
            for (x, back) in x.iter().zip(back) {
                assert!(
                    (x - back).abs() <= x.abs() / steps * 1.001 + 1e-4,
                    "{x} {back}"
                );
            }
        }
        assert!(quantize_fp8_e4m3(&x[1..]).is_err());
    }
}
