//! The features, extensions and limits of a device, and the subset in use.
//!
//! [`EnabledFeatures::query`] detects the features of a device. [`EnabledFeatures::create_device`]
//! enables all detected features that kernels can use. [`EnabledFeatures::caps`] reports the
//! enabled features to the planner. `offered.rs` queries the driver for its features.

mod offered;

use std::ffi::CStr;

use ash::{khr, vk};
use tercet_plan::{
    CoopBlock, CoopShape, CoopType, DeviceCaps, DeviceModel, GpuKind, NativeOps, ReportedProperties,
};
use tercet_spirv::{DriverIdentity, FloatControls};

use crate::bfloat16::Bfloat16Features;
use crate::coop_matrix2::{self, CoopMatrix2Features};
use crate::error::VulkanOpenError;
use crate::instance::{VulkanDeviceInfo, VulkanDeviceKind, VulkanInstance, failed};
use offered::SupportedFeatures;

/// Subgroup properties of compute shaders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubgroupSupport {
    /// The subgroup size that kernels use.
    pub(crate) size: u32,
    /// True if each pipeline with subgroup operations must require `size`.
    pub(crate) require: bool,
    /// True if pipelines can require full subgroups.
    pub(crate) full: bool,
}

/// The detected features of a device; all of them are enabled.
pub(crate) struct EnabledFeatures {
    limits: vk::PhysicalDeviceLimits,
    extensions: Vec<&'static CStr>,
    /// True if storage buffers may contain 16-bit values.
    storage16: bool,
    /// True if storage buffers may contain 8-bit values.
    storage8: bool,
    float16: bool,
    int8: bool,
    int16: bool,
    memory_model: bool,
    memory_model_device: bool,
    coop: Vec<CoopShape>,
    coop_blocks: Vec<CoopBlock>,
    coop_converts: bool,
    maintenance4: bool,
    /// True if a packed int8 dot product with accumulation is one instruction.
    packed_dots: bool,
    /// True if pipelines can be created without robust buffer access.
    pub(crate) unchecked: bool,
    /// True if the driver implements a part of Vulkan, such as MoltenVK.
    portability: bool,
    bfloat16: bool,
    bfloat16_coop: bool,
    size_control: bool,
    pub(crate) subgroups: Option<SubgroupSupport>,
    /// The properties that the driver reports.
    reported: ReportedProperties,
    pub(crate) queue_family: u32,
    /// Valid bits of a timestamp; 0 if the device has no timestamps.
    pub(crate) timestamp_bits: u32,
    /// True if the device has `VK_EXT_memory_budget`, which extends a query and needs no enabling.
    pub(crate) has_memory_budget: bool,
    /// The maximum size of a buffer in bytes. If the device reports only the guaranteed maximum
    /// allocation size, larger allocations are tried and may fail.
    pub(crate) max_buffer: u64,
    /// True if all workgroups of a dispatch start before those of a later dispatch.
    pub(crate) starts_in_order: bool,
    /// Nanoseconds per timestamp tick.
    pub(crate) timestamp_ns: f32,
    /// The float widths whose special values kernels can preserve.
    pub(crate) float_controls: FloatControls,
    /// The device and driver version, used as the key of cache files.
    pub(crate) identity: DriverIdentity,
}

/// Maximum number of storage buffers of a kernel on a driver on top of Metal. All buffers share 31
/// slots, of which the parameter block and the sizes of buffers take two.
const MAX_PORTABLE_BUFFERS: u32 = 29;

fn extensions_of(
    instance: &VulkanInstance,
    device: vk::PhysicalDevice,
) -> Result<Vec<vk::ExtensionProperties>, VulkanOpenError> {
    // SAFETY: the device belongs to this instance.
    unsafe { instance.raw.enumerate_device_extension_properties(device) }
        .map_err(failed("vkEnumerateDeviceExtensionProperties"))
}

