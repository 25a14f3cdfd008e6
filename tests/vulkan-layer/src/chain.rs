//! The structures of the interface between loader and layers, which Vulkan's registry does not
//! contain, and chains of extending structures.

use std::ffi::c_void;

use ash::vk;

/// `VkNegotiateLayerInterface`.
#[repr(C)]
pub(crate) struct NegotiateLayerInterface {
    pub(crate) s_type: i32,
    pub(crate) p_next: *mut c_void,
    pub(crate) version: u32,
    pub(crate) get_instance_proc_addr: Option<vk::PFN_vkGetInstanceProcAddr>,
    pub(crate) get_device_proc_addr: Option<vk::PFN_vkGetDeviceProcAddr>,
    pub(crate) get_physical_device_proc_addr: Option<vk::PFN_vkGetInstanceProcAddr>,
}

/// `VkLayerInstanceLink`.
#[repr(C)]
pub(crate) struct InstanceLink {
    next: *mut InstanceLink,
    pub(crate) get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    get_physical_device_proc_addr: vk::PFN_vkVoidFunction,
}

/// `VkLayerDeviceLink`.
#[repr(C)]
pub(crate) struct DeviceLink {
    next: *mut DeviceLink,
    pub(crate) get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    pub(crate) get_device_proc_addr: vk::PFN_vkGetDeviceProcAddr,
}

/// `VkLayerInstanceCreateInfo` or `VkLayerDeviceCreateInfo` with the link of the next layer.
#[repr(C)]
struct LayerCreateInfo<L> {
    s_type: vk::StructureType,
    p_next: *const c_void,
    function: i32,
    link: *mut L,
}

/// `VK_LAYER_LINK_INFO`.
const LINK_INFO: i32 = 0;

/// A link that names the one after it.
pub(crate) trait LayerLink: Sized {
    /// The structure that contains the link.
    const TYPE: vk::StructureType;
    fn next(&self) -> *mut Self;
}

impl LayerLink for InstanceLink {
    const TYPE: vk::StructureType = vk::StructureType::LOADER_INSTANCE_CREATE_INFO;
    fn next(&self) -> *mut InstanceLink {
        self.next
    }
}

impl LayerLink for DeviceLink {
    const TYPE: vk::StructureType = vk::StructureType::LOADER_DEVICE_CREATE_INFO;
    fn next(&self) -> *mut DeviceLink {
        self.next
    }
}

/// The structures of a chain.
///
/// # Safety
/// `chain` is null or starts a chain of valid structures, which lives as long as the iterator.
pub(crate) unsafe fn structures(
    chain: *const c_void,
) -> impl Iterator<Item = *mut vk::BaseOutStructure<'static>> {
    let mut at = chain.cast_mut().cast::<vk::BaseOutStructure<'static>>();
    std::iter::from_fn(move || {
        let found = at;
        if found.is_null() {
            return None;
        }
        // SAFETY: every structure of the chain is valid.
        at = unsafe { (*found).p_next };
        Some(found)
    })
}

/// Takes this layer's link from the chain of a create info, and leaves the one of the next layer.
///
/// # Safety
/// `chain` is the chain of a create info from the loader.
pub(crate) unsafe fn take_link<L: LayerLink>(chain: *const c_void) -> Option<&'static L> {
    // SAFETY: the loader's chain is valid.
    for found in unsafe { structures(chain) } {
        // SAFETY: as above.
        if unsafe { (*found).s_type } != L::TYPE {
            continue;
        }
        let info = found.cast::<LayerCreateInfo<L>>();
        // SAFETY: the type says that this is the loader's structure, which it owns until the call
        // returns; layers advance the link, as the interface says.
        unsafe {
            if (*info).function == LINK_INFO && !(*info).link.is_null() {
                let link = &*(*info).link;
                (*info).link = link.next();
                return Some(link);
            }
        }
    }
    None
}
