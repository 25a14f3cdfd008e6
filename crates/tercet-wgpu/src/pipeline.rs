//! Pipelines of a device, each made once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crate::below::{self, PipelineOptions, SubgroupRequirement};
use crate::call::{PipelineVariant, WgpuKernelCode};
use crate::device::{DeviceFault, WgpuDevice, lock};
use crate::kept::{self, ShaderCache, SubgroupUsage};
use crate::spirv::renumber_bindings;
use crate::trusted;

/// The most threads that make pipelines.
const MAX_THREADS: usize = 8;

/// Pipelines kept although no executable uses them: about what the models of a process need.
const KEPT: usize = 1024;

/// A kernel made ready and the layout of its bind groups.
#[derive(Debug)]
pub(crate) struct WgpuPipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// What a shader does about mistakes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShaderChecks {
    /// It stays inside its bindings and ends.
    All,
    /// Nothing: it makes none.
    None,
}

/// What a pipeline and its layout depend on. The size of the block is the code's own declaration's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct WgpuPipelineKey {
    code: WgpuKernelCode,
    /// The storage bindings and whether each is writable: WGSL says so itself, SPIR-V is the same for all
    /// buffers that its operands may share.
    storage: Vec<(u32, bool)>,
    checks: ShaderChecks,
}

impl WgpuPipelineKey {
    fn new(variant: &PipelineVariant, checks: ShaderChecks) -> WgpuPipelineKey {
        WgpuPipelineKey {
            code: variant.code.clone(),
            storage: variant.storage.clone(),
            checks,
        }
    }
}

/// Pipelines by what they depend on.
#[derive(Debug, Default)]
pub(crate) struct WgpuPipelineCache {
    cache: Mutex<HashMap<WgpuPipelineKey, Arc<WgpuPipeline>>>,
    /// Pipelines made so far.
    count: AtomicU64,
}

impl WgpuPipelineCache {
    /// The pipelines of kernels, in order; several are made at once.
    ///
    /// # Errors
    /// What wgpu says of a kernel, and its place.
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
                made[at].get_or_init(|| compile(gpu, &variants[i], checks).map(Arc::new));
            }
        };
        // One in a browser.
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
                let (&at, made) = made.next().expect("invariant: what was not found was made");
                let made = made.into_inner();
                made.expect("invariant: threads make all")
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

    /// Two threads may make the same pipeline; one goes with its executable.
    fn insert(&self, keys: Vec<WgpuPipelineKey>, all: &[Arc<WgpuPipeline>]) {
        let mut map = lock(&self.cache);
        if map.len() >= KEPT {
            map.retain(|_, p| Arc::strong_count(p) > 1);
        }
        for (key, pipeline) in keys.into_iter().zip(all) {
            map.entry(key).or_insert_with(|| Arc::clone(pipeline));
        }
    }

    /// Has the driver's cache written if pipelines were made since.
    pub(crate) fn save(&self, kept: &ShaderCache) {
        kept.save(self.count.load(Ordering::Relaxed));
    }
}

/// A kernel as the device gets it.
enum ShaderModuleSource<'a> {
    /// SPIR-V with the entry point `main`.
    Words(Arc<[u32]>),
    /// WGSL and its entry point.
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

    /// What it asks of subgroups, where their size is not given by nature.
    fn requirement(&self, gpu: &WgpuDevice) -> Option<SubgroupRequirement> {
        let most = gpu.required?;
        let uses = match self {
            ShaderModuleSource::Words(words) => kept::uses(words),
            ShaderModuleSource::Text(text, _) => SubgroupUsage {
                subgroups: text.contains("subgroup"),
                coop: false,
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
        below::with_pipeline_options(wanted, || compile_module(gpu, variant, module, checks))
    })
}

/// What kernels say where a value is the same for a workgroup.
const UNIFORM: &str = "fn uniform_word(x: u32) -> u32 {\n    return x;\n}";

/// As [`UNIFORM`], so that a browser, which refuses barriers behind conditions that may differ, knows it as well.
const UNIFORM_PROVEN: &str = "var<workgroup> uniform_shared: u32;

fn uniform_word(x: u32) -> u32 {
    uniform_shared = x;
    return workgroupUniformLoad(&uniform_shared);
}";

/// WGSL as the implementation below takes it: browsers want extensions named, of which naga refuses the name, and proofs.
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
            ShaderChecks::None => trusted::shader_module(device, source),
        }
    };
    let (module, entry_point) = match module {
        ShaderModuleSource::Words(words) => (trusted::spirv_module(device, label, &words), "main"),
        ShaderModuleSource::Text(text, entry) => (of_text(text), entry),
    };
    let block = NonZeroU64::new(variant.block_bytes.into());
    let block = block.map(|bytes| entry(0, wgpu::BufferBindingType::Uniform, Some(bytes)));
    // Of storage wgpu knows the least size from the shader: a word or a vector of them.
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

pub(crate) fn entry(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_module_has_a_pipeline_for_each_way_its_buffers_are_bound() {
        let variant = |writable| PipelineVariant {
            name: "product".to_string(),
            code: WgpuKernelCode::SpirV([1, 2, 3].into()),
            block_bytes: 16,
            storage: vec![(1, writable), (2, true)],
        };
        let key = |writable| WgpuPipelineKey::new(&variant(writable), ShaderChecks::None);
        assert_ne!(key(false), key(true));
        assert_eq!(key(true), key(true));
    }

    /// Else a browser would refuse them.
    #[test]
    fn kernels_say_what_is_uniform_as_browsers_replace_it() {
        for text in [
            include_str!("../../../shaders/portable/attention_range.wgsl"),
            include_str!("../../../shaders/portable/matmul/quad_tiles.wgsl"),
        ] {
            assert_eq!(text.matches("fn uniform_word").count(), 1);
            assert!(text.contains(UNIFORM));
        }
    }
}