impl EnabledFeatures {
    /// Queries the features of a device.
    pub(crate) fn query(
        instance: &VulkanInstance,
        device: vk::PhysicalDevice,
        info: &VulkanDeviceInfo,
    ) -> Result<EnabledFeatures, VulkanOpenError> {
        let offered = extensions_of(instance, device)?;
        let has = |name: &CStr| {
            let same = |e: &vk::ExtensionProperties| e.extension_name_as_c_str() == Ok(name);
            offered.iter().any(same)
        };
        let new = info.api >= [1, 3, 0];
        let has_memory_budget = has(ash::ext::memory_budget::NAME);
        let offered = SupportedFeatures::query(instance, device, new, &has);
        if !offered.timelines {
            return Err(VulkanOpenError::MissingFeature {
                device: info.name.clone(),
                feature: "timeline semaphores",
            });
        }
        let properties = DeviceProperties::query(instance, device, new, &has);
        let bfloat16_coop = offered.bfloat16 && offered.bfloat16_coop;
        let coop = match offered.coop && offered.memory_model {
            true => coop_shapes(instance, device, bfloat16_coop)?,
            false => Vec::new(),
        };
        // Modules with cooperative matrices are SPIR-V 1.6, which requires maintenance4.
        let newer_coop = offered.maintenance4 && !coop.is_empty();
        let coop_blocks = match offered.coop_blocks && newer_coop {
            true => coop_matrix2::query(instance, device, bfloat16_coop),
            false => Vec::new(),
        };
        let coop_converts = offered.coop_converts && newer_coop;
        let portability = has(khr::portability_subset::NAME);
        let extensions = [
            (
                ash::ext::subgroup_size_control::NAME,
                offered.size_control && !new,
            ),
            (khr::cooperative_matrix::NAME, !coop.is_empty()),
            (Bfloat16Features::EXTENSION, offered.bfloat16),
            (
                CoopMatrix2Features::EXTENSION,
                !coop_blocks.is_empty() || coop_converts,
            ),
            (ash::ext::pipeline_robustness::NAME, offered.unchecked),
            // A device that has it must be created with it.
            (khr::portability_subset::NAME, portability),
        ];
        let extensions = extensions.into_iter().filter(|(_, is_used)| *is_used);
        let (queue_family, timestamp_bits) = queue_family(instance, device, info)?;
        Ok(EnabledFeatures {
            extensions: extensions.map(|(name, _)| name).collect(),
            storage16: offered.storage16,
            storage8: offered.storage8,
            float16: offered.float16,
            int8: offered.int8,
            int16: offered.int16,
            memory_model: offered.memory_model,
            memory_model_device: offered.memory_model_device,
            coop,
            coop_blocks,
            coop_converts,
            maintenance4: offered.maintenance4,
            // Packed dot products speed up nothing on software devices, but are enabled there so
            // that tests cover their kernels.
            packed_dots: offered.dots
                && (properties.packed_dots || info.kind == VulkanDeviceKind::Cpu),
            unchecked: offered.unchecked,
            portability,
            bfloat16: offered.bfloat16,
            bfloat16_coop,
            size_control: offered.size_control,
            subgroups: properties.subgroups(
                offered.size_control,
                offered.size_control && offered.full_subgroups,
            ),
            reported: properties.reported(info.kind),
            starts_in_order: properties.starts_in_order(info.kind),
            queue_family,
            timestamp_bits,
            has_memory_budget,
            max_buffer: properties.max_buffer,
            timestamp_ns: properties.limits.timestamp_period,
            float_controls: properties.float_controls,
            identity: properties.identity,
            limits: properties.limits,
        })
    }

