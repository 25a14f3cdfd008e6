//! Quantization to the GGUF formats whose values are a step times a small integer, optionally minus
//! a minimum.
//!
//! Steps and minima are fitted by least squares. For several initial guesses, weights are rounded
//! to integers, and the optimal step (and minimum) for those integers is computed. The guess with
//! the smallest error is used. In the K-quants the results of the sub-blocks are then rounded to
//! multiples of the super-block's steps, and the weights are rounded again with those.

use half::f16;

use super::blocks256::Codes256;
use super::{QuantError, Scheme, greatest, quantize};

/// Why weights cannot be quantized to a scheme.
///
/// ```
/// use tercet_tensor::{Scheme, quant::QuantizeError};
/// let weights = [0f32; 256];
/// let error = Scheme::Iq2S.quantize(&weights).unwrap_err();
/// assert_eq!(error, QuantizeError::DecodeOnly(Scheme::Iq2S));
/// let error = Scheme::Q8_0.quantize(&[f32::NAN; 32]).unwrap_err();
/// assert_eq!(error, QuantizeError::Range(Scheme::Q8_0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// Quantization to this scheme is not supported: it is decode-only, or needs more than the
    /// values.
    #[error("quantizing to {} is not supported (decode only)", .0.name())]
    DecodeOnly(Scheme),
    /// The values are not whole blocks.
    #[error(transparent)]
    Blocks(#[from] QuantError),
    /// A value is not finite, or too large for the scheme's scales.
    #[error("a value is not finite or exceeds the range of {}", .0.name())]
    Range(Scheme),
}

impl Scheme {
    /// Whether [`Scheme::quantize`] supports this scheme.
    pub const fn can_quantize(self) -> bool {
        matches!(
            self,
            Scheme::F16
                | Scheme::BF16
                | Scheme::Q4_0
                | Scheme::Q4_1
                | Scheme::Q5_0
                | Scheme::Q5_1
                | Scheme::Q8_0
                | Scheme::Q2K
                | Scheme::Q3K
                | Scheme::Q4K
                | Scheme::Q5K
                | Scheme::Q6K
                | Scheme::Mxfp4
                | Scheme::Fp8E4m3
                | Scheme::Fp8E5m2
                | Scheme::Int8
                | Scheme::Int8Asym
                | Scheme::Int4
                | Scheme::Int4Asym
        )
    }

    /// Quantizes weights to whole blocks of this scheme, row after row. Quantization is the inverse
    /// of [`Scheme::dequantize`], up to the error of the format.
    ///
    /// # Errors
    /// [`QuantizeError`].
    ///
    /// ```
    /// use tercet_tensor::Scheme;
    /// let weights: Vec<f32> = (0..256).map(|i| (i as f32).sin()).collect();
    /// let bytes = Scheme::Q4K.quantize(&weights)?;
    /// let mut back = vec![0.0; 256];
    /// Scheme::Q4K.dequantize(&bytes, &mut back).unwrap();
    /// assert!(weights.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.08));
    /// # Ok::<(), tercet_tensor::quant::QuantizeError>(())
    /// ```
    pub fn quantize(self, x: &[f32]) -> Result<Vec<u8>, QuantizeError> {
        if !x.iter().all(|x| x.is_finite()) {
            return Err(QuantizeError::Range(self));
        }
        let bytes = match self {
            Scheme::F16 => floats(x, |x| f16::from_f32(x).to_le_bytes()),
            Scheme::BF16 => floats(x, |x| half::bf16::from_f32(x).to_le_bytes()),
            Scheme::Q4_0 => quantize(self, x, |x, to| step_32(x, 4, to)),
            Scheme::Q5_0 => quantize(self, x, |x, to| step_32(x, 5, to)),
            Scheme::Q4_1 => quantize(self, x, |x, to| step_and_minimum_32(x, 4, to)),
            Scheme::Q5_1 => quantize(self, x, |x, to| step_and_minimum_32(x, 5, to)),
            Scheme::Q8_0 => super::quantize_q8_0(x),
            Scheme::Q2K => quantize(self, x, q2_k),
            Scheme::Q3K => quantize(self, x, q3_k),
            Scheme::Q4K => quantize(self, x, |x, to| q4_or_5_k(x, 4, to)),
            Scheme::Q5K => quantize(self, x, |x, to| q4_or_5_k(x, 5, to)),
            Scheme::Q6K => quantize(self, x, q6_k),
            Scheme::Mxfp4 => super::quantize_mxfp4(x),
            Scheme::Fp8E4m3 => super::quantize_fp8_e4m3(x),
            Scheme::Fp8E5m2 => super::quantize_fp8_e5m2(x),
            Scheme::Int8 => super::quantize_int8(x),
            Scheme::Int8Asym => super::quantize_int8_asym(x),
            Scheme::Int4 => super::quantize_int4(x),
            Scheme::Int4Asym => super::quantize_int4_asym(x),
            _ => return Err(QuantizeError::DecodeOnly(self)),
        }?;
        // Values that exceed a 16-bit scale decode to infinity or NaN.
        let mut block = vec![0.0; self.block_len()];
        for bytes in bytes.chunks_exact(self.block_bytes()) {
            self.decode(bytes, &mut block);
            if !block.iter().all(|x| x.is_finite()) {
                return Err(QuantizeError::Range(self));
            }
        }
        Ok(bytes)
    }
}

