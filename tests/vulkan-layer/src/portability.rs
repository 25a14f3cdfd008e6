//! The device of the switch `portability`: what MoltenVK 1.4 reports for an Apple GPU, as far as the
//! device below has it too. The values are those of MoltenVK's `MVKDevice.mm` and `MVKExtensions.def`.

use std::ffi::CStr;

use ash::{ext, khr, vk};

/// Slots for buffers of a shader stage in Metal. Buffers of all kinds share them.
const METAL_BUFFERS: u32 = 31;

/// Storage and uniform buffers of a pipeline: MoltenVK passes the sizes of buffers in one more.
pub(crate) const PIPELINE_BUFFERS: u32 = METAL_BUFFERS - 1;

/// Textures of a shader stage in Metal.
const METAL_TEXTURES: u32 = 128;

/// Bytes of threadgroup memory and invocations of a workgroup.
const SHARED_BYTES: u32 = 32 << 10;
const INVOCATIONS: u32 = 1024;

/// The vendor id of Apple.
const APPLE: u32 = 0x106b;

/// The extensions of MoltenVK that compute programs could use. The others of the device below are
/// hidden.
const EXTENSIONS: [&CStr; 25] = [
    khr::portability_subset::NAME,
    khr::_16bit_storage::NAME,
    khr::_8bit_storage::NAME,
    khr::bind_memory2::NAME,
    khr::buffer_device_address::NAME,
    khr::copy_commands2::NAME,
    khr::dedicated_allocation::NAME,
    khr::driver_properties::NAME,
    khr::get_memory_requirements2::NAME,
    khr::maintenance1::NAME,
    khr::maintenance3::NAME,
    khr::maintenance4::NAME,
    khr::push_descriptor::NAME,
    khr::shader_float_controls::NAME,
    khr::shader_float16_int8::NAME,
    khr::shader_integer_dot_product::NAME,
    khr::shader_non_semantic_info::NAME,
    khr::spirv_1_4::NAME,
    khr::synchronization2::NAME,
    khr::timeline_semaphore::NAME,
    khr::vulkan_memory_model::NAME,
    ext::memory_budget::NAME,
    ext::pipeline_robustness::NAME,
    ext::scalar_block_layout::NAME,
    ext::subgroup_size_control::NAME,
];

/// Whether MoltenVK has an extension.
pub(crate) fn has_extension(name: &CStr) -> bool {
    EXTENSIONS.contains(&name)
}

/// The capabilities of SPIR-V that MoltenVK compiles, of those that compute shaders can declare:
/// shaders, matrices, storage of 8 and 16 bits, small and 64-bit integers, F16, subgroups, the memory
/// model, dot products, and the float controls that it reports.
const CAPABILITIES: [std::ops::RangeInclusive<u32>; 16] = [
    0..=1,       // Matrix, Shader
    9..=9,       // Float16
    11..=11,     // Int64
    22..=22,     // Int16
    39..=39,     // Int8
    28..=31,     // dynamic indexing
    50..=50,     // ImageQuery
    61..=66,     // GroupNonUniform, without clusters and quads
    67..=68,     // GroupNonUniformClustered, GroupNonUniformQuad
    4433..=4436, // 16-bit storage
    4441..=4442, // variable pointers
    4448..=4450, // 8-bit storage
    4466..=4467, // SignedZeroInfNanPreserve, RoundingModeRTE
    5345..=5347, // VulkanMemoryModel, its device scope, PhysicalStorageBufferAddresses
    6016..=6019, // integer dot products
    6026..=6026, // GroupNonUniformRotateKHR
];

/// Whether MoltenVK compiles shaders with a capability.
pub(crate) fn permits_capability(number: u32) -> bool {
    CAPABILITIES.iter().any(|range| range.contains(&number))
}

/// A structure of features: booleans after the head.
pub(crate) fn booleans(ty: vk::StructureType) -> Option<usize> {
    const HEAD: usize = size_of::<vk::BaseOutStructure<'static>>();
    let bytes = match ty {
        vk::StructureType::PHYSICAL_DEVICE_FEATURES_2 => {
            return Some(size_of::<vk::PhysicalDeviceFeatures>() / 4);
        }
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_1_FEATURES => return Some(12),
        vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES => return Some(47),
        vk::StructureType::PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES => return Some(2),
        vk::StructureType::PHYSICAL_DEVICE_PORTABILITY_SUBSET_FEATURES_KHR => return Some(15),
        vk::StructureType::PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES => HEAD + 4,
        vk::StructureType::PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES => HEAD + 4,
        vk::StructureType::PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT => HEAD + 4,
        _ => return None,
    };
    Some((bytes - HEAD) / 4)
}