    /// Creates the device with one queue.
    pub(crate) fn create_device(
        &self,
        instance: &VulkanInstance,
        device: vk::PhysicalDevice,
    ) -> Result<ash::Device, VulkanOpenError> {
        let on = u32::from;
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default()
            .storage_buffer16_bit_access(self.storage16);
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .storage_buffer8_bit_access(self.storage8)
            .shader_float16(self.float16)
            .shader_int8(self.int8)
            .vulkan_memory_model(self.memory_model)
            .vulkan_memory_model_device_scope(self.memory_model_device);
        let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(true)
            .compute_full_subgroups(self.subgroups.is_some_and(|s| s.full));
        let mut coop =
            vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut bfloat16 = Bfloat16Features {
            types: on(self.bfloat16),
            cooperative_matrix: on(self.bfloat16_coop),
            ..Bfloat16Features::new()
        };
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .features(vk::PhysicalDeviceFeatures::default().shader_int16(self.int16));
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(self.queue_family)
            .queue_priorities(&[1.0])];
        let extensions: Vec<_> = self.extensions.iter().map(|e| e.as_ptr()).collect();
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .push_next(&mut features)
            .push_next(&mut v11)
            .push_next(&mut v12);
        if self.size_control {
            info = info.push_next(&mut control);
        }
        if !self.coop.is_empty() {
            info = info.push_next(&mut coop);
        }
        if self.bfloat16 {
            info = info.push_next(&mut bfloat16);
        }
        let has_blocks = !self.coop_blocks.is_empty();
        let mut blocks = CoopMatrix2Features::used(has_blocks, self.coop_converts);
        let mut v13 = vk::PhysicalDeviceMaintenance4Features::default().maintenance4(true);
        if has_blocks || self.coop_converts {
            info = info.push_next(&mut blocks);
        }
        if self.maintenance4 {
            info = info.push_next(&mut v13);
        }
        let mut robustness =
            vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default().pipeline_robustness(true);
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default()
            .shader_integer_dot_product(true);
        if self.packed_dots {
            info = info.push_next(&mut dots);
        }
        if self.unchecked {
            info = info.push_next(&mut robustness);
        }
        // SAFETY: everything in `info` is supported by this device and lives until the call
        // returns.
        unsafe { instance.raw.create_device(device, &info, None) }.map_err(failed("vkCreateDevice"))
    }

    /// The capabilities that planning depends on.
    pub(crate) fn caps(&self) -> DeviceCaps {
        let l = &self.limits;
        let storage_align = l.min_storage_buffer_offset_alignment.max(64);
        let uniform_align = l.min_uniform_buffer_offset_alignment.max(64);
        DeviceCaps {
            target: "vulkan",
            max_binding_bytes: u64::from(l.max_storage_buffer_range),
            max_storage_buffers: l
                .max_per_stage_descriptor_storage_buffers
                .min(l.max_descriptor_set_storage_buffers)
                .min(l.max_per_stage_resources.saturating_sub(1))
                .min(if self.portability {
                    MAX_PORTABLE_BUFFERS
                } else {
                    32
                }),
            max_batch_buffers: l
                .max_per_stage_descriptor_storage_buffers
                .min(l.max_descriptor_set_storage_buffers)
                .min(l.max_per_stage_resources.saturating_sub(1))
                .min(if self.portability {
                    MAX_PORTABLE_BUFFERS
                } else {
                    128
                }),
            storage_align_bytes: storage_align as u32,
            uniform_align_bytes: uniform_align as u32,
            workgroup_bytes: l.max_compute_shared_memory_size,
            max_workgroup: (l.max_compute_work_group_invocations)
                .min(l.max_compute_work_group_size[0]),
            max_grid: l
                .max_compute_work_group_count
                .into_iter()
                .min()
                .unwrap_or(65535)
                .min(65535),
            subgroup: self.subgroups.map(|s| s.size),
            spirv: true,
            coop: self.coop.clone(),
            coop_blocks: self.coop_blocks.clone(),
            coop_converts: self.coop_converts,
            coop_wgsl: Vec::new(),
            // Unknown until the device is open; a probe then sets it.
            coop_fragment_layout: false,
            shuffles: self.subgroups.is_some(),
            ordered_storage: true,
            ordered_dispatches: self.starts_in_order,
            natives: NativeOps::default(),
            packed_dots: self.packed_dots,
            device: DeviceModel::new(&self.reported),
        }
    }
}

