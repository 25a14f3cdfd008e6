//! Generated data for inputs and weights: the same name and type always give the same data.

use crate::dtype::DType;
use crate::quant::{ScaleFormat, Scheme};
use crate::tensor::Tensor;
use crate::types::TensorType;

/// How the data of a tensor is generated. The same name and shape always give the same data.
///
/// ```
/// use tercet_tensor::{DType, TensorType, fill::InputFill};
/// let ty = TensorType::new(DType::F32, &[3]);
/// let values = InputFill::Values(vec![1.0, -2.0, 3.0]).tensor("x", ty.clone());
/// assert_eq!(values.to_f64s(), [1.0, -2.0, 3.0]);
/// let drawn = InputFill::Uniform(-1.0, 1.0).tensor("x", ty.clone());
/// assert_eq!(drawn, InputFill::Uniform(-1.0, 1.0).tensor("x", ty));
/// ```
#[derive(Clone, Debug)]
pub enum InputFill {
    /// Approximately standard normal numbers; integers in -8..=8 (0..=8 for unsigned); booleans
    /// with equal probability.
    Normal,
    /// Uniform random numbers of a range.
    Uniform(f64, f64),
    /// Explicit values, row-major.
    Values(Vec<f64>),
    /// Valid indices of an axis of this size, negative ones included.
    Index(usize),
    /// NaN, infinities, signed zeros, subnormals, extremes and ordinary numbers, cyclically. For
    /// integers: the extremes, -1, 0 and 1.
    Special,
    /// Random bytes; finite numbers if `dtype` is a float.
    Bytes,
    /// Whole blocks of quantized weights: any valid quantized values, with scales that keep the
    /// weights between about -1 and 1. Ordinary numbers if the scheme is stored as floats.
    Blocks(Scheme),
}

impl InputFill {
    /// The data of a tensor of this name and type.
    ///
    /// # Panics
    /// When explicit values do not match the shape.
    pub fn tensor(&self, name: &str, ty: TensorType) -> Tensor {
        let mut bits = SplitMix64::new(name);
        let n = ty.numel();
        let unsigned = matches!(ty.dtype, DType::U32 | DType::U8);
        let values: Vec<f64> = match self {
            InputFill::Values(v) => v.clone(),
            InputFill::Uniform(lo, hi) => (0..n).map(|_| lo + (hi - lo) * bits.unit()).collect(),
            InputFill::Normal if ty.dtype == DType::Bool => {
                (0..n).map(|_| f64::from(bits.unit() < 0.5)).collect()
            }
            InputFill::Normal if unsigned => (0..n).map(|_| (bits.unit() * 9.0).floor()).collect(),
            InputFill::Normal if ty.dtype.is_int() => {
                (0..n).map(|_| (bits.unit() * 17.0).floor() - 8.0).collect()
            }
            // The sum of 12 uniform numbers minus 6 has mean 0 and variance 1.
            InputFill::Normal => (0..n)
                .map(|_| (0..12).map(|_| bits.unit()).sum::<f64>() - 6.0)
                .collect(),
            InputFill::Index(len) => {
                let len = *len as f64;
                let low = if unsigned { 0.0 } else { -len };
                (0..n)
                    .map(|_| (low + (len - low) * bits.unit()).floor())
                    .collect()
            }
            InputFill::Special => {
                let list = special_values(ty.dtype);
                (0..n).map(|i| list[i % list.len()]).collect()
            }
            InputFill::Bytes => (0..n).map(|_| (bits.unit() * 256.0).floor()).collect(),
            InputFill::Blocks(scheme) if scheme.storage().is_float() => {
                (0..n).map(|_| 2.0 * bits.unit() - 1.0).collect()
            }
            InputFill::Blocks(scheme) => {
                let bytes = block_bytes(*scheme, n, 1.0, &mut bits);
                bytes.into_iter().map(f64::from).collect()
            }
        };
        Tensor::from_f64s(ty, &values).expect("invariant: the values fit the shape")
    }
}

