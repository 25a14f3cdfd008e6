//! The open Vulkan device as a [`Backend`].

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tercet_ir::backend::Explanation;
use tercet_ir::{
    Backend, CompileError, CompileOptions, DType, DeviceSwitches, Executable, Graph, Scheme,
    SwitchError, Tensor, VariantFamily,
};
use tercet_plan::tune::{TunableBackend, VariantTrial, variant_trials};
use tercet_plan::{
    DeviceCaps, GpuExecutable, GpuProgram, LAYOUT_TRIAL, NativeOps, PlanOptions, RefusedVariants,
    TuningTable, lanes, native_ops_probe,
};

use tercet_spirv::files;

use crate::cache;
use crate::device::VulkanDevice;
use crate::driver::{DriverCounters, VulkanDriver};
use crate::error::{VulkanError, VulkanOpenError};
use crate::instance::{VulkanDeviceInfo, VulkanInstance};
use crate::pipeline::VulkanPipelineCache;
use crate::staging::VulkanStaging;

/// Options for opening a Vulkan device.
///
/// ```
/// use tercet_vulkan::VulkanOptions;
/// let options = VulkanOptions { device: Some("radeon".to_string()), ..VulkanOptions::default() };
/// assert!(!options.validation && options.cache_dir.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct VulkanOptions {
    /// The device: its index in [`VulkanBackend::devices`] or a part of its name. `None` selects
    /// the best device.
    pub device: Option<String>,
    /// Enables core and synchronization validation; see [`VulkanBackend::messages`].
    pub validation: bool,
    /// The cache folder for kernels and pipelines. Without a cache folder, every process compiles
    /// kernels and pipelines again.
    pub cache_dir: Option<PathBuf>,
    /// Places redzones between the slots of programs. After each run, [`VulkanBackend::messages`]
    /// lists the redzones that a kernel overwrote. Slow; for tests.
    pub sentinels: bool,
    /// Measures each step of a run; see [`Executable::timings`].
    pub timestamps: bool,
    /// Features that programs must not use, and kernel variants that are forced or forbidden.
    pub switches: DeviceSwitches,
}

/// The state that all executables of a device share.
pub(crate) struct VulkanContext {
    pub(crate) pipelines: VulkanPipelineCache,
    pub(crate) staging: VulkanStaging,
    pub(crate) uniform_align_bytes: u32,
    tuning_file: Option<PathBuf>,
    /// The kernel variants that the driver refuses.
    refused: RefusedVariants,
    refused_file: Option<PathBuf>,
    pub(crate) timestamps: bool,
    pub(crate) sentinels: bool,
    pub(crate) recorded: AtomicU64,
    pub(crate) reads_recorded: AtomicU64,
    /// Dropped last.
    pub(crate) device: Arc<VulkanDevice>,
}

