//! Opening a device and compiling for it.

use std::sync::Arc;

use tercet_ir::backend::{Explanation, Wanted};
use tercet_ir::{Backend, Bindings, CompileError, CompileOptions, Executable, Graph};
use tercet_plan::{Caps, CoopShape, CoopType, GpuExecutable, Natives, Program, native_trial};

use crate::below::Below;
use crate::device::{Gpu, Trouble};
use crate::driver::WgpuDriver;
use crate::executable::WgpuExecutable;
use crate::options::{AdapterSummary, LimitSet, OpenError, WgpuOptions};
use crate::pipeline::Checks;
use crate::trusted;

/// An open device that compiles graphs. Clones are the same device.
#[derive(Clone, Debug)]
pub struct WgpuBackend {
    gpu: Arc<Gpu>,
    adapter: AdapterSummary,
    caps: Caps,
}

impl WgpuBackend {
    /// Opens a device.
    ///
    /// # Errors
    /// [`OpenError`] that lists the adapters there are.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn new(options: &WgpuOptions) -> Result<WgpuBackend, OpenError> {
        crate::device::block_on(WgpuBackend::request(options))
    }

    /// The adapters of this machine.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn adapters() -> Vec<AdapterSummary> {
        let instance = instance(&WgpuOptions::new());
        let adapters = crate::device::block_on(adapters(&instance));
        adapters
            .iter()
            .map(|a| AdapterSummary::of(&a.get_info()))
            .collect()
    }

    /// Opens a device, in browsers too.
    ///
    /// # Errors
    /// [`OpenError`] that lists the adapters there are.
    pub async fn request(options: &WgpuOptions) -> Result<WgpuBackend, OpenError> {
        let adapters = adapters(&instance(options)).await;
        let found = || {
            adapters
                .iter()
                .map(|a| AdapterSummary::of(&a.get_info()))
                .collect()
        };
        let Some(adapter) = choose(&adapters, options.adapter.as_deref()) else {
            return Err(OpenError::NoAdapter {
                wanted: options.adapter.clone(),
                found: found(),
            });
        };
        let info = adapter.get_info();
        let (limits, features) = (
            limits(options.limits, adapter),
            features(options.limits, adapter),
        );
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("tercet"),
            required_features: features,
            required_limits: limits.clone(),
            experimental_features: match features.contains(MATRICES) {
                true => trusted::experimental(),
                false => wgpu::ExperimentalFeatures::disabled(),
            },
            // Large buffers have memory of their own either way; this keeps blocks for small ones small.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        };
        let opened = adapter.request_device(&descriptor).await;
        let (device, queue) = opened.map_err(|source| OpenError::Refused {
            adapter: AdapterSummary::of(&info),
            source,
        })?;
        let is_software = info.device_type == wgpu::DeviceType::Cpu;
        let gpu = Gpu::new(
            device,
            queue,
            limits.clone(),
            features,
            options,
            is_software,
        );
        let below = match options.limits {
            LimitSet::Found => Below::of(adapter),
            LimitSet::WebGpu | LimitSet::Downlevel => Below::default(),
        };
        let mut backend = WgpuBackend {
            caps: Caps {
                spirv: features.contains(MATRICES),
                coop: match features.contains(MATRICES) {
                    true => coop_shapes(adapter),
                    false => Vec::new(),
                },
                compute_units: below.compute_units,
                packed_dots: below.packed_dots,
                ..caps(&limits, features, &info)
            },
            gpu: Arc::new(gpu),
            adapter: AdapterSummary::of(&info),
        };
        // Software gains nothing, and shows in tests what devices do that are not right.
        let may_gain = options.limits == LimitSet::Found && !is_software;
        if may_gain {
            backend.caps.natives = backend.natives().await.unwrap_or_default();
        }
        Ok(backend)
    }

    /// What the device's own arithmetic does right; nothing if it cannot be tried.
    async fn natives(&self) -> Option<Natives> {
        let (trial, caps) = native_trial(&self.caps).ok()?;
        let native = WgpuBackend {
            caps,
            gpu: Arc::clone(&self.gpu),
            adapter: self.adapter.clone(),
        };
        let options = CompileOptions::default();
        let mut exe = native.compile_async(&trial.graph, &options).await.ok()?;
        let mut outputs = Vec::new();
        let inputs = trial.inputs();
        let run = exe.run_async(&inputs, Wanted::All, &mut outputs).await;
        run.is_ok().then(|| trial.judge(&outputs))
    }

    /// The adapter.
    pub fn adapter(&self) -> &AdapterSummary {
        &self.adapter
    }

    /// What plans for it depend on.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Compiles a graph, in browsers too, where errors of the device come later than
    /// [`Backend::compile`] can wait for.
    ///
    /// # Errors
    /// As [`Backend::compile`].
    pub async fn compile_async(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<WgpuExecutable, CompileError> {
        let scope = self.gpu.scope();
        let made = self.make(graph, options);
        match (scope.close().await, made) {
            (_, Err(e)) => Err(e),
            (Some(e), Ok(_)) => Err(Trouble::from(e).compiling("the program's memory", 0)),
            (None, Ok(made)) => Ok(made),
        }
    }

    fn make(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<WgpuExecutable, CompileError> {
        let program = tercet_plan::compile(graph, options, &self.caps)?;
        let checks = match self.gpu.checked {
            true => Checks::All,
            false => Checks::None,
        };
        self.load_with(Arc::new(program), options.bounds.clone(), checks)
    }

    /// Makes a program ready to run; `bounds` are those that it was planned for. Its shaders check what they
    /// do, wherever it comes from.
    ///
    /// # Errors
    /// [`CompileError`] that names the kernel, or the buffer for which there is no room.
    pub fn load(
        &self,
        program: Arc<Program>,
        bounds: Bindings,
    ) -> Result<WgpuExecutable, CompileError> {
        self.load_with(program, bounds, Checks::All)
    }

    fn load_with(
        &self,
        program: Arc<Program>,
        bounds: Bindings,
        checks: Checks,
    ) -> Result<WgpuExecutable, CompileError> {
        let _span = tracing::debug_span!("pipelines and memory").entered();
        let driver = WgpuDriver::new(&self.gpu, Arc::clone(&program), checks)?;
        Ok(WgpuExecutable::new(GpuExecutable::new(
            program, driver, bounds,
        )))
    }

    /// Gives the device back to the system. Its executables, which stay safe to use and to drop,
    /// fail with [`tercet_ir::RunError::DeviceLost`] from now on.
    pub fn destroy(&self) {
        self.gpu.destroy();
    }
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        Ok(Box::new(self.make(graph, options)?))
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        let program = tercet_plan::compile(graph, options, &self.caps)?;
        Ok(tercet_plan::explain(&program, self.name()))
    }
}