/// Turns off the features of Vulkan 1.0 that MoltenVK lacks and compute programs could use.
pub(crate) fn limit_features(features: &mut vk::PhysicalDeviceFeatures) {
    features.shader_float64 = vk::FALSE;
    features.sparse_binding = vk::FALSE;
    features.sparse_residency_buffer = vk::FALSE;
    features.pipeline_statistics_query = vk::FALSE;
    features.geometry_shader = vk::FALSE;
}

/// Turns off the features of a structure that MoltenVK lacks.
///
/// # Safety
/// `found` is a valid structure of the type that it names.
pub(crate) unsafe fn limit_structure(found: *mut vk::BaseOutStructure<'static>) {
    // SAFETY: each cast is to the type that the structure names.
    unsafe {
        match (*found).s_type {
            vk::StructureType::PHYSICAL_DEVICE_FEATURES_2 => {
                let all = &mut *found.cast::<vk::PhysicalDeviceFeatures2<'_>>();
                limit_features(&mut all.features);
            }
            vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_1_FEATURES => {
                let v11 = &mut *found.cast::<vk::PhysicalDeviceVulkan11Features<'_>>();
                v11.storage_push_constant16 &= vk::TRUE;
                v11.protected_memory = vk::FALSE;
            }
            vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES => {
                let v12 = &mut *found.cast::<vk::PhysicalDeviceVulkan12Features<'_>>();
                v12.shader_buffer_int64_atomics = vk::FALSE;
                v12.shader_shared_int64_atomics = vk::FALSE;
                v12.vulkan_memory_model_availability_visibility_chains = vk::FALSE;
                v12.buffer_device_address_capture_replay = vk::FALSE;
            }
            vk::StructureType::PHYSICAL_DEVICE_PORTABILITY_SUBSET_FEATURES_KHR => {
                let subset =
                    &mut *found.cast::<vk::PhysicalDevicePortabilitySubsetFeaturesKHR<'_>>();
                let next = subset.p_next;
                *subset = vk::PhysicalDevicePortabilitySubsetFeaturesKHR::default()
                    .constant_alpha_color_blend_factors(true)
                    .events(true)
                    .image_view_format_reinterpretation(true)
                    .image_view_format_swizzle(true)
                    .image_view2_d_on3_d_image(true)
                    .multisample_array_image(true)
                    .mutable_comparison_samplers(true)
                    .separate_stencil_mask_ref(true)
                    .shader_sample_rate_interpolation_functions(true)
                    .triangle_fans(true)
                    .vertex_attribute_access_beyond_stride(true);
                subset.p_next = next;
            }
            _ => {}
        }
    }
}

/// Lowers properties to those of MoltenVK.
pub(crate) fn limit_properties(all: &mut vk::PhysicalDeviceProperties) {
    all.vendor_id = APPLE;
    all.device_type = vk::PhysicalDeviceType::INTEGRATED_GPU;
    let l = &mut all.limits;
    let lower = |value: &mut u32, limit: u32| *value = (*value).min(limit);
    lower(
        &mut l.max_per_stage_descriptor_storage_buffers,
        METAL_BUFFERS,
    );
    lower(
        &mut l.max_per_stage_descriptor_uniform_buffers,
        METAL_BUFFERS,
    );
    lower(
        &mut l.max_per_stage_resources,
        METAL_BUFFERS + METAL_TEXTURES,
    );
    lower(&mut l.max_descriptor_set_storage_buffers, METAL_BUFFERS * 5);
    lower(&mut l.max_descriptor_set_uniform_buffers, METAL_BUFFERS * 5);
    lower(&mut l.max_compute_shared_memory_size, SHARED_BYTES);
    lower(&mut l.max_compute_work_group_invocations, INVOCATIONS);
    l.max_compute_work_group_size
        .iter_mut()
        .for_each(|size| lower(size, INVOCATIONS));
    lower(&mut l.max_push_constants_size, 4 << 10);
    l.min_storage_buffer_offset_alignment = l.min_storage_buffer_offset_alignment.max(16);
    // That of Macs; GPUs of phones have 16.
    l.min_uniform_buffer_offset_alignment = l.min_uniform_buffer_offset_alignment.max(256);
    l.non_coherent_atom_size = l.non_coherent_atom_size.max(256);
}

