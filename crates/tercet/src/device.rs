//! Devices, which compile and run graphs. A device is opened by constructor or by name.

mod gpu;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tercet_ir::backend::Explanation;
use tercet_ir::{
    Backend, CompileError, CompileOptions, DType, DeviceSwitches, Executable, Graph, Scheme,
    SwitchError, VariantFamily, compiler_trial,
};

use crate::trace::{ENV_TRACE, TraceFile, TracedBackend};

/// Errors of opening a device.
///
/// ```
/// use tercet::{Device, DeviceError};
/// let error = Device::by_name("cpu:1").unwrap_err();
/// assert!(matches!(error, DeviceError::Choice { .. }));
/// assert!(error.to_string().contains("use `cpu` without a selector"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The name is unknown.
    #[error("no device named `{name}`; this build has: {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// Device names that this build supports.
        known: String,
    },
    /// The device requires a cargo feature that is disabled in this build.
    #[error(
        "device `{name}` requires the cargo feature `{feature}`, which is disabled in this build of tercet"
    )]
    Feature {
        /// Name of the device.
        name: &'static str,
        /// Name of the cargo feature.
        feature: &'static str,
    },
    /// The name has a selector (`NAME:SELECTOR`) that the device does not support, or the selector
    /// is empty.
    #[error("`{given}`: invalid selector for device `{name}`; {remedy}")]
    Choice {
        /// The requested name.
        given: String,
        /// Name of the device.
        name: String,
        /// Name to use instead.
        remedy: String,
    },
    /// A switch does not exist, or the device cannot run a forced kernel variant.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The file of [`DeviceOptions::trace`] cannot be created.
    #[error("cannot write the trace {}: {reason}; choose another file", path.display())]
    Trace {
        /// The path of the file.
        path: PathBuf,
        /// The reason from the operating system.
        reason: String,
    },
    /// This machine does not have the device.
    #[error("this machine has no `{name}` device: {reason}")]
    NoSuchDevice {
        /// Name of the device.
        name: &'static str,
        /// The missing component, and a remedy.
        reason: String,
    },
}

/// A device in a listing.
///
/// ```
/// let devices = tercet::devices();
/// let cpu = devices.iter().find(|d| d.name == "cpu").unwrap();
/// assert!(cpu.usable && !cpu.emulated);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name for [`Device::by_name`].
    pub name: String,
    /// Description, or the reason why the device cannot be used.
    pub description: String,
    /// Whether the device can be used.
    pub usable: bool,
    /// Whether this is a GPU emulated on the CPU: correct, but slow.
    pub emulated: bool,
}

/// Options for opening GPU devices.
///
/// ```
/// use tercet::{Device, DeviceOptions};
/// let options = DeviceOptions { timings: true, ..DeviceOptions::default() };
/// let device = Device::open("cpu", &options)?;
/// assert_eq!(device.name(), "cpu");
/// # Ok::<(), tercet::DeviceError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Selects one of several GPUs: its number in the listing, or a part of its name. `None`
    /// selects the fastest.
    pub which: Option<String>,
    /// Folder of the cache for compiled kernels, pipelines and tuning tables. `None` disables the
    /// cache.
    pub cache_dir: Option<PathBuf>,
    /// Measure each dispatch; see [`Executable::timings`](tercet_ir::Executable::timings).
    pub timings: bool,
    /// Maximum bytes of device memory to plan for, such as the default context of a language
    /// model. `None` plans for all free memory. Allocations are not limited.
    pub memory_bytes: Option<u64>,
    /// Features that programs must not use, and kernel variants that are forced or forbidden. The
    /// environment variables `TERCET_WITHOUT`, `TERCET_FORCE` and `TERCET_DEBUG` add to them, and
    /// below both is the tuning file in the cache folder.
    pub switches: DeviceSwitches,
    /// Records an execution trace of all executables of the device in this file, in the format of
    /// Chrome and Perfetto; steps are measured as with `timings`. The environment variable
    /// `TERCET_TRACE` does the same. Devices with the same path share the file.
    ///
    /// ```
    /// # use tercet::{CompileOptions, DType, Device, DeviceOptions, Graph, Tensor, Type};
    /// # let mut g = Graph::new();
    /// # let x = g.input("x", Type::new(DType::F32, [2]))?;
    /// # let y = g.neg(x)?;
    /// # g.output("y", y)?;
    /// # let x = Tensor::from_slice(&[2], &[1f32, -2.0])?;
    /// let path = std::env::temp_dir().join(format!("trace-{}.json", std::process::id()));
    /// let options = DeviceOptions { trace: Some(path.clone()), ..DeviceOptions::default() };
    /// let device = Device::open("cpu", &options)?;
    /// device.compile(&g, &CompileOptions::new())?.run(&[("x", &x)])?;
    /// drop(device);
    /// assert!(std::fs::read_to_string(&path)?.contains("\"name\":\"run\""));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub trace: Option<PathBuf>,
}

