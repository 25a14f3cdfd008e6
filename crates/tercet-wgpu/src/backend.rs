//! Opening a wgpu device and compiling graphs for it.

use std::sync::Arc;

use tercet_ir::backend::{Explanation, OutputSelection};
use tercet_ir::{
    Backend, Bindings, CompileError, CompileOptions, DType, DeviceSwitches, Executable, Graph,
    Scheme, SwitchError, Tensor, VariantFamily, VariantName,
};
use tercet_plan::tune::{
    TunableBackend, VariantTrial, WGSL_ATTENTION_TRIAL, WGSL_MATRICES_TRIAL, variant_trials,
};
use tercet_plan::{
    DeviceCaps, GpuExecutable, GpuProgram, LAYOUT_TRIAL, NativeOps, RefusedVariants,
    ReportedProperties, TuningTable, lanes, native_ops_probe,
};

use crate::device::{DeviceFault, WgpuDevice};
use crate::driver::WgpuDriver;
use crate::executable::WgpuExecutable;
use crate::open::{
    self, MATRICES, OpenedAdapter, WGSL_MATRICES, adapters, caps, choose, coop_shapes, instance,
    requirement, wgsl_coop_shapes,
};
use crate::options::{AdapterSummary, LimitSet, WgpuOpenError, WgpuOptions};
use crate::pipeline::ShaderChecks;

/// An open wgpu device that compiles graphs. Clones share the device.
///
/// ```no_run
/// use tercet_ir::{Backend, CompileOptions, DType, Graph, Tensor, Type};
/// use tercet_wgpu::{WgpuBackend, WgpuOptions};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.neg(x)?;
/// g.output("y", y)?;
/// let backend = WgpuBackend::new(&WgpuOptions::new())?;
/// let mut exe = backend.compile(&g, &CompileOptions::new())?;
/// let x = Tensor::from_slice(&[2], &[1f32, -2.0])?;
/// assert_eq!(exe.run(&[("x", &x)])?[0].as_slice::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct WgpuBackend {
    gpu: Arc<WgpuDevice>,
    adapter: AdapterSummary,
    caps: DeviceCaps,
    /// Size of the largest device-local memory heap in bytes, if the driver reports it.
    memory_bytes: Option<u64>,
}

