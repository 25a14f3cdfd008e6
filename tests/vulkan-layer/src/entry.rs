//! The functions that the loader calls.
//!
//! Dispatchable handles of one instance or device start with the same pointer, which is the key of the
//! state of the layer ([`dispatch_key`]).

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use ash::khr;
use ash::vk::{self, Handle};

use crate::NAME;
use crate::chain::{DeviceLink, InstanceLink, NegotiateLayerInterface, structures, take_link};
use crate::objects::{
    allocate_memory, create_buffer, create_compute_pipelines, create_set_layout,
    create_shader_module, queue_submit, update_descriptor_sets,
};
use crate::portability;
use crate::settings::{settings, violation};
use crate::spirv::WorkgroupSize;

/// The instance below this layer.
struct LayerInstance {
    next: vk::PFN_vkGetInstanceProcAddr,
    raw: ash::Instance,
}

/// The device below this layer.
pub(crate) struct LayerDevice {
    pub(crate) next: vk::PFN_vkGetDeviceProcAddr,
    pub(crate) raw: ash::Device,
    pub(crate) limits: vk::PhysicalDeviceLimits,
    pub(crate) max_allocation: u64,
    pub(crate) modules: Mutex<HashMap<vk::ShaderModule, LayerModule>>,
    pub(crate) buffers: Mutex<HashMap<vk::Buffer, u64>>,
    /// Set by a violation in a function without a result: the next submission fails.
    pub(crate) is_lost: AtomicBool,
}

/// A shader module.
pub(crate) struct LayerModule {
    pub(crate) hash: u64,
    pub(crate) size: Option<WorkgroupSize>,
}

type ByKey<T> = LazyLock<Mutex<HashMap<usize, Arc<T>>>>;

static INSTANCES: ByKey<LayerInstance> = LazyLock::new(Mutex::default);
static DEVICES: ByKey<LayerDevice> = LazyLock::new(Mutex::default);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pointer that a dispatchable handle starts with.
fn dispatch_key(handle: impl Handle) -> usize {
    // SAFETY: dispatchable handles point to an object that starts with the loader's pointer.
    unsafe { *(handle.as_raw() as *const usize) }
}

/// The state of an instance or one of its physical devices.
fn instance_of(handle: impl Handle) -> Option<Arc<LayerInstance>> {
    lock(&INSTANCES).get(&dispatch_key(handle)).cloned()
}

/// The state of a device, or of one of its queues or command buffers.
pub(crate) fn device_of(handle: impl Handle) -> Option<Arc<LayerDevice>> {
    lock(&DEVICES).get(&dispatch_key(handle)).cloned()
}