/// A device that compiles graphs. Cloning is cheap.
///
/// ```
/// use tercet::{CompileOptions, DType, Device, Graph, Tensor, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.neg(x)?;
/// g.output("y", y)?;
/// let mut exe = Device::cpu().compile(&g, &CompileOptions::new())?;
/// let x = Tensor::from_slice(&[2], &[1f32, -2.0])?;
/// let outputs = exe.run(&[("x", &x)])?;
/// assert_eq!(outputs[0].as_slice::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
    /// Limit of [`Device::free_memory_bytes`].
    memory_limit: Option<u64>,
}

/// One row of the device table.
struct DeviceEntry {
    name: &'static str,
    feature: &'static str,
    /// Opens the device; `None` if its cargo feature is disabled.
    open: Option<OpenDeviceFn>,
    /// Whether a machine may have several such devices, so that `NAME:SELECTOR` selects one.
    takes_selector: bool,
    /// Lists the devices of this type on this machine.
    list: fn() -> Vec<DeviceInfo>,
}

#[cfg(feature = "vulkan")]
pub(crate) use gpu::open_vulkan;
#[cfg(feature = "wgpu")]
pub(crate) use gpu::open_wgpu;

type OpenDeviceFn = fn(&DeviceOptions) -> Result<Device, DeviceError>;

/// The devices, in the order that `auto` tries them.
const DEVICES: &[DeviceEntry] = &[
    DeviceEntry {
        name: "vulkan",
        feature: "vulkan",
        open: gpu::VULKAN,
        takes_selector: true,
        list: gpu::list_vulkan,
    },
    DeviceEntry {
        name: "wgpu",
        feature: "wgpu",
        open: gpu::WGPU,
        takes_selector: true,
        list: gpu::list_wgpu,
    },
    DeviceEntry {
        name: "cpu",
        feature: "cpu",
        open: host::CPU,
        takes_selector: false,
        list: host::list_cpu,
    },
    DeviceEntry {
        name: "reference",
        feature: "cpu",
        open: host::REFERENCE,
        takes_selector: false,
        list: host::list_reference,
    },
];

mod host {
    use super::{DeviceInfo, OpenDeviceFn};

    #[cfg(feature = "cpu")]
    pub(super) const CPU: Option<OpenDeviceFn> = Some(|options| {
        let backend = tercet_cpu::CpuBackend::new().timed(options.timings);
        Ok(super::Device::from_backend(
            backend.switched(&options.switches)?,
        ))
    });
    #[cfg(feature = "cpu")]
    pub(super) const REFERENCE: Option<OpenDeviceFn> = Some(|options| {
        options.switches.check("reference", &[])?;
        Ok(super::Device::reference())
    });
    #[cfg(not(feature = "cpu"))]
    pub(super) const CPU: Option<OpenDeviceFn> = None;
    #[cfg(not(feature = "cpu"))]
    pub(super) const REFERENCE: Option<OpenDeviceFn> = None;

    pub(super) fn list_cpu() -> Vec<DeviceInfo> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        vec![DeviceInfo {
            name: "cpu".to_string(),
            description: format!(
                "{} CPU, {}",
                std::env::consts::ARCH,
                tercet_ir::counted(threads, "thread", "threads")
            ),
            usable: true,
            emulated: false,
        }]
    }

    pub(super) fn list_reference() -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            name: "reference".to_string(),
            description: "reference interpreter in f64, slow".into(),
            usable: true,
            emulated: false,
        }]
    }
}

/// Lists the devices of this machine that this build supports, best first. Descriptions of unusable
/// devices contain the reason.
///
/// ```
/// assert!(tercet::devices().iter().any(|d| d.name == "cpu"));
/// ```
pub fn devices() -> Vec<DeviceInfo> {
    let usable = DEVICES.iter().filter(|e| e.open.is_some());
    usable.flat_map(|e| (e.list)()).collect()
}

impl Device {
    /// The optimized CPU executor, on all cores.
    #[cfg(feature = "cpu")]
    pub fn cpu() -> Device {
        Device::from_backend(tercet_cpu::CpuBackend::new())
    }

