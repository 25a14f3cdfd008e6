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

/// Private items that the tests of this crate use. They are no interface: they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::aligned_alloc::{AlignedBuffer, AlignedPages};
    pub use crate::args::{KernelView, PackedConst, PackedForm};
    pub use crate::exec::shared::{ArenaPool, shared};
    pub use crate::host_memory::free_bytes;
    pub use crate::kernels::arg_lines::arg_lines;
    pub use crate::kernels::cast::{CastFn, function as cast_function};
    pub use crate::kernels::native_int::NativeInt;
    pub use crate::kernels::parallel::for_each_with_scratch;
    pub use crate::kernels::sort::{MAX_SINGLE_THREAD_KEYS, sort_unstable};
    pub use crate::kernels::worker_pool::{
        CpuContention, CurrentWorkerPool, SpinPolicy, WorkerJobFn, WorkerPool, WorkerPoolShared,
        current, install,
    };
    pub use crate::lower::copy::{copy_view, place};
    pub use crate::lower::fft::{CpuFftPlan, greatest_scratch_len, radices, scratch_len};
    pub use crate::lower::map::sums::linear;
    pub use crate::lower::rank::SortKey;
    pub use crate::switches::{LEVELS, level};
}
