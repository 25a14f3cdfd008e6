//! Driver properties, and devices opened through wgpu-hal.
#![allow(unsafe_code, reason = "queries the driver through wgpu's handles")]

use std::ffi::CStr;

use ash::vk;
use tercet_plan::ReportedProperties;
use tercet_spirv::{DriverIdentity, FloatControls};
use wgpu::hal::api::Vulkan;

use super::{HalDevice, HalProperties, SubgroupSizes, vk_intercepts};

impl HalProperties {
    /// The driver properties of an adapter; defaults if the backend is not Vulkan.
    pub fn from_adapter(adapter: &wgpu::Adapter) -> HalProperties {
        // SAFETY: the adapter handle is only read, and it outlives this borrow.
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
        let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
        // The extension is core since Vulkan 1.2. wgpu does not enable it on older devices.
        if version >= vk::API_VERSION_1_2 {
            all = all.push_next(&mut floats);
        }
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
        // SAFETY: the device belongs to this instance and has a version with these functions. Every
        // structure in the chains belongs to that version or to an extension that the device has.
        unsafe {
            instance.get_physical_device_properties2(device, &mut all);
            instance.get_physical_device_features2(device, &mut features);
        }
        let plain = all.properties;
        // SAFETY: the device belongs to this instance.
        let memory = unsafe { instance.get_physical_device_memory_properties(device) };
        let heaps = memory.memory_heaps_as_slice().iter();
        let local = heaps.filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        HalProperties {
            units,
            packed_dots,
            memory_bytes: local.map(|h| h.size).max(),
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
            float_controls: FloatControls {
                preserve_f16: floats.shader_signed_zero_inf_nan_preserve_float16 == vk::TRUE,
                preserve_f32: floats.shader_signed_zero_inf_nan_preserve_float32 == vk::TRUE,
                preserve_denorm_f16: floats.shader_denorm_preserve_float16 == vk::TRUE,
                preserve_denorm_f32: floats.shader_denorm_preserve_float32 == vk::TRUE,
                independent_denorm_f32: floats.denorm_behavior_independence
                    != vk::ShaderFloatControlsIndependence::NONE,
            },
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

/// The properties of the compute units from vendor extensions, and whether integer dot products are
/// one instruction.
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
    // On Vulkan 1.3 devices integer dot products are core, and wgpu requests the feature.
    if new {
        all = all.push_next(&mut dots);
    }
    // SAFETY: the device belongs to this instance, and every structure of the chain belongs to its
    // version or to an extension that it has.
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

/// The queue family that wgpu uses.
const FAMILY: u32 = 0;

/// Opens a device as wgpu does, with wrapped functions for the options of
/// [`vk_intercepts::with_pipeline_options`] and the barriers of [`vk_intercepts::grouped`]. `None`
/// if that fails.
pub fn open(adapter: &wgpu::Adapter, descriptor: &wgpu::DeviceDescriptor<'_>) -> Option<HalDevice> {
    let known = HalProperties::from_adapter(adapter);
    // SAFETY: the adapter handle is only read, and it outlives this borrow.
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
    // wgpu requests only size control. `computeFullSubgroups` is the other member of the same
    // structure.
    let full = known.subgroups.is_some_and(|s| s.full);
    // SAFETY: the chain is that of `features`, which is alive and borrowed only by `info`.
    unsafe { enable_full_subgroups(&mut info, full) };
    let instance = below.shared_instance().raw_instance();
    // SAFETY: the request is wgpu's own plus full subgroups and pipeline robustness, which the
    // device supports.
    let raw = unsafe { instance.create_device(below.raw_physical_device(), &info, None) };
    let (raw, groups) = vk_intercepts::installed(raw.ok()?, known.unchecked);
    let (asked, hints) = (descriptor.required_features, &descriptor.memory_hints);
    let limits = &descriptor.required_limits;
    // SAFETY: the device was created from this adapter with this queue, these extensions and these
    // features. wgpu takes ownership of it.
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

/// Enables full subgroups in the feature chain's structure for subgroup size control.
///
/// # Safety
/// The chain is valid, and its structures may be modified.
unsafe fn enable_full_subgroups(info: &mut vk::DeviceCreateInfo<'_>, full: bool) {
    let mut next = info.p_next.cast::<vk::BaseOutStructure<'_>>().cast_mut();
    while !next.is_null() {
        // SAFETY: every structure of a chain starts with its type and the pointer to the next
        // structure.
        let (ty, after) = unsafe { ((*next).s_type, (*next).p_next) };
        if ty == vk::StructureType::PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES {
            let control = next.cast::<vk::PhysicalDeviceSubgroupSizeControlFeatures<'_>>();
            // SAFETY: the type identifies the structure, and the contract allows modifying it.
            unsafe { (*control).compute_full_subgroups = full.into() };
        }
        next = after;
    }
}
