//! What the driver says, and devices as they are opened below wgpu.
#![allow(
    unsafe_code,
    reason = "asks the driver for what wgpu does not, by handles of wgpu"
)]

use std::ffi::CStr;

use ash::vk;
use tercet_plan::ReportedProperties;
use tercet_spirv::DriverIdentity;
use wgpu::hal::api::Vulkan;

use super::{HalDevice, HalProperties, SubgroupSizes, hooks};

impl HalProperties {
    /// What the driver of an adapter says; nothing where it is not Vulkan's.
    pub(crate) fn from_adapter(adapter: &wgpu::Adapter) -> HalProperties {
        // SAFETY: the driver's adapter is only read, and outlives this borrow of it.
        let Some(adapter) = (unsafe { adapter.as_hal::<Vulkan>() }) else {
            return HalProperties::default();
        };
        let known = adapter.physical_device_capabilities();
        let version = known.properties().api_version;
        if version < vk::API_VERSION_1_1 {
            return HalProperties::default();
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
        let mut robustness = vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default();
        let mut features = vk::PhysicalDeviceFeatures2::default();
        let has_sizes = new || has(ash::ext::subgroup_size_control::NAME);
        if has_sizes {
            all = all.push_next(&mut sizes);
            features = features.push_next(&mut control);
        }
        if has(ash::ext::pipeline_robustness::NAME) {
            features = features.push_next(&mut robustness);
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
        HalProperties {
            units,
            packed_dots,
            unchecked: robustness.pipeline_robustness == vk::TRUE,
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
            identity: Some(DriverIdentity {
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
) -> (ReportedProperties, bool) {
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
    let units = ReportedProperties::from_units(
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

/// Opens a device as wgpu does, but so that pipelines can have what [`hooks::with_pipeline_options`] says, and that barriers stand where
/// [`hooks::grouped`] says. `None` if that fails.
pub(crate) fn open(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<HalDevice> {
    let known = HalProperties::from_adapter(adapter);
    // SAFETY: the driver's adapter is only read, and outlives this borrow of it.
    let below = unsafe { adapter.as_hal::<Vulkan>() }?;
    let mut extensions = below.required_device_extensions(descriptor.required_features);
    let mut features = below.physical_device_features(&extensions, descriptor.required_features);
    if known.unchecked {
        extensions.push(ash::ext::pipeline_robustness::NAME);
    }
    let names: Vec<_> = extensions.iter().map(|e| e.as_ptr()).collect();
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(FAMILY)
        .queue_priorities(&[1.0])];
    let mut robustness =
        vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default().pipeline_robustness(true);
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&names);
    if known.unchecked {
        info = info.push_next(&mut robustness);
    }
    let mut info = features.add_to_device_create(info);
    // wgpu asks for control of the size only, full subgroups are the other half of that structure.
    let full = known.subgroups.is_some_and(|s| s.full);
    // SAFETY: the chain is that of `features`, which lives and is borrowed by `info` alone.
    unsafe { enable_full_subgroups(&mut info, full) };
    let instance = below.shared_instance().raw_instance();
    // SAFETY: what is asked for is what wgpu itself asks for, and full subgroups and robustness by pipeline, which the
    // device has.
    let raw = unsafe { instance.create_device(below.raw_physical_device(), &info, None) };
    let (raw, groups) = hooks::installed(raw.ok()?, known.unchecked);
    let (asked, hints) = (descriptor.required_features, &descriptor.memory_hints);
    let limits = &descriptor.required_limits;
    // SAFETY: the device is of this adapter, with this queue, these extensions and these features; wgpu owns it
    // from here on.
    let opened =
        unsafe { below.device_from_raw(raw, None, &extensions, asked, limits, hints, FAMILY, 0) };
    // SAFETY: as above.
    let made = unsafe { adapter.create_device_from_hal::<Vulkan>(opened.ok()?, descriptor) };
    let (device, queue) = made.ok()?;
    Some(HalDevice {
        device,
        queue,
        groups,
    })
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
