//! What wgpu does not say of a device: asked of the Vulkan driver below it.

/// What the driver says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Below {
    /// Units that run workgroups side by side; 0 where nobody says.
    pub(crate) compute_units: u32,
    /// Products of packed bytes, added up, are one instruction.
    pub(crate) packed_dots: bool,
}

impl Below {
    /// Nothing: there is no such driver.
    #[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
    pub(crate) fn of(_: &wgpu::Adapter) -> Below {
        Below::default()
    }

    /// What the driver of an adapter says; nothing where it is not Vulkan's.
    #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
    #[allow(
        unsafe_code,
        reason = "asks the driver for properties, by handles of wgpu"
    )]
    pub(crate) fn of(adapter: &wgpu::Adapter) -> Below {
        use ash::vk;
        use wgpu::hal::api::Vulkan;

        // SAFETY: the driver's adapter is only read, and outlives this borrow of it.
        let Some(adapter) = (unsafe { adapter.as_hal::<Vulkan>() }) else {
            return Below::default();
        };
        let known = adapter.physical_device_capabilities();
        let version = known.properties().api_version;
        let mut nv = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut amd = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
        let mut all = vk::PhysicalDeviceProperties2::default();
        if known.supports_extension(ash::nv::shader_sm_builtins::NAME) {
            all = all.push_next(&mut nv);
        }
        if known.supports_extension(ash::amd::shader_core_properties2::NAME) {
            all = all.push_next(&mut amd);
        }
        // Devices of 1.3 have the feature itself, and wgpu asks for it.
        if version >= vk::API_VERSION_1_3 {
            all = all.push_next(&mut dots);
        }
        if all.p_next.is_null() || version < vk::API_VERSION_1_1 {
            return Below::default();
        }
        let instance = adapter.shared_instance().raw_instance();
        // SAFETY: a device of this instance, of a version that has this function; every structure of the chain
        // belongs to its version or to an extension that the device has.
        unsafe {
            instance.get_physical_device_properties2(adapter.raw_physical_device(), &mut all)
        };
        Below {
            compute_units: nv.shader_sm_count.max(amd.active_compute_unit_count),
            packed_dots: dots.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE,
        }
    }
}