fn floats(x: &[f32], to: impl Fn(f32) -> [u8; 2]) -> Result<Vec<u8>, QuantError> {
    Ok(x.iter().flat_map(|x| to(*x)).collect())
}

/// Initial guesses of the step. For guess `g`, the step is the range of the values divided by the
/// format's largest integer plus `g / 10`.
const GUESSES: std::ops::RangeInclusive<i32> = -9..=9;

/// `x / d` rounded to an integer of the range; 0 if the step is 0.
fn code(x: f32, d: f32, [least, most]: [f32; 2]) -> f32 {
    match d == 0.0 {
        true => 0f32.clamp(least, most),
        false => (x / d).round_ties_even().clamp(least, most),
    }
}

/// The optimal step `d` for `x = d q` with q in `range`, whose lower end has the larger magnitude.
fn step(x: &[f32], range: [f32; 2]) -> f32 {
    let larger = |m: f32, &x: &f32| if x.abs() > m.abs() { x } else { m };
    let extreme = x.iter().fold(0f32, larger);
    let mut best = (f64::INFINITY, 0.0);
    if extreme == 0.0 {
        return 0.0;
    }
    for guess in GUESSES {
        let d = extreme / (range[0] + 0.1 * guess as f32);
        let (mut xq, mut qq) = (0f64, 0f64);
        for &x in x {
            let q = f64::from(code(x, d, range));
            xq += f64::from(x) * q;
            qq += q * q;
        }
        if qq == 0.0 {
            continue;
        }
        let d = (xq / qq) as f32;
        let off = |x: f32| f64::from(x) - f64::from(d * code(x, d, range));
        let error: f64 = x.iter().map(|&x| off(x).powi(2)).sum();
        if error < best.0 {
            best = (error, d);
        }
    }
    best.1
}

/// The optimal step `d` and minimum `m >= 0` for `x = d q - m` with q from 0 to `most`.
fn step_and_minimum(x: &[f32], most: f32) -> [f32; 2] {
    let least = x.iter().fold(0f32, |m, &x| m.min(x));
    let greatest = x.iter().fold(least, |m, &x| m.max(x));
    let mut best = (f64::INFINITY, [0.0, -least]);
    if greatest == least {
        return best.1;
    }
    let n = x.len() as f64;
    for guess in GUESSES {
        let d = (greatest - least) / (most + 0.1 * guess as f32);
        let (mut sq, mut sqq, mut sx, mut sxq) = (0f64, 0f64, 0f64, 0f64);
        for &x in x {
            let q = f64::from(code(x - least, d, [0.0, most]));
            let x = f64::from(x);
            (sq, sqq, sx, sxq) = (sq + q, sqq + q * q, sx + x, sxq + x * q);
        }
        let free = n * sqq - sq * sq;
        let (mut d, mut m) = match free > 0.0 {
            true => {
                let d = (n * sxq - sx * sq) / free;
                (d, (d * sq - sx) / n)
            }
            false => (f64::from(d), f64::from(-least)),
        };
        if m < 0.0 && sqq > 0.0 {
            (d, m) = (sxq / sqq, 0.0);
        }
        let (d, m) = (d.max(0.0) as f32, m as f32);
        let off = |x: f32| f64::from(d * code(x + m, d, [0.0, most]) - m) - f64::from(x);
        let error: f64 = x.iter().map(|&x| off(x).powi(2)).sum();
        if error < best.0 {
            best = (error, [d, m]);
        }
    }
    best.1
}