impl WgpuBackend {
    /// Opens a device and blocks until it is ready.
    ///
    /// # Errors
    /// [`WgpuOpenError`] with the list of available adapters.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn new(options: &WgpuOptions) -> Result<WgpuBackend, WgpuOpenError> {
        crate::device::block_on(WgpuBackend::request(options))
    }

    /// The wgpu adapters of this machine.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn adapters() -> Vec<AdapterSummary> {
        let instance = instance(&WgpuOptions::new());
        let adapters = crate::device::block_on(adapters(&instance));
        adapters
            .iter()
            .map(|a| AdapterSummary::new(&a.get_info()))
            .collect()
    }

    /// Opens a device asynchronously; also works in browsers.
    ///
    /// # Errors
    /// [`WgpuOpenError`] with the list of available adapters.
    pub async fn request(options: &WgpuOptions) -> Result<WgpuBackend, WgpuOpenError> {
        let adapters = adapters(&instance(options)).await;
        let found = || {
            adapters
                .iter()
                .map(|a| AdapterSummary::new(&a.get_info()))
                .collect()
        };
        let Some(adapter) = choose(&adapters, options.adapter.as_deref()) else {
            return Err(WgpuOpenError::NoAdapter {
                wanted: options.adapter.clone(),
                found: found(),
            });
        };
        let info = adapter.get_info();
        let opened = open::open(adapter, &info, options).await;
        let OpenedAdapter {
            device,
            queue,
            limits,
            features,
            hal: below,
            subgroup,
            groups,
        } = opened.map_err(|source| WgpuOpenError::Refused {
            adapter: AdapterSummary::new(&info),
            source,
        })?;
        let is_software = info.device_type == wgpu::DeviceType::Cpu;
        let limited = limits.clone();
        let mut gpu = WgpuDevice::new(device, queue, limited, features, options, is_software);
        if let Some(dir) = &options.cache_dir {
            let name = format!(
                "refused-wgpu-{}.txt",
                AdapterSummary::new(&info).file_stem()
            );
            let file = dir.join(name);
            if let Ok(text) = std::fs::read_to_string(&file) {
                gpu.refused = RefusedVariants::from_text(&text);
            }
            gpu.refused_file = Some(file);
        }
        gpu.groups = groups;
        gpu.required = subgroup.and_then(|s| requirement(s, &below));
        #[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
        {
            let dir = options.cache_dir.as_deref();
            gpu.shader_cache = crate::shader_cache::ShaderCache::new(&gpu.device, &below, dir);
        }
        let has_matrices = features.contains(MATRICES);
        let has_wgsl_matrices = features.contains(WGSL_MATRICES) && !has_matrices;
        // With restricted limits the caller emulates another device, so vendor data is not used.
        let (known, units) = match options.limits {
            LimitSet::Found => (info.clone(), below.units),
            LimitSet::WebGpu | LimitSet::Downlevel => {
                let device_type = wgpu::DeviceType::Other;
                let known = wgpu::AdapterInfo {
                    device_type,
                    ..info.clone()
                };
                (known, ReportedProperties::default())
            }
        };
        let mut backend = WgpuBackend {
            caps: DeviceCaps {
                spirv: has_matrices,
                coop: match has_matrices {
                    true => coop_shapes(adapter),
                    false => Vec::new(),
                },
                coop_wgsl: match has_wgsl_matrices {
                    true => wgsl_coop_shapes(adapter),
                    false => Vec::new(),
                },
                packed_dots: below.packed_dots,
                // On Vulkan, naga emits storage barriers with device scope. The WebGPU
                // specification does not promise storage barriers with device scope.
                ordered_storage: options.limits == LimitSet::Found
                    && info.backend == wgpu::Backend::Vulkan,
                ..caps(&limits, features, &known, units, subgroup)
            },
            gpu: Arc::new(gpu),
            adapter: AdapterSummary::new(&info),
            memory_bytes: below.memory_bytes,
        };
        backend.caps = backend.caps.switched(&options.switches.features())?;
        // Native operations bring no speedup on software adapters, and tests use software adapters
        // to check the fallbacks.
        let may_gain = options.limits == LimitSet::Found && !is_software;
        if may_gain {
            backend.caps.natives = backend.probe_native_ops().await.unwrap_or_default();
            backend.caps.coop_fragment_layout = backend.check_fragment_layout().await;
        }
        backend.caps = backend.caps.switched(&options.switches)?;
        backend.run_trials();
        Ok(backend)
    }

    /// Runs the trials of kernel variants. They run once for each driver; without a folder, each
    /// start would run them. Matrices in WGSL are experimental in wgpu, so they are never used
    /// untried.
    fn run_trials(&mut self) {
        let is_experimental = !self.caps.coop_wgsl.is_empty();
        if is_experimental || self.gpu.refused_file.is_some() {
            self.try_variants(&variant_trials(&self.caps));
        }
        if self.gpu.refused.trial(WGSL_MATRICES_TRIAL) != Some(true) {
            self.caps.coop_wgsl.clear();
        }
        let has_passed = self.gpu.refused.trial(WGSL_ATTENTION_TRIAL) == Some(true);
        if is_experimental
            && !has_passed
            && let Ok(name) = WGSL_ATTENTION_TRIAL.parse::<VariantName>()
        {
            let switches = self.caps.device.switches.clone();
            if switches.forced(&name.family) != Some(&name.variant) {
                self.caps.device.switches = switches.forbid(name);
            }
        }
    }

    /// Probes which native arithmetic operations of the device are exact; `None` if the probe could
    /// not run.
    #[doc(hidden)]
    pub async fn probe_native_ops(&self) -> Option<NativeOps> {
        let (trial, caps) = native_ops_probe(&self.caps).ok()?;
        let inputs = trial.inputs();
        let outputs = self.outputs_with(caps, &trial.graph, &inputs).await;
        Some(trial.judge(&outputs.ok()??))
    }

    /// Whether cooperative-matrix fragments have the register layout that kernels expect (ADR
    /// 0011); false if the probe failed.
    async fn check_fragment_layout(&self) -> bool {
        let Ok(Some(tried)) = lanes(&self.caps) else {
            return false;
        };
        let caps = DeviceCaps {
            coop_fragment_layout: true,
            ..self.caps.clone()
        };
        if let Some(passed) = self.gpu.refused.trial(LAYOUT_TRIAL) {
            return passed;
        }
        let inputs = tried.inputs();
        let inputs: Vec<_> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        let passed = match self.outputs_with(caps, &tried.graph, &inputs).await {
            Ok(Some(outputs)) => tried.are_right(&outputs),
            // The driver would refuse the kernel again at the next start.
            Err(CompileError::Kernel { .. }) => false,
            Ok(None) | Err(_) => return false,
        };
        self.gpu.refused.add_trial(LAYOUT_TRIAL, passed);
        self.store_refused(&self.gpu.refused.text());
        passed
    }

    /// Runs a graph on this device as if it had the capabilities `caps`, and returns the outputs;
    /// `None` if the run failed.
    async fn outputs_with(
        &self,
        caps: DeviceCaps,
        graph: &Graph,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Option<Vec<Tensor>>, CompileError> {
        let backend = WgpuBackend {
            caps,
            gpu: Arc::clone(&self.gpu),
            adapter: self.adapter.clone(),
            memory_bytes: self.memory_bytes,
        };
        let options = CompileOptions::default();
        // A trial of a kernel must not run another one instead.
        let mut exe = backend.compiled(|| backend.made(graph, &options)).await?;
        let mut outputs = Vec::new();
        let run = exe
            .run_async(inputs, OutputSelection::All, &mut outputs)
            .await;
        Ok(run.is_ok().then_some(outputs))
    }

    /// The adapter that the device was opened on.
    pub fn adapter(&self) -> &AdapterSummary {
        &self.adapter
    }

    /// The device capabilities that planning depends on.
    pub fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    /// The same device with another tuning table for kernel selection.
    pub fn tuned(&self, tuning: TuningTable) -> WgpuBackend {
        WgpuBackend {
            caps: self.caps.clone().tuned(tuning),
            ..self.clone()
        }
    }

    /// The same device with these switches added to its switches. Features are off for programs that
    /// are compiled with the returned backend.
    ///
    /// # Errors
    /// [`SwitchError`] if a family or variant does not exist, or the device cannot run it.
    pub fn switched(&self, switches: &DeviceSwitches) -> Result<WgpuBackend, SwitchError> {
        let switches = switches.clone().over(&self.caps.device.switches);
        Ok(WgpuBackend {
            caps: self.caps.clone().switched(&switches)?,
            ..self.clone()
        })
    }

    /// Compiles a graph asynchronously; also works in browsers, where [`Backend::compile`] cannot
    /// wait for device errors.
    ///
    /// # Errors
    /// As [`Backend::compile`].
    pub async fn compile_async(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<WgpuExecutable, CompileError> {
        self.compiled(|| self.make(graph, options)).await
    }

    /// Compiles, and waits for the errors of the device.
    async fn compiled(
        &self,
        make: impl FnOnce() -> Result<WgpuExecutable, CompileError>,
    ) -> Result<WgpuExecutable, CompileError> {
        let scope = self.gpu.scope();
        let made = make();
        match (scope.close().await, made) {
            (_, Err(e)) => Err(e),
            (Some(e), Ok(_)) => Err(DeviceFault::from(e).compiling("the program's memory", 0)),
            (None, Ok(made)) => Ok(made),
        }
    }

    fn make(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<WgpuExecutable, CompileError> {
        self.gpu.refused.load(
            &self.caps,
            |caps| tercet_plan::compile(graph, options, caps),
            |program| self.load_with(program, options.bounds.clone(), self.checks()),
            |text| self.store_refused(text),
        )
    }

    /// As [`Self::make`], but without the replacement of refused kernels.
    fn made(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<WgpuExecutable, CompileError> {
        let program = tercet_plan::compile(graph, options, &self.caps)?;
        self.load_with(Arc::new(program), options.bounds.clone(), self.checks())
    }

    fn checks(&self) -> ShaderChecks {
        match self.gpu.checked {
            true => ShaderChecks::All,
            false => ShaderChecks::None,
        }
    }

    /// Writes the list of refused kernel variants to the cache folder.
    fn store_refused(&self, text: &str) {
        let Some(file) = &self.gpu.refused_file else {
            return;
        };
        let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
        let dir = file.parent().unwrap_or(file);
        let written = std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&temporary, text))
            .and_then(|()| std::fs::rename(&temporary, file));
        if let Err(e) = written {
            // The driver is asked again at the next start.
            tracing::warn!("{}: {e}", file.display());
        }
    }

    /// Runs trials whose outcome is not known yet.
    #[doc(hidden)]
    pub fn try_variants(&self, trials: &[VariantTrial]) {
        self.gpu
            .refused
            .try_variants(self, trials, |text| self.store_refused(text));
    }

    /// Makes the driver refuse kernels whose name contains this text, for tests.
    #[doc(hidden)]
    pub fn simulate_refusal(&self, kernel: &str) {
        self.gpu.pipelines.refuse(kernel);
    }

    /// Loads a compiled program onto the device. `bounds` are the symbol bounds that the program
    /// was planned for. The shaders of the program keep all runtime checks, because the program may
    /// come from any source.
    ///
    /// # Errors
    /// [`CompileError`] with the name of the kernel that fails, or of the buffer that exceeds the
    /// device memory.
    pub fn load(
        &self,
        program: Arc<GpuProgram>,
        bounds: Bindings,
    ) -> Result<WgpuExecutable, CompileError> {
        self.load_with(program, bounds, ShaderChecks::All)
    }

    fn load_with(
        &self,
        program: Arc<GpuProgram>,
        bounds: Bindings,
        checks: ShaderChecks,
    ) -> Result<WgpuExecutable, CompileError> {
        let _span = tracing::debug_span!("pipelines and memory").entered();
        let driver = WgpuDriver::new(&self.gpu, Arc::clone(&program), checks)?;
        Ok(WgpuExecutable::new(GpuExecutable::new(
            program, driver, bounds,
        )))
    }

    /// The same device with a smaller maximum binding size, as on small GPUs and in browsers. For
    /// tests.
    #[doc(hidden)]
    pub fn with_binding_limit(&self, max_binding_bytes: u64) -> WgpuBackend {
        WgpuBackend {
            gpu: Arc::clone(&self.gpu),
            adapter: self.adapter.clone(),
            memory_bytes: self.memory_bytes,
            caps: DeviceCaps {
                max_binding_bytes,
                ..self.caps.clone()
            },
        }
    }

    /// Destroys the device. All executables of the device then fail with
    /// [`tercet_ir::RunError::DeviceLost`]; using and dropping them stays safe.
    pub fn destroy(&self) {
        self.gpu.destroy();
    }
}

impl TunableBackend for WgpuBackend {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn compile_with(
        &self,
        graph: &Graph,
        tuning: TuningTable,
    ) -> Result<Box<dyn Executable>, CompileError> {
        let tuned = self.tuned(tuning);
        Ok(Box::new(tuned.make(graph, &CompileOptions::new())?))
    }
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn fast_matmul_dtypes(&self) -> Vec<DType> {
        self.caps.coop_matmul_dtypes()
    }

    fn max_small_m_rows(&self, _: Scheme) -> Option<usize> {
        Some(self.caps.max_small_m_rows())
    }

    fn description(&self) -> String {
        self.adapter.to_string()
    }

    /// The size of the device-local heap. wgpu does not report how much of it is in use.
    fn free_memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        Ok(Box::new(self.make(graph, options)?))
    }

    fn variant_families(&self) -> Vec<VariantFamily> {
        self.caps.variant_families()
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        let caps = self.gpu.refused.apply(&self.caps);
        let program = tercet_plan::compile(graph, options, &caps)?;
        let mut switches = self.caps.device.switches.lines();
        switches.extend(self.gpu.refused.lines());
        Ok(Explanation {
            switches,
            ..tercet_plan::explain(&program, self.name())
        })
    }
}
