//! 4-bit floats (OCP e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) with small scales.
//! Nibbles: of `2 n` elements that share a scale, byte `j < n` holds element `j` in its low half
//! and element `j + n` in its high half.

use super::float8::{e4m3_value, nearest, to_e4m3};
use super::{QuantError, Scheme, greatest, quantize};

/// Twice the value of a 4-bit float.
fn doubled(code: u8) -> f32 {
    const SIZES: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
    let size = SIZES[usize::from(code & 7)];
    // Zero has no sign.
    if code & 8 != 0 && code & 7 != 0 {
        -size
    } else {
        size
    }
}

fn e2m1(x: f32) -> u8 {
    nearest(x, 1, 1, 6.0) | u8::from(x.is_sign_negative()) << 3
}

/// Writes `half_scale` times twice the value of each nibble.
fn nibbles(qs: &[u8], half_scale: f32, out: &mut [f32]) {
    let (low, high) = out.split_at_mut(qs.len());
    for ((q, low), high) in qs.iter().zip(low).zip(high) {
        *low = half_scale * doubled(q & 15);
        *high = half_scale * doubled(q >> 4);
    }
}

/// MXFP4, `2^(e - 127) v`: e, 16 bytes of nibbles. The maximum e is an ordinary exponent, not NaN.
pub(super) fn mxfp4(b: &[u8; 17], out: &mut [f32; 32]) {
    let e = u32::from(b[0]);
    // 2^(e - 128), subnormal for the smallest two e.
    let half = match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits((e - 1) << 23),
    };
    nibbles(&b[1..], half, out);
}

/// The scale of 16 elements: e4m3 without its sign, 0 instead of NaN.
pub(super) fn scale(byte: u8) -> f32 {
    match byte {
        0x7f => 0.0,
        // With the sign bit set, the NaN encoding counts as a number.
        0xff => 480.0,
        _ => e4m3_value(byte & 0x7f),
    }
}

/// NVFP4, `s v`: four e4m3 scales, then 8 bytes of nibbles for each 16 elements.
pub(super) fn nvfp4(b: &[u8; 36], out: &mut [f32; 64]) {
    let (scales, qs) = b.split_at(4);
    let parts = qs.chunks_exact(8).zip(out.chunks_exact_mut(16));
    for (&s, (qs, out)) in scales.iter().zip(parts) {
        nibbles(qs, scale(s) * 0.5, out);
    }
}

fn pack(x: &[f32], code: impl Fn(f32) -> u8, bytes: &mut Vec<u8>) {
    let (low, high) = x.split_at(x.len() / 2);
    bytes.extend(low.iter().zip(high).map(|(&l, &h)| code(l) | code(h) << 4));
}

/// Quantizes finite weights to MXFP4 according to the OCP specification. The scale is the power of
/// two that maps the block's maximum magnitude into [4, 8); values beyond 6 become 6.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 32.
pub fn quantize_mxfp4(x: &[f32]) -> Result<Vec<u8>, QuantError> {
    quantize(Scheme::Mxfp4, x, |x: &[f32; 32], bytes| {
        let exponent = (greatest(x).to_bits() >> 23) as i32 - 2;
        let e = exponent.clamp(0, 254);
        bytes.push(e as u8);
        let factor = 2f64.powi(127 - e);
        pack(x, |x| e2m1((f64::from(x) * factor) as f32), bytes);
    })
}