/// The negotiation with the loader: version 2 of the interface.
///
/// # Safety
/// The loader calls it with a valid structure.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "system" fn vkNegotiateLoaderLayerInterfaceVersion(
    interface: *mut NegotiateLayerInterface,
) -> vk::Result {
    // SAFETY: the loader passes a valid structure.
    let interface = unsafe { &mut *interface };
    if interface.version < 2 {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    interface.version = 2;
    interface.get_instance_proc_addr = Some(get_instance_proc_addr);
    interface.get_device_proc_addr = Some(get_device_proc_addr);
    interface.get_physical_device_proc_addr = None;
    vk::Result::SUCCESS
}

/// A function of this layer as the loader wants it.
macro_rules! function {
    ($f:expr, $ty:ty) => {{
        let f: $ty = $f;
        // SAFETY: a function pointer; the caller casts it back to the type of its name.
        Some(unsafe { std::mem::transmute::<$ty, unsafe extern "system" fn()>(f) })
    }};
}

fn own_instance_function(name: &CStr) -> vk::PFN_vkVoidFunction {
    match name.to_bytes() {
        b"vkGetInstanceProcAddr" => {
            function!(get_instance_proc_addr, vk::PFN_vkGetInstanceProcAddr)
        }
        b"vkCreateInstance" => function!(create_instance, vk::PFN_vkCreateInstance),
        b"vkDestroyInstance" => function!(destroy_instance, vk::PFN_vkDestroyInstance),
        b"vkCreateDevice" => function!(create_device, vk::PFN_vkCreateDevice),
        b"vkEnumerateDeviceExtensionProperties" => function!(
            enumerate_device_extensions,
            vk::PFN_vkEnumerateDeviceExtensionProperties
        ),
        b"vkGetPhysicalDeviceFeatures" => {
            function!(get_features, vk::PFN_vkGetPhysicalDeviceFeatures)
        }
        b"vkGetPhysicalDeviceFeatures2" | b"vkGetPhysicalDeviceFeatures2KHR" => {
            function!(get_features2, vk::PFN_vkGetPhysicalDeviceFeatures2)
        }
        b"vkGetPhysicalDeviceProperties" => {
            function!(get_properties, vk::PFN_vkGetPhysicalDeviceProperties)
        }
        b"vkGetPhysicalDeviceProperties2" | b"vkGetPhysicalDeviceProperties2KHR" => {
            function!(get_properties2, vk::PFN_vkGetPhysicalDeviceProperties2)
        }
        _ => None,
    }
}

fn own_device_function(name: &CStr) -> vk::PFN_vkVoidFunction {
    match name.to_bytes() {
        b"vkGetDeviceProcAddr" => function!(get_device_proc_addr, vk::PFN_vkGetDeviceProcAddr),
        b"vkDestroyDevice" => function!(destroy_device, vk::PFN_vkDestroyDevice),
        b"vkCreateShaderModule" => function!(create_shader_module, vk::PFN_vkCreateShaderModule),
        b"vkCreateComputePipelines" => {
            function!(create_compute_pipelines, vk::PFN_vkCreateComputePipelines)
        }
        b"vkCreateDescriptorSetLayout" => {
            function!(create_set_layout, vk::PFN_vkCreateDescriptorSetLayout)
        }
        b"vkCreateBuffer" => function!(create_buffer, vk::PFN_vkCreateBuffer),
        b"vkAllocateMemory" => function!(allocate_memory, vk::PFN_vkAllocateMemory),
        b"vkUpdateDescriptorSets" => {
            function!(update_descriptor_sets, vk::PFN_vkUpdateDescriptorSets)
        }
        b"vkQueueSubmit" => function!(queue_submit, vk::PFN_vkQueueSubmit),
        _ => None,
    }
}

unsafe extern "system" fn get_instance_proc_addr(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the loader passes a name.
    let own = unsafe { CStr::from_ptr(name) };
    if let Some(found) = own_instance_function(own).or_else(|| own_device_function(own)) {
        return Some(found);
    }
    if instance.is_null() {
        return None;
    }
    let next = instance_of(instance)?.next;
    // SAFETY: the function of the next layer, with its instance.
    unsafe { next(instance, name) }
}

unsafe extern "system" fn get_device_proc_addr(
    device: vk::Device,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the loader passes a name.
    let own = own_device_function(unsafe { CStr::from_ptr(name) });
    if own.is_some() {
        return own;
    }
    let next = device_of(device)?.next;
    // SAFETY: the function of the next layer, with its device.
    unsafe { next(device, name) }
}

/// The names of a list in a create info.
///
/// # Safety
/// `names` points to `count` names, or `count` is 0.
unsafe fn names<'a>(names: *const *const c_char, count: u32) -> Vec<&'a CStr> {
    let at = |i| {
        // SAFETY: the caller guarantees `count` valid names.
        unsafe { CStr::from_ptr(*names.add(i)) }
    };
    (0..count as usize).map(at).collect()
}

unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    instance: *mut vk::Instance,
) -> vk::Result {
    // SAFETY: the loader passes a valid create info with a link for this layer.
    let (created, link) = unsafe { (&*info, take_link::<InstanceLink>((*info).p_next)) };
    let Some(link) = link else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    // SAFETY: the create info is valid.
    let extensions = unsafe {
        names(
            created.pp_enabled_extension_names,
            created.enabled_extension_count,
        )
    };
    let enumerates = extensions.contains(&khr::portability_enumeration::NAME)
        && created
            .flags
            .contains(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
    if settings().portability && !enumerates {
        // As the loader does if all drivers are portability drivers.
        return vk::Result::ERROR_INCOMPATIBLE_DRIVER;
    }
    let next = link.get_instance_proc_addr;
    // SAFETY: the next layer has this function, with this type.
    unsafe {
        let name = c"vkCreateInstance".as_ptr();
        let Some(create) = next(vk::Instance::null(), name) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let create =
            std::mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateInstance>(create);
        let result = create(info, allocator, instance);
        if result != vk::Result::SUCCESS {
            return result;
        }
        let raw = *instance;
        let load = |name: &CStr| {
            next(raw, name.as_ptr()).map_or(std::ptr::null(), |f| f as *const std::ffi::c_void)
        };
        let raw = ash::Instance::load_with(load, raw);
        let state = Arc::new(LayerInstance { next, raw });
        lock(&INSTANCES).insert(dispatch_key(*instance), state);
    }
    vk::Result::SUCCESS
}

unsafe extern "system" fn destroy_instance(
    instance: vk::Instance,
    allocator: *const vk::AllocationCallbacks<'_>,
) {
    if instance.is_null() {
        return;
    }
    let state = lock(&INSTANCES).remove(&dispatch_key(instance));
    if let Some(state) = state {
        // SAFETY: the program destroys the instance.
        unsafe { (state.raw.fp_v1_0().destroy_instance)(instance, allocator) };
    }
}

/// The extensions of a device, as the program sees them.
fn extensions(state: &LayerInstance, device: vk::PhysicalDevice) -> Vec<vk::ExtensionProperties> {
    // SAFETY: the device belongs to the instance.
    let all = unsafe { state.raw.enumerate_device_extension_properties(device) };
    let mut all = all.unwrap_or_default();
    if settings().portability {
        let is_theirs = |e: &vk::ExtensionProperties| {
            e.extension_name_as_c_str()
                .is_ok_and(portability::has_extension)
        };
        all.retain(is_theirs);
        let mut subset = vk::ExtensionProperties {
            spec_version: 1,
            ..vk::ExtensionProperties::default()
        };
        let bytes = khr::portability_subset::NAME.to_bytes_with_nul();
        for (to, from) in subset.extension_name.iter_mut().zip(bytes) {
            *to = *from as c_char;
        }
        all.push(subset);
    }
    all
}

unsafe extern "system" fn enumerate_device_extensions(
    device: vk::PhysicalDevice,
    layer: *const c_char,
    count: *mut u32,
    properties: *mut vk::ExtensionProperties,
) -> vk::Result {
    let Some(state) = instance_of(device) else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    // SAFETY: the parameters are those of the program, for the next layer or as the API says.
    unsafe {
        let is_ours = !layer.is_null() && CStr::from_ptr(layer).to_bytes() == NAME.as_bytes();
        if !layer.is_null() && !is_ours {
            let next = state.raw.fp_v1_0().enumerate_device_extension_properties;
            return next(device, layer, count, properties);
        }
        let all = match is_ours {
            true => Vec::new(),
            false => extensions(&state, device),
        };
        if properties.is_null() {
            *count = all.len() as u32;
            return vk::Result::SUCCESS;
        }
        let fits = all.len().min(*count as usize);
        std::ptr::copy_nonoverlapping(all.as_ptr(), properties, fits);
        *count = fits as u32;
        match fits < all.len() {
            true => vk::Result::INCOMPLETE,
            false => vk::Result::SUCCESS,
        }
    }
}

unsafe extern "system" fn get_features(
    device: vk::PhysicalDevice,
    features: *mut vk::PhysicalDeviceFeatures,
) {
    let Some(state) = instance_of(device) else {
        return;
    };
    // SAFETY: the parameters are those of the program.
    unsafe {
        (state.raw.fp_v1_0().get_physical_device_features)(device, features);
        if settings().portability {
            portability::limit_features(&mut *features);
        }
    }
}

unsafe extern "system" fn get_features2(
    device: vk::PhysicalDevice,
    features: *mut vk::PhysicalDeviceFeatures2<'_>,
) {
    let Some(state) = instance_of(device) else {
        return;
    };
    // SAFETY: the parameters are those of the program, so every structure of the chain is valid.
    unsafe {
        (state.raw.fp_v1_1().get_physical_device_features2)(device, features.cast());
        if settings().portability {
            structures(features.cast_const().cast())
                .for_each(|found| portability::limit_structure(found));
        }
    }
}

unsafe extern "system" fn get_properties(
    device: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties,
) {
    let Some(state) = instance_of(device) else {
        return;
    };
    // SAFETY: the parameters are those of the program.
    unsafe {
        (state.raw.fp_v1_0().get_physical_device_properties)(device, properties);
        if settings().portability {
            portability::limit_properties(&mut *properties);
        }
    }
}

unsafe extern "system" fn get_properties2(
    device: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties2<'_>,
) {
    let Some(state) = instance_of(device) else {
        return;
    };
    // SAFETY: the parameters are those of the program, so every structure of the chain is valid.
    unsafe {
        (state.raw.fp_v1_1().get_physical_device_properties2)(device, properties.cast());
        if settings().portability {
            structures(properties.cast_const().cast())
                .for_each(|found| portability::limit_property_structure(found));
        }
    }
}

/// The feature structures that start a chain, one at a time: the head, and room for the booleans.
#[repr(C)]
struct FeatureBuffer {
    head: vk::BaseOutStructure<'static>,
    booleans: [vk::Bool32; 64],
}

/// Checks the extensions and features of a new device. False if the device does not permit them.
///
/// # Safety
/// `info` is a valid create info, and `device` belongs to the instance.
unsafe fn is_permitted(
    state: &LayerInstance,
    device: vk::PhysicalDevice,
    info: &vk::DeviceCreateInfo<'_>,
) -> bool {
    // SAFETY: the create info is valid.
    let used = unsafe {
        names(
            info.pp_enabled_extension_names,
            info.enabled_extension_count,
        )
    };
    let mut permitted = true;
    let mut refuse = |what: String| {
        violation(&what);
        permitted = false;
    };
    if !used.contains(&khr::portability_subset::NAME) {
        refuse("the device is created without VK_KHR_portability_subset".to_string());
    }
    let known = extensions(state, device);
    let is_known = |name: &CStr| {
        let same = |e: &vk::ExtensionProperties| e.extension_name_as_c_str() == Ok(name);
        known.iter().any(same)
    };
    for name in used.iter().filter(|name| !is_known(name)) {
        refuse(format!(
            "the device has no extension {}",
            name.to_string_lossy()
        ));
    }
    // SAFETY: the chain of a valid create info.
    for found in unsafe { structures(info.p_next) } {
        // SAFETY: as above.
        let ty = unsafe { (*found).s_type };
        if ty == vk::StructureType::LOADER_DEVICE_CREATE_INFO {
            continue;
        }
        let Some(count) = portability::booleans(ty) else {
            refuse(format!("the device has no features {ty:?}"));
            continue;
        };
        let mut offered = FeatureBuffer {
            head: vk::BaseOutStructure {
                s_type: ty,
                ..vk::BaseOutStructure::default()
            },
            booleans: [vk::FALSE; 64],
        };
        let mut all = vk::PhysicalDeviceFeatures2::default();
        // SAFETY: the buffer has room for the booleans of every structure in the table; the first
        // structure extends nothing.
        let used = unsafe {
            match ty == vk::StructureType::PHYSICAL_DEVICE_FEATURES_2 {
                true => get_features2(device, (&raw mut offered).cast()),
                false => {
                    all.p_next = (&raw mut offered).cast();
                    get_features2(device, &raw mut all);
                }
            }
            let booleans = found.add(1).cast::<vk::Bool32>();
            std::slice::from_raw_parts(booleans, count)
        };
        for (at, (used, offered)) in used.iter().zip(&offered.booleans).enumerate() {
            if *used == vk::TRUE && *offered == vk::FALSE {
                refuse(format!("the device lacks feature {at} of {ty:?}"));
            }
        }
    }
    permitted
}

unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    device: *mut vk::Device,
) -> vk::Result {
    let Some(state) = instance_of(physical) else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    // SAFETY: the loader passes a valid create info with a link for this layer.
    let (mut below, link) = unsafe { (*info, take_link::<DeviceLink>((*info).p_next)) };
    let Some(link) = link else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    let mut used = Vec::new();
    if settings().portability {
        // SAFETY: the create info is valid.
        let permitted = unsafe { is_permitted(&state, physical, &below) };
        if !permitted {
            return vk::Result::ERROR_FEATURE_NOT_PRESENT;
        }
        // SAFETY: as above.
        let all = unsafe {
            names(
                below.pp_enabled_extension_names,
                below.enabled_extension_count,
            )
        };
        // The driver below is a complete one.
        let all = all
            .into_iter()
            .filter(|name| *name != khr::portability_subset::NAME);
        used = all.map(CStr::as_ptr).collect();
        below.pp_enabled_extension_names = used.as_ptr();
        below.enabled_extension_count = used.len() as u32;
    }
    let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut v11);
    // SAFETY: the physical device is valid, and the next layer has the function, with this type.
    unsafe {
        get_properties2(physical, &raw mut properties);
        let limits = properties.properties.limits;
        let name = c"vkCreateDevice".as_ptr();
        let Some(create) = (link.get_instance_proc_addr)(state.raw.handle(), name) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let create =
            std::mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateDevice>(create);
        let result = create(physical, &raw const below, allocator, device);
        drop(used);
        if result != vk::Result::SUCCESS {
            return result;
        }
        let (raw, next) = (*device, link.get_device_proc_addr);
        let load = |name: &CStr| {
            next(raw, name.as_ptr()).map_or(std::ptr::null(), |f| f as *const std::ffi::c_void)
        };
        let state = LayerDevice {
            next,
            raw: ash::Device::load_with(load, raw),
            limits,
            max_allocation: v11.max_memory_allocation_size,
            modules: Mutex::default(),
            buffers: Mutex::default(),
            is_lost: AtomicBool::new(false),
        };
        lock(&DEVICES).insert(dispatch_key(*device), Arc::new(state));
    }
    vk::Result::SUCCESS
}

unsafe extern "system" fn destroy_device(
    device: vk::Device,
    allocator: *const vk::AllocationCallbacks<'_>,
) {
    if device.is_null() {
        return;
    }
    let state = lock(&DEVICES).remove(&dispatch_key(device));
    if let Some(state) = state {
        // SAFETY: the program destroys the device.
        unsafe { (state.raw.fp_v1_0().destroy_device)(device, allocator) };
    }
}
