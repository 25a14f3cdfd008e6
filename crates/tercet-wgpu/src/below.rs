//! What wgpu does not say of a device, and one thing that it cannot ask for, where Vulkan is below it.
//!
//! wgpu lets a driver choose the size of subgroups for each pipeline. Kernels with cooperative matrices, and those
//! that count on a size, need one that they know. Where a device has several, it is opened here, by a table of
//! functions in which `vkCreateComputePipelines` is [`vulkan::create_pipelines`]: that adds the size which the
//! calling thread asked for by [`requiring`].

use tercet_plan::Said;

/// What the driver says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Below {
    /// What it says of the units.
    pub(crate) units: Said,
    /// Products of packed bytes, added up, are one instruction.
    pub(crate) packed_dots: bool,
    /// `None` where it is not Vulkan's.
    pub(crate) subgroups: Option<SubgroupSizes>,
    /// Who makes pipelines.
    #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
    pub(crate) identity: Option<tercet_spirv::Identity>,
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
pub(crate) struct Subgroup {
    pub(crate) size: u32,
    pub(crate) by: SizeBy,
}

/// How subgroups come by their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeBy {
    /// They have no other.
    Nature,
    /// Each pipeline that uses them requires it.
    Requirement,
}

impl SubgroupSizes {
    /// The size for workgroups of up to so many invocations: the only one, else what the driver names, for which it
    /// is built, else the next larger one of which a workgroup may have enough. `None` if kernels cannot know it.
    pub(crate) fn choose(&self, max_workgroup: u32) -> Option<Subgroup> {
        if self.min == self.max {
            let by = SizeBy::Nature;
            return Some(Subgroup { size: self.min, by });
        }
        let sizes = std::iter::successors(Some(self.min), |size| size.checked_mul(2));
        let size = sizes
            .take_while(|&size| size <= self.max)
            .filter(|&size| size >= self.usual)
            .find(|&size| size.saturating_mul(self.max_required) >= max_workgroup)?;
        let by = SizeBy::Requirement;
        self.can_require.then_some(Subgroup { size, by })
    }
}

/// What pipelines made by a thread require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub(crate) size: u32,
    /// All subgroups are full.
    pub(crate) full: bool,
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
mod none {
    use super::{Below, Requirement};

    impl Below {
        /// Nothing: there is no such driver.
        pub(crate) fn of(_: &wgpu::Adapter) -> Below {
            Below::default()
        }
    }

    pub(crate) fn open(
        _: &wgpu::Adapter,
        _: &wgpu::DeviceDescriptor<'_>,
    ) -> Option<(wgpu::Device, wgpu::Queue)> {
        None
    }

    pub(crate) fn requiring<T>(_: Option<Requirement>, calls: impl FnOnce() -> T) -> T {
        calls()
    }
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
pub(crate) use none::{open, requiring};
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) use vulkan::{open, requiring};

#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
#[allow(
    unsafe_code,
    reason = "asks the driver for what wgpu does not, by handles of wgpu"
)]
mod vulkan {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::ffi::CStr;
    use std::sync::{PoisonError, RwLock};

    use ash::vk;
    use tercet_plan::Said;
    use tercet_spirv::Identity;
    use wgpu::hal::api::Vulkan;

    use super::{Below, Requirement, SubgroupSizes};

    impl Below {
        /// What the driver of an adapter says; nothing where it is not Vulkan's.
        pub(crate) fn of(adapter: &wgpu::Adapter) -> Below {
            // SAFETY: the driver's adapter is only read, and outlives this borrow of it.
            let Some(adapter) = (unsafe { adapter.as_hal::<Vulkan>() }) else {
                return Below::default();
            };
            let known = adapter.physical_device_capabilities();
            let version = known.properties().api_version;
            if version < vk::API_VERSION_1_1 {
                return Below::default();
            }
            let has = |name: &CStr| known.supports_extension(name);
            let new = version >= vk::API_VERSION_1_3;
            let mut ids = vk::PhysicalDeviceIDProperties::default();
            let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
            let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
            let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
            let mut all = vk::PhysicalDeviceProperties2::default()
                .push_next(&mut ids)
                .push_next(&mut subgroup);
            let mut features = vk::PhysicalDeviceFeatures2::default();
            let has_sizes = new || has(ash::ext::subgroup_size_control::NAME);
            if has_sizes {
                all = all.push_next(&mut sizes);
                features = features.push_next(&mut control);
            }
            let (instance, device) = (
                adapter.shared_instance().raw_instance(),
                adapter.raw_physical_device(),
            );
            let (units, packed_dots) = units(instance, device, new, &has);
            // SAFETY: a device of this instance, of a version that has these functions; every structure of the chains
            // belongs to its version or to an extension that the device has.
            unsafe {
                instance.get_physical_device_properties2(device, &mut all);
                instance.get_physical_device_features2(device, &mut features);
            }
            let plain = all.properties;
            Below {
                units,
                packed_dots,
                subgroups: has_sizes.then_some(SubgroupSizes {
                    min: sizes.min_subgroup_size,
                    max: sizes.max_subgroup_size,
                    usual: subgroup.subgroup_size,
                    can_require: control.subgroup_size_control == vk::TRUE
                        && sizes
                            .required_subgroup_size_stages
                            .contains(vk::ShaderStageFlags::COMPUTE),
                    max_required: sizes.max_compute_workgroup_subgroups,
                    full: control.compute_full_subgroups == vk::TRUE,
                }),
                identity: Some(Identity {
                    vendor: plain.vendor_id,
                    device: plain.device_id,
                    driver_version: plain.driver_version,
                    driver_uuid: ids.driver_uuid,
                    cache_uuid: plain.pipeline_cache_uuid,
                }),
            }
        }
    }

