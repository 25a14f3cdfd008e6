//! Compares a result with the expected one: `|a - b| <= 1e-7 + 1e-3 |b|`, the rule of ONNX's own
//! test runner. BF16 has steps larger than that, so BF16 elements may differ by two steps.

use tercet::{DType, Tensor};

/// Whether all differences are within the F32 rounding error of sums of the maximum magnitude in
/// `expected`.
pub(crate) fn is_rounding(found: &Tensor, expected: &Tensor) -> bool {
    if found.ty() != expected.ty() || !found.dtype().is_float() {
        return false;
    }
    let (a, b) = (found.to_f64s(), expected.to_f64s());
    let greatest = b.iter().fold(0f64, |m, x| m.max(x.abs()));
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * greatest;
    greatest.is_finite() && a.iter().zip(&b).all(near)
}

/// The distance of neighbours in BF16 near a number.
fn bf16_step(x: f64) -> f64 {
    let exponent = x.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (exponent - 7.0).exp2()
}

/// A description of the first difference between two tensors; `None` if they match.
pub(crate) fn differ(found: &Tensor, expected: &Tensor) -> Option<String> {
    if found.ty() != expected.ty() {
        return Some(format!("is {}, expected {}", found.ty(), expected.ty()));
    }
    if !found.dtype().is_float() {
        return (found.bytes() != expected.bytes())
            .then(|| format!("is {found:?}, expected {expected:?}"));
    }
    let bound = |b: f64| match found.dtype() {
        DType::BF16 => 2.0 * bf16_step(b),
        _ => 1e-7 + 1e-3 * b.abs(),
    };
    let close = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound(b);
    let (a, b) = (found.to_f64s(), expected.to_f64s());
    let at = a.iter().zip(&b).position(|(a, b)| !close(*a, *b))?;
    Some(format!(
        "element {at} of {} is {}, expected {}",
        found.ty(),
        a[at],
        b[at]
    ))
}
