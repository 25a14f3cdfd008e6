//! Errors of creating and reading tensors.

use crate::dtype::DType;
use crate::types::TensorType;

/// Why a tensor cannot be created or read.
///
/// ```
/// use tercet_tensor::{DType, Tensor, TensorError};
/// let error = Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0]).unwrap_err();
/// assert_eq!(error.to_string(), "f32[2, 2] needs 4 elements, got 3");
/// let error = Tensor::scalar(1f32).as_slice::<i32>().unwrap_err();
/// assert_eq!(error, TensorError::DType { expected: DType::I32, found: DType::F32 });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The number of bytes or elements does not match the type.
    #[error("{ty} needs {expected} {unit}, got {found}")]
    Length {
        /// The requested type.
        ty: TensorType,
        /// The expected number of bytes or elements.
        expected: usize,
        /// The provided number of bytes or elements.
        found: usize,
        /// `bytes` or `elements`.
        unit: &'static str,
    },
    /// The number of bytes overflows the address space.
    #[error("{ty} is larger than the address space")]
    Overflow {
        /// The requested type.
        ty: TensorType,
    },
    /// Allocating the tensor's memory failed.
    #[error("cannot allocate {bytes} bytes for {ty}")]
    OutOfMemory {
        /// The requested type.
        ty: TensorType,
        /// The required size in bytes.
        bytes: u64,
    },
    /// The tensor has another dtype.
    #[error("tensor is {found}; expected {expected}, cast it first")]
    DType {
        /// The requested dtype.
        expected: DType,
        /// The dtype of the tensor.
        found: DType,
    },
}
