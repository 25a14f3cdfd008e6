//! CPU executors of Tercet.
//!
//! [`CpuBackend`] is the fast one: it optimizes and legalizes the graph, plans memory and a flat
//! list of steps, and runs them with SIMD kernels on a team of threads. [`ReferenceBackend`] evaluates the
//! graph as given, operator by operator, and is what every other executor is compared with.
//!
//! How a graph runs here: `lower` has the table of kernels and what each needs; `plan` turns the
//! legal graph into steps over planned memory; `exec` plays them. `kernels` are pure functions over
//! slices and know nothing of graphs.
//!
//! Invariants: results do not depend on the number of threads; a run after a first run of the same
//! sizes allocates nothing, except in operators that the table gives to `reference_eval`; a failed
//! run leaves states as they were.

mod args;
mod backend;
mod bound;
mod exec;
pub mod kernels;
mod lower;
mod pages;
mod plan;
mod pool;
pub mod reference;

pub use backend::{CpuBackend, CpuTarget};
pub use reference::ReferenceBackend;
