//! Workgroup-scope cooperative matrices: `VK_NV_cooperative_matrix2`, which the bindings do not
//! have yet.

use std::ffi::{CStr, c_void};

use ash::vk;
use tercet_plan::{CoopBlock, CoopType};

use crate::bfloat16::Bfloat16Features;
use crate::instance::VulkanInstance;

/// `VkPhysicalDeviceCooperativeMatrix2FeaturesNV`.
#[repr(C)]
pub(crate) struct CoopMatrix2Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    workgroup_scope: vk::Bool32,
    flexible_dimensions: vk::Bool32,
    reductions: vk::Bool32,
    conversions: vk::Bool32,
    per_element_operations: vk::Bool32,
    tensor_addressing: vk::Bool32,
    block_loads: vk::Bool32,
}

// SAFETY: by the specification of VK_NV_cooperative_matrix2 the structure extends both.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for CoopMatrix2Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for CoopMatrix2Features {}

impl Default for CoopMatrix2Features {
    fn default() -> CoopMatrix2Features {
        CoopMatrix2Features {
            s_type: vk::StructureType::from_raw(1_000_593_000),
            p_next: std::ptr::null_mut(),
            workgroup_scope: 0,
            flexible_dimensions: 0,
            reductions: 0,
            conversions: 0,
            per_element_operations: 0,
            tensor_addressing: 0,
            block_loads: 0,
        }
    }
}

impl CoopMatrix2Features {
    pub(crate) const EXTENSION: &'static CStr = c"VK_NV_cooperative_matrix2";

    /// The features that kernels use: workgroup scope, and conversion of accumulators to operands.
    pub(crate) fn used(blocks: bool, converts: bool) -> CoopMatrix2Features {
        let [blocks, converts] = [blocks, converts].map(u32::from);
        CoopMatrix2Features {
            workgroup_scope: blocks,
            flexible_dimensions: blocks,
            conversions: converts,
            per_element_operations: blocks,
            tensor_addressing: blocks,
            ..CoopMatrix2Features::default()
        }
    }

    /// True if accumulators can be converted to operands.
    pub(crate) fn converts(&self) -> bool {
        self.conversions == vk::TRUE
    }

    /// True if the device has all features of the workgroup-scope kernels.
    pub(crate) fn complete(&self) -> bool {
        let needed = [
            self.workgroup_scope,
            self.flexible_dimensions,
            self.per_element_operations,
            self.tensor_addressing,
        ];
        needed == [vk::TRUE; 4]
    }
}

/// `VkCooperativeMatrixFlexibleDimensionsPropertiesNV`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FlexibleDimensions {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    m: u32,
    n: u32,
    k: u32,
    a_type: vk::ComponentTypeKHR,
    b_type: vk::ComponentTypeKHR,
    c_type: vk::ComponentTypeKHR,
    result_type: vk::ComponentTypeKHR,
    saturating: vk::Bool32,
    scope: vk::ScopeKHR,
    threads: u32,
}

/// `vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV`.
///
/// # Safety
/// The device belongs to the instance that the function was loaded from. The array has at least the
/// given number of elements.
type FlexibleDimensionsFn =
    unsafe extern "system" fn(vk::PhysicalDevice, *mut u32, *mut FlexibleDimensions) -> vk::Result;

/// The workgroup-scope shapes with `f32` accumulation that a device with the extension supports;
/// empty if the query fails.
pub(crate) fn query(
    instance: &VulkanInstance,
    device: vk::PhysicalDevice,
    bfloat16: bool,
) -> Vec<CoopBlock> {
    let name = c"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV";
    // SAFETY: the instance is valid and the name is null-terminated.
    let found = unsafe {
        instance
            .entry
            .get_instance_proc_addr(instance.raw.handle(), name.as_ptr())
    };
    let Some(found) = found else {
        return Vec::new();
    };
    // SAFETY: the function with this name has this type.
    let query: FlexibleDimensionsFn = unsafe { std::mem::transmute(found) };
    let mut count = 0;
    // SAFETY: the device has the extension. With a null pointer the call returns only the count.
    if unsafe { query(device, &mut count, std::ptr::null_mut()) } != vk::Result::SUCCESS {
        return Vec::new();
    }
    let none = FlexibleDimensions {
        s_type: vk::StructureType::from_raw(1_000_593_001),
        p_next: std::ptr::null_mut(),
        m: 0,
        n: 0,
        k: 0,
        a_type: vk::ComponentTypeKHR::default(),
        b_type: vk::ComponentTypeKHR::default(),
        c_type: vk::ComponentTypeKHR::default(),
        result_type: vk::ComponentTypeKHR::default(),
        saturating: 0,
        scope: vk::ScopeKHR::default(),
        threads: 0,
    };
    let mut all = vec![none; count as usize];
    // SAFETY: the list has room for `count` entries.
    let result = unsafe { query(device, &mut count, all.as_mut_ptr()) };
    if result != vk::Result::SUCCESS && result != vk::Result::INCOMPLETE {
        return Vec::new();
    }
    all.truncate(count as usize);
    let mut blocks = Vec::new();
    for block in all.iter().filter_map(|p| block_of(p, bfloat16)) {
        if !blocks.contains(&block) {
            blocks.push(block);
        }
    }
    blocks
}

fn block_of(p: &FlexibleDimensions, bfloat16: bool) -> Option<CoopBlock> {
    let f32_ = vk::ComponentTypeKHR::FLOAT32;
    let ty = match p.a_type {
        vk::ComponentTypeKHR::FLOAT16 => CoopType::F16,
        t if t == Bfloat16Features::COMPONENT && bfloat16 => CoopType::BF16,
        _ => return None,
    };
    let accumulates = p.c_type == f32_ && p.result_type == f32_;
    let same = p.b_type == p.a_type && p.saturating == vk::FALSE;
    let granular = p.m > 0 && p.n > 0 && p.k > 0;
    let wanted = accumulates && same && granular && p.scope == vk::ScopeKHR::WORKGROUP;
    wanted.then_some(CoopBlock {
        ty,
        m: p.m,
        n: p.n,
        k: p.k,
        threads: p.threads,
    })
}
