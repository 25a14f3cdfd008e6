//! The tolerance table: the maximum error of an executor against the reference interpreter, by
//! accuracy class and dtype. Parity tests and `verify` read this table; no other place defines a
//! tolerance.

use std::fmt;

use crate::dtype::DType;
use crate::tensor::Tensor;

/// The accuracy class of an operator: how much rounding error its definition permits.
///
/// ```
/// use tercet_tensor::{DType, accuracy::{Accuracy, tolerance}};
/// assert_eq!(tolerance(Accuracy::Exact, DType::F32).abs, 0.0);
/// assert!(tolerance(Accuracy::Contraction, DType::F16).rel > tolerance(Accuracy::Contraction, DType::F32).rel);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accuracy {
    /// Bitwise equal results: data movement, integers, comparisons, single IEEE 754 operations.
    Exact,
    /// A function of single elements that is not correctly rounded, such as `exp`.
    Elementwise,
    /// A sum along an axis, or a norm or softmax built on such sums.
    Reduction,
    /// A sum of products: matmul, convolution and attention.
    Contraction,
    /// Rendered colours. A colour depends on pixel positions, whose rounding errors grow with the
    /// image size. A colour also contains a product of hundreds of transmittance factors.
    Rendering,
}

impl Accuracy {
    /// Every class, from strict to loose.
    pub const ALL: &'static [Accuracy] = &[
        Accuracy::Exact,
        Accuracy::Elementwise,
        Accuracy::Reduction,
        Accuracy::Contraction,
        Accuracy::Rendering,
    ];
}

/// A tolerance: an element passes if `|got - want| <= abs * scale + rel * |want| + min_abs`. `scale`
/// is the largest finite magnitude among the expected values of the tensor (at least the smallest
/// normal number).
///
/// ```
/// use tercet_tensor::accuracy::Tolerance;
/// let tolerance = Tolerance { abs: 0.0, rel: 0.01, min_abs: 0.0 };
/// let scale = 100.0;
/// assert!(tolerance.error_in_tolerances(99.5, 100.0, scale) <= 1.0);
/// assert_eq!(tolerance.error_in_tolerances(96.0, 100.0, scale), 4.0);
/// assert_eq!(tolerance.error_in_tolerances(f64::NAN, 100.0, scale), f64::INFINITY);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Permitted error relative to the tensor's largest magnitude.
    pub abs: f64,
    /// Permitted error relative to the element's magnitude.
    pub rel: f64,
    /// Absolute error floor: the spacing of the dtype's subnormal numbers. Relative accuracy ends
    /// there, because an intermediate rounding near a tie may go either direction. 0 for exact
    /// classes.
    pub min_abs: f64,
}

impl Tolerance {
    /// The error of an element as a multiple of this tolerance: at most 1 passes. Equal values (NaN
    /// with NaN, equal infinities) have error 0. A NaN or infinity against any other value has an
    /// infinite error.
    pub fn error_in_tolerances(self, got: f64, want: f64, scale: f64) -> f64 {
        if got == want || (got.is_nan() && want.is_nan()) {
            return 0.0;
        }
        if !got.is_finite() || !want.is_finite() {
            return f64::INFINITY;
        }
        (got - want).abs() / (self.abs * scale + self.rel * want.abs() + self.min_abs)
    }
}

/// The element of a tensor with the largest error against the expected value.
///
/// ```
/// use tercet_tensor::{Tensor, accuracy::{Accuracy, furthest}};
/// let expected = Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?;
/// let got = Tensor::from_slice(&[3], &[1f32, 2.5, 4.0])?;
/// let worst = furthest(Accuracy::Elementwise, &got, &expected).expect("there are elements");
/// assert_eq!((worst.element, worst.got, worst.expected), (1, 2.5, 2.0));
/// assert!(worst.units > 1.0);
/// # Ok::<(), tercet_tensor::TensorError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorstElement {
    /// Row-major index of the element.
    pub element: usize,
    /// The computed value of the element.
    pub got: f64,
    /// The expected value of the element.
    pub expected: f64,
    /// The error as a multiple of the tolerance: at most 1 passes.
    pub units: f64,
}

impl fmt::Display for WorstElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorstElement {
            element,
            got,
            expected: want,
            units,
        } = self;
        write!(
            f,
            "element {element} is {got:e} instead of {want:e}, {units:.1} tolerances off"
        )
    }
}