/// Limits and other properties of a device.
struct DeviceProperties {
    limits: vk::PhysicalDeviceLimits,
    subgroup_size: u32,
    subgroup_compute: bool,
    subgroup_sizes: Option<(u32, u32)>,
    size_control_compute: bool,
    max_buffer: u64,
    /// The compute unit properties from vendor extensions.
    units: ReportedProperties,
    /// True if the driver reports packed int8 dot products as hardware accelerated.
    packed_dots: bool,
    driver: vk::DriverId,
    float_controls: FloatControls,
    identity: DriverIdentity,
}

/// The subgroup operations that kernels use.
const SUBGROUP_OPERATIONS: vk::SubgroupFeatureFlags = vk::SubgroupFeatureFlags::from_raw(
    vk::SubgroupFeatureFlags::BASIC.as_raw()
        | vk::SubgroupFeatureFlags::VOTE.as_raw()
        | vk::SubgroupFeatureFlags::ARITHMETIC.as_raw()
        | vk::SubgroupFeatureFlags::BALLOT.as_raw()
        | vk::SubgroupFeatureFlags::SHUFFLE.as_raw(),
);

impl DeviceProperties {
    fn query(
        instance: &VulkanInstance,
        device: vk::PhysicalDevice,
        new: bool,
        has: &dyn Fn(&CStr) -> bool,
    ) -> DeviceProperties {
        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut control = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut nv = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
        let mut amd2 = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
        let mut arm = vk::PhysicalDeviceShaderCoreBuiltinsPropertiesARM::default();
        let mut all = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut v11)
            .push_next(&mut v12);
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
        let mut buffers = vk::PhysicalDeviceMaintenance4Properties::default();
        if new {
            all = all.push_next(&mut dots).push_next(&mut buffers);
        }
        let sizes = new || has(ash::ext::subgroup_size_control::NAME);
        if sizes {
            all = all.push_next(&mut control);
        }
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
        // SAFETY: the device belongs to this instance. Every structure of the chain belongs to its
        // version or to an extension that it has.
        unsafe {
            instance
                .raw
                .get_physical_device_properties2(device, &mut all)
        };
        let plain = all.properties;
        let compute = vk::ShaderStageFlags::COMPUTE;
        DeviceProperties {
            limits: plain.limits,
            subgroup_size: v11.subgroup_size,
            subgroup_compute: v11.subgroup_supported_stages.contains(compute)
                && v11
                    .subgroup_supported_operations
                    .contains(SUBGROUP_OPERATIONS),
            subgroup_sizes: sizes.then_some((control.min_subgroup_size, control.max_subgroup_size)),
            size_control_compute: control.required_subgroup_size_stages.contains(compute),
            max_buffer: v11.max_memory_allocation_size.max(buffers.max_buffer_size),
            packed_dots: dots.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE,
            units: ReportedProperties::from_units(
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
            ),
            driver: v12.driver_id,
            float_controls: FloatControls {
                preserve_f16: v12.shader_signed_zero_inf_nan_preserve_float16 == vk::TRUE,
                preserve_f32: v12.shader_signed_zero_inf_nan_preserve_float32 == vk::TRUE,
                preserve_denorm_f16: v12.shader_denorm_preserve_float16 == vk::TRUE,
                preserve_denorm_f32: v12.shader_denorm_preserve_float32 == vk::TRUE,
                independent_denorm_f32: v12.denorm_behavior_independence
                    != vk::ShaderFloatControlsIndependence::NONE,
            },
            identity: DriverIdentity {
                vendor: plain.vendor_id,
                device: plain.device_id,
                driver_version: plain.driver_version,
                driver_uuid: v11.driver_uuid,
                cache_uuid: plain.pipeline_cache_uuid,
            },
        }
    }

    /// Whether all workgroups of a dispatch start before those of a later dispatch. No
    /// specification guarantees this order. NVIDIA's driver was observed to start workgroups in
    /// this order, and software devices execute dispatches one after the other.
    fn starts_in_order(&self, kind: VulkanDeviceKind) -> bool {
        kind == VulkanDeviceKind::Cpu || self.driver == vk::DriverId::NVIDIA_PROPRIETARY
    }

    /// The properties that the driver reports.
    fn reported(&self, kind: VulkanDeviceKind) -> ReportedProperties {
        ReportedProperties {
            kind: match kind {
                VulkanDeviceKind::Discrete => GpuKind::Discrete,
                VulkanDeviceKind::Integrated => GpuKind::Integrated,
                VulkanDeviceKind::Cpu => GpuKind::Software,
                VulkanDeviceKind::Virtual | VulkanDeviceKind::Other => GpuKind::Unknown,
            },
            subgroups: self.subgroup_sizes.map(|(least, most)| [least, most]),
            workgroup_bytes: self.limits.max_compute_shared_memory_size,
            ..self.units
        }
    }

    /// Subgroup support; `None` if subgroups have several sizes and no size can be required.
    fn subgroups(&self, size_control: bool, full: bool) -> Option<SubgroupSupport> {
        let size = self.subgroup_size;
        let fixed = self.subgroup_sizes == Some((size, size));
        let require = !fixed && size_control && self.size_control_compute;
        let usable = self.subgroup_compute && (fixed || require);
        usable.then_some(SubgroupSupport {
            size,
            require,
            full,
        })
    }
}