/// Writes the nibbles of a block of 32 in the layout of `blocks32`, after the fifth bits of 5-bit
/// values.
fn put_32(codes: &[u8; 32], bits: u32, to: &mut Vec<u8>) {
    if bits == 5 {
        let bit = |(i, q): (usize, &u8)| u32::from(q >> 4 & 1) << i;
        let fifth: u32 = codes.iter().enumerate().map(bit).sum();
        to.extend(fifth.to_le_bytes());
    }
    let (low, high) = codes.split_at(16);
    to.extend(low.iter().zip(high).map(|(l, h)| l & 15 | h << 4));
}

/// Quantizes a block to Q4_0 or Q5_0.
fn step_32(x: &[f32; 32], bits: u32, to: &mut Vec<u8>) {
    let half = (1u32 << (bits - 1)) as f32;
    let range = [-half, half - 1.0];
    let d = f16::from_f32(step(x, range));
    to.extend(d.to_le_bytes());
    put_32(
        &x.map(|x| (code(x, d.to_f32(), range) + half) as u8),
        bits,
        to,
    );
}

/// Quantizes a block to Q4_1 or Q5_1.
fn step_and_minimum_32(x: &[f32; 32], bits: u32, to: &mut Vec<u8>) {
    let most = ((1u32 << bits) - 1) as f32;
    // In these formats the minimum is added and may be positive. After the minimum is subtracted,
    // all values are at least 0.
    let least = x.iter().fold(f32::INFINITY, |m, &x| m.min(x));
    let [d, m] = step_and_minimum(&x.map(|x| x - least), most);
    let (d, m) = (f16::from_f32(d), f16::from_f32(least - m));
    to.extend(d.to_le_bytes());
    to.extend(m.to_le_bytes());
    let q = |x: f32| code(x - m.to_f32(), d.to_f32(), [0.0, most]) as u8;
    put_32(&x.map(q), bits, to);
}

/// Rounds steps to multiples, 0 to `most`, of one step for the super-block.
fn multiples<const N: usize>(steps: [f32; N], most: f32) -> (f16, [u8; N]) {
    let of = f16::from_f32(greatest(&steps) / most);
    (of, steps.map(|s| code(s, of.to_f32(), [0.0, most]) as u8))
}

/// As [`multiples`], with signs; the lower end of `range` has the larger magnitude.
fn signed_multiples<const N: usize>(steps: [f32; N], range: [f32; 2]) -> (f16, [i8; N]) {
    let larger = |m: f32, &x: &f32| if x.abs() > m.abs() { x } else { m };
    let of = f16::from_f32(steps.iter().fold(0f32, larger) / range[0]);
    (of, steps.map(|s| code(s, of.to_f32(), range) as i8))
}

/// The quantized values of sub-blocks of `SUB` elements, with step and minimum from `of`.
fn codes<const SUB: usize>(
    x: &[f32; 256],
    of: impl Fn(usize) -> [f32; 2],
    range: [f32; 2],
    zero: f32,
) -> Codes256 {
    let mut codes = [0; 256];
    let subs = x.chunks_exact(SUB).zip(codes.chunks_exact_mut(SUB));
    for (j, (x, codes)) in subs.enumerate() {
        let [d, m] = of(j);
        for (x, to) in x.iter().zip(codes) {
            *to = (code(x + m, d, range) + zero) as u8;
        }
    }
    codes
}