/// Compares two tensors of one type by the tolerance table. Returns the element with the largest
/// error; `None` if the tensors are empty. Integers and booleans must be equal; any difference is
/// an infinite error.
pub fn furthest(class: Accuracy, got: &Tensor, want: &Tensor) -> Option<WorstElement> {
    let (g, w) = (got.to_f64s(), want.to_f64s());
    let mut units: Box<dyn Iterator<Item = f64>> = if want.dtype().is_float() {
        let finite = w.iter().filter(|x| x.is_finite());
        let scale = finite.fold(f64::from(f32::MIN_POSITIVE), |m, x| m.max(x.abs()));
        let allowed = tolerance(class, want.dtype());
        // The error of a NaN is infinite, never NaN.
        Box::new(
            g.iter()
                .zip(&w)
                .map(move |(&g, &w)| allowed.error_in_tolerances(g, w, scale)),
        )
    } else {
        let pairs = got.to_i64s().into_iter().zip(want.to_i64s());
        Box::new(pairs.map(|(g, w)| if g == w { 0.0 } else { f64::INFINITY }))
    };
    let first = units.next()?;
    let (element, units) =
        units.enumerate().fold(
            (0, first),
            |best, (i, u)| if u > best.1 { (i + 1, u) } else { best },
        );
    Some(WorstElement {
        element,
        got: g[element],
        expected: w[element],
        units,
    })
}

/// Half the spacing of floats at 1.0: the maximum relative error of one rounding.
const fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1.1102230246251565e-16,
        DType::F32 => 5.960464477539063e-8,
        DType::F16 => 4.8828125e-4,
        DType::BF16 => 3.90625e-3,
        DType::I32 | DType::U32 | DType::I64 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => {
            0.0
        }
    }
}

/// The tolerance of an accuracy class for results of a dtype.
///
/// In units of roundoff: elementwise functions may have an error of 4. Reductions may add 8
/// relative to the tensor's scale, and contractions 32 (their terms cancel). Rendered images may
/// add 512: in F32, 3e-5 of the brightest value, while a step of an 8-bit image is 4e-3. F16 and
/// BF16 accumulate in F32, so their error is a few roundings of the result.
pub fn tolerance(class: Accuracy, dtype: DType) -> Tolerance {
    let u = unit_roundoff(dtype);
    let narrow = matches!(dtype, DType::F16 | DType::BF16);
    let (abs, rel) = match class {
        Accuracy::Exact => (0.0, 0.0),
        Accuracy::Elementwise => (0.0, 4.0),
        Accuracy::Reduction if narrow => (2.0, 4.0),
        Accuracy::Reduction => (8.0, 8.0),
        Accuracy::Contraction if narrow => (2.0, 4.0),
        Accuracy::Contraction => (32.0, 16.0),
        Accuracy::Rendering if narrow => (2.0, 4.0),
        Accuracy::Rendering => (512.0, 64.0),
    };
    Tolerance {
        abs: abs * u,
        rel: rel * u,
        min_abs: match class {
            Accuracy::Exact => 0.0,
            Accuracy::Elementwise
            | Accuracy::Reduction
            | Accuracy::Contraction
            | Accuracy::Rendering => min_subnormal(dtype),
        },
    }
}

/// The spacing of subnormal numbers of a dtype.
const fn min_subnormal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 5e-324,
        DType::F32 => 1.401298464324817e-45,
        DType::F16 => 5.960464477539063e-8,
        DType::BF16 => 9.183549615799121e-41,
        DType::I32 | DType::U32 | DType::I64 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_looser() {
        for &d in DType::FLOATS {
            for pair in Accuracy::ALL.windows(2) {
                let (a, b) = (tolerance(pair[0], d), tolerance(pair[1], d));
                assert!(a.abs + a.rel <= b.abs + b.rel, "{d} {pair:?}");
            }
        }
    }

    #[test]
    fn the_furthest_element_is_found() {
        let want = Tensor::from_slice(&[3], &[1f32, 2.0, 4.0]).unwrap();
        let got = Tensor::from_slice(&[3], &[1f32, 2.5, f32::NAN]).unwrap();
        let f = furthest(Accuracy::Elementwise, &got, &want).unwrap();
        assert_eq!((f.element, f.expected, f.units), (2, 4.0, f64::INFINITY));
        let same = furthest(Accuracy::Exact, &want, &want).unwrap();
        assert_eq!((same.element, same.units), (0, 0.0));
        // `i64::MAX` and `i64::MAX - 1` exceed 2^53, so they would be equal after conversion to
        // floats.
        let (a, b) = (i64::MAX, i64::MAX - 1);
        let (a, b) = (Tensor::scalar(a), Tensor::scalar(b));
        assert_eq!(
            furthest(Accuracy::Exact, &a, &b).unwrap().units,
            f64::INFINITY
        );
        let none = Tensor::from_slice::<f32>(&[0], &[]).unwrap();
        assert_eq!(furthest(Accuracy::Exact, &none, &none), None);
    }

    #[test]
    fn nan_is_only_equal_to_nan() {
        let t = tolerance(Accuracy::Contraction, DType::F32);
        assert_eq!(t.error_in_tolerances(f64::NAN, f64::NAN, 1.0), 0.0);
        assert_eq!(t.error_in_tolerances(f64::NAN, 1.0, 1.0), f64::INFINITY);
        assert_eq!(
            t.error_in_tolerances(f64::INFINITY, f64::MAX, 1.0),
            f64::INFINITY
        );
        assert!(t.error_in_tolerances(1.0 + 1e-3, 1.0, 1.0) > 1.0);
    }
}
