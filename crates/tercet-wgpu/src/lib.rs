//! Plays a Tercet program through wgpu: Vulkan, Metal, DX12, and WebGPU in browsers.
//!
//! [`WgpuBackend`] opens a device and compiles graphs; [`WgpuExecutable`] runs one, blocking
//! (`Executable::run`) or not ([`WgpuExecutable::run_async`], the only way in a browser).
//!
//! A program becomes a list of calls (`call.rs`, pure data) that satisfies WebGPU's rules:
//! within one dispatch a buffer is either read or writable, and no two writable bindings overlap.
//! `rewrite` changes a kernel's declarations to fit. Copies and fills are kernels too, so a run is one
//! compute pass and one submission, with the readback at its end.
//!
//! Invariants: this crate calls nothing that blocks but where its name says so (`wait`, `read`), and no
//! environment is read. Errors of wgpu are caught in scopes on the thread that causes them, so one
//! executable's trouble is not another's; only a lost device concerns all.
//!
//! Shader modules are made without wgpu's bounds checks and loop counters unless
//! [`WgpuOptions::checked`] asks for them: kernels guard their accesses themselves, and programs come from
//! the planner only. That is one use of `unsafe`, in `trusted.rs` (ADR 0005); the other asks the Vulkan driver what
//! wgpu does not say of the device, and for subgroups of one size (`below.rs`). Where Vulkan is below, kernels go to it
//! as SPIR-V of our own, which lies on disk (`kept.rs`).
//!
//! Next: `device.rs` for scopes and waiting, `bindings.rs` for the rules, `driver.rs` for a run,
//! `encode.rs` for its commands.
#![deny(unsafe_code)]

mod backend;
mod below;
mod bindings;
mod buffers;
mod call;
mod device;
mod driver;
mod encode;
mod executable;
mod inputs;
mod kept;
mod open;
mod options;
mod pipeline;
mod readback;
mod rewrite;
mod shared;
mod spirv;
mod staging;
mod timing;
mod trusted;

pub use backend::WgpuBackend;
pub use driver::WgpuDriver;
pub use executable::WgpuExecutable;
pub use options::{AdapterSummary, LimitSet, WgpuOpenError, WgpuOptions};
pub use shared::WgpuShared;
pub use tercet_plan::{GemmProblem, TuningEntry, TuningKey, TuningTable, WeightLayout, tune};
