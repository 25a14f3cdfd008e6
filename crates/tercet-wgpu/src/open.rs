//! Adapter selection, the limits and features to request, and the resulting device capabilities.

use tercet_ir::SwitchableFeature;
use tercet_plan::{
    CoopShape, CoopType, DeviceCaps, DeviceModel, GpuKind, NativeOps, ReportedProperties,
    WgslCoopShape, WgslCoopType,
};

use crate::bindings::MAX_ARGS;
use crate::options::{LimitSet, WgpuOptions};
use crate::unchecked_shaders;
use crate::vulkan_hal::{self, HalProperties, SizeBy, SubgroupRequirement, SubgroupSize};

/// The instance of wgpu.
pub fn instance(options: &WgpuOptions) -> wgpu::Instance {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::PRIMARY,
        flags: match options.validation {
            true => wgpu::InstanceFlags::VALIDATION,
            false => wgpu::InstanceFlags::empty(),
        },
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

/// The adapters of all APIs; in browsers, the one that the browser chooses.
pub async fn adapters(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    if cfg!(target_arch = "wasm32") {
        // In a browser, the browser chooses the adapter.
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        return instance
            .request_adapter(&options)
            .await
            .into_iter()
            .collect();
    }
    instance.enumerate_adapters(wgpu::Backends::PRIMARY).await
}

/// The adapter with this index, or the most capable one whose name matches.
pub(crate) fn choose<'a>(
    adapters: &'a [wgpu::Adapter],
    name: Option<&str>,
) -> Option<&'a wgpu::Adapter> {
    let name = name.unwrap_or_default().to_lowercase();
    if let Ok(number) = name.parse::<usize>() {
        return adapters.get(number);
    }
    let fits = |a: &&wgpu::Adapter| {
        let flags = a.get_downlevel_capabilities().flags;
        flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
            && a.get_info().name.to_lowercase().contains(&name)
    };
    let rank = |a: &&wgpu::Adapter| match a.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    adapters.iter().filter(fits).min_by_key(rank)
}

fn limits(set: LimitSet, adapter: &wgpu::Adapter) -> wgpu::Limits {
    let found = adapter.limits();
    match set {
        LimitSet::WebGpu => wgpu::Limits::defaults(),
        LimitSet::Downlevel => wgpu::Limits::downlevel_defaults(),
        LimitSet::Found => wgpu::Limits {
            max_bindings_per_bind_group: found.max_bindings_per_bind_group,
            max_storage_buffers_per_shader_stage: found.max_storage_buffers_per_shader_stage,
            max_buffers_and_acceleration_structures_per_shader_stage: found
                .max_buffers_and_acceleration_structures_per_shader_stage,
            max_uniform_buffer_binding_size: found.max_uniform_buffer_binding_size,
            max_storage_buffer_binding_size: found.max_storage_buffer_binding_size,
            max_buffer_size: found.max_buffer_size,
            min_uniform_buffer_offset_alignment: found.min_uniform_buffer_offset_alignment,
            min_storage_buffer_offset_alignment: found.min_storage_buffer_offset_alignment,
            max_compute_workgroup_storage_size: found.max_compute_workgroup_storage_size,
            max_compute_invocations_per_workgroup: found.max_compute_invocations_per_workgroup,
            max_compute_workgroup_size_x: found.max_compute_workgroup_size_x,
            max_compute_workgroup_size_y: found.max_compute_workgroup_size_y,
            max_compute_workgroup_size_z: found.max_compute_workgroup_size_z,
            max_compute_workgroups_per_dimension: found.max_compute_workgroups_per_dimension,
            max_non_sampler_bindings: found.max_non_sampler_bindings,
            // Request no more than the default limits, unless the adapter offers less.
            ..wgpu::Limits::defaults().or_worse_values_from(&found)
        },
    }
}

/// The features that modules with cooperative matrices require; all of them or none are requested.
pub(crate) const MATRICES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::PASSTHROUGH_SHADERS)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP);

/// The features that WGSL kernels with cooperative matrices require, on devices that take no modules
/// of SPIR-V; all of them or none are requested.
pub(crate) const WGSL_MATRICES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP);

/// An open device and the settings that it was opened with.
pub(crate) struct OpenedAdapter {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) features: wgpu::Features,
    pub(crate) hal: HalProperties,
    pub(crate) subgroup: Option<SubgroupSize>,
    /// True if programs set the barriers between their dispatches, instead of wgpu.
    pub(crate) groups: bool,
}

