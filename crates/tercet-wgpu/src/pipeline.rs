//! Pipelines of a device, each made once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crate::below::{self, Requirement, Wanted};
use crate::call::{Code, Variant};
use crate::device::{Gpu, Trouble, lock};
use crate::kept::{self, Kept, Uses};
use crate::spirv::renumbered;
use crate::trusted;

/// The most threads that make pipelines.
const MAX_THREADS: usize = 8;

/// Pipelines kept although no executable uses them: about what the models of a process need.
const KEPT: usize = 1024;

/// A kernel made ready and the layout of its bind groups.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// What a shader does about mistakes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Checks {
    /// It stays inside its bindings and ends.
    All,
    /// Nothing: it makes none.
    None,
}

/// What a pipeline and its layout depend on. The size of the block is the code's own declaration's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    code: Code,
    /// The storage bindings and whether each is writable: WGSL says so itself, SPIR-V is the same for all
    /// buffers that its operands may share.
    storage: Vec<(u32, bool)>,
    checks: Checks,
}

impl Key {
    fn of(variant: &Variant, checks: Checks) -> Key {
        Key {
            code: variant.code.clone(),
            storage: variant.storage.clone(),
            checks,
        }
    }
}

/// Pipelines by what they depend on.
#[derive(Debug, Default)]
pub(crate) struct Pipelines {
    made: Mutex<HashMap<Key, Arc<Pipeline>>>,
    /// Pipelines made so far.
    count: AtomicU64,
}

impl Pipelines {
    /// The pipelines of kernels, in order; several are made at once.
    ///
    /// # Errors
    /// What wgpu says of a kernel, and its place.
    pub(crate) fn get_all(
        &self,
        gpu: &Gpu,
        variants: &[Variant],
        checks: Checks,
    ) -> Result<Vec<Arc<Pipeline>>, (usize, Trouble)> {
        let keys: Vec<Key> = variants.iter().map(|v| Key::of(v, checks)).collect();
        let found: Vec<Option<Arc<Pipeline>>> = {
            let map = lock(&self.made);
            keys.iter().map(|key| map.get(key).cloned()).collect()
        };
        let missing: Vec<usize> = (0..keys.len()).filter(|&i| found[i].is_none()).collect();
        let made: Vec<OnceLock<Result<Arc<Pipeline>, Trouble>>> =
            missing.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&i) = missing.get(at) else { break };
                made[at].get_or_init(|| make(gpu, &variants[i], checks).map(Arc::new));
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
        let all: Vec<Arc<Pipeline>> = all.collect::<Result<_, _>>()?;
        if !missing.is_empty() {
            self.keep(keys, &all);
            self.count
                .fetch_add(missing.len() as u64, Ordering::Relaxed);
            self.save(&gpu.kept);
        }
        Ok(all)
    }

    /// Two threads may make the same pipeline; one goes with its executable.
    fn keep(&self, keys: Vec<Key>, all: &[Arc<Pipeline>]) {
        let mut map = lock(&self.made);
        if map.len() >= KEPT {
            map.retain(|_, p| Arc::strong_count(p) > 1);
        }
        for (key, pipeline) in keys.into_iter().zip(all) {
            map.entry(key).or_insert_with(|| Arc::clone(pipeline));
        }
    }

    /// Has the driver's cache written if pipelines were made since.
    pub(crate) fn save(&self, kept: &Kept) {
        kept.save(self.count.load(Ordering::Relaxed));
    }
}

/// A kernel as the device gets it.
enum Module<'a> {
    /// SPIR-V with the entry point `main`.
    Words(Arc<[u32]>),
    /// WGSL and its entry point.
    Text(&'a str, &'a str),
}

impl Module<'_> {
    fn of<'a>(gpu: &Gpu, variant: &'a Variant) -> Result<Module<'a>, Trouble> {
        let words = match &variant.code {
            Code::Wgsl(text) => return Ok(Module::Text(text, "main")),
            Code::Checked { text, entry } => return Ok(Module::Text(text, entry)),
            Code::Lowered(text) => gpu.kept.lower(text).map_err(Trouble::Refused)?.into(),
            Code::SpirV(words) => Arc::clone(words),
        };
        let block = (variant.block_bytes > 0).then_some(0);
        let storage = variant.storage.iter().map(|(binding, _)| *binding);
        let bindings: Vec<u32> = block.into_iter().chain(storage).collect();
        let is_numbered = (0..).zip(&bindings).all(|(place, b)| place == *b);
        Ok(Module::Words(match is_numbered {
            true => words,
            false => renumbered(words.to_vec(), &bindings)
                .map_err(Trouble::Refused)?
                .into(),
        }))
    }

    /// What it asks of subgroups, where their size is not given by nature.
    fn requirement(&self, gpu: &Gpu) -> Option<Requirement> {
        let most = gpu.required?;
        let uses = match self {
            Module::Words(words) => kept::uses(words),
            Module::Text(text, _) => Uses {
                subgroups: text.contains("subgroup"),
                coop: false,
            },
        };
        (uses.subgroups || uses.coop).then_some(Requirement {
            full: most.full && uses.coop,
            ..most
        })
    }
}

fn make(gpu: &Gpu, variant: &Variant, checks: Checks) -> Result<Pipeline, Trouble> {
    let module = Module::of(gpu, variant)?;
    let wanted = Wanted {
        subgroup: module.requirement(gpu),
        unchecked: checks == Checks::None && !matches!(variant.code, Code::Checked { .. }),
    };
    let _span = tracing::debug_span!("pipelines of the driver").entered();
    gpu.scoped(|| below::wanting(wanted, || make_of(gpu, variant, module, checks)))
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
fn as_taken(text: &str) -> Cow<'_, str> {
    if !cfg!(target_arch = "wasm32") {
        return text.into();
    }
    let proven = text.replace(UNIFORM, UNIFORM_PROVEN);
    match text.contains("subgroupShuffle") {
        true => format!("enable subgroups;\n{proven}").into(),
        false => proven.into(),
    }
}

fn make_of(gpu: &Gpu, variant: &Variant, module: Module<'_>, checks: Checks) -> Pipeline {
    let device = &gpu.device;
    let label = Some(variant.name.as_str());
    let checks = match variant.code {
        Code::Checked { .. } => Checks::All,
        Code::Wgsl(_) | Code::Lowered(_) | Code::SpirV(_) => checks,
    };
    let of_text = |text: &str| {
        let source = wgpu::ShaderModuleDescriptor {
            label,
            source: wgpu::ShaderSource::Wgsl(as_taken(text)),
        };
        match checks {
            Checks::All => device.create_shader_module(source),
            Checks::None => trusted::shader_module(device, source),
        }
    };
    let (module, entry_point) = match module {
        Module::Words(words) => (trusted::spirv_module(device, label, &words), "main"),
        Module::Text(text, entry) => (of_text(text), entry),
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
            zero_initialize_workgroup_memory: checks == Checks::All,
            ..wgpu::PipelineCompilationOptions::default()
        },
        cache: gpu.kept.driver_cache(),
    });
    Pipeline { pipeline, layout }
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
        let variant = |writable| Variant {
            name: "product".to_string(),
            code: Code::SpirV([1, 2, 3].into()),
            block_bytes: 16,
            storage: vec![(1, writable), (2, true)],
        };
        let key = |writable| Key::of(&variant(writable), Checks::None);
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
