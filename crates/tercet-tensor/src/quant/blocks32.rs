//! Blocks of 32 with one level of scales: `d q` (kind 0) or `d q + m` (kind 1).
//!
//! A block begins with `d` as f16, then `m` as f16 in kind 1. In the 5-bit formats a little-endian
//! `u32` follows, whose bit `i` is the fifth bit of element `i`. Nibbles: byte `j` holds element
//! `j` in its low half and element `j + 16` in its high half.

use super::{QuantError, Scheme, f16_at, greatest, quantize, scaled};

const LEN: usize = 32;

/// Writes `f(q)` for each element. `q` is its nibble, with the fifth bit from `fifth`.
fn nibbles(qs: &[u8], fifth: u32, out: &mut [f32; LEN], f: impl Fn(u8) -> f32) {
    let bit = |i: usize| ((fifth >> i) as u8 & 1) << 4;
    let (low, high) = out.split_at_mut(LEN / 2);
    for (j, ((&q, low), high)) in qs.iter().zip(low).zip(high).enumerate() {
        *low = f(q & 15 | bit(j));
        *high = f(q >> 4 | bit(j + LEN / 2));
    }
}

fn fifth_bits(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Q4_0, `d (q - 8)`: d, 16 bytes of nibbles.
pub(super) fn q4_0(b: &[u8; 18], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    nibbles(&b[2..], 0, out, |q| d * (f32::from(q) - 8.0));
}

/// Q4_1, `d q + m`: d, m, 16 bytes of nibbles.
pub(super) fn q4_1(b: &[u8; 20], out: &mut [f32; LEN]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    nibbles(&b[4..], 0, out, |q| d * f32::from(q) + m);
}

/// Q5_0, `d (q - 16)`: d, fifth bits, 16 bytes of nibbles.
pub(super) fn q5_0(b: &[u8; 22], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    nibbles(&b[6..], fifth_bits(b, 2), out, |q| {
        d * (f32::from(q) - 16.0)
    });
}

/// Q5_1, `d q + m`: d, m, fifth bits, 16 bytes of nibbles.
pub(super) fn q5_1(b: &[u8; 24], out: &mut [f32; LEN]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    nibbles(&b[8..], fifth_bits(b, 4), out, |q| d * f32::from(q) + m);
}

/// Q8_0, `d q`: d, 32 signed bytes.
pub(super) fn q8_0(b: &[u8; 34], out: &mut [f32; LEN]) {
    let d = f16_at(b, 0);
    for (out, &q) in out.iter_mut().zip(&b[2..]) {
        *out = d * f32::from(q as i8);
    }
}

/// Quantizes finite weights to Q8_0: the scale is the block's maximum magnitude divided by 127.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 32.
pub fn quantize_q8_0(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    quantize(Scheme::Q8_0, x, |x: &[f32; LEN], bytes| {
        let d = half::f16::from_f32(greatest(x) / 127.0);
        bytes.extend(d.to_le_bytes());
        bytes.extend(
            x.iter()
                .map(|&x| scaled(x, d).clamp(-127.0, 127.0) as i8 as u8),
        );
    })
}

/// Quantizes finite weights to Q4_0: the scale maps the element with the maximum magnitude to -8.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 32.
pub fn quantize_q4_0(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    quantize(Scheme::Q4_0, x, |x: &[f32; LEN], bytes| {
        let extreme = x
            .iter()
            .fold(0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
        let d = half::f16::from_f32(extreme / -8.0);
        let nibble = |x: f32| (scaled(x, d) + 8.0).clamp(0.0, 15.0) as u8;
        bytes.extend(d.to_le_bytes());
        let (low, high) = x.split_at(LEN / 2);
        bytes.extend(
            low.iter()
                .zip(high)
                .map(|(&l, &h)| nibble(l) | nibble(h) << 4),
        );
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_errs_by_half_a_step() {
        let x: Vec<f32> = (0..96)
            .map(|i| ((i * 37) % 61) as f32 / 7.0 - 4.0)
            .collect();
        let mut back = vec![0.0; x.len()];
        for (scheme, bytes, steps) in [
            (Scheme::Q8_0, quantize_q8_0(&x).unwrap(), 127.0),
            (Scheme::Q4_0, quantize_q4_0(&x).unwrap(), 8.0),
        ] {
            scheme.dequantize(&bytes, &mut back).unwrap();
            for (x, back) in x.chunks(32).zip(back.chunks(32)) {
                let step = x.iter().fold(0f32, |m, x| m.max(x.abs())) / steps;
                // The 4-bit range is asymmetric: if the extreme maps to -8, its opposite (8) is not
                // representable.
                let most = if scheme == Scheme::Q4_0 { 1.01 } else { 0.57 };
                assert!(
                    x.iter()
                        .zip(back)
                        .all(|(a, b)| (a - b).abs() <= most * step),
                    "{scheme:?}"
                );
            }
        }
        assert!(quantize_q8_0(&x[1..]).is_err());
        assert_eq!(quantize_q4_0(&[0.0; 32]).unwrap()[..2], [0x00, 0x80]);
    }
}
