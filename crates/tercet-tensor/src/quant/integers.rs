//! Tercet's integer formats in blocks of 128. Data that is read together is aligned to 4 bytes.
//! Groups of any multiple of 32 weights, as other tools produce them, repeat their scale.
//!
//! A block begins with four f16 scales, one for each 32 weights. In formats with zero points, four
//! bytes of zero points follow. Then follow the quantized values, as bytes or nibbles. Byte `16 g +
//! j` of the nibbles holds element `32 g + j` in its low half and `32 g + 16 + j` in its high half.

use super::{QuantError, Scheme, f16_at, greatest, quantize, scaled};

const LEN: usize = 128;
/// Number of weights that share a scale.
const GROUP: usize = 32;

/// Int8, `d q`: four scales, 128 signed bytes.
pub(super) fn int8(b: &[u8; 136], out: &mut [f32; LEN]) {
    let groups = b[8..].chunks_exact(GROUP).zip(out.chunks_exact_mut(GROUP));
    for (g, (codes, out)) in groups.enumerate() {
        let d = f16_at(b, 2 * g);
        for (out, &q) in out.iter_mut().zip(codes) {
            *out = d * f32::from(q as i8);
        }
    }
}

/// Asymmetric int8, `d (q - z)`: four scales, four zero points, 128 bytes.
pub(super) fn int8_asym(b: &[u8; 140], out: &mut [f32; LEN]) {
    let groups = b[12..].chunks_exact(GROUP).zip(out.chunks_exact_mut(GROUP));
    for (g, (codes, out)) in groups.enumerate() {
        let (d, zero) = (f16_at(b, 2 * g), f32::from(b[8 + g]));
        for (out, &q) in out.iter_mut().zip(codes) {
            *out = d * (f32::from(q) - zero);
        }
    }
}

/// Writes `d (q - z)` for the nibbles of 64 bytes, with the scale and the zero point of each group.
fn nibbles(qs: &[u8], out: &mut [f32; LEN], group: impl Fn(usize) -> (f32, f32)) {
    let groups = qs.chunks_exact(GROUP / 2).zip(out.chunks_exact_mut(GROUP));
    for (g, (qs, out)) in groups.enumerate() {
        let (d, zero) = group(g);
        let (low, high) = out.split_at_mut(GROUP / 2);
        for ((q, low), high) in qs.iter().zip(low).zip(high) {
            *low = d * (f32::from(q & 15) - zero);
            *high = d * (f32::from(q >> 4) - zero);
        }
    }
}

/// Int4, `d (q - 8)`: four scales, 64 bytes of nibbles.
pub(super) fn int4(b: &[u8; 72], out: &mut [f32; LEN]) {
    nibbles(&b[8..], out, |g| (f16_at(b, 2 * g), 8.0));
}

/// Asymmetric int4, `d (q - z)`: four scales, four zero points in the low halves of bytes, 64 bytes
/// of nibbles.
pub(super) fn int4_asym(b: &[u8; 76], out: &mut [f32; LEN]) {
    nibbles(&b[12..], out, |g| {
        (f16_at(b, 2 * g), f32::from(b[8 + g] & 15))
    });
}

/// Scale and zero point of one group: the range of the weights, extended to include 0, divided by
/// `steps`.
fn range(x: &[f32], steps: f32) -> (half::f16, f32) {
    let (least, most) = x
        .iter()
        .fold((0f32, 0f32), |(l, m), &x| (l.min(x), m.max(x)));
    let d = half::f16::from_f32((most - least) / steps);
    (d, scaled(-least, d).clamp(0.0, steps))
}

fn pack(codes: &[u8; LEN], bytes: &mut Vec<u8>) {
    for group in codes.chunks_exact(GROUP) {
        let (low, high) = group.split_at(GROUP / 2);
        bytes.extend(low.iter().zip(high).map(|(l, h)| l | h << 4));
    }
}

/// The quantized values of a block; appends its scales to the bytes.
fn symmetric(
    x: &[f32; LEN],
    bytes: &mut Vec<u8>,
    scale: impl Fn(&[f32]) -> f32,
    code: impl Fn(f32) -> u8,
) -> [u8; LEN] {
    let mut codes = [0; LEN];
    for (x, codes) in x.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP)) {
        let d = half::f16::from_f32(scale(x));
        bytes.extend(d.to_le_bytes());
        for (to, &x) in codes.iter_mut().zip(x) {
            *to = code(scaled(x, d));
        }
    }
    codes
}

/// The quantized values of a block; appends its scales and zero points to `bytes`.
fn asymmetric(x: &[f32; LEN], bytes: &mut Vec<u8>, steps: f32) -> [u8; LEN] {
    let mut codes = [0; LEN];
    let mut zeros = [0; LEN / GROUP];
    let groups = x.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP));
    for ((x, codes), to) in groups.zip(&mut zeros) {
        let (d, zero) = range(x, steps);
        bytes.extend(d.to_le_bytes());
        *to = zero as u8;
        for (to, &x) in codes.iter_mut().zip(x) {
            *to = (scaled(x, d) + zero).clamp(0.0, steps) as u8;
        }
    }
    bytes.extend(zeros);
    codes
}