    /// Opens the GPU that `wgpu` finds, without blocking. In a browser this is the only way to open
    /// WebGPU. In a browser, run executables with
    /// [`run_async`](tercet_ir::Executable#impl-dyn+Executable).
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDevice`], with the missing component.
    #[cfg(feature = "wgpu")]
    pub async fn request_wgpu(options: &DeviceOptions) -> Result<Device, DeviceError> {
        let backend = gpu::request_wgpu(options).await?;
        Ok(Device::from_backend(backend))
    }

    /// The reference interpreter. The interpreter evaluates each operator with its `eval` function
    /// in f64, without passes.
    #[cfg(feature = "cpu")]
    pub fn reference() -> Device {
        Device::from_backend(tercet_cpu::ReferenceBackend::new())
    }

    /// Opens the best device of this machine: a GPU through Vulkan, or else through wgpu, or else
    /// the CPU. GPUs emulated on the CPU are skipped.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] if this build contains no executor.
    pub fn auto() -> Result<Device, DeviceError> {
        Device::open("auto", &DeviceOptions::default())
    }

    fn auto_with(options: &DeviceOptions) -> Result<Device, DeviceError> {
        let real = |e: &&DeviceEntry| {
            let host = e.feature == "cpu";
            host || (e.list)().iter().any(|d| d.usable && !d.emulated)
        };
        let usable = DEVICES.iter().filter(|e| e.open.is_some()).filter(real);
        for open in usable.filter_map(|e| e.open) {
            match open(options) {
                // The next device would run without a switch that the user asked for.
                Err(e @ DeviceError::Switch(_)) => return Err(e),
                Err(_) => {}
                Ok(device) => return Ok(device),
            }
        }
        Err(unknown("auto"))
    }

    /// Opens a device by name: `auto`, or one of [`devices`].
    ///
    /// # Errors
    /// [`DeviceError`], with the known names, the missing cargo feature or the missing hardware.
    ///
    /// ```
    /// let e = tercet::Device::by_name("abacus").unwrap_err();
    /// assert!(e.to_string().contains("this build has: auto, "));
    /// ```
    pub fn by_name(name: &str) -> Result<Device, DeviceError> {
        Device::open(name, &DeviceOptions::default())
    }

    /// Opens a device by name, with options.
    ///
    /// # Errors
    /// Those of [`Device::by_name`].
    pub fn open(name: &str, options: &DeviceOptions) -> Result<Device, DeviceError> {
        let start = Instant::now();
        let (name, which) = split_selector(name)?;
        let variable = std::env::var_os(ENV_TRACE).filter(|path| !path.is_empty());
        let trace = options.trace.clone().or(variable.map(PathBuf::from));
        let options = DeviceOptions {
            which: which.or_else(|| options.which.clone()),
            switches: switches_in_effect(&options.switches)?,
            timings: options.timings || trace.is_some(),
            ..options.clone()
        };
        let device = if name == "auto" {
            Device::auto_with(&options)?
        } else {
            let entry = DEVICES.iter().find(|e| e.name == name);
            let DeviceEntry {
                name,
                feature,
                open,
                ..
            } = *entry.ok_or_else(|| unknown(name))?;
            open.ok_or(DeviceError::Feature { name, feature })
                .and_then(|open| open(&options))?
        };
        let device = device.limited(&options);
        let Some(path) = trace else {
            return Ok(device);
        };
        let file = TraceFile::open(&path).map_err(|e| DeviceError::Trace {
            path,
            reason: e.to_string(),
        })?;
        Ok(device.with_backend(TracedBackend::new(device.shared(), file, start)))
    }

    fn limited(self, options: &DeviceOptions) -> Device {
        Device {
            memory_limit: options.memory_bytes,
            ..self
        }
    }

    /// A device for a custom backend.
    pub fn from_backend(backend: impl Backend + 'static) -> Device {
        Device {
            backend: Arc::new(backend),
            memory_limit: None,
        }
    }

    /// A device for another backend, with the memory limit of this device.
    pub(crate) fn with_backend(&self, backend: impl Backend + 'static) -> Device {
        Device {
            backend: Arc::new(backend),
            memory_limit: self.memory_limit,
        }
    }

    /// The backend as a shared reference.
    pub(crate) fn shared(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    /// Name of the executor.
    pub fn name(&self) -> &'static str {
        self.backend.name()
    }

    /// Bytes of memory that new executables of this device may use: the free memory, or
    /// [`DeviceOptions::memory_bytes`] if that is less. `None` if neither is known.
    ///
    /// ```
    /// use tercet::{Device, DeviceOptions};
    /// let options = DeviceOptions { memory_bytes: Some(1 << 20), ..DeviceOptions::default() };
    /// assert_eq!(Device::open("cpu", &options)?.free_memory_bytes(), Some(1 << 20));
    /// # Ok::<(), tercet::DeviceError>(())
    /// ```
    pub fn free_memory_bytes(&self) -> Option<u64> {
        let free = self.backend.free_memory_bytes();
        free.into_iter().chain(self.memory_limit).min()
    }