/// The subgroup-scope shapes with `f32` accumulators.
fn coop_shapes(
    instance: &VulkanInstance,
    device: vk::PhysicalDevice,
    bfloat16: bool,
) -> Result<Vec<CoopShape>, VulkanOpenError> {
    let functions = khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device has the extension.
    let all = unsafe { functions.get_physical_device_cooperative_matrix_properties(device) }
        .map_err(failed("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"))?;
    let f32_ = vk::ComponentTypeKHR::FLOAT32;
    let mut shapes = Vec::new();
    for p in &all {
        let ty = match p.a_type {
            vk::ComponentTypeKHR::FLOAT16 => CoopType::F16,
            t if t == Bfloat16Features::COMPONENT && bfloat16 => CoopType::BF16,
            _ => continue,
        };
        // True for a shape of the same size whose results have the operand type.
        let is_narrow = |o: &vk::CooperativeMatrixPropertiesKHR<'_>| {
            (o.m_size, o.n_size, o.k_size) == (p.m_size, p.n_size, p.k_size)
                && [o.a_type, o.b_type, o.c_type, o.result_type] == [p.a_type; 4]
                && o.scope == p.scope
        };
        let shape = CoopShape {
            ty,
            m: p.m_size,
            n: p.n_size,
            k: p.k_size,
            narrow_accumulators: all.iter().any(is_narrow),
        };
        let accumulates = p.c_type == f32_ && p.result_type == f32_;
        let one_subgroup = p.scope == vk::ScopeKHR::SUBGROUP;
        let same = p.b_type == p.a_type && p.saturating_accumulation == vk::FALSE;
        if accumulates && one_subgroup && same && !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    Ok(shapes)
}

/// The first queue family with compute support, and its timestamp bits.
fn queue_family(
    instance: &VulkanInstance,
    device: vk::PhysicalDevice,
    info: &VulkanDeviceInfo,
) -> Result<(u32, u32), VulkanOpenError> {
    // SAFETY: the device belongs to this instance.
    let all = unsafe {
        instance
            .raw
            .get_physical_device_queue_family_properties(device)
    };
    let computes = |q: &vk::QueueFamilyProperties| q.queue_flags.contains(vk::QueueFlags::COMPUTE);
    match all.iter().position(computes) {
        Some(at) => Ok((at as u32, all[at].timestamp_valid_bits)),
        None => Err(VulkanOpenError::MissingFeature {
            device: info.name.clone(),
            feature: "a compute queue",
        }),
    }
}