/// Quantizes finite weights to signed bytes: the scale is the group's maximum magnitude divided by
/// 127.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 128.
pub fn quantize_int8(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    quantize(Scheme::Int8, x, |x, bytes| {
        let code = |q: f32| q.clamp(-127.0, 127.0) as i8 as u8;
        let codes = symmetric(x, bytes, |x| greatest(x) / 127.0, code);
        bytes.extend(codes);
    })
}

/// Quantizes finite weights to bytes with a zero point: the range of a group, extended to include
/// 0, maps to 0 to 255.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 128.
pub fn quantize_int8_asym(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    quantize(Scheme::Int8Asym, x, |x, bytes| {
        let codes = asymmetric(x, bytes, 255.0);
        bytes.extend(codes);
    })
}

/// Quantizes finite weights to 4 bits: the scale maps the element with the maximum magnitude to -8.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 128.
pub fn quantize_int4(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    let extreme = |x: &[f32]| {
        let larger = |m: f32, &x: &f32| if x.abs() > m.abs() { x } else { m };
        x.iter().fold(0f32, larger)
    };
    quantize(Scheme::Int4, x, |x, bytes| {
        let code = |q: f32| (q + 8.0).clamp(0.0, 15.0) as u8;
        let codes = symmetric(x, bytes, |x| extreme(x) / -8.0, code);
        pack(&codes, bytes);
    })
}

/// Quantizes finite weights to 4 bits with a zero point: the range of a group, extended to include
/// 0, maps to 0 to 15.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 128.
pub fn quantize_int4_asym(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    quantize(Scheme::Int4Asym, x, |x, bytes| {
        let codes = asymmetric(x, bytes, 15.0);
        pack(&codes, bytes);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_by_hand() {
        // Scales 1, 0.5, 2 and -1, as f16.
        let scales = [0x00, 0x3c, 0x00, 0x38, 0x00, 0x40, 0x00, 0xbc];
        let mut out = [0.0; LEN];
        let mut b = [0u8; 136];
        b[..8].copy_from_slice(&scales);
        (b[8], b[8 + 33], b[8 + 127]) = (0x80, 0x7f, 0x03);
        int8(&b, &mut out);
        assert_eq!(
            (out[0], out[33], out[127], out[64]),
            (-128.0, 63.5, -3.0, 0.0)
        );
        let mut b = [5u8; 140];
        b[..8].copy_from_slice(&scales);
        b[8..12].copy_from_slice(&[5, 255, 0, 8]);
        (b[12], b[12 + 33], b[12 + 127]) = (0, 255, 3);
        int8_asym(&b, &mut out);
        let got = (out[0], out[32], out[33], out[64], out[127]);
        assert_eq!(got, (-5.0, -125.0, 0.0, 10.0, 5.0));
        let mut b = [0x88u8; 72];
        b[..8].copy_from_slice(&scales);
        (b[8], b[8 + 16 + 1], b[8 + 63]) = (0xf0, 0x0f, 0x9a);
        int4(&b, &mut out);
        assert_eq!((out[0], out[16], out[1]), (-8.0, 7.0, 0.0));
        assert_eq!((out[33], out[49]), (3.5, -4.0));
        assert_eq!((out[111], out[127]), (-2.0, -1.0));
        let mut b = [0x88u8; 76];
        b[..8].copy_from_slice(&scales);
        // Only the low half of a zero point byte is used.
        b[8..12].copy_from_slice(&[8, 0xf3, 15, 0]);
        int4_asym(&b, &mut out);
        let got = (out[0], out[16], out[32], out[64], out[127]);
        assert_eq!(got, (0.0, 0.0, 2.5, -14.0, -8.0));
    }

    #[test]
    fn rounding_errs_by_half_a_step() {
        let x: Vec<f32> = (0..256)
            .map(|i| ((i * 37) % 61) as f32 / 7.0 - 3.0)
            .collect();
        for (scheme, bytes, steps) in [
            (Scheme::Int8, quantize_int8(&x).unwrap(), 127.0),
            (Scheme::Int8Asym, quantize_int8_asym(&x).unwrap(), 255.0),
            (Scheme::Int4, quantize_int4(&x).unwrap(), 8.0),
            (Scheme::Int4Asym, quantize_int4_asym(&x).unwrap(), 15.0),
        ] {
            let mut back = vec![0.0; x.len()];
            scheme.dequantize(&bytes, &mut back).unwrap();
            for (x, back) in x.chunks(32).zip(back.chunks(32)) {
                let (least, most) = x
                    .iter()
                    .fold((0f32, 0f32), |(l, m), &x| (l.min(x), m.max(x)));
                let is_symmetric = matches!(scheme, Scheme::Int8 | Scheme::Int4);
                let range = if is_symmetric {
                    greatest(x)
                } else {
                    most - least
                };
                // 4 signed bits cannot represent the opposite of the extreme. A rounded zero point
                // shifts all values by up to half a step.
                let bound = if scheme == Scheme::Int8 { 0.57 } else { 1.02 };
                let worst = x
                    .iter()
                    .zip(back)
                    .fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(worst <= bound * range / steps, "{scheme:?} {worst}");
            }
            assert!(scheme.dequantize(&bytes[1..], &mut back).is_err());
        }
        assert!(quantize_int8(&x[1..]).is_err());
        assert_eq!(quantize_int4(&[0.0; 128]).unwrap()[8..], [0x88; 64]);
        assert_eq!(quantize_int8_asym(&[0.0; 128]).unwrap(), [0; 140]);
    }
}