fn put_two_bits(codes: &Codes256, to: &mut Vec<u8>) {
    for codes in codes.chunks_exact(128) {
        let at = |i: usize| (0..4).map(move |s| (codes[32 * s + i] & 3) << (2 * s));
        to.extend((0..32).map(|i| at(i).sum::<u8>()));
    }
}

fn put_four_bits(codes: &Codes256, lanes: usize, to: &mut Vec<u8>) {
    for codes in codes.chunks_exact(2 * lanes) {
        let (low, high) = codes.split_at(lanes);
        to.extend(low.iter().zip(high).map(|(l, h)| l & 15 | (h & 15) << 4));
    }
}

/// Writes bit `at` of every quantized value.
fn put_high_bits(codes: &Codes256, at: u8, to: &mut Vec<u8>) {
    let byte = |i: usize| (0..8).map(move |bit| (codes[32 * bit + i] >> at & 1) << bit);
    to.extend((0..32).map(|i| byte(i).sum::<u8>()));
}

fn q2_k(x: &[f32; 256], to: &mut Vec<u8>) {
    let subs: [[f32; 2]; 16] =
        std::array::from_fn(|j| step_and_minimum(&x[16 * j..16 * (j + 1)], 3.0));
    let (d, s) = multiples(subs.map(|[d, _]| d), 15.0);
    let (m, t) = multiples(subs.map(|[_, m]| m), 15.0);
    let of = |j: usize| [d.to_f32() * f32::from(s[j]), m.to_f32() * f32::from(t[j])];
    to.extend(s.iter().zip(&t).map(|(s, t)| s | t << 4));
    put_two_bits(&codes::<16>(x, of, [0.0, 3.0], 0.0), to);
    to.extend(d.to_le_bytes());
    to.extend(m.to_le_bytes());
}

fn q3_k(x: &[f32; 256], to: &mut Vec<u8>) {
    let range = [-4.0, 3.0];
    let steps: [f32; 16] = std::array::from_fn(|j| step(&x[16 * j..16 * (j + 1)], range));
    let (d, s) = signed_multiples(steps, [-32.0, 31.0]);
    let of = |j: usize| [d.to_f32() * f32::from(s[j]), 0.0];
    let codes = codes::<16>(x, of, range, 4.0);
    put_high_bits(&codes, 2, to);
    put_two_bits(&codes, to);
    let mut packed = [0u8; 12];
    for (j, s) in s.iter().enumerate() {
        let s = (s + 32) as u8;
        packed[j % 8] |= (s & 15) << (4 * (j / 8));
        packed[8 + j % 4] |= (s >> 4) << (2 * (j / 4));
    }
    to.extend(packed);
    to.extend(d.to_le_bytes());
}

fn q4_or_5_k(x: &[f32; 256], bits: u32, to: &mut Vec<u8>) {
    let most = ((1u32 << bits) - 1) as f32;
    let subs: [[f32; 2]; 8] =
        std::array::from_fn(|j| step_and_minimum(&x[32 * j..32 * (j + 1)], most));
    let (d, s) = multiples(subs.map(|[d, _]| d), 63.0);
    let (m, t) = multiples(subs.map(|[_, m]| m), 63.0);
    let of = |j: usize| [d.to_f32() * f32::from(s[j]), m.to_f32() * f32::from(t[j])];
    to.extend(d.to_le_bytes());
    to.extend(m.to_le_bytes());
    let mut packed = [0u8; 12];
    for i in 0..4 {
        packed[i] = s[i] | s[i + 4] >> 4 << 6;
        packed[4 + i] = t[i] | t[i + 4] >> 4 << 6;
        packed[8 + i] = s[i + 4] & 15 | t[i + 4] << 4;
    }
    to.extend(packed);
    let codes = codes::<32>(x, of, [0.0, most], 0.0);
    if bits == 5 {
        put_high_bits(&codes, 4, to);
    }
    put_four_bits(&codes, 32, to);
}

