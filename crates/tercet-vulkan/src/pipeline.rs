//! Pipelines of kernels, made once for a device however many programs use them.
//!
//! They are found by content: code, constants, bindings. Several are made at once on a few threads;
//! two threads that want the same one make it once.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use ash::vk;
use tercet_plan::{KernelInstance, KernelSource};
use tercet_spirv::{ModuleCache, PipelineFile, SubgroupUsage, uses};

use crate::device::VulkanDevice;
use crate::error::VulkanError;
use crate::spirv;

/// The most threads that make pipelines.
const MAX_THREADS: usize = 8;
/// Pipelines that no program uses are dropped above this number.
const MAX_KEPT: usize = 4096;

/// How a pipeline's arguments are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PipelineBindings {
    /// A parameter block at binding 0.
    block: bool,
    /// Storage buffers from binding 1.
    buffers: u32,
}

/// The layouts that belong to [`PipelineBindings`].
#[derive(Clone, Copy)]
struct PipelineLayouts {
    set: vk::DescriptorSetLayout,
    pipeline: vk::PipelineLayout,
}

/// A compute pipeline.
pub(crate) struct VulkanPipeline {
    pub(crate) raw: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    pub(crate) set: vk::DescriptorSetLayout,
    device: Arc<VulkanDevice>,
}

impl Drop for VulkanPipeline {
    fn drop(&mut self) {
        // SAFETY: drivers hold an `Arc` of what they use until their last submission is done.
        unsafe { self.device.raw.destroy_pipeline(self.raw, None) };
    }
}

/// What a pipeline is found by.
type VulkanPipelineKey = (KernelSource, PipelineBindings);
type PipelineCell = Arc<OnceLock<Result<Arc<VulkanPipeline>, VulkanError>>>;

/// The pipelines of a device.
pub(crate) struct VulkanPipelineCache {
    cells: Mutex<HashMap<VulkanPipelineKey, PipelineCell>>,
    layouts: Mutex<HashMap<PipelineBindings, PipelineLayouts>>,
    pub(crate) modules: ModuleCache,
    driver_cache: vk::PipelineCache,
    file: Option<PipelineFile>,
    saved: Mutex<u64>,
    validation: bool,
    /// Pipelines made so far.
    pub(crate) compiled: AtomicU64,
    device: Arc<VulkanDevice>,
}

impl Drop for VulkanPipelineCache {
    fn drop(&mut self) {
        let layouts = self
            .layouts
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: drivers hold the owner of this, so that no pipeline is in use any more.
        unsafe {
            for layout in layouts.values() {
                self.device
                    .raw
                    .destroy_pipeline_layout(layout.pipeline, None);
                self.device
                    .raw
                    .destroy_descriptor_set_layout(layout.set, None);
            }
            self.device
                .raw
                .destroy_pipeline_cache(self.driver_cache, None);
        }
    }
}

impl VulkanPipelineCache {
    /// No pipelines yet; what the files in `cache_dir` hold need not be made again.
    pub(crate) fn new(
        device: &Arc<VulkanDevice>,
        cache_dir: Option<&Path>,
        validation: bool,
    ) -> Result<VulkanPipelineCache, VulkanError> {
        let identity = device.features.identity;
        let file = cache_dir.map(|dir| PipelineFile::new(dir, "pipelines", identity));
        let blob = file.as_ref().and_then(PipelineFile::load);
        let blob = blob.unwrap_or_default();
        let create = |blob: &[u8]| {
            let info = vk::PipelineCacheCreateInfo::default().initial_data(blob);
            // SAFETY: the data is what this driver gave, by its header and digest, or empty.
            unsafe { device.raw.create_pipeline_cache(&info, None) }
        };
        let driver_cache = create(&blob)
            .or_else(|_| create(&[]))
            .map_err(device.failed("vkCreatePipelineCache"))?;
        Ok(VulkanPipelineCache {
            cells: Mutex::default(),
            layouts: Mutex::default(),
            modules: ModuleCache::new(cache_dir),
            driver_cache,
            file,
            saved: Mutex::default(),
            validation,
            compiled: AtomicU64::new(0),
            device: Arc::clone(device),
        })
    }

