//! Pure kernels of the fast executor: free functions over slices and small
//! plain structs, with no graph types.
//!
//! Every kernel takes a [`SimdLevel`] first. A level can only be obtained from
//! detection, so holding one proves that the machine has its instructions;
//! tests ask [`SimdLevel::available`] and run each kernel at each level.
//!
//! Invariants: no kernel allocates (scratch comes from the caller, sized by a
//! `*_scratch_len` function); results depend on the level but never on the
//! number of threads; sizes of zero are legal everywhere. Slices that are too
//! short for the shapes passed with them are a bug of the caller and panic.

#![allow(
    unsafe_code,
    reason = "SIMD intrinsics and disjoint writes from several threads"
)]
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "kernel bodies are wholly unsafe; each states its contract under `# Safety`"
)]
#![allow(
    clippy::incompatible_msrv,
    reason = "AVX-512 is compiled only where build.rs found a compiler that has it"
)]

mod simd;
mod sort;
pub(crate) mod team;

pub mod attention;
pub mod byte_conv;
pub mod byte_sum;
pub mod chain;
pub mod columns;
pub mod conv;
pub mod convert;
pub mod gemm;
pub mod int_gemm;
pub mod layout;
pub mod parallel;
pub mod quant;
pub mod rows;
#[cfg(feature = "splat")]
pub mod splat;
#[cfg(feature = "splat")]
pub mod splat_grad;
pub mod vmath;

pub use parallel::Threads;
pub use simd::SimdLevel;
pub(crate) use sort::sort_unstable;
