//! Kernels of the fast executor: pure functions over slices and small plain structs, without graph
//! types.
//!
//! Every kernel takes a [`SimdLevel`] first. A level can only be obtained by detection, so its
//! existence proves that the machine has the instructions. Tests iterate over
//! [`SimdLevel::available`] and run each kernel at each level.
//!
//! Invariants:
//!
//! - No kernel allocates. Scratch memory comes from the caller, sized by a `*_scratch_len`
//!   function.
//! - Results depend on the SIMD level, but never on the number of threads.
//! - Sizes of zero are valid everywhere.
//! - A slice that is too short for its shape is a bug of the caller and panics.

#![allow(
    unsafe_code,
    reason = "SIMD intrinsics and disjoint writes from several threads"
)]
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "kernel bodies are entirely unsafe; each states its contract under `# Safety`"
)]
#![allow(
    clippy::incompatible_msrv,
    reason = "AVX-512 is compiled only if build.rs detects a compiler that supports it"
)]

mod simd;
pub(crate) mod sort;
pub(crate) mod worker_pool;

pub(crate) mod arg_lines;
pub mod attention;
pub(crate) mod box_overlap;
pub(crate) mod cast;
pub mod chain;
pub mod columns;
pub mod conv;
pub(crate) mod conv_transpose;
pub mod convert;
pub mod gemm;
pub mod int8_add;
pub mod int8_conv;
pub mod int_gemm;
#[cfg(tercet_byte_gemm)]
pub mod int_gemm_bytes;
#[cfg(target_arch = "aarch64")]
pub(crate) mod int_tiles_neon;
pub mod layout;
pub(crate) mod native_int;
pub mod pairs;
pub mod parallel;
pub(crate) mod pool;
pub mod quant;
pub(crate) mod recurrence;
pub(crate) mod resize;
pub(crate) mod row_products;
pub mod rows;
pub(crate) mod scan;
#[cfg(feature = "splat")]
pub mod splat;
#[cfg(feature = "splat")]
pub mod splat_grad;
pub mod vmath;
pub(crate) mod wide;

pub use parallel::KernelThreads;
pub use simd::SimdLevel;
pub(crate) use sort::sort_unstable;