    /// The pipelines of kernels, in order.
    pub(crate) fn get_all(
        &self,
        kernels: &[KernelInstance],
    ) -> Result<Vec<Arc<VulkanPipeline>>, VulkanError> {
        let cells: Vec<PipelineCell> = {
            let mut made = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
            if made.len() > MAX_KEPT {
                made.retain(|_, cell| match cell.get() {
                    Some(Ok(pipeline)) => Arc::strong_count(pipeline) > 1,
                    Some(Err(_)) => false,
                    None => true,
                });
            }
            let cell = |k| Arc::clone(made.entry(key(k)).or_default());
            kernels.iter().map(cell).collect()
        };
        let missing: Vec<usize> = (0..cells.len())
            .filter(|&i| cells[i].get().is_none())
            .collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(&i) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                cells[i].get_or_init(|| self.compile(&kernels[i]).map(Arc::new));
            }
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 1..missing.len().min(cores).min(MAX_THREADS) {
                scope.spawn(work);
            }
            work();
        });
        let result = cells.iter().zip(kernels).map(|(cell, kernel)| {
            let made = cell
                .get_or_init(|| self.compile(kernel).map(Arc::new))
                .clone();
            if made.is_err() {
                // The next program tries again: memory may be free then.
                let mut all = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
                all.remove(&key(kernel));
            }
            made
        });
        let result = result.collect();
        if !missing.is_empty() {
            self.save();
        }
        result
    }

    /// Writes the cache file, if pipelines were made since it was last written. Failure costs
    /// start-up time only.
    pub(crate) fn save(&self) {
        let Some(file) = &self.file else { return };
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = self.compiled.load(Ordering::Relaxed);
        if *saved == compiled {
            return;
        }
        // SAFETY: the cache is valid.
        if let Ok(blob) = unsafe { self.device.raw.get_pipeline_cache_data(self.driver_cache) } {
            file.store(&blob);
        }
        *saved = compiled;
    }

    fn layout(&self, bindings: PipelineBindings) -> Result<PipelineLayouts, VulkanError> {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&layout) = layouts.get(&bindings) {
            return Ok(layout);
        }
        let binding = |at, ty| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(at)
                .descriptor_type(ty)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let block = bindings
            .block
            .then(|| binding(0, vk::DescriptorType::UNIFORM_BUFFER));
        let buffers =
            (1..=bindings.buffers).map(|i| binding(i, vk::DescriptorType::STORAGE_BUFFER));
        let list: Vec<_> = block.into_iter().chain(buffers).collect();
        let raw = &self.device.raw;
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&list);
        // SAFETY: a valid description.
        let set = unsafe { raw.create_descriptor_set_layout(&info, None) }
            .map_err(self.device.failed("vkCreateDescriptorSetLayout"))?;
        let sets = [set];
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        // SAFETY: a valid description.
        let pipeline = unsafe { raw.create_pipeline_layout(&info, None) }.map_err(|e| {
            // SAFETY: nothing uses the layout.
            unsafe { raw.destroy_descriptor_set_layout(set, None) };
            self.device.failed("vkCreatePipelineLayout")(e)
        })?;
        let layout = PipelineLayouts { set, pipeline };
        layouts.insert(bindings, layout);
        Ok(layout)
    }

    fn compile(&self, kernel: &KernelInstance) -> Result<VulkanPipeline, VulkanError> {
        self.device.check_lost()?;
        let layout = self.layout(bindings(kernel))?;
        let words = spirv::words(&self.modules, &kernel.name, &kernel.source, self.validation)?;
        let _span = tracing::debug_span!("pipelines of the driver").entered();
        let raw = &self.device.raw;
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: naga's modules are valid by construction, those from outside with checks of what they
        // access; SPIR-V ones are checked in CI.
        let module = unsafe { raw.create_shader_module(&info, None) }
            .map_err(self.device.failed("vkCreateShaderModule"))?;
        let made = self.compile_module(module, kernel, layout, uses(&words));
        // SAFETY: a module is not needed after its pipeline was made.
        unsafe { raw.destroy_shader_module(module, None) };
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(VulkanPipeline {
            raw: made.map_err(|result| {
                match self.device.failed("vkCreateComputePipelines")(result) {
                    VulkanError::Failed { reason } => VulkanError::Failed {
                        reason: format!("kernel {}: {reason}", kernel.name),
                    },
                    e @ (VulkanError::OutOfMemory { .. } | VulkanError::Lost { .. }) => e,
                }
            })?,
            layout: layout.pipeline,
            set: layout.set,
            device: Arc::clone(&self.device),
        })
    }

    fn compile_module(
        &self,
        module: vk::ShaderModule,
        kernel: &KernelInstance,
        layout: PipelineLayouts,
        uses: SubgroupUsage,
    ) -> Result<vk::Pipeline, vk::Result> {
        let constants: &[u32] = match &kernel.source {
            KernelSource::Wgsl(_) | KernelSource::UserWgsl { .. } => &[],
            KernelSource::SpirV { constants, .. } => constants,
        };
        let entries: Vec<_> = (0..constants.len() as u32)
            .map(|id| {
                vk::SpecializationMapEntry::default()
                    .constant_id(id)
                    .offset(id * 4)
                    .size(4)
            })
            .collect();
        let data: Vec<u8> = constants.iter().flat_map(|c| c.to_ne_bytes()).collect();
        let constants = vk::SpecializationInfo::default()
            .map_entries(&entries)
            .data(&data);
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&constants);
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        if let Some(subgroups) = self.device.features.subgroups
            && (uses.subgroups || uses.coop)
        {
            if subgroups.require {
                size = size.required_subgroup_size(subgroups.size);
                stage = stage.push_next(&mut size);
            }
            if subgroups.full && uses.coop {
                stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
            }
        }
        // Our kernels guard their accesses themselves; some drivers would check each of them once more.
        let is_ours = !matches!(kernel.source, KernelSource::UserWgsl { .. });
        let unchecked = vk::PipelineRobustnessBufferBehaviorEXT::DISABLED;
        let mut robustness = vk::PipelineRobustnessCreateInfoEXT::default()
            .storage_buffers(unchecked)
            .uniform_buffers(unchecked);
        let mut info = vk::ComputePipelineCreateInfo::default()
            .stage(stage)
            .layout(layout.pipeline);
        if self.device.features.unchecked && is_ours {
            info = info.push_next(&mut robustness);
        }
        // SAFETY: a valid description; the bindings of the layout are those that the kernel
        // declares, which the tests of kernels compare.
        let made = unsafe {
            self.device
                .raw
                .create_compute_pipelines(self.driver_cache, &[info], None)
        };
        match made {
            Ok(all) => Ok(all[0]),
            Err((_, result)) => Err(result),
        }
    }
}

fn bindings(kernel: &KernelInstance) -> PipelineBindings {
    PipelineBindings {
        block: kernel.block_bytes > 0,
        buffers: kernel.args.len() as u32,
    }
}

fn key(kernel: &KernelInstance) -> VulkanPipelineKey {
    (kernel.source.clone(), bindings(kernel))
}
