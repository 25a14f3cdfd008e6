//! The pipeline cache of a device, shared by all programs.
//!
//! The key is the content: code, constants and bindings. Missing pipelines are compiled on a few
//! threads. Two threads that need the same pipeline compile it once.

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

/// Maximum number of threads that compile pipelines.
const MAX_THREADS: usize = 8;
/// Maximum number of retained pipelines; above it, unused pipelines are dropped.
const MAX_KEPT: usize = 4096;

/// The binding layout of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PipelineBindings {
    /// True if binding 0 is a parameter block.
    block: bool,
    /// The number of storage buffers, from binding 1.
    buffers: u32,
}

/// The Vulkan layouts for [`PipelineBindings`].
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
        // SAFETY: drivers hold an `Arc` of each pipeline that they use until their last submission
        // is done.
        unsafe { self.device.raw.destroy_pipeline(self.raw, None) };
    }
}

/// The key of a pipeline.
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
    /// The kernels that are refused, for tests: a part of their names.
    refused: Mutex<Option<String>>,
    /// The number of pipelines compiled so far.
    pub(crate) compiled: AtomicU64,
    device: Arc<VulkanDevice>,
}

impl Drop for VulkanPipelineCache {
    fn drop(&mut self) {
        let layouts = self
            .layouts
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: drivers hold the owner of this, so no pipeline is in use.
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
    /// Creates an empty cache, backed by the files in `cache_dir`.
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
            // SAFETY: the data is empty or came from this driver, as its header and digest verify.
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
            refused: Mutex::default(),
            compiled: AtomicU64::new(0),
            device: Arc::clone(device),
        })
    }

    /// The pipelines of kernels, in order; compiles the missing ones.
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
                // Remove failed entries, because a later program may have enough memory.
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

    /// Writes the cache file if pipelines were compiled since the last write. A failed write only
    /// costs start-up time later.
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

    /// Makes the driver refuse kernels whose name contains this text, for tests.
    pub(crate) fn refuse(&self, text: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused = Some(text.to_string());
    }

    fn is_refused(&self, kernel: &str) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.as_ref().is_some_and(|text| kernel.contains(text))
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
        // SAFETY: a valid create info.
        let set = unsafe { raw.create_descriptor_set_layout(&info, None) }
            .map_err(self.device.failed("vkCreateDescriptorSetLayout"))?;
        let sets = [set];
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        // SAFETY: a valid create info.
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
        let words = self.device.features.float_controls.apply(words);
        let _span = tracing::debug_span!("pipelines of the driver").entered();
        let raw = &self.device.raw;
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: naga generates valid modules, and adds access checks to those from user WGSL.
        // Modules that come as SPIR-V are validated in CI.
        let module = unsafe { raw.create_shader_module(&info, None) }
            .map_err(self.device.failed("vkCreateShaderModule"))?;
        let made = match self.is_refused(&kernel.name) {
            true => Err(vk::Result::ERROR_UNKNOWN),
            false => self.compile_module(module, kernel, layout, uses(&words)),
        };
        // SAFETY: a module is not needed after its pipeline was created.
        unsafe { raw.destroy_shader_module(module, None) };
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(VulkanPipeline {
            raw: made.map_err(|result| {
                match self.device.failed("vkCreateComputePipelines")(result) {
                    VulkanError::Failed { reason } => VulkanError::Refused {
                        kernel: kernel.name.clone(),
                        reason,
                    },
                    e @ (VulkanError::OutOfMemory { .. }
                    | VulkanError::Lost { .. }
                    | VulkanError::Refused { .. }) => e,
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
        // Tercet kernels check their own bounds; with robust access some drivers would check each
        // access twice.
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
        // SAFETY: a valid create info. The layout has the bindings that the kernel declares, which
        // the kernel tests verify.
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
