//! Private parts of the crate: memory, the worker pool, and parts of kernels and lowerings.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aligned_alloc;
mod arg_lines;
mod cast;
mod chain;
mod copy;
mod fft;
mod host_memory;
mod native_int;
mod rank;
mod shared;
mod sort;
#[cfg(feature = "splat")]
mod splat;
#[cfg(feature = "splat")]
mod splat_grad;
mod sums;
mod switches;
mod worker_pool;
