//! Queries the driver for the features that Tercet can use.

use std::ffi::CStr;

use ash::{khr, vk};

use crate::bfloat16::Bfloat16Features;
use crate::coop_matrix2::CoopMatrix2Features;
use crate::instance::VulkanInstance;

/// The features of a device that kernels or the runtime can use.
pub(super) struct SupportedFeatures {
    pub(super) storage16: bool,
    pub(super) storage8: bool,
    pub(super) float16: bool,
    pub(super) int8: bool,
    pub(super) int16: bool,
    pub(super) timelines: bool,
    pub(super) memory_model: bool,
    pub(super) memory_model_device: bool,
    pub(super) size_control: bool,
    pub(super) full_subgroups: bool,
    pub(super) coop: bool,
    pub(super) bfloat16: bool,
    pub(super) bfloat16_coop: bool,
    pub(super) coop_blocks: bool,
    pub(super) coop_converts: bool,
    pub(super) maintenance4: bool,
    pub(super) dots: bool,
    pub(super) unchecked: bool,
}

impl SupportedFeatures {
    pub(super) fn query(
        instance: &VulkanInstance,
        device: vk::PhysicalDevice,
        new: bool,
        has: &dyn Fn(&CStr) -> bool,
    ) -> SupportedFeatures {
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
        let mut coop = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut bfloat16 = Bfloat16Features::new();
        let mut blocks = CoopMatrix2Features::default();
        let mut v13 = vk::PhysicalDeviceMaintenance4Features::default();
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut robustness = vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default();
        let mut all = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut v11)
            .push_next(&mut v12);
        if new || has(ash::ext::subgroup_size_control::NAME) {
            all = all.push_next(&mut control);
        }
        if has(khr::cooperative_matrix::NAME) {
            all = all.push_next(&mut coop);
        }
        if has(Bfloat16Features::EXTENSION) {
            all = all.push_next(&mut bfloat16);
        }
        if has(CoopMatrix2Features::EXTENSION) {
            all = all.push_next(&mut blocks);
        }
        if new {
            all = all.push_next(&mut v13).push_next(&mut dots);
        }
        if has(ash::ext::pipeline_robustness::NAME) {
            all = all.push_next(&mut robustness);
        }
        // SAFETY: the device belongs to this instance. Every structure of the chain belongs to its
        // version or to an extension that it has.
        unsafe { instance.raw.get_physical_device_features2(device, &mut all) };
        let on = |feature: vk::Bool32| feature == vk::TRUE;
        SupportedFeatures {
            int16: on(all.features.shader_int16),
            storage16: on(v11.storage_buffer16_bit_access),
            storage8: on(v12.storage_buffer8_bit_access),
            float16: on(v12.shader_float16),
            int8: on(v12.shader_int8),
            timelines: on(v12.timeline_semaphore),
            memory_model: on(v12.vulkan_memory_model),
            memory_model_device: on(v12.vulkan_memory_model_device_scope),
            size_control: on(control.subgroup_size_control),
            full_subgroups: on(control.compute_full_subgroups),
            coop: on(coop.cooperative_matrix),
            bfloat16: on(bfloat16.types),
            bfloat16_coop: on(bfloat16.cooperative_matrix),
            coop_blocks: blocks.complete(),
            coop_converts: blocks.converts(),
            maintenance4: on(v13.maintenance4),
            dots: on(dots.shader_integer_dot_product),
            unchecked: on(robustness.pipeline_robustness),
        }
    }
}
