//! Memory for packed operands and sums, zeroed.

use tercet_ir::{DType, EvalError, TensorError, TensorType};

use crate::pages::Pages;

/// Zeros that a kernel packs weights into.
///
/// # Errors
/// [`EvalError::Tensor`] when there is no room for them.
fn zeroed<T: bytemuck::Pod>(dtype: DType, len: usize) -> Result<Pages<T>, EvalError> {
    let made = Pages::zeroed(len).ok_or_else(|| {
        let ty = TensorType::new(dtype, &[len]);
        let bytes = ty.saturating_bytes();
        TensorError::OutOfMemory { ty, bytes }
    });
    Ok(made?)
}

/// As [`zeroed`], of F32.
pub(crate) fn zeroed_floats(len: usize) -> Result<Pages<f32>, EvalError> {
    zeroed(DType::F32, len)
}

/// As [`zeroed`], of I32.
pub(crate) fn words(len: usize) -> Result<Pages<i32>, EvalError> {
    zeroed(DType::I32, len)
}
