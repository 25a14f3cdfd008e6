//! How many units a device has, which wgpu does not say: asked of the Vulkan driver below it.

/// Units that run workgroups side by side; 0 where nobody says.
#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
pub(crate) fn compute_units(_: &wgpu::Adapter) -> u32 {
    0
}

/// Units that run workgroups side by side; 0 where nobody says.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
#[allow(
    unsafe_code,
    reason = "asks the driver for properties, by handles of wgpu"
)]
pub(crate) fn compute_units(adapter: &wgpu::Adapter) -> u32 {
    use ash::vk;
    use wgpu::hal::api::Vulkan;

    // SAFETY: the driver's adapter is only read, and outlives this borrow of it.
    let Some(adapter) = (unsafe { adapter.as_hal::<Vulkan>() }) else {
        return 0;
    };
    let known = adapter.physical_device_capabilities();
    let mut nv = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
    let mut all = vk::PhysicalDeviceProperties2::default();
    if known.supports_extension(ash::nv::shader_sm_builtins::NAME) {
        all = all.push_next(&mut nv);
    }
    if known.supports_extension(ash::amd::shader_core_properties2::NAME) {
        all = all.push_next(&mut amd);
    }
    if all.p_next.is_null() || known.properties().api_version < vk::API_VERSION_1_1 {
        return 0;
    }
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: a device of this instance, of a version that has this function; every structure of the chain
    // belongs to an extension that the device has.
    unsafe { instance.get_physical_device_properties2(adapter.raw_physical_device(), &mut all) };
    nv.shader_sm_count.max(amd.active_compute_unit_count)
}