/// Opens a device, through wgpu-hal if possible.
pub(crate) async fn open(
    adapter: &wgpu::Adapter,
    info: &wgpu::AdapterInfo,
    options: &WgpuOptions,
) -> Result<OpenedAdapter, wgpu::RequestDeviceError> {
    let limits = limits(options.limits, adapter);
    let below = match options.limits {
        LimitSet::Found => HalProperties::from_adapter(adapter),
        LimitSet::WebGpu | LimitSet::Downlevel => HalProperties::default(),
    };
    let described = |features: wgpu::Features| wgpu::DeviceDescriptor {
        label: Some("tercet"),
        required_features: features,
        required_limits: limits.clone(),
        experimental_features: match features.contains(WGSL_MATRICES) {
            true => unchecked_shaders::experimental(),
            false => wgpu::ExperimentalFeatures::disabled(),
        },
        // Allocate few memory blocks, because each block adds to the cost of a submission. A buffer
        // larger than half a block, such as the KV cache of a layer, gets its own allocation. An 8B
        // model on an H100 generates 263 tokens/s with memory blocks of 8 to 64 MiB and 313
        // tokens/s with these larger blocks.
        memory_hints: wgpu::MemoryHints::Manual {
            suballocated_device_memory_block_size: 64 << 20..256 << 20,
        },
        trace: wgpu::Trace::Off,
    };
    let mut subgroup = match is_metal_with_matrices(adapter, info) {
        true => Some(SubgroupSize {
            size: METAL_SUBGROUP,
            by: SizeBy::Fixed,
        }),
        false => subgroup(&below, info, limits.max_compute_invocations_per_workgroup),
    };
    if below.subgroups.is_some() {
        let features = features(options, adapter, subgroup);
        if let Some(opened) = vulkan_hal::open(adapter, &described(features)) {
            return Ok(OpenedAdapter {
                device: opened.device,
                queue: opened.queue,
                limits,
                features,
                hal: below,
                subgroup,
                groups: opened.groups,
            });
        }
        // A device opened by wgpu itself cannot require a subgroup size, so only a fixed size is
        // usable.
        subgroup = subgroup.filter(|s| s.by == SizeBy::Fixed);
    }
    let features = features(options, adapter, subgroup);
    let (device, queue) = adapter.request_device(&described(features)).await?;
    Ok(OpenedAdapter {
        device,
        queue,
        limits,
        features,
        hal: below,
        subgroup,
        groups: false,
    })
}

/// Subgroup size of GPUs whose Metal driver has matrices. wgpu reports the range of all GPUs with
/// Metal.
const METAL_SUBGROUP: u32 = 32;

fn is_metal_with_matrices(adapter: &wgpu::Adapter, info: &wgpu::AdapterInfo) -> bool {
    info.backend == wgpu::Backend::Metal && adapter.features().contains(WGSL_MATRICES)
}

/// The subgroup size that all kernels use.
fn subgroup(
    below: &HalProperties,
    info: &wgpu::AdapterInfo,
    max_workgroup: u32,
) -> Option<SubgroupSize> {
    match below.subgroups {
        Some(sizes) => sizes.choose(max_workgroup),
        None => (info.subgroup_min_size == info.subgroup_max_size).then_some(SubgroupSize {
            size: info.subgroup_min_size,
            by: SizeBy::Fixed,
        }),
    }
}

/// The subgroup size that pipelines must require.
pub(crate) fn requirement(
    subgroup: SubgroupSize,
    below: &HalProperties,
) -> Option<SubgroupRequirement> {
    match subgroup.by {
        SizeBy::Fixed => None,
        SizeBy::Requirement => Some(SubgroupRequirement {
            size: subgroup.size,
            full: below.subgroups.is_some_and(|s| s.full),
        }),
    }
}

/// Cooperative-matrix shapes with F16 operands and F32 accumulation; wgpu has no bfloat16.
pub(crate) fn coop_shapes(adapter: &wgpu::Adapter) -> Vec<CoopShape> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let all = adapter.cooperative_matrix_properties();
    let mut shapes = Vec::new();
    for p in &all {
        let is_narrow = |o: &wgpu::CooperativeMatrixProperties| {
            (o.m_size, o.n_size, o.k_size) == (p.m_size, p.n_size, p.k_size)
                && (o.ab_type, o.cr_type) == (F16, F16)
        };
        let shape = CoopShape {
            ty: CoopType::F16,
            m: p.m_size,
            n: p.n_size,
            k: p.k_size,
            narrow_accumulators: all.iter().any(is_narrow),
        };
        let fits = (p.ab_type, p.cr_type) == (F16, F32) && !p.saturating_accumulation;
        if fits && !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    shapes
}

