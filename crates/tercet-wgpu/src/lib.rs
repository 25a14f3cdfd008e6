//! Runs compiled Tercet programs through wgpu: Vulkan, Metal, DX12, and WebGPU in browsers.
//!
//! [`WgpuBackend`] opens a device and compiles graphs. [`WgpuExecutable`] runs one, blocking
//! (`Executable::run`) or asynchronously ([`WgpuExecutable::run_async`], required in browsers).
//!
//! A program becomes a list of dispatches (`call.rs`, plain data) that satisfies WebGPU's rules:
//! within one dispatch a buffer is either read-only or writable, and writable bindings do not
//! overlap. `rewrite` adapts the declarations of a kernel accordingly. Copies and fills are also
//! kernels, so a run is one compute pass and one submission, with the readback at its end.
//!
//! Invariants: only functions with `wait` or `read` in their names block. The crate reads no
//! environment variables. Errors of wgpu are captured in scopes on the thread that causes them, so
//! executables do not see each other's errors. Only a lost device affects all executables.
//!
//! Unless [`WgpuOptions::checked`] is set, shader modules are created without wgpu's bounds checks
//! and loop counters. Kernels check their own bounds, and unchecked programs come only from the
//! planner. Creating unchecked modules is one of two uses of `unsafe` (`unchecked_shaders.rs`, ADR
//! 0005). The other use of `unsafe` queries the Vulkan driver for properties that wgpu does not
//! expose, and requires a fixed subgroup size (`vulkan_hal.rs`). On Vulkan, kernels are compiled to
//! SPIR-V by Tercet and cached on disk (`shader_cache.rs`).
//!
//! Next: `device.rs` for scopes and waiting, `bindings.rs` for the binding rules, `driver.rs` for a
//! run, `encode.rs` for its commands.
#![deny(unsafe_code)]

mod backend;
mod bindings;
mod buffers;
mod call;
mod device;
mod device_tensor;
mod driver;
mod encode;
mod executable;
mod inputs;
mod open;
mod options;
mod pipeline;
mod readback;
mod rewrite;
mod shader_cache;
mod spirv;
mod staging;
mod timing;
mod unchecked_shaders;
mod vulkan_hal;

pub use backend::WgpuBackend;
pub use device_tensor::WgpuShared;
pub use driver::WgpuDriver;
pub use executable::WgpuExecutable;
pub use options::{AdapterSummary, LimitSet, WgpuOpenError, WgpuOptions};
pub use tercet_plan::{GemmProblem, TuningEntry, TuningKey, TuningTable, WeightLayout, tune};

/// Private items that the tests of this crate use. They are no interface: they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::bindings::{OverlapPolicy, StorageBinding, bindings};
    pub use crate::call::{CallLimits, PipelineVariant, WgpuCommandList, WgpuKernelCode, flat};
    #[cfg(not(target_arch = "wasm32"))]
    pub use crate::device::block_on;
    pub use crate::encode::{EncodedRunKey, SharedExecutableState};
    pub use crate::inputs::{GATHERED_BYTES, InputBuffer};
    pub use crate::open::{adapters, instance};
    pub use crate::pipeline::{ShaderChecks, UNIFORM, WgpuPipeline, WgpuPipelineKey, entry};
    pub use crate::rewrite::{BindingRewrite, rewrite};
    pub use crate::spirv::{
        BINDING, DECORATE, SPEC_CONSTANT, SPEC_ID, renumber_bindings, specialized,
    };
    pub use crate::unchecked_shaders::spirv_module;
    #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
    pub use crate::vulkan_hal::{DRIVER_BARRIERS, SIZED_PIPELINES};
    pub use crate::vulkan_hal::{
        HalDevice, HalProperties, PipelineOptions, SizeBy, SubgroupRequirement, SubgroupSize,
        SubgroupSizes, grouped, open, with_pipeline_options,
    };
}