/// Lowers the properties of an extending structure to those of MoltenVK.
///
/// # Safety
/// `found` is a valid structure of the type that it names.
pub(crate) unsafe fn limit_property_structure(found: *mut vk::BaseOutStructure<'static>) {
    // SAFETY: each cast is to the type that the structure names.
    unsafe {
        match (*found).s_type {
            vk::StructureType::PHYSICAL_DEVICE_PROPERTIES_2 => {
                let all = &mut *found.cast::<vk::PhysicalDeviceProperties2<'_>>();
                limit_properties(&mut all.properties);
            }
            vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES => {
                let v12 = &mut *found.cast::<vk::PhysicalDeviceVulkan12Properties<'_>>();
                v12.driver_id = vk::DriverId::MOLTENVK;
                v12.denorm_behavior_independence = vk::ShaderFloatControlsIndependence::NONE;
                v12.rounding_mode_independence = vk::ShaderFloatControlsIndependence::NONE;
                v12.shader_denorm_preserve_float16 = vk::FALSE;
                v12.shader_denorm_preserve_float32 = vk::FALSE;
                v12.shader_denorm_preserve_float64 = vk::FALSE;
                v12.shader_denorm_flush_to_zero_float16 = vk::FALSE;
                v12.shader_denorm_flush_to_zero_float32 = vk::FALSE;
                v12.shader_rounding_mode_rtz_float16 = vk::FALSE;
                v12.shader_rounding_mode_rtz_float32 = vk::FALSE;
            }
            vk::StructureType::PHYSICAL_DEVICE_DRIVER_PROPERTIES => {
                let driver = &mut *found.cast::<vk::PhysicalDeviceDriverProperties<'_>>();
                driver.driver_id = vk::DriverId::MOLTENVK;
            }
            vk::StructureType::PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES => {
                let sizes =
                    &mut *found.cast::<vk::PhysicalDeviceSubgroupSizeControlProperties<'_>>();
                sizes.required_subgroup_size_stages = vk::ShaderStageFlags::empty();
            }
            vk::StructureType::PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES => {
                let dots =
                    &mut *found.cast::<vk::PhysicalDeviceShaderIntegerDotProductProperties<'_>>();
                dots.integer_dot_product4x8_bit_packed_signed_accelerated = vk::FALSE;
            }
            vk::StructureType::PHYSICAL_DEVICE_PORTABILITY_SUBSET_PROPERTIES_KHR => {
                let subset =
                    &mut *found.cast::<vk::PhysicalDevicePortabilitySubsetPropertiesKHR<'_>>();
                subset.min_vertex_input_binding_stride_alignment = 4;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_and_f64_are_not_permitted() {
        assert!(permits_capability(1) && permits_capability(5345));
        // Float64, DenormPreserve, CooperativeMatrixKHR.
        assert!([10, 4464, 6022].into_iter().all(|c| !permits_capability(c)));
        assert!(!has_extension(khr::cooperative_matrix::NAME));
        assert!(has_extension(khr::portability_subset::NAME));
    }

    #[test]
    fn counts_of_booleans_are_those_of_the_structures() {
        let head = size_of::<vk::BaseOutStructure<'static>>();
        let whole = |ty, bytes: usize| {
            let n = booleans(ty).expect("a structure of features");
            assert_eq!((head + n * 4).next_multiple_of(8), bytes, "{ty:?}");
        };
        use vk::StructureType as Ty;
        whole(
            Ty::PHYSICAL_DEVICE_FEATURES_2,
            size_of::<vk::PhysicalDeviceFeatures2<'_>>(),
        );
        whole(
            Ty::PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
            size_of::<vk::PhysicalDeviceVulkan11Features<'_>>(),
        );
        whole(
            Ty::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
            size_of::<vk::PhysicalDeviceVulkan12Features<'_>>(),
        );
        whole(
            Ty::PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
            size_of::<vk::PhysicalDeviceSubgroupSizeControlFeatures<'_>>(),
        );
        whole(
            Ty::PHYSICAL_DEVICE_PORTABILITY_SUBSET_FEATURES_KHR,
            size_of::<vk::PhysicalDevicePortabilitySubsetFeaturesKHR<'_>>(),
        );
        whole(
            Ty::PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
            size_of::<vk::PhysicalDeviceMaintenance4Features<'_>>(),
        );
    }
}