fn instance(options: &WgpuOptions) -> wgpu::Instance {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::PRIMARY,
        flags: match options.validation {
            true => wgpu::InstanceFlags::VALIDATION,
            false => wgpu::InstanceFlags::empty(),
        },
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

async fn adapters(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    if cfg!(target_arch = "wasm32") {
        // A browser chooses itself.
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

/// The adapter of this number, or the one of this name that promises most.
fn choose<'a>(adapters: &'a [wgpu::Adapter], name: Option<&str>) -> Option<&'a wgpu::Adapter> {
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
            // What is not used is asked for as little as possible.
            ..wgpu::Limits::defaults().or_worse_values_from(&found)
        },
    }
}

/// What modules with cooperative matrices need of a device, all or none of it.
const MATRICES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::PASSTHROUGH_SHADERS)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP);

/// Whether all subgroups have one size.
fn is_one_size(info: &wgpu::AdapterInfo) -> bool {
    info.subgroup_min_size == info.subgroup_max_size
}

/// The shapes of matrices of F16 with sums in F32; wgpu has no bfloat16.
fn coop_shapes(adapter: &wgpu::Adapter) -> Vec<CoopShape> {
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
            narrow_sums: all.iter().any(is_narrow),
        };
        let fits = (p.ab_type, p.cr_type) == (F16, F32) && !p.saturating_accumulation;
        if fits && !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    shapes
}

/// The features that are used where they are found.
fn features(set: LimitSet, adapter: &wgpu::Adapter) -> wgpu::Features {
    let used = wgpu::Features::TIMESTAMP_QUERY
        | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
        | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES
        | wgpu::Features::SUBGROUP;
    match set {
        LimitSet::Found => {
            let found = adapter.features();
            let same_size = is_one_size(&adapter.get_info());
            let is_vulkan = adapter.get_info().backend == wgpu::Backend::Vulkan;
            let matrices = match is_vulkan && same_size && found.contains(MATRICES) {
                true => MATRICES,
                false => wgpu::Features::empty(),
            };
            found & used | matrices
        }
        LimitSet::WebGpu | LimitSet::Downlevel => wgpu::Features::empty(),
    }
}

fn caps(limits: &wgpu::Limits, features: wgpu::Features, info: &wgpu::AdapterInfo) -> Caps {
    // One size for all kernels, and hardware that runs a subgroup in step; a processor with matrices does,
    // for tests of the kernels that use them.
    let subgroup = features.contains(wgpu::Features::SUBGROUP)
        && is_one_size(info)
        && (info.device_type != wgpu::DeviceType::Cpu || features.contains(MATRICES));
    let binding = limits.max_storage_buffer_binding_size;
    let invocations = limits.max_compute_invocations_per_workgroup;
    Caps {
        target: "wgpu",
        // The last word must be whole.
        max_binding_bytes: binding.min(limits.max_buffer_size) / 4 * 4,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        storage_align_bytes: limits.min_storage_buffer_offset_alignment,
        uniform_align_bytes: limits.min_uniform_buffer_offset_alignment,
        workgroup_bytes: limits.max_compute_workgroup_storage_size,
        max_workgroup: invocations.min(limits.max_compute_workgroup_size_x),
        max_grid: limits.max_compute_workgroups_per_dimension.min(65535),
        subgroup: subgroup.then_some(info.subgroup_min_size),
        spirv: false,
        coop: Vec::new(),
        coop_blocks: Vec::new(),
        coop_converts: false,
        coop_lanes: false,
        natives: Natives::default(),
        // wgpu does not say: the driver below it does, if any.
        packed_dots: false,
        tuning: tercet_plan::Tuning::default(),
        compute_units: 0,
    }
}