    /// What extensions say of the units, and whether integer dot products are one instruction.
    fn units(
        instance: &ash::Instance,
        device: vk::PhysicalDevice,
        new: bool,
        has: &dyn Fn(&CStr) -> bool,
    ) -> (Said, bool) {
        let mut nv = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
        let mut amd2 = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
        let mut arm = vk::PhysicalDeviceShaderCoreBuiltinsPropertiesARM::default();
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
        let mut all = vk::PhysicalDeviceProperties2::default();
        if has(ash::nv::shader_sm_builtins::NAME) {
            all = all.push_next(&mut nv);
        }
        if has(ash::amd::shader_core_properties::NAME) {
            all = all.push_next(&mut amd);
        }
        if has(ash::amd::shader_core_properties2::NAME) {
            all = all.push_next(&mut amd2);
        }
        if has(ash::arm::shader_core_builtins::NAME) {
            all = all.push_next(&mut arm);
        }
        // Devices of 1.3 have the feature itself, and wgpu asks for it.
        if new {
            all = all.push_next(&mut dots);
        }
        // SAFETY: as for the chains of `Below::of`.
        unsafe { instance.get_physical_device_properties2(device, &mut all) };
        let units = Said::of_units(
            [
                nv.shader_sm_count,
                amd2.active_compute_unit_count,
                arm.shader_core_count,
            ],
            [
                amd.vgprs_per_simd,
                amd.wavefront_size,
                amd.simd_per_compute_unit,
                amd.max_vgpr_allocation,
            ],
        );
        let packed_dots = dots.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE;
        (units, packed_dots)
    }

    /// The family of queues that wgpu takes.
    const FAMILY: u32 = 0;

