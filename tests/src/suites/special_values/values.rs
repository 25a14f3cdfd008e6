//! Special values, and the comparison of results with expected values.

use tercet_ir::accuracy::{Accuracy, tolerance};
use tercet_ir::{DType, Tensor, TensorType};

/// A number of any dtype: floats as F64, integers and booleans as I128.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Special {
    F(f64),
    I(i128),
}

/// Binary format of a float dtype.
struct FloatFormat {
    /// Bits of the significand, with the leading one.
    digits: i32,
    /// Exponents of the smallest and of the greatest normal number.
    exponents: [i32; 2],
}

fn format(dtype: DType) -> FloatFormat {
    let (digits, exponents) = match dtype {
        DType::F16 => (11, [-14, 15]),
        DType::BF16 => (8, [-126, 127]),
        DType::F32 => (24, [-126, 127]),
        _ => (53, [-1022, 1023]),
    };
    FloatFormat { digits, exponents }
}

fn power_of_two(n: i32) -> f64 {
    // Compute 2^n as a product of two powers, because 2^n may be subnormal.
    let half = n / 2;
    2f64.powi(half) * 2f64.powi(n - half)
}

/// The greatest finite number of a float dtype.
pub(super) fn greatest(dtype: DType) -> f64 {
    let f = format(dtype);
    (2.0 - power_of_two(1 - f.digits)) * power_of_two(f.exponents[1])
}

/// `x` rounded to the nearest number of a float dtype, ties to even.
pub(super) fn rounded(x: f64, dtype: DType) -> f64 {
    let f = format(dtype);
    if dtype == DType::F64 || !x.is_finite() || x == 0.0 {
        return x;
    }
    let exponent = libm::ilogb(x).max(f.exponents[0]);
    let unit = power_of_two(exponent + 1 - f.digits);
    let y = (x / unit).round_ties_even() * unit;
    match y.abs() > greatest(dtype) {
        true => f64::INFINITY.copysign(x),
        false => y,
    }
}

/// The special values of a dtype.
pub(super) fn specials(dtype: DType) -> Vec<Special> {
    if let Some((least, most)) = dtype.int_range() {
        let all = [
            0,
            1,
            2,
            3,
            7,
            31,
            32,
            100,
            127,
            128,
            255,
            256,
            (1 << 24) + 1,
            i64::from(i32::MAX),
            i64::from(i32::MAX) + 1,
            i64::from(u32::MAX),
            i64::from(u32::MAX) + 1,
            (1 << 53) + 1,
            i64::MAX,
        ];
        let mut all: Vec<i64> = all.iter().flat_map(|&x| [x, -x]).collect();
        all.extend([least, least.saturating_add(1), most, most - 1]);
        all.retain(|x| (least..=most).contains(x));
        all.sort_unstable();
        all.dedup();
        return all.into_iter().map(|x| Special::I(x.into())).collect();
    }
    let f = format(dtype);
    let normal = power_of_two(f.exponents[0]);
    let subnormal = power_of_two(f.exponents[0] + 1 - f.digits);
    let sizes = [
        0.0,
        subnormal,
        3.0 * subnormal,
        normal - subnormal,
        normal,
        1.5 * normal,
        rounded(1e-3, dtype),
        0.5,
        1.0 - power_of_two(-f.digits),
        1.0,
        1.0 + power_of_two(1 - f.digits),
        2.0,
        2.5,
        3.0,
        rounded(88.7, dtype),
        100.0,
        rounded(2049.0, dtype),
        rounded(65504.0, dtype),
        rounded(1.0e10, dtype),
        rounded(2.0e19, dtype),
        power_of_two(f.exponents[1]),
        greatest(dtype),
        f64::INFINITY,
    ];
    let signed = sizes.iter().flat_map(|&x| [x, -x]);
    let all = signed.chain([f64::NAN]);
    all.map(Special::F).collect()
}

/// A tensor of one axis.
pub(super) fn tensor(dtype: DType, shape: &[usize], values: &[Special]) -> Tensor {
    let ty = TensorType::new(dtype, shape);
    let made = match dtype.is_float() {
        true => {
            let floats: Vec<f64> = values.iter().map(|v| v.as_f64()).collect();
            Tensor::from_f64s(ty, &floats)
        }
        false => {
            let integers = values.iter().map(|v| match v {
                Special::I(i) => *i as i64,
                Special::F(x) => *x as i64,
            });
            Tensor::from_i64s(ty, &integers.collect::<Vec<_>>())
        }
    };
    made.expect("one value for each element")
}

/// The elements of a tensor.
pub(super) fn elements(tensor: &Tensor) -> Vec<Special> {
    match tensor.dtype().is_float() {
        true => tensor.to_f64s().into_iter().map(Special::F).collect(),
        false => {
            let integers = tensor.to_i64s().into_iter();
            integers.map(|i| Special::I(i.into())).collect()
        }
    }
}

impl Special {
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Special::F(x) => x,
            Special::I(i) => i as f64,
        }
    }

    /// Whether two numbers are the same value: the sign of zero counts, the bits of NaN do not.
    pub(super) fn is_same(self, other: Special) -> bool {
        match (self, other) {
            (Special::F(a), Special::F(b)) => {
                a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
            }
            (Special::I(a), Special::I(b)) => a == b,
            (_, _) => false,
        }
    }

    /// Whether a computed value is within the tolerance of elementwise functions. NaN, infinities
    /// and the signs of zeros must be exact.
    pub(super) fn is_near(self, want: Special, dtype: DType) -> bool {
        let (Special::F(got), Special::F(want)) = (self, want) else {
            return self.is_same(want);
        };
        if !got.is_finite() || !want.is_finite() || got == 0.0 && want == 0.0 {
            return self.is_same(Special::F(want));
        }
        let allowed = tolerance(Accuracy::Elementwise, dtype);
        got.is_sign_negative() == want.is_sign_negative()
            && (got - want).abs() <= allowed.rel * want.abs() + allowed.min_abs
    }
}
