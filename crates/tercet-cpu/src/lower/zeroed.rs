//! Zeroed memory for packed operands and sums.

use tercet_ir::{DType, EvalError, TensorError, TensorType};

use crate::aligned_alloc::AlignedPages;

/// Zeroed memory into which a kernel packs weights.
///
/// # Errors
/// [`EvalError::Tensor`] if memory is exhausted.
fn zeroed<T: bytemuck::Pod>(dtype: DType, len: usize) -> Result<AlignedPages<T>, EvalError> {
    let made = AlignedPages::zeroed(len).ok_or_else(|| {
        let ty = TensorType::new(dtype, &[len]);
        let bytes = ty.saturating_bytes();
        TensorError::OutOfMemory { ty, bytes }
    });
    Ok(made?)
}

/// Same as [`zeroed`], of F32.
pub(crate) fn zeroed_floats(len: usize) -> Result<AlignedPages<f32>, EvalError> {
    zeroed(DType::F32, len)
}

/// Same as [`zeroed`], of I32.
pub(crate) fn words(len: usize) -> Result<AlignedPages<i32>, EvalError> {
    zeroed(DType::I32, len)
}