    /// Opens a device as wgpu does, but so that pipelines can require what [`requiring`] says. `None` if that fails.
    pub(crate) fn open(
        adapter: &wgpu::Adapter,
        descriptor: &wgpu::DeviceDescriptor<'_>,
    ) -> Option<(wgpu::Device, wgpu::Queue)> {
        // SAFETY: the driver's adapter is only read, and outlives this borrow of it.
        let below = unsafe { adapter.as_hal::<Vulkan>() }?;
        let extensions = below.required_device_extensions(descriptor.required_features);
        let mut features =
            below.physical_device_features(&extensions, descriptor.required_features);
        let names: Vec<_> = extensions.iter().map(|e| e.as_ptr()).collect();
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(FAMILY)
            .queue_priorities(&[1.0])];
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names);
        let mut info = features.add_to_device_create(info);
        // wgpu asks for control of the size only, full subgroups are the other half of that structure.
        let full = Below::of(adapter).subgroups.is_some_and(|s| s.full);
        // SAFETY: the chain is that of `features`, which lives and is borrowed by `info` alone.
        unsafe { enable_full_subgroups(&mut info, full) };
        let instance = below.shared_instance().raw_instance();
        // SAFETY: what is asked for is what wgpu itself asks for, and full subgroups, which the device has.
        let raw = unsafe { instance.create_device(below.raw_physical_device(), &info, None) };
        let raw = with_own_pipelines(raw.ok()?);
        let (asked, hints) = (descriptor.required_features, &descriptor.memory_hints);
        let limits = &descriptor.required_limits;
        // SAFETY: the device is of this adapter, with this queue, these extensions and these features; wgpu owns it
        // from here on.
        let opened = unsafe {
            below.device_from_raw(raw, None, &extensions, asked, limits, hints, FAMILY, 0)
        };
        // SAFETY: as above.
        unsafe { adapter.create_device_from_hal::<Vulkan>(opened.ok()?, descriptor) }.ok()
    }

    /// Asks for full subgroups in the structure of a chain that asks for control of their size.
    ///
    /// # Safety
    /// The chain is valid, and its structures may be written.
    unsafe fn enable_full_subgroups(info: &mut vk::DeviceCreateInfo<'_>, full: bool) {
        let mut next = info.p_next.cast::<vk::BaseOutStructure<'_>>().cast_mut();
        while !next.is_null() {
            // SAFETY: every structure of a chain begins with its type and the next one.
            let (ty, after) = unsafe { ((*next).s_type, (*next).p_next) };
            if ty == vk::StructureType::PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES {
                let control = next.cast::<vk::PhysicalDeviceSubgroupSizeControlFeatures<'_>>();
                // SAFETY: this type is that of the structure, which may be written by contract.
                unsafe { (*control).compute_full_subgroups = full.into() };
            }
            next = after;
        }
    }

    type Create = vk::PFN_vkCreateComputePipelines;

    /// The drivers' functions for the devices opened here; a handle that is used again is written anew.
    static ORIGINALS: RwLock<Option<HashMap<vk::Device, Create>>> = RwLock::new(None);

    thread_local! {
        static REQUIRED: Cell<Option<Requirement>> = const { Cell::new(None) };
    }

    /// Makes calls during which pipelines that this thread makes meet a requirement, on devices opened here.
    pub(crate) fn requiring<T>(wanted: Option<Requirement>, calls: impl FnOnce() -> T) -> T {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                REQUIRED.set(None);
            }
        }
        let _reset = Reset;
        REQUIRED.set(wanted);
        calls()
    }

    /// The device with a table of functions in which [`create_pipelines`] stands before the driver's.
    fn with_own_pipelines(device: ash::Device) -> ash::Device {
        let mut first = device.fp_v1_0().clone();
        let mut originals = ORIGINALS.write().unwrap_or_else(PoisonError::into_inner);
        let map = originals.get_or_insert_default();
        map.insert(device.handle(), first.create_compute_pipelines);
        first.create_compute_pipelines = create_pipelines;
        ash::Device::from_parts_1_3(
            device.handle(),
            first,
            device.fp_v1_1().clone(),
            device.fp_v1_2().clone(),
            device.fp_v1_3().clone(),
        )
    }

    /// `vkCreateComputePipelines` with what the thread requires.
    ///
    /// # Safety
    /// As the function of Vulkan.
    pub(super) unsafe extern "system" fn create_pipelines(
        device: vk::Device,
        cache: vk::PipelineCache,
        count: u32,
        infos: *const vk::ComputePipelineCreateInfo<'_>,
        allocator: *const vk::AllocationCallbacks<'_>,
        out: *mut vk::Pipeline,
    ) -> vk::Result {
        let originals = ORIGINALS.read().unwrap_or_else(PoisonError::into_inner);
        let original = originals.as_ref().and_then(|map| map.get(&device).copied());
        drop(originals);
        let Some(original) = original else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let Some(Requirement { size, full }) = REQUIRED.get() else {
            // SAFETY: the arguments are the caller's.
            return unsafe { original(device, cache, count, infos, allocator, out) };
        };
        // SAFETY: the caller gives so many.
        let given = unsafe { std::slice::from_raw_parts(infos, count as usize) };
        let mut sizes: Vec<_> = given
            .iter()
            .map(|info| {
                let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
                    .required_subgroup_size(size);
                size.p_next = info.stage.p_next.cast_mut();
                size
            })
            .collect();
        let infos: Vec<_> = given
            .iter()
            .zip(&mut sizes)
            .map(|(info, size)| {
                use vk::PipelineShaderStageCreateFlags as Flags;
                let mut info = *info;
                info.stage.p_next = std::ptr::from_mut(size).cast();
                info.stage.flags &= !Flags::ALLOW_VARYING_SUBGROUP_SIZE;
                if full {
                    info.stage.flags |= Flags::REQUIRE_FULL_SUBGROUPS;
                }
                info
            })
            .collect();
        #[cfg(test)]
        super::tests::SEEN.with(|seen| seen.set(seen.get() + infos.len()));
        // SAFETY: the caller's arguments, but for the size, which the device has, and its flags; the structures live
        // until the call returns.
        unsafe { original(device, cache, count, infos.as_ptr(), allocator, out) }
    }
}

#[cfg(test)]
mod tests;
