//! Shader modules without runtime checks (ADR 0005).
#![allow(
    unsafe_code,
    reason = "wgpu's unchecked constructor is unsafe; kernels satisfy its requirements"
)]

/// Creates a module whose accesses and loops are unchecked. Integer division stays checked:
/// Divisions stay checked: WGSL defines the result of a division by zero, and kernels rely on it.
pub(crate) fn shader_module(
    device: &wgpu::Device,
    source: wgpu::ShaderModuleDescriptor<'_>,
) -> wgpu::ShaderModule {
    let checks = wgpu::ShaderRuntimeChecks {
        bounds_checks: false,
        force_loop_bounding: false,
        ..wgpu::ShaderRuntimeChecks::checked()
    };
    // SAFETY: the module is one of the kernels that `tercet_plan` generated for this call. User
    // kernels are created with checks instead. The generated kernels check every access against
    // sizes in their parameter blocks. Slots are inside their buffers. All loop counters run to a
    // size in the parameter block or to a constant. The same kernels run unchecked on
    // `tercet-vulkan`, where tests check the bytes around every slot.
    unsafe { device.create_shader_module_trusted(source, checks) }
}

/// Creates a module from SPIR-V that Vulkan receives unchanged.
pub fn spirv_module(
    device: &wgpu::Device,
    label: Option<&str>,
    words: &[u32],
) -> wgpu::ShaderModule {
    let source = wgpu::ShaderModuleDescriptorPassthrough {
        label,
        spirv: Some(words.into()),
        entry_points: vec![wgpu::PassthroughShaderEntryPoint {
            name: "main".into(),
            workgroup_size: (0, 0, 0),
        }]
        .into(),
        ..Default::default()
    };
    // SAFETY: as above. The words come from one of two sources. Modules of `tercet_plan` are
    // validated when they are built, and used only if `DeviceCaps` reports the features that they
    // need. Other modules are compiled by `tercet_spirv` from the kernels above; its cache files
    // are writable only by this user and verified by digest.
    unsafe { device.create_shader_module_passthrough(source) }
}

/// The driver's pipeline cache, initialized with data from an earlier process.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) fn driver_cache(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor {
        label: Some("tercet"),
        data,
        fallback: true,
    };
    // SAFETY: the data came from `PipelineCache::get_data` for the same device and driver. The
    // header and the digest of the file verify this, and only this user can write the file.
    unsafe { device.create_pipeline_cache(&descriptor) }
}

/// Enables the features that wgpu calls experimental. The device needs experimental features for
/// modules with cooperative matrices.
pub(crate) fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: cooperative matrices are the only experimental feature requested. Kernels of
    // `tercet_plan` use them only with shapes that the adapter reports, and a trial checks the
    // results. User kernels are refused if they enable the extension.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
