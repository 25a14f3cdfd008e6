//! Vulkan features and properties that wgpu does not expose, for adapters of the Vulkan backend
//! (ADR 0055).
//!
//! The device is opened through wgpu-hal with a function table that replaces three Vulkan functions
//! (`vulkan_hal/vk_intercepts.rs`). The replaced functions change three behaviours of wgpu:
//!
//! - wgpu lets the driver choose the subgroup size of each pipeline. Kernels with cooperative
//!   matrices, and kernels that assume a subgroup size, require a known one
//!   ([`PipelineOptions::subgroup`]).
//! - wgpu enables robust buffer access. Tercet kernels check their own bounds, so robust buffer
//!   access is disabled ([`PipelineOptions::unchecked`]).
//! - wgpu inserts a barrier between any two dispatches that write the same buffer, even if the
//!   ranges are disjoint. A program records the true dependencies between its steps ([`grouped`]).

use tercet_plan::ReportedProperties;

/// Device properties that the Vulkan driver reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalProperties {
    /// The reported properties of the compute units.
    pub(crate) units: ReportedProperties,
    /// True if a packed int8 dot product with accumulation is one instruction.
    pub(crate) packed_dots: bool,
    /// True if pipelines can disable robust buffer access.
    pub(crate) unchecked: bool,
    /// Size of the largest device-local memory heap in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Supported subgroup sizes; `None` if the backend is not Vulkan.
    pub subgroups: Option<SubgroupSizes>,
    /// The float widths whose special values kernels can preserve.
    #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
    pub(crate) float_controls: tercet_spirv::FloatControls,
    /// The driver version, which is part of the key of its pipeline cache.
    #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
    pub(crate) identity: Option<tercet_spirv::DriverIdentity>,
}

/// The subgroup sizes that compute shaders can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubgroupSizes {
    /// The least size.
    pub min: u32,
    /// The greatest size.
    pub max: u32,
    /// The default subgroup size that the driver reports.
    pub usual: u32,
    /// True if pipelines can require a specific subgroup size.
    pub can_require: bool,
    /// Maximum subgroups per workgroup if a size is required.
    pub max_required: u32,
    /// True if pipelines can require full subgroups.
    pub full: bool,
}

/// The subgroup size that all kernels of the device use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubgroupSize {
    /// The size.
    pub size: u32,
    /// How it is fixed.
    pub by: SizeBy,
}

/// How the subgroup size is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeBy {
    /// The hardware has only this subgroup size.
    Fixed,
    /// Each pipeline that uses subgroups must require the subgroup size.
    Requirement,
}

impl SubgroupSizes {
    /// Chooses the subgroup size for workgroups of at most `max_workgroup` threads: the only
    /// supported size, otherwise the driver's default. If a workgroup would have too many subgroups
    /// of that size, the next larger size is used. `None` if no size can be guaranteed.
    pub fn choose(&self, max_workgroup: u32) -> Option<SubgroupSize> {
        if self.min == self.max {
            let by = SizeBy::Fixed;
            return Some(SubgroupSize { size: self.min, by });
        }
        let sizes = std::iter::successors(Some(self.min), |size| size.checked_mul(2));
        let size = sizes
            .take_while(|&size| size <= self.max)
            .filter(|&size| size >= self.usual)
            .find(|&size| size.saturating_mul(self.max_required) >= max_workgroup)?;
        let by = SizeBy::Requirement;
        self.can_require.then_some(SubgroupSize { size, by })
    }
}

/// The subgroup size that the pipelines of the current thread require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubgroupRequirement {
    /// The size.
    pub size: u32,
    /// True if pipelines also require that all subgroups of a workgroup are full.
    pub full: bool,
}

/// Options of the pipelines that the current thread creates, in addition to wgpu's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineOptions {
    /// The size of subgroups.
    pub subgroup: Option<SubgroupRequirement>,
    /// Disables robust buffer access if the device supports that.
    pub unchecked: bool,
}

/// A device that was opened through wgpu-hal.
#[derive(Debug)]
pub struct HalDevice {
    /// The device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
    /// True if [`grouped`] can set the barriers between dispatches on this device.
    pub groups: bool,
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
mod none {
    use super::{HalDevice, HalProperties, PipelineOptions};

    impl HalProperties {
        /// Default properties: this platform has no Vulkan driver.
        pub fn from_adapter(_: &wgpu::Adapter) -> HalProperties {
            HalProperties::default()
        }
    }

    /// No device: this platform has no Vulkan driver.
    pub fn open(_: &wgpu::Adapter, _: &wgpu::DeviceDescriptor<'_>) -> Option<HalDevice> {
        None
    }

    /// Makes the calls; there are no options.
    pub fn with_pipeline_options<T>(_: PipelineOptions, calls: impl FnOnce() -> T) -> T {
        calls()
    }

    /// Makes the calls; wgpu sets the barriers.
    pub fn grouped<T>(_: Vec<bool>, calls: impl FnOnce() -> T) -> T {
        calls()
    }
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
pub use none::{grouped, open, with_pipeline_options};
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub use {
    vk_intercepts::{DRIVER_BARRIERS, SIZED_PIPELINES, grouped, with_pipeline_options},
    vulkan::open,
};

#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
mod vk_intercepts;
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
mod vulkan;
