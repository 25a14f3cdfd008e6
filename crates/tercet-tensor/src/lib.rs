//! Tensors of Tercet: dtypes, sizes, types, host tensors and packed weights.
//!
//! A [`Dim`] is a number or a formula of named symbols. A [`Type`] is a dtype and a shape of such
//! sizes, a [`TensorType`] one of numbers. A [`Tensor`] holds the bytes of a [`TensorType`]. A
//! [`Scheme`] is a block format of quantized weights; [`quant`] encodes and decodes its blocks.
//! [`random`] defines the random numbers that every executor draws, and [`accuracy`] the tolerances
//! of all comparisons.
//!
//! Invariants: this crate does no I/O and does not read the environment; no input makes it panic.
//!
//! ```
//! use tercet_tensor::{Bindings, DType, Dim, Tensor, TensorType};
//!
//! let n = Dim::sym("n");
//! assert_eq!(n.eval(&Bindings::new().with("n", 3)), Ok(3));
//! let tensor = Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?;
//! assert_eq!(tensor.ty(), &TensorType::new(DType::F32, &[3]));
//! # Ok::<(), tercet_tensor::TensorError>(())
//! ```
#![forbid(unsafe_code)]

pub mod accuracy;
mod compiler_self_test;
mod dim;
mod dtype;
pub mod fill;
pub mod quant;
pub mod random;
mod tensor;
mod types;

pub use compiler_self_test::{Miscompiled, compiler_trial};
pub use dim::{
    Bindings, Dim, DimError, DimFactor, DimQuotient, Polynomial, PolynomialBuilder, Symbol,
};
pub use dtype::{DType, DTypeClass, Element};
pub use quant::Scheme;
pub use tensor::{ByteOwner, Tensor, TensorError, TensorIdentity, checked_bytes};
pub use types::{
    MAX_ELEMENTS_LOG2, MAX_RANK, Shape, TensorType, Type, broadcast_shapes, check_count,
    next_index, row_major_strides,
};