/// `n` bytes of random blocks of a quantization scheme. The weights have mean 0 and magnitudes up
/// to about `width`. The same name gives the same bytes.
pub fn random_blocks(name: &str, scheme: Scheme, n: usize, width: f64) -> Vec<u8> {
    let mut bits = SplitMix64::new(name);
    let mut bytes = block_bytes(scheme, n, width, &mut bits);
    // Quantized values of many formats are positive, so the sign of their scale decides. The sign
    // is the top bit of an f16.
    let (format, places) = scheme.scales();
    if format == ScaleFormat::F16 {
        for block in bytes.chunks_exact_mut(scheme.block_bytes()) {
            let sign = if bits.unit() < 0.5 { 0x80 } else { 0 };
            places.iter().for_each(|at| block[at + 1] ^= sign);
        }
    }
    bytes
}

/// Random blocks with finite quantized values. The scales of the blocks are chosen from `width` and
/// the scheme's largest quantized value.
fn block_bytes(scheme: Scheme, n: usize, width: f64, bits: &mut SplitMix64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..n).map(|_| (bits.unit() * 256.0) as u8).collect();
    let (format, places) = scheme.scales();
    for block in bytes.chunks_exact_mut(scheme.block_bytes()) {
        // NaN and infinity encodings: all exponent bits set in e5m2, all bits set in e4m3.
        let is_special = |b: u8| {
            scheme == Scheme::Fp8E5m2 && b & 0x7c == 0x7c
                || scheme == Scheme::Fp8E4m3 && b & 0x7f == 0x7f
        };
        for b in block.iter_mut().filter(|b| is_special(**b)) {
            *b &= 0xbf;
        }
        for &at in places {
            let scale = (0.5 + 0.5 * bits.unit()) * width / scheme.greatest_code();
            format.encode(block, at, scale);
        }
    }
    bytes
}

fn special_values(dtype: DType) -> Vec<f64> {
    let (max, min_normal, min_subnormal) = match dtype {
        DType::F32 => (f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE), 1e-45),
        DType::F16 => (65504.0, 6.103515625e-5, 5.960464477539063e-8),
        DType::BF16 => (3.3895313892515355e38, f64::from(f32::MIN_POSITIVE), 9.2e-41),
        DType::F64 => (f64::MAX, f64::MIN_POSITIVE, 5e-324),
        DType::Bool => return vec![0.0, 1.0],
        DType::I32 | DType::U32 | DType::I64 | DType::I16 | DType::I8 | DType::U8 => {
            let (lo, hi) = dtype.int_range().expect("invariant: integers have a range");
            return vec![lo as f64, hi as f64, -1.0, 0.0, 1.0, 2.0, 7.0];
        }
    };
    let inf = f64::INFINITY;
    let finite = [
        0.0,
        min_subnormal,
        min_normal,
        0.5,
        1.0,
        1.5,
        2.5,
        88.0,
        max,
    ];
    let signed = finite.iter().flat_map(|&x| [x, -x]);
    [f64::NAN, inf, -inf].into_iter().chain(signed).collect()
}

/// SplitMix64 (Steele, Lea, Flood 2014), seeded by a name: the same data on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn new(name: &str) -> SplitMix64 {
        // FNV-1a hash of the name.
        SplitMix64(name.bytes().fold(0xcbf29ce484222325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100000001b3)
        }))
    }

    /// A uniform number in [0, 1).
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_weights_are_finite_and_of_size_one() {
        for &scheme in Scheme::ALL {
            let k = scheme.block_len() * (4096 / scheme.block_len());
            let stored = scheme.stored_len(k).expect("whole blocks");
            let ty = TensorType::new(scheme.storage(), &[stored]);
            let blocks = InputFill::Blocks(scheme).tensor("w", ty);
            let mut values = vec![0.0; k];
            scheme
                .dequantize(blocks.bytes(), &mut values)
                .expect("whole blocks");
            let greatest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert!(values.iter().all(|v| v.is_finite()), "{scheme:?}");
            assert!((0.25..=2.5).contains(&greatest), "{scheme:?} {greatest}");
        }
    }
}
