//! Shader modules of kernels that need no checks (ADR 0005).
#![allow(
    unsafe_code,
    reason = "wgpu's constructor without checks is unsafe; kernels keep its conditions"
)]

/// A module whose accesses and loops are not checked. Divisions of integers are: what they give for a zero
/// is part of WGSL, and kernels rely on it.
pub(crate) fn shader_module(
    device: &wgpu::Device,
    source: wgpu::ShaderModuleDescriptor<'_>,
) -> wgpu::ShaderModule {
    let checks = wgpu::ShaderRuntimeChecks {
        bounds_checks: false,
        force_loop_bounding: false,
        ..wgpu::ShaderRuntimeChecks::checked()
    };
    // SAFETY: the module is a kernel of a program that `tercet_plan` compiled for this call, and one of its own: those
    // from outside are checked. Its kernels guard every access
    // by sizes in their parameter blocks, slots lie inside of their buffers, and the counters of all loops
    // run to such a size or to a constant. The same kernels run without checks on `tercet-vulkan`, where
    // tests watch the bytes around every slot.
    unsafe { device.create_shader_module_trusted(source, checks) }
}

/// A module of SPIR-V as Vulkan gets it.
pub(crate) fn spirv_module(
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
    // SAFETY: as above: the words are one of `tercet_plan`'s own modules, which are checked when they are made, where
    // `DeviceCaps` say that the device has what they use, or what `tercet_spirv` makes of a kernel as above, which keeps
    // modules in files that only this user writes and takes them by their digest.
    unsafe { device.create_shader_module_passthrough(source) }
}

/// The driver's cache of pipelines, with what it gave in another process.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) fn driver_cache(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor {
        label: Some("tercet"),
        data,
        fallback: true,
    };
    // SAFETY: the data is what `PipelineCache::get_data` gave for this device and driver, by header and digest of
    // its file, which only this user writes.
    unsafe { device.create_pipeline_cache(&descriptor) }
}

/// wgpu's leave to ask for features that it calls experimental: cooperative matrices, so that the device
/// is made for modules that use them.
pub(crate) fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: of those features only the one is asked for, and no shader that wgpu itself translates uses it.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
