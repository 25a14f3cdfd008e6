//! Why a tensor cannot be made or read.

use crate::dtype::DType;
use crate::types::TensorType;

/// Why bytes are not a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The number of bytes or elements does not fit the type.
    #[error("{ty} takes {expected} {unit}, got {found}")]
    Length {
        /// The type asked for.
        ty: TensorType,
        /// What it takes.
        expected: usize,
        /// What was given.
        found: usize,
        /// `bytes` or `elements`.
        unit: &'static str,
    },
    /// The number of bytes overflows the address space.
    #[error("{ty} is larger than the address space")]
    Overflow {
        /// The type asked for.
        ty: TensorType,
    },
    /// The memory for it is not there.
    #[error("{ty} takes {bytes} bytes, which cannot be allocated")]
    OutOfMemory {
        /// The type asked for.
        ty: TensorType,
        /// What it takes.
        bytes: u64,
    },
    /// The tensor holds another dtype.
    #[error("tensor is {found}, not {expected}; cast it first")]
    DType {
        /// The dtype asked for.
        expected: DType,
        /// The dtype of the tensor.
        found: DType,
    },
}
