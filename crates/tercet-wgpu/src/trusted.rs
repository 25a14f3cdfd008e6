//! Shader modules of kernels that need no checks: the only unsafe code of this crate (ADR 0005).
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
    // SAFETY: the module is a kernel of a program that `tercet_plan` compiled for this call. Its kernels guard every access
    // by sizes in their parameter blocks, slots lie inside of their buffers, and the counters of all loops
    // run to such a size or to a constant. The same kernels run without checks on `tercet-vulkan`, where
    // tests watch the bytes around every slot.
    unsafe { device.create_shader_module_trusted(source, checks) }
}
