//! `VK_KHR_shader_bfloat16`.

use std::ffi::{CStr, c_void};

use ash::vk;

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`, which the bindings do not have yet.
#[repr(C)]
pub(crate) struct Bfloat16Features {
    pub(crate) s_type: vk::StructureType,
    pub(crate) p_next: *mut c_void,
    pub(crate) types: vk::Bool32,
    pub(crate) dot_product: vk::Bool32,
    pub(crate) cooperative_matrix: vk::Bool32,
}

// SAFETY: by the specification of VK_KHR_shader_bfloat16 the structure extends both.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Bfloat16Features {}

impl Bfloat16Features {
    pub(crate) const EXTENSION: &'static CStr = c"VK_KHR_shader_bfloat16";
    const S_TYPE: vk::StructureType = vk::StructureType::from_raw(1_000_141_000);
    pub(crate) const COMPONENT: vk::ComponentTypeKHR =
        vk::ComponentTypeKHR::from_raw(1_000_141_000);

    pub(crate) fn new() -> Bfloat16Features {
        Bfloat16Features {
            s_type: Bfloat16Features::S_TYPE,
            p_next: std::ptr::null_mut(),
            types: 0,
            dot_product: 0,
            cooperative_matrix: 0,
        }
    }
}