/// Square cooperative matrices with F32 accumulation that WGSL can use.
pub(crate) fn wgsl_coop_shapes(adapter: &wgpu::Adapter) -> Vec<WgslCoopShape> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let mut shapes = Vec::new();
    for p in adapter.cooperative_matrix_properties() {
        let ty = match (p.ab_type, p.cr_type) {
            (F16, F32) => WgslCoopType::F16,
            (F32, F32) => WgslCoopType::F32,
            _ => continue,
        };
        let shape = WgslCoopShape { ty, side: p.m_size };
        let is_square = (p.m_size, p.m_size) == (p.n_size, p.k_size);
        if is_square && !p.saturating_accumulation && !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    shapes
}

/// The features that are used if the adapter has them.
fn features(
    options: &WgpuOptions,
    adapter: &wgpu::Adapter,
    subgroup: Option<SubgroupSize>,
) -> wgpu::Features {
    let mut used = wgpu::Features::TIMESTAMP_QUERY
        | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
        | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES
        | wgpu::Features::SUBGROUP;
    match options.limits {
        LimitSet::Found => {
            let found = adapter.features();
            let off = |feature| options.switches.is_off(feature);
            let has_no_matrices = off(SwitchableFeature::Coop) || off(SwitchableFeature::Subgroups);
            if subgroup.is_some() && found.contains(WGSL_MATRICES) && !has_no_matrices {
                used |= WGSL_MATRICES;
            }
            if off(SwitchableFeature::Subgroups) {
                used.remove(wgpu::Features::SUBGROUP);
            }
            if adapter.get_info().backend == wgpu::Backend::Vulkan {
                let passes = !off(SwitchableFeature::Passthrough);
                if subgroup.is_some() && found.contains(MATRICES) && !has_no_matrices && passes {
                    used |= MATRICES;
                }
                if !options.checked && !off(SwitchableFeature::Passthrough) {
                    used |= wgpu::Features::PASSTHROUGH_SHADERS;
                }
                if options.cache_dir.is_some() {
                    used |= wgpu::Features::PIPELINE_CACHE;
                }
            }
            found & used
        }
        LimitSet::WebGpu | LimitSet::Downlevel => wgpu::Features::empty(),
    }
}

pub(crate) fn caps(
    limits: &wgpu::Limits,
    features: wgpu::Features,
    info: &wgpu::AdapterInfo,
    units: ReportedProperties,
    subgroup: Option<SubgroupSize>,
) -> DeviceCaps {
    // Requires one subgroup size for all kernels, and hardware that runs a subgroup in lockstep. A
    // CPU adapter with cooperative matrices also qualifies, so that tests cover the kernels that
    // use them.
    let is_in_step = features.contains(wgpu::Features::SUBGROUP)
        && (info.device_type != wgpu::DeviceType::Cpu || features.contains(WGSL_MATRICES));
    let binding = limits.max_storage_buffer_binding_size;
    let invocations = limits.max_compute_invocations_per_workgroup;
    DeviceCaps {
        target: "wgpu",
        // Round down so that the last word is complete.
        max_binding_bytes: binding.min(limits.max_buffer_size) / 4 * 4,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        max_batch_buffers: (limits.max_storage_buffers_per_shader_stage)
            .min(limits.max_bindings_per_bind_group.saturating_sub(1))
            .min(
                (limits.max_buffers_and_acceleration_structures_per_shader_stage).saturating_sub(1),
            )
            .min(MAX_ARGS as u32),
        storage_align_bytes: limits.min_storage_buffer_offset_alignment,
        uniform_align_bytes: limits.min_uniform_buffer_offset_alignment,
        workgroup_bytes: limits.max_compute_workgroup_storage_size,
        max_workgroup: invocations.min(limits.max_compute_workgroup_size_x),
        max_grid: limits.max_compute_workgroups_per_dimension.min(65535),
        subgroup: subgroup.filter(|_| is_in_step).map(|s| s.size),
        spirv: false,
        coop: Vec::new(),
        coop_blocks: Vec::new(),
        coop_wgsl: Vec::new(),
        coop_converts: false,
        coop_fragment_layout: false,
        shuffles: features.contains(wgpu::Features::SUBGROUP),
        ordered_storage: false,
        // False, because wgpu inserts barriers between dependent dispatches.
        ordered_dispatches: false,
        natives: NativeOps::default(),
        // wgpu does not report packed dot products; on Vulkan the value comes from the driver.
        packed_dots: false,
        device: DeviceModel::new(&ReportedProperties {
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => GpuKind::Discrete,
                wgpu::DeviceType::IntegratedGpu => GpuKind::Integrated,
                wgpu::DeviceType::Cpu => GpuKind::Software,
                wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => GpuKind::Unknown,
            },
            subgroups: Some([info.subgroup_min_size, info.subgroup_max_size])
                .filter(|_| features.contains(wgpu::Features::SUBGROUP)),
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            ..units
        }),
    }
}
