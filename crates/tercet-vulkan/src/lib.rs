//! Runs compiled Tercet programs through Vulkan 1.2 or newer.
//!
//! [`VulkanBackend`] opens a device and compiles graphs for it. `tercet-plan` compiles a graph to a
//! [`tercet_plan::GpuProgram`]. This crate creates the pipelines of its kernels, the memory of its
//! buffers and the command buffers of its steps. Command buffers are recorded once per combination
//! of branches that sizes select. A run only writes parameter blocks and submits.
//!
//! | file | content |
//! |---|---|
//! | `instance.rs`, `features.rs` | loader, devices, enabled features; [`DeviceCaps`](tercet_plan::DeviceCaps) |
//! | `device.rs` | the open device: queue, timeline, allocator, loss |
//! | `memory.rs`, `staging.rs` | buffers; uploads and other one-off transfers |
//! | `spirv.rs`, `pipeline.rs` | kernels to SPIR-V (`tercet-spirv`) to pipelines |
//! | `cache.rs` | the tuning file |
//! | `command_list.rs`, `record.rs` | descriptor sets, command buffers |
//! | `buffers.rs` | the buffers of a program, redzones between its slots |
//! | `readback.rs` | results for the host |
//! | `driver.rs` | [`VulkanDriver`], the device part of one executable |
//! | `validation.rs` | the validation layer and its messages |
//!
//! Invariants: there is one queue, and its submissions count up one timeline semaphore. Every
//! command buffer begins with a barrier against all earlier work, so submissions never race. Memory
//! is freed only after the last submission that uses it. A repeated run records and allocates
//! nothing.
#![allow(unsafe_code, reason = "the Vulkan API is unsafe")]

mod backend;
mod bfloat16;
mod buffers;
mod cache;
mod command_cache;
mod command_list;
mod coop_matrix2;
mod device;
mod driver;
mod error;
mod features;
mod instance;
mod memory;
mod pipeline;
mod readback;
mod record;
mod spirv;
mod staging;
mod validation;

pub use backend::{VulkanBackend, VulkanOptions};
pub use driver::{DriverCounters, VulkanDriver, VulkanShared};
pub use error::VulkanOpenError;
pub use instance::{VulkanDeviceInfo, VulkanDeviceKind};
pub use tercet_plan::{GemmProblem, TuningEntry, TuningKey, TuningTable, WeightLayout, tune};

/// Private items that the tests of this crate use. They are no interface: they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::driver::behind::differing;
    pub use crate::error::VulkanError;
    pub use crate::instance::select_device;
    pub use crate::spirv::words as spirv_words;
}
