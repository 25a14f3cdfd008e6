//! Gradients of Fourier transforms. Fourier transforms are linear, so the cotangent passes through
//! the adjoint: the inverse transform with the scale of the forward transform.

use tercet_tensor::{Dim, Tensor, TensorType};

use crate::grad::{Vjp, VjpResult};
use crate::ops::{Fft, FftNorm, IRFft, RFft};

/// The normalization with which the opposite direction has the scale of this direction.
fn adjoint(norm: FftNorm) -> FftNorm {
    match norm {
        FftNorm::Backward => FftNorm::Forward,
        FftNorm::Ortho => FftNorm::Ortho,
        FftNorm::Forward => FftNorm::Backward,
    }
}

pub(crate) fn fft(op: &Fft, v: &mut Vjp<'_>) -> VjpResult {
    let dy = v.dy(0)?;
    let back = Fft {
        inverse: !op.inverse,
        norm: adjoint(op.norm),
    };
    let dx = v.add(back, &[dy])?;
    Ok(v.accumulate(0, dx)?)
}

/// The cotangent is the real part of the adjoint transform; bins that the result does not store are
/// zeros.
pub(crate) fn rfft(op: &RFft, v: &mut Vjp<'_>) -> VjpResult {
    let (shape, dy) = (v.shape(v.x(0)), v.dy(0)?);
    let bins = v.rank(dy) - 2;
    let full = match shape[bins].known().zip(v.shape(dy)[bins].known()) {
        Some((n, have)) => v.zeros_around(dy, bins, 0, n - have)?,
        None => {
            let mut all = v.shape(dy).into_dims();
            all[bins] = shape[bins].clone();
            let ty = v.ty(dy).with_shape(all);
            let zeros = v.filled(&ty, 0.0)?;
            let first = v.first_element(bins + 2)?;
            v.dynamic_update_slice(zeros, dy, first)?
        }
    };
    let back = Fft {
        inverse: true,
        norm: adjoint(op.norm),
    };
    let dx = v.add(back, &[full])?;
    let real = v.slice_axis(dx, bins + 1, 0, 1, 1)?;
    let dx = v.shaped(real, shape)?;
    Ok(v.accumulate(0, dx)?)
}

/// The cotangent of a bin that represents two conjugate bins is doubled.
pub(crate) fn irfft(op: &IRFft, v: &mut Vjp<'_>) -> VjpResult {
    let (x, dy) = (v.x(0), v.dy(0)?);
    let norm = adjoint(op.norm);
    let dx = v.add(RFft { norm }, &[dy])?;
    let bins = v.shape(x)[v.rank(x) - 2].known().unwrap_or(op.n / 2 + 1);
    let counts: Vec<f64> = (0..bins)
        .map(|k| match k == 0 || 2 * k == op.n {
            true => 1.0,
            false => 2.0,
        })
        .collect();
    let ty = TensorType::new(v.dtype(dx), &[bins, 1]);
    let counts = Tensor::from_f64s(ty, &counts).expect("invariant: as many counts as bins");
    let counts = v.constant(counts)?;
    let dx = v.mul(dx, counts)?;
    debug_assert_eq!(v.shape(dx)[v.rank(dx) - 2], Dim::Known(bins));
    Ok(v.accumulate(0, dx)?)
}
