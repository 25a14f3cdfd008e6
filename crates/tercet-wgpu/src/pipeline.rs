//! The pipeline cache of a device.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crate::call::{PipelineVariant, WgpuKernelCode};
use crate::device::{DeviceFault, WgpuDevice, lock};
use crate::shader_cache::{self, ShaderCache, SubgroupUsage};
use crate::spirv::renumber_bindings;
use crate::unchecked_shaders;
use crate::vulkan_hal::{self, PipelineOptions, SubgroupRequirement};

/// Maximum number of threads that compile pipelines.
const MAX_THREADS: usize = 8;

/// Maximum number of unused pipelines to retain; about the number that a process with several
/// models needs.
const KEPT: usize = 1024;

/// A compiled kernel and its bind group layout.
#[derive(Debug)]
pub struct WgpuPipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// The runtime checks of a shader module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShaderChecks {
    /// All checks: accesses stay inside the bindings and loops terminate.
    All,
    /// No checks; the kernel itself stays inside its bindings and ends its loops.
    None,
}

/// Everything that a pipeline and its layout depend on. The block size is not included, because the
/// code declares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WgpuPipelineKey {
    code: WgpuKernelCode,
    /// The storage bindings as (binding, writable). WGSL code contains the same information. SPIR-V
    /// code does not, because one module serves all combinations of operands that share a buffer.
    storage: Vec<(u32, bool)>,
    checks: ShaderChecks,
}

impl WgpuPipelineKey {
    /// The key of a variant.
    pub fn new(variant: &PipelineVariant, checks: ShaderChecks) -> WgpuPipelineKey {
        WgpuPipelineKey {
            code: variant.code.clone(),
            storage: variant.storage.clone(),
            checks,
        }
    }
}

/// The pipelines of a device by key.
#[derive(Debug, Default)]
pub(crate) struct WgpuPipelineCache {
    cache: Mutex<HashMap<WgpuPipelineKey, Arc<WgpuPipeline>>>,
    /// The number of pipelines compiled so far.
    count: AtomicU64,
    /// The kernels that are refused, for tests: a part of their names.
    refused: Mutex<Option<String>>,
}

impl WgpuPipelineCache {
    /// The pipelines of these kernels, in order. Missing ones are compiled in parallel.
    ///
    /// # Errors
    /// The error that wgpu reports for a kernel, with the kernel's index.
    pub(crate) fn get_all(
        &self,
        gpu: &WgpuDevice,
        variants: &[PipelineVariant],
        checks: ShaderChecks,
    ) -> Result<Vec<Arc<WgpuPipeline>>, (usize, DeviceFault)> {
        let keys: Vec<WgpuPipelineKey> = variants
            .iter()
            .map(|v| WgpuPipelineKey::new(v, checks))
            .collect();
        let found: Vec<Option<Arc<WgpuPipeline>>> = {
            let map = lock(&self.cache);
            keys.iter().map(|key| map.get(key).cloned()).collect()
        };
        let missing: Vec<usize> = (0..keys.len()).filter(|&i| found[i].is_none()).collect();
        let made: Vec<OnceLock<Result<Arc<WgpuPipeline>, DeviceFault>>> =
            missing.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&i) = missing.get(at) else { break };
                made[at].get_or_init(|| match self.is_refused(&variants[i].name) {
                    true => Err(DeviceFault::Refused("refusal was simulated".to_string())),
                    false => compile(gpu, &variants[i], checks).map(Arc::new),
                });
            }
        };
        // 1 in a browser.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 1..missing.len().min(cores).min(MAX_THREADS) {
                scope.spawn(work);
            }
            work();
        });
        let mut made = missing.iter().zip(made);
        let all = found.into_iter().map(|known| match known {
            Some(known) => Ok(known),
            None => {
                let (&at, made) = made
                    .next()
                    .expect("invariant: every missing pipeline was compiled");
                let made = made.into_inner();
                made.expect("invariant: the threads compile all pipelines")
                    .map_err(|e| (at, e))
            }
        });
        let all: Vec<Arc<WgpuPipeline>> = all.collect::<Result<_, _>>()?;
        if !missing.is_empty() {
            self.insert(keys, &all);
            self.count
                .fetch_add(missing.len() as u64, Ordering::Relaxed);
            self.save(&gpu.shader_cache);
        }
        Ok(all)
    }

    /// Makes the driver refuse kernels whose name contains this text, for tests.
    pub(crate) fn refuse(&self, text: &str) {
        *lock(&self.refused) = Some(text.to_string());
    }

    fn is_refused(&self, kernel: &str) -> bool {
        let refused = lock(&self.refused);
        refused.as_ref().is_some_and(|text| kernel.contains(text))
    }

    /// Inserts pipelines. If two threads compile the same pipeline, the second copy is freed with
    /// its executable.
    fn insert(&self, keys: Vec<WgpuPipelineKey>, all: &[Arc<WgpuPipeline>]) {
        let mut map = lock(&self.cache);
        if map.len() >= KEPT {
            map.retain(|_, p| Arc::strong_count(p) > 1);
        }
        for (key, pipeline) in keys.into_iter().zip(all) {
            map.entry(key).or_insert_with(|| Arc::clone(pipeline));
        }
    }

    /// Writes the driver's pipeline cache to disk if pipelines were compiled since the last write.
    pub(crate) fn save(&self, kept: &ShaderCache) {
        kept.save(self.count.load(Ordering::Relaxed));
    }
}