fn q6_k(x: &[f32; 256], to: &mut Vec<u8>) {
    let range = [-32.0, 31.0];
    let steps: [f32; 16] = std::array::from_fn(|j| step(&x[16 * j..16 * (j + 1)], range));
    let (d, s) = signed_multiples(steps, [-128.0, 127.0]);
    let of = |j: usize| [d.to_f32() * f32::from(s[j]), 0.0];
    let codes = codes::<16>(x, of, range, 32.0);
    put_four_bits(&codes, 64, to);
    put_two_bits(&codes.map(|q| q >> 4), to);
    to.extend(s.map(|s| s as u8));
    to.extend(d.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root mean square error, relative to the root mean square of the values.
    fn error(scheme: Scheme, x: &[f32]) -> f64 {
        let bytes = scheme.quantize(x).unwrap();
        let mut back = vec![0.0; x.len()];
        scheme.dequantize(&bytes, &mut back).unwrap();
        let square = |x: f32| f64::from(x).powi(2);
        let off: f64 = x.iter().zip(&back).map(|(a, b)| square(a - b)).sum();
        (off / x.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
    }

    /// Approximately normal numbers with a magnitude that varies between blocks.
    fn weights(shift: f32) -> Vec<f32> {
        let mut state = 1u64;
        let mut unit = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let mut normal = || (0..12).map(|_| unit()).sum::<f32>();
        (0..4096)
            .map(|i| (normal() + shift) * (1.0 + (i / 64 % 5) as f32) * 0.02)
            .collect()
    }

    #[test]
    fn errors_are_those_of_the_number_of_bits() {
        let (even, shifted) = (weights(0.0), weights(1.5));
        for (scheme, most, max_shifted) in [
            (Scheme::F16, 3e-4, 3e-4),
            (Scheme::BF16, 3e-3, 3e-3),
            (Scheme::Q8_0, 6e-3, 6e-3),
            (Scheme::Q6K, 0.019, 0.019),
            (Scheme::Q5_0, 0.042, 0.04),
            (Scheme::Q5_1, 0.038, 0.022),
            (Scheme::Q5K, 0.038, 0.026),
            (Scheme::Q4_0, 0.085, 0.085),
            (Scheme::Q4_1, 0.076, 0.045),
            (Scheme::Q4K, 0.076, 0.055),
            (Scheme::Q3K, 0.15, 0.16),
            (Scheme::Q2K, 0.30, 0.22),
        ] {
            for (x, most) in [(&even, most), (&shifted, max_shifted)] {
                let found = error(scheme, x);
                assert!(
                    found <= most && found > 0.25 * most,
                    "{scheme:?}: {found:.4} of {most}"
                );
            }
        }
    }

    #[test]
    fn what_a_scheme_holds_exactly_comes_back() {
        let on_grid: Vec<f32> = (0..256).map(|i| (i * 7 % 16) as f32 - 8.0).collect();
        for scheme in [
            Scheme::Q4_0,
            Scheme::Q4_1,
            Scheme::Q5_0,
            Scheme::Q6K,
            Scheme::Q8_0,
        ] {
            assert!(error(scheme, &on_grid) < 6e-3, "{scheme:?}");
        }
        for &scheme in Scheme::ALL.iter().filter(|s| s.can_quantize()) {
            let zeros = vec![0.0; scheme.block_len()];
            let mut back = zeros.clone();
            scheme
                .dequantize(&scheme.quantize(&zeros).unwrap(), &mut back)
                .unwrap();
            assert_eq!(back, zeros, "{scheme:?}");
        }
    }

    #[test]
    fn what_cannot_be_rounded_is_said() {
        for &scheme in Scheme::ALL {
            let x = vec![1.0; scheme.block_len()];
            assert_eq!(
                scheme.quantize(&x).is_ok(),
                scheme.can_quantize(),
                "{scheme:?}"
            );
        }
        let nan = [f32::NAN; 256];
        assert_eq!(
            Scheme::Q4K.quantize(&nan),
            Err(QuantizeError::Range(Scheme::Q4K))
        );
        let huge = [3e38; 256];
        assert_eq!(
            Scheme::Q4K.quantize(&huge),
            Err(QuantizeError::Range(Scheme::Q4K))
        );
        let part = Scheme::Q6K.quantize(&[1.0; 255]).unwrap_err();
        assert!(part.to_string().contains("256 elements"), "{part}");
    }
}