/// Quantizes finite weights to NVFP4. Returns the blocks and a factor by which all their values
/// must be multiplied. The factor maps the maximum scale to 448, because scales of small weights
/// are outside the range of e4m3.
///
/// # Errors
/// [`QuantError`] when `x` is not whole blocks of 64.
///
/// ```
/// use tercet_tensor::{Scheme, quant::quantize_nvfp4};
/// let weights: Vec<f32> = (0..64).map(|i| i as f32 * 1e-3).collect();
/// let (blocks, factor) = quantize_nvfp4(&weights)?;
/// let mut back = vec![0.0; 64];
/// Scheme::Nvfp4.dequantize(&blocks, &mut back)?;
/// assert!(weights.iter().zip(&back).all(|(a, b)| (a - factor * b).abs() < 0.011));
/// # Ok::<(), tercet_tensor::quant::QuantError>(())
/// ```
pub fn quantize_nvfp4(x: &[f32]) -> Result<(Vec<u8>, f32), QuantError> {
    let most = greatest(x);
    let factor = if most > 0.0 {
        most / (6.0 * 448.0)
    } else {
        1.0
    };
    let blocks = quantize(Scheme::Nvfp4, x, |x: &[f32; 64], bytes| {
        let scales = x
            .chunks_exact(16)
            .map(|x| to_e4m3(greatest(x) / 6.0 / factor));
        let scales: Vec<u8> = scales.collect();
        bytes.extend(&scales);
        for (x, &s) in x.chunks_exact(16).zip(&scales) {
            let d = scale(s) * factor;
            pack(x, |x| if d == 0.0 { 0 } else { e2m1(x / d) }, bytes);
        }
    })?;
    Ok((blocks, factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_by_hand() {
        let mut b = [0u8; 17];
        // Scale 2^(128 - 127); 6 and -0.5 in the first byte, -6 and 1.5 in the last.
        (b[0], b[1], b[16]) = (128, 0x97, 0x3f);
        let mut out = [7.0; 32];
        mxfp4(&b, &mut out);
        let want = [(0, 12.0), (16, -1.0), (15, -12.0), (31, 3.0), (1, 0.0)];
        assert!(want.iter().all(|&(i, w)| out[i] == w), "{out:?}");
        let mut b = [0u8; 36];
        // Scales 1 and 1.5 for the elements from 16 and from 48 on.
        (b[1], b[3], b[4 + 8], b[4 + 24 + 7]) = (0x38, 0x3c, 0x97, 0x3f);
        let mut out = [7.0; 64];
        nvfp4(&b, &mut out);
        let want = [(16, 6.0), (24, -0.5), (55, -9.0), (63, 2.25), (0, 0.0)];
        assert!(want.iter().all(|&(i, w)| out[i] == w), "{out:?}");
    }

    #[test]
    fn every_float_rounds_to_itself() {
        for code in (0..16).filter(|c| *c != 8) {
            assert_eq!(e2m1(doubled(code) / 2.0), code);
        }
        // Ties round to even; values beyond the maximum become the maximum.
        let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 100.0];
        assert_eq!(ties.map(e2m1), [0, 2, 2, 4, 4, 6, 6, 7, 7]);
    }

    #[test]
    fn rounding_errs_by_half_a_step() {
        let x: Vec<f32> = (0..128)
            .map(|i| ((i * 37) % 61) as f32 / 700.0 - 0.04)
            .collect();
        let mut back = vec![0.0; x.len()];
        let mxfp4 = quantize_mxfp4(&x).unwrap();
        Scheme::Mxfp4.dequantize(&mxfp4, &mut back).unwrap();
        // The largest magnitude of a block is at most 8 scales. Above 4 scales the step is 2, and values
        // above 6 scales become 6, so that an element loses up to 2 of 8 scales.
        let close = |x: &[f32], back: &[f32], most: f32| {
            let bound = most * greatest(x);
            x.iter().zip(back).all(|(a, b)| (a - b).abs() <= bound)
        };
        let near = |back: &[f32], len: usize, most: f32| {
            let mut parts = x.chunks(len).zip(back.chunks(len));
            parts.all(|(x, back)| close(x, back, most))
        };
        assert!(near(&back, 32, 0.26));
        let (nvfp4, factor) = quantize_nvfp4(&x).unwrap();
        Scheme::Nvfp4.dequantize(&nvfp4, &mut back).unwrap();
        back.iter_mut().for_each(|b| *b *= factor);
        assert!(near(&back, 16, 1.0 / 6.0 + 0.07));
        assert!(quantize_nvfp4(&x[1..]).is_err());
        let (zeros, factor) = quantize_nvfp4(&[0.0; 64]).unwrap();
        assert_eq!((zeros, factor), (vec![0; 36], 1.0));
    }
}