impl VulkanContext {
    /// Resets the run counters. Pipelines compiled for probes stay counted.
    fn reset_counters(&self) {
        let staging = &self.staging.upload_bytes;
        for counter in [
            &self.recorded,
            &self.reads_recorded,
            &self.device.submissions,
            staging,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Writes the list of refused kernel variants to the cache folder.
    fn store_refused(&self, text: &str) {
        let Some(file) = &self.refused_file else {
            return;
        };
        if let Err(e) = files::replace(file, text.as_bytes()) {
            // The driver is asked again at the next start.
            tracing::warn!("{}: {e}", file.display());
        }
    }
}

impl Drop for VulkanContext {
    fn drop(&mut self) {
        self.pipelines.save();
    }
}

/// An open Vulkan device that compiles and runs graphs.
///
/// ```no_run
/// use tercet_ir::{Backend, CompileOptions, DType, Graph, Tensor, Type};
/// use tercet_vulkan::{VulkanBackend, VulkanOptions};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.neg(x)?;
/// g.output("y", y)?;
/// let backend = VulkanBackend::new(VulkanOptions::default())?;
/// let mut exe = backend.compile(&g, &CompileOptions::new())?;
/// let x = Tensor::from_slice(&[2], &[1f32, -2.0])?;
/// assert_eq!(exe.run(&[("x", &x)])?[0].as_slice::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct VulkanBackend {
    shared: Arc<VulkanContext>,
    /// The capabilities of the device, including probed ones.
    caps: DeviceCaps,
}

impl VulkanBackend {
    /// Opens a device.
    ///
    /// # Errors
    /// [`VulkanOpenError`] with the missing component and the remedy.
    pub fn new(options: VulkanOptions) -> Result<VulkanBackend, VulkanOpenError> {
        let VulkanOptions {
            device,
            validation,
            cache_dir,
            sentinels,
            timestamps,
            switches,
        } = options;
        let device = Arc::new(VulkanDevice::open(device.as_deref(), validation)?);
        let failed = |e: VulkanError| VulkanOpenError::Setup {
            device: device.info.name.clone(),
            reason: CompileError::from(e).to_string(),
        };
        let tuning_file = cache_dir
            .as_ref()
            .map(|dir| dir.join(cache::tuning_name(&device.features.identity)));
        let refused_file = cache_dir
            .as_ref()
            .map(|dir| dir.join(cache::refused_name(&device.features.identity)));
        let tuning = match &tuning_file {
            Some(file) => cache::load_tuning(file)?,
            None => TuningTable::default(),
        };
        let switches = switches.over(tuning.switches());
        let caps = device.features.caps().tuned(tuning);
        // Probes run without features that are turned off, but with any variant.
        let caps = caps.switched(&switches.features())?;
        let mut backend = VulkanBackend {
            shared: Arc::new(VulkanContext {
                pipelines: VulkanPipelineCache::new(&device, cache_dir.as_deref(), validation)
                    .map_err(failed)?,
                staging: VulkanStaging::new(&device).map_err(failed)?,
                uniform_align_bytes: caps.uniform_align_bytes,
                tuning_file,
                refused: refused_file
                    .as_deref()
                    .and_then(|file| std::fs::read_to_string(file).ok())
                    .map_or_else(RefusedVariants::default, |text| {
                        RefusedVariants::from_text(&text)
                    }),
                refused_file,
                timestamps,
                sentinels,
                recorded: AtomicU64::new(0),
                reads_recorded: AtomicU64::new(0),
                device: Arc::clone(&device),
            }),
            caps,
        };
        backend.caps.natives = backend.probe_native_ops().unwrap_or_default();
        backend.caps.coop_fragment_layout = backend.check_fragment_layout();
        backend.caps = backend.caps.switched(&switches)?;
        // Trials run once for each driver. Without a folder, each start would run them.
        if backend.shared.refused_file.is_some() {
            backend.try_variants(&variant_trials(&backend.caps));
            backend.shared.reset_counters();
        }
        Ok(backend)
    }

    /// Probes which native arithmetic operations of the device are exact; `None` if the probe could
    /// not run.
    fn probe_native_ops(&self) -> Option<NativeOps> {
        let (trial, caps) = native_ops_probe(&self.caps).ok()?;
        let outputs = self.outputs_with(caps, &trial.graph, &trial.inputs());
        Some(trial.judge(&outputs.ok()??))
    }

    /// Whether cooperative-matrix fragments have the register layout that kernels expect; false if
    /// the probe failed.
    fn check_fragment_layout(&self) -> bool {
        let Ok(Some(tried)) = lanes(&self.caps) else {
            return false;
        };
        let caps = DeviceCaps {
            coop_fragment_layout: true,
            ..self.caps.clone()
        };
        if let Some(passed) = self.shared.refused.trial(LAYOUT_TRIAL) {
            return passed;
        }
        let inputs = tried.inputs();
        let inputs: Vec<_> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        let passed = match self.outputs_with(caps, &tried.graph, &inputs) {
            Ok(Some(outputs)) => tried.are_right(&outputs),
            // The driver would refuse the kernel again at the next start.
            Err(CompileError::Kernel { .. }) => false,
            Ok(None) | Err(_) => return false,
        };
        self.shared.refused.add_trial(LAYOUT_TRIAL, passed);
        self.shared.store_refused(&self.shared.refused.text());
        passed
    }

