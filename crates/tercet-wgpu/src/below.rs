//! What wgpu does not say of a device, and three things that it cannot ask for, where Vulkan is below it (ADR 0055).
//!
//! Devices are opened here, with a table of functions in which three of Vulkan's are ours (`below/hooks.rs`):
//!
//! - wgpu lets a driver choose the size of subgroups for each pipeline. Kernels with cooperative matrices, and those
//!   that count on a size, need one that they know ([`Wanted::subgroup`]).
//! - wgpu has drivers check all accesses of buffers. Our kernels guard theirs ([`Wanted::unchecked`]).
//! - wgpu puts a barrier between any two dispatches that write one buffer, whatever parts of it. A program knows which
//!   of its steps wait for others ([`grouped`]).

use tercet_plan::ReportedProperties;

/// What the driver says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HalProperties {
    /// What it says of the units.
    pub(crate) units: ReportedProperties,
    /// Products of packed bytes, added up, are one instruction.
    pub(crate) packed_dots: bool,
    /// Pipelines can do without robust accesses.
    pub(crate) unchecked: bool,
    /// `None` where it is not Vulkan's.
    pub(crate) subgroups: Option<SubgroupSizes>,
    /// Who makes pipelines.
    #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
    pub(crate) identity: Option<tercet_spirv::DriverIdentity>,
}

/// The sizes that subgroups of compute shaders have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubgroupSizes {
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// The one that the driver names.
    pub(crate) usual: u32,
    /// A pipeline can require one of them.
    pub(crate) can_require: bool,
    /// The most subgroups of a workgroup for which one is required.
    pub(crate) max_required: u32,
    /// Full subgroups can be required.
    pub(crate) full: bool,
}

/// The size that all kernels see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubgroupSize {
    pub(crate) size: u32,
    pub(crate) by: SizeBy,
}

/// How subgroups come by their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeBy {
    /// They have no other.
    Fixed,
    /// Each pipeline that uses them requires it.
    Requirement,
}

impl SubgroupSizes {
    /// The size for workgroups of up to so many invocations: the only one, else what the driver names, for which it
    /// is built, else the next larger one of which a workgroup may have enough. `None` if kernels cannot know it.
    pub(crate) fn choose(&self, max_workgroup: u32) -> Option<SubgroupSize> {
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

/// What pipelines made by a thread require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubgroupRequirement {
    pub(crate) size: u32,
    /// All subgroups are full.
    pub(crate) full: bool,
}

/// What pipelines made by a thread get besides what wgpu asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PipelineOptions {
    pub(crate) subgroup: Option<SubgroupRequirement>,
    /// Their accesses are not checked, where the device can leave that out.
    pub(crate) unchecked: bool,
}

/// A device that was opened below wgpu.
#[derive(Debug)]
pub(crate) struct HalDevice {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// Barriers between dispatches may be said by [`grouped`].
    pub(crate) groups: bool,
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
mod none {
    use super::{Below, Opened, Wanted};

    impl HalProperties {
        /// Nothing: there is no such driver.
        pub(crate) fn from_adapter(_: &wgpu::Adapter) -> HalProperties {
            HalProperties::default()
        }
    }

    pub(crate) fn open(_: &wgpu::Adapter, _: &wgpu::DeviceDescriptor<'_>) -> Option<HalDevice> {
        None
    }

    pub(crate) fn with_pipeline_options<T>(_: PipelineOptions, calls: impl FnOnce() -> T) -> T {
        calls()
    }

    pub(crate) fn grouped<T>(_: Vec<bool>, calls: impl FnOnce() -> T) -> T {
        calls()
    }
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
pub(crate) use none::{grouped, open, wanting};
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) use {
    hooks::{grouped, with_pipeline_options},
    vulkan::open,
};

#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
mod hooks;
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
mod vulkan;

#[cfg(test)]
mod tests;
