//! Both executors: states, errors, and the kernels of operators.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod levels;
mod origins;
mod per_size;
mod reference;
mod reference_eval;
mod runs;
mod step_times;