    /// Runs a graph on this device as if it had the capabilities `caps`, and returns the outputs;
    /// `None` if the run failed.
    fn outputs_with(
        &self,
        caps: DeviceCaps,
        graph: &Graph,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Option<Vec<Tensor>>, CompileError> {
        let backend = VulkanBackend {
            shared: Arc::clone(&self.shared),
            caps,
        };
        let mut outputs = Vec::new();
        let options = CompileOptions::default();
        // A trial of a kernel must not run another one instead.
        let is_run = backend
            .plan_for(&backend.caps, graph, &options)
            .and_then(|program| backend.loaded(Arc::new(program), &options))
            .map(|mut exe| exe.run_into(inputs, &mut outputs).is_ok());
        self.shared.reset_counters();
        Ok(is_run?.then_some(outputs))
    }

    /// The same device with another tuning table for kernel selection.
    pub fn tuned(&self, tuning: TuningTable) -> VulkanBackend {
        VulkanBackend {
            shared: Arc::clone(&self.shared),
            caps: self.caps.clone().tuned(tuning),
        }
    }

    /// The same device with these switches added to its switches. Features are off for programs that
    /// are compiled with the returned backend.
    ///
    /// # Errors
    /// [`SwitchError`] if a family or variant does not exist, or the device cannot run it.
    pub fn switched(&self, switches: &DeviceSwitches) -> Result<VulkanBackend, SwitchError> {
        let switches = switches.clone().over(&self.caps.device.switches);
        Ok(VulkanBackend {
            shared: Arc::clone(&self.shared),
            caps: self.caps.clone().switched(&switches)?,
        })
    }

    /// The same device with a smaller maximum binding size, as on small GPUs and in browsers. For
    /// tests.
    #[doc(hidden)]
    pub fn with_binding_limit(&self, max_binding_bytes: u64) -> VulkanBackend {
        VulkanBackend {
            shared: Arc::clone(&self.shared),
            caps: DeviceCaps {
                max_binding_bytes,
                ..self.caps.clone()
            },
        }
    }

    /// Writes a tuning table next to the pipeline cache and returns the file path. The next
    /// [`VulkanBackend::new`] with the same cache folder loads this tuning table.
    ///
    /// # Errors
    /// I/O errors of the file system, and an error if the device was opened without a cache folder.
    pub fn store_tuning(&self, tuning: &TuningTable) -> std::io::Result<PathBuf> {
        let Some(file) = &self.shared.tuning_file else {
            return Err(std::io::Error::other(
                "the device was opened without a cache folder",
            ));
        };
        cache::store_tuning(file, tuning)?;
        Ok(file.clone())
    }

    /// The Vulkan devices of this machine, in the loader's order.
    ///
    /// # Errors
    /// [`VulkanOpenError`] if there is no loader or no driver.
    pub fn devices() -> Result<Vec<VulkanDeviceInfo>, VulkanOpenError> {
        let devices = VulkanInstance::new(false)?.devices()?;
        Ok(devices.into_iter().map(|(_, info)| info).collect())
    }

    /// The description of the device.
    pub fn device(&self) -> &VulkanDeviceInfo {
        &self.shared.device.info
    }

    /// The device capabilities that planning depends on.
    pub fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    /// All messages of the validation layer so far, and reports of overwritten redzones if
    /// [`VulkanOptions::sentinels`] is set.
    pub fn messages(&self) -> Vec<String> {
        self.shared.device.instance.messages.all()
    }

    /// The counters of this device, summed over all executables.
    pub fn counters(&self) -> DriverCounters {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        DriverCounters {
            recorded: of(&self.shared.recorded),
            reads_recorded: of(&self.shared.reads_recorded),
            submissions: of(&self.shared.device.submissions),
            upload_bytes: of(&self.shared.staging.upload_bytes),
            pipelines_compiled: of(&self.shared.pipelines.compiled),
            kernels_lowered: self.shared.pipelines.modules.counts().lowered,
        }
    }

    /// The total size in bytes of all buffers on this device.
    pub fn used_bytes(&self) -> u64 {
        self.shared.device.used_bytes.load(Ordering::Relaxed)
    }

    /// Loads a program that was planned for [`Self::caps`]: creates its pipelines, buffers and
    /// command buffers.
    ///
    /// # Errors
    /// [`CompileError::OutOfMemory`], [`CompileError::Device`].
    pub fn load(&self, program: &Arc<GpuProgram>) -> Result<VulkanDriver, CompileError> {
        Ok(VulkanDriver::load(&self.shared, program)?)
    }

    /// Compiles a graph like [`Backend::compile`], but returns the concrete executable type.
    ///
    /// # Errors
    /// As [`Backend::compile`].
    pub fn compile_gpu(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<GpuExecutable<VulkanDriver>, CompileError> {
        self.shared.refused.load(
            &self.caps,
            |caps| self.plan_for(caps, graph, options),
            |program| self.loaded(program, options),
            |text| self.shared.store_refused(text),
        )
    }

    fn loaded(
        &self,
        program: Arc<GpuProgram>,
        options: &CompileOptions,
    ) -> Result<GpuExecutable<VulkanDriver>, CompileError> {
        let driver = self.load(&program)?;
        Ok(GpuExecutable::new(program, driver, options.bounds.clone()))
    }

    fn plan_for(
        &self,
        caps: &DeviceCaps,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<GpuProgram, CompileError> {
        let choices = PlanOptions {
            sentinels: self.shared.sentinels,
        };
        tercet_plan::compile_with(graph, options, caps, choices)
    }

    /// Runs trials whose outcome is not known yet.
    #[doc(hidden)]
    pub fn try_variants(&self, trials: &[VariantTrial]) {
        self.shared
            .refused
            .try_variants(self, trials, |text| self.shared.store_refused(text));
    }

    /// Makes the driver refuse kernels whose name contains this text, for tests.
    #[doc(hidden)]
    pub fn simulate_refusal(&self, kernel: &str) {
        self.shared.pipelines.refuse(kernel);
    }

    /// Marks the device as lost, for tests: all later calls fail.
    #[doc(hidden)]
    pub fn simulate_device_loss(&self) {
        self.shared.device.mark_lost("device loss was simulated");
    }
}

impl TunableBackend for VulkanBackend {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn compile_with(
        &self,
        graph: &Graph,
        tuning: TuningTable,
    ) -> Result<Box<dyn Executable>, CompileError> {
        let tuned = self.tuned(tuning);
        Ok(Box::new(tuned.compile_gpu(graph, &CompileOptions::new())?))
    }
}

impl Backend for VulkanBackend {
    fn name(&self) -> &'static str {
        "vulkan"
    }

    fn fast_matmul_dtypes(&self) -> Vec<DType> {
        self.caps.coop_matmul_dtypes()
    }

    fn max_small_m_rows(&self, _: Scheme) -> Option<usize> {
        Some(self.caps.max_small_m_rows())
    }

    fn description(&self) -> String {
        let info = &self.shared.device.info;
        format!("{}, {}", info.name, info.driver)
    }

    /// The free part of the largest device-local heap, from `VK_EXT_memory_budget`; without the
    /// extension, its size less the buffers of this device.
    fn free_memory_bytes(&self) -> Option<u64> {
        self.shared.device.free_memory_bytes()
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        Ok(Box::new(self.compile_gpu(graph, options)?))
    }

    fn variant_families(&self) -> Vec<VariantFamily> {
        self.caps.variant_families()
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        let program = tercet_plan::compile(graph, options, &self.shared.refused.apply(&self.caps))?;
        let mut switches = self.caps().device.switches.lines();
        switches.extend(self.shared.refused.lines());
        Ok(Explanation {
            switches,
            ..tercet_plan::explain(&program, "vulkan")
        })
    }
}
