//! CPU executors of Tercet.
//!
//! [`CpuBackend`] is the fast executor. The fast executor optimizes and legalizes the graph, plans
//! memory and a flat list of steps, and runs them with SIMD kernels on a thread pool.
//! [`ReferenceBackend`] evaluates the unmodified graph operator by operator. Every other executor
//! is tested against the reference.
//!
//! Modules:
//!
//! - `lower` contains the kernel table and the requirements of each kernel.
//! - `plan` compiles the legal graph to steps over planned memory.
//! - `exec` executes the steps.
//! - `kernels` are pure functions over slices, independent of graphs.
//!
//! Invariants:
//!
//! - Results do not depend on the number of threads.
//! - A run with the same sizes as the previous run allocates nothing, except in operators that the
//!   kernel table maps to `reference_eval`.
//! - A failed run leaves states unchanged.

mod aligned_alloc;
mod args;
mod backend;
mod bound_inputs;
mod exec;
mod host_memory;
pub mod kernels;
mod lower;
mod plan;
mod pool;
pub mod reference;
mod switches;

pub use backend::{CpuBackend, CpuTarget};
pub use reference::ReferenceBackend;
