//! Plays a Tercet program through Vulkan 1.2 or newer.
//!
//! [`VulkanBackend`] opens a device and compiles graphs for it: `tercet-plan` makes the
//! [`tercet_plan::GpuProgram`], this crate makes pipelines of its kernels, memory of its buffers and
//! command buffers of its steps. Those are recorded once for each combination of ways that sizes
//! choose; a run writes a few numbers and submits.
//!
//! | file | what |
//! |---|---|
//! | `instance.rs`, `features.rs` | loader, devices, what of a device is used; [`DeviceCaps`](tercet_plan::DeviceCaps) |
//! | `device.rs` | the open device: queue, timeline, allocator, loss |
//! | `memory.rs`, `staging.rs` | buffers; uploads and other one-off transfers |
//! | `spirv.rs`, `pipeline.rs` | kernels to SPIR-V (`tercet-spirv`) to pipelines |
//! | `cache.rs` | the file of measurements |
//! | `bind.rs`, `record.rs` | descriptor sets, command buffers |
//! | `buffers.rs` | the buffers of a program, gaps between its slots |
//! | `readback.rs` | results for the host |
//! | `driver.rs` | [`VulkanDriver`], the device side of one executable |
//! | `validation.rs` | the validation layer and its messages |
//!
//! Invariants: one queue, whose submissions count up one timeline semaphore; every command buffer
//! begins with a barrier against all work before it, so submissions never race; memory is freed only
//! after the last submission that uses it; nothing of a replayed run is recorded or allocated again.
#![allow(unsafe_code, reason = "the Vulkan API is unsafe")]

mod backend;
mod bfloat16;
mod bind;
mod buffers;
mod cache;
mod coop_blocks;
mod device;
mod driver;
mod error;
mod features;
mod instance;
mod memory;
mod pipeline;
mod readback;
mod record;
mod recorded;
mod spirv;
mod staging;
mod validation;

pub use backend::{VulkanBackend, VulkanOptions};
pub use driver::{DriverCounters, VulkanDriver, VulkanShared};
pub use error::VulkanOpenError;
pub use instance::{VulkanDeviceInfo, VulkanDeviceKind};
pub use tercet_plan::{GemmProblem, TuningEntry, TuningKey, TuningTable, WeightLayout, tune};
