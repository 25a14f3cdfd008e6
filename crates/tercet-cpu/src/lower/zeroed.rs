//! Memory for packed operands and sums, zeroed.

use bytemuck::allocation::try_zeroed_slice_box;
use tercet_ir::{DType, EvalError, TensorError, TensorType};

/// Zeros that a kernel packs weights into.
///
/// # Errors
/// [`EvalError::Tensor`] when there is no room for them.
fn zeroed<T: bytemuck::Zeroable>(dtype: DType, len: usize) -> Result<Vec<T>, EvalError> {
    let made = try_zeroed_slice_box(len).map_err(|()| {
        let ty = TensorType::new(dtype, &[len]);
        let bytes = ty.saturating_bytes();
        TensorError::OutOfMemory { ty, bytes }
    })?;
    Ok(made.into_vec())
}

/// As [`zeroed`], of F32.
pub(crate) fn zeroed_floats(len: usize) -> Result<Vec<f32>, EvalError> {
    zeroed(DType::F32, len)
}

/// As [`zeroed`], of I32.
pub(crate) fn words(len: usize) -> Result<Vec<i32>, EvalError> {
    zeroed(DType::I32, len)
}