/// A shader module in the form that the device receives.
enum ShaderModuleSource<'a> {
    /// SPIR-V with the entry point `main`.
    Words(Arc<[u32]>),
    /// WGSL source and the name of its entry point.
    Text(&'a str, &'a str),
}

impl ShaderModuleSource<'_> {
    fn new<'a>(
        gpu: &WgpuDevice,
        variant: &'a PipelineVariant,
    ) -> Result<ShaderModuleSource<'a>, DeviceFault> {
        let words = match &variant.code {
            WgpuKernelCode::Wgsl(text) => return Ok(ShaderModuleSource::Text(text, "main")),
            WgpuKernelCode::UserWgsl { text, entry } => {
                return Ok(ShaderModuleSource::Text(text, entry));
            }
            WgpuKernelCode::Lowered(text) => gpu
                .shader_cache
                .lower(text)
                .map_err(DeviceFault::Refused)?
                .into(),
            WgpuKernelCode::SpirV(words) => Arc::clone(words),
        };
        let words = gpu.shader_cache.preserve_special_values(words);
        let block = (variant.block_bytes > 0).then_some(0);
        let storage = variant.storage.iter().map(|(binding, _)| *binding);
        let bindings: Vec<u32> = block.into_iter().chain(storage).collect();
        let is_numbered = (0..).zip(&bindings).all(|(place, b)| place == *b);
        Ok(ShaderModuleSource::Words(match is_numbered {
            true => words,
            false => renumber_bindings(words.to_vec(), &bindings)
                .map_err(DeviceFault::Refused)?
                .into(),
        }))
    }

    /// The subgroup size that this module requires, unless the hardware has only one.
    fn requirement(&self, gpu: &WgpuDevice) -> Option<SubgroupRequirement> {
        let most = gpu.required?;
        let uses = match self {
            ShaderModuleSource::Words(words) => shader_cache::uses(words),
            ShaderModuleSource::Text(text, _) => SubgroupUsage {
                subgroups: text.contains("subgroup"),
                coop: text.contains(COOP_EXTENSION),
            },
        };
        (uses.subgroups || uses.coop).then_some(SubgroupRequirement {
            full: most.full && uses.coop,
            ..most
        })
    }
}