    /// 16-bit dtypes whose matmuls are faster than F32 on this device, so naming them in
    /// [`CompileOptions::matmul_precision`] helps. CPUs have none.
    pub fn fast_matmul_dtypes(&self) -> Vec<DType> {
        self.backend.fast_matmul_dtypes()
    }

    /// 16-bit dtypes whose matmuls with quantized weights are faster than F32. F16 on CPUs with
    /// fast 16-bit integer instructions.
    pub fn fast_quant_matmul_dtypes(&self) -> Vec<DType> {
        self.backend.fast_quant_matmul_dtypes()
    }

    /// Maximum rows for which batching into one quantized matmul of this scheme is profitable.
    /// `None` if each row costs the same time, as on CPUs.
    pub fn max_small_m_rows(&self, scheme: Scheme) -> Option<usize> {
        self.backend.max_small_m_rows(scheme)
    }

    /// The families of kernel variants that [`DeviceOptions::switches`] can force and forbid on this
    /// device.
    pub fn variant_families(&self) -> Vec<VariantFamily> {
        self.backend.variant_families()
    }

    /// The backend of this device.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Compiles a graph for this device.
    ///
    /// # Errors
    /// [`CompileError`] that lists every unsupported node, or names the symbol without a bound. The
    /// call also fails if the compiler that built this program fails [`compiler_trial`].
    pub fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        compiler_trial()?;
        self.backend.compile(graph, options)
    }

    /// Describes the program that [`Device::compile`] would create: kernels, dispatches, barriers,
    /// memory. Nothing is allocated on the device.
    ///
    /// # Errors
    /// Those of [`Device::compile`]. The error lists all unsupported nodes with remedies.
    ///
    /// ```
    /// use tercet::{CompileOptions, DType, Device, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [8]))?;
    /// let y = g.exp(x)?;
    /// g.output("y", y)?;
    /// let plan = Device::cpu().explain(&g, &CompileOptions::new())?;
    /// assert_eq!((plan.dispatches, plan.host_fallbacks), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        compiler_trial()?;
        self.backend.explain(graph, options)
    }
}

/// These switches on top of those in the environment variables `TERCET_WITHOUT`, `TERCET_FORCE` and
/// `TERCET_DEBUG`, as [`Device::open`] combines them.
///
/// # Errors
/// [`SwitchError`] if a variable has an invalid switch.
///
/// ```
/// use tercet::{DeviceSwitches, switches_in_effect};
/// let switches = DeviceSwitches::parse("coop", "")?;
/// assert_eq!(switches_in_effect(&switches)?.to_string(), "without coop");
/// # Ok::<(), tercet::SwitchError>(())
/// ```
pub fn switches_in_effect(switches: &DeviceSwitches) -> Result<DeviceSwitches, SwitchError> {
    let of = |name| std::env::var(name).unwrap_or_default();
    let environment = DeviceSwitches::parse(&of("TERCET_WITHOUT"), &of("TERCET_FORCE"))?;
    let environment = environment.with_debug(of("TERCET_DEBUG").parse()?);
    Ok(switches.clone().over(&environment))
}

/// Splits a device name and its selector: `vulkan:1` is the second Vulkan device, `vulkan:radeon`
/// the one whose name contains `radeon`.
///
/// # Errors
/// [`DeviceError::Choice`] if the device takes no selector, or nothing follows the colon.
pub(crate) fn split_selector(given: &str) -> Result<(&str, Option<String>), DeviceError> {
    let Some((name, which)) = given.split_once(':') else {
        return Ok((given, None));
    };
    let entry = DEVICES.iter().find(|e| e.name == name);
    let remedy = match entry {
        None if name != "auto" => return Err(unknown(given)),
        Some(entry) if entry.takes_selector && !which.is_empty() => {
            return Ok((name, Some(which.to_string())));
        }
        Some(entry) if entry.takes_selector => {
            format!("use a number or a part of a name after the colon, or `{name}` for the best")
        }
        Some(_) | None => format!("use `{name}` without a selector"),
    };
    Err(DeviceError::Choice {
        given: given.to_string(),
        name: name.to_string(),
        remedy,
    })
}

fn unknown(name: &str) -> DeviceError {
    let mut known = vec!["auto"];
    known.extend(DEVICES.iter().filter(|e| e.open.is_some()).map(|e| e.name));
    DeviceError::Unknown {
        name: name.to_string(),
        known: known.join(", "),
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}