fn compile(
    gpu: &WgpuDevice,
    variant: &PipelineVariant,
    checks: ShaderChecks,
) -> Result<WgpuPipeline, DeviceFault> {
    let module = ShaderModuleSource::new(gpu, variant)?;
    let wanted = PipelineOptions {
        subgroup: module.requirement(gpu),
        unchecked: checks == ShaderChecks::None
            && !matches!(variant.code, WgpuKernelCode::UserWgsl { .. }),
    };
    let _span = tracing::debug_span!("pipelines of the driver").entered();
    gpu.scoped(|| {
        vulkan_hal::with_pipeline_options(wanted, || compile_module(gpu, variant, module, checks))
    })
}

/// The directive of WGSL modules with cooperative matrices.
const COOP_EXTENSION: &str = "enable wgpu_cooperative_matrix;";

/// The function that kernels call to mark a value as uniform across a workgroup.
pub const UNIFORM: &str = "fn uniform_word(x: u32) -> u32 {\nreturn x;\n}";

/// A variant of [`UNIFORM`] that proves uniformity to a browser. Browsers reject barriers in
/// non-uniform control flow.
const UNIFORM_PROVEN: &str = "var<workgroup> uniform_shared: u32;

fn uniform_word(x: u32) -> u32 {
    uniform_shared = x;
    return workgroupUniformLoad(&uniform_shared);
}";

/// WGSL in the dialect of the implementation. Browsers require `enable` directives, which naga
/// rejects, and proofs of uniformity.
fn to_backend_wgsl(text: &str) -> Cow<'_, str> {
    if !cfg!(target_arch = "wasm32") {
        return text.into();
    }
    let proven = text.replace(UNIFORM, UNIFORM_PROVEN);
    match text.contains("subgroupShuffle") {
        true => format!("enable subgroups;\n{proven}").into(),
        false => proven.into(),
    }
}

fn compile_module(
    gpu: &WgpuDevice,
    variant: &PipelineVariant,
    module: ShaderModuleSource<'_>,
    checks: ShaderChecks,
) -> WgpuPipeline {
    let device = &gpu.device;
    let label = Some(variant.name.as_str());
    let checks = match variant.code {
        WgpuKernelCode::UserWgsl { .. } => ShaderChecks::All,
        WgpuKernelCode::Wgsl(_) | WgpuKernelCode::Lowered(_) | WgpuKernelCode::SpirV(_) => checks,
    };
    let of_text = |text: &str| {
        let source = wgpu::ShaderModuleDescriptor {
            label,
            source: wgpu::ShaderSource::Wgsl(to_backend_wgsl(text)),
        };
        match checks {
            ShaderChecks::All => device.create_shader_module(source),
            ShaderChecks::None => unchecked_shaders::shader_module(device, source),
        }
    };
    let (module, entry_point) = match module {
        ShaderModuleSource::Words(words) => (
            unchecked_shaders::spirv_module(device, label, &words),
            "main",
        ),
        ShaderModuleSource::Text(text, entry) => (of_text(text), entry),
    };
    let block = NonZeroU64::new(variant.block_bytes.into());
    let block = block.map(|bytes| entry(0, wgpu::BufferBindingType::Uniform, Some(bytes)));
    // wgpu derives the minimum binding size from the shader: one word or one vector.
    let storage = variant.storage.iter().map(|&(binding, writable)| {
        let read_only = !writable;
        entry(
            binding,
            wgpu::BufferBindingType::Storage { read_only },
            None,
        )
    });
    let entries: Vec<_> = block.into_iter().chain(storage).collect();
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label,
        entries: &entries,
    });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some(entry_point),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: checks == ShaderChecks::All,
            ..wgpu::PipelineCompilationOptions::default()
        },
        cache: gpu.shader_cache.driver_cache(),
    });
    WgpuPipeline { pipeline, layout }
}

/// The layout entry of a buffer that compute shaders use.
pub fn entry(
    binding: u32,
    ty: wgpu::BufferBindingType,
    min_binding_size: Option<NonZeroU64>,
) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: false,
            min_binding_size,
        },
        count: None,
    }
}
