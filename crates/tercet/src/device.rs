//! Devices: what compiles a graph, by constructor or by name.

mod gpu;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tercet_ir::backend::Explanation;
use tercet_ir::{
    Backend, CompileError, CompileOptions, DType, Executable, Graph, Scheme, compiler_trial,
};

/// Why there is no such device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The name is not a device's.
    #[error("no device named `{name}`; this build has: {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The names of this build.
        known: String,
    },
    /// The device is of a feature that this build does not have.
    #[error("device `{name}` needs feature `{feature}`, which this build of tercet does not have")]
    Feature {
        /// The device.
        name: &'static str,
        /// The cargo feature to enable.
        feature: &'static str,
    },
    /// One of several was asked for where there is only one.
    #[error("`{given}`: nothing can be chosen after `{name}:`; {remedy}")]
    Choice {
        /// The name given.
        given: String,
        /// The device.
        name: String,
        /// What to give instead.
        remedy: String,
    },
    /// This machine has no such device.
    #[error("this machine has no `{name}` device: {reason}")]
    Absent {
        /// The device.
        name: &'static str,
        /// What is missing and what to do.
        reason: String,
    },
}

/// A device in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name that [`Device::by_name`] takes.
    pub name: String,
    /// What it is, or why it cannot be used.
    pub description: String,
    /// Whether it can be used.
    pub usable: bool,
    /// Whether it is a GPU that the processor plays: right, and slow.
    pub emulated: bool,
}

/// How GPU devices are opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Which of several: its number in the listing or a part of its name. The fastest by default.
    pub which: Option<String>,
    /// The folder of what is kept of kernels and pipelines from one process to the next; nothing is kept by default.
    pub cache_dir: Option<PathBuf>,
    /// Measure each dispatch; see [`Executable::timings`](tercet_ir::Executable::timings).
    pub timings: bool,
}

/// A device that compiles graphs. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

/// One row of the table of devices.
struct Entry {
    name: &'static str,
    feature: &'static str,
    /// How it is opened; `None` without its feature.
    open: Option<Open>,
    /// Whether a machine may have several, of which `NAME:WHICH` opens one.
    several: bool,
    /// The devices of its kind on this machine.
    list: fn() -> Vec<DeviceInfo>,
}

#[cfg(feature = "vulkan")]
pub(crate) use gpu::open_vulkan;
#[cfg(feature = "wgpu")]
pub(crate) use gpu::open_wgpu;

type Open = fn(&DeviceOptions) -> Result<Device, DeviceError>;

/// The devices in the order in which `auto` tries them.
const DEVICES: &[Entry] = &[
    Entry {
        name: "vulkan",
        feature: "vulkan",
        open: gpu::VULKAN,
        several: true,
        list: gpu::list_vulkan,
    },
    Entry {
        name: "wgpu",
        feature: "wgpu",
        open: gpu::WGPU,
        several: true,
        list: gpu::list_wgpu,
    },
    Entry {
        name: "cpu",
        feature: "cpu",
        open: host::CPU,
        several: false,
        list: host::list_cpu,
    },
    Entry {
        name: "reference",
        feature: "cpu",
        open: host::REFERENCE,
        several: false,
        list: host::list_reference,
    },
];

mod host {
    use super::{DeviceInfo, Open};

    #[cfg(feature = "cpu")]
    pub(super) const CPU: Option<Open> = Some(|_| Ok(super::Device::cpu()));
    #[cfg(feature = "cpu")]
    pub(super) const REFERENCE: Option<Open> = Some(|_| Ok(super::Device::reference()));
    #[cfg(not(feature = "cpu"))]
    pub(super) const CPU: Option<Open> = None;
    #[cfg(not(feature = "cpu"))]
    pub(super) const REFERENCE: Option<Open> = None;

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
            description: "the meaning of every operator, evaluated plainly in f64: slow".into(),
            usable: true,
            emulated: false,
        }]
    }
}

/// The devices of this machine that this build knows, best first; those that cannot be used say
/// why.
///
/// ```
/// assert!(tercet::devices().iter().any(|d| d.name == "cpu"));
/// ```
pub fn devices() -> Vec<DeviceInfo> {
    let usable = DEVICES.iter().filter(|e| e.open.is_some());
    usable.flat_map(|e| (e.list)()).collect()
}

impl Device {
    /// The fast CPU executor on all cores.
    #[cfg(feature = "cpu")]
    pub fn cpu() -> Device {
        Device::from_backend(tercet_cpu::CpuBackend::new())
    }

    /// The GPU that `wgpu` finds, opened without blocking: the way to a browser's WebGPU. What it compiles is run by
    /// [`run_async`](tercet_ir::Executable#impl-dyn+Executable) there.
    ///
    /// # Errors
    /// [`DeviceError::Absent`] that says what is missing.
    #[cfg(feature = "wgpu")]
    pub async fn request_wgpu(options: &DeviceOptions) -> Result<Device, DeviceError> {
        let backend = gpu::request_wgpu(options).await?;
        Ok(Device::from_backend(backend))
    }

    /// The reference interpreter: each operator's own `eval`, in f64, without any pass.
    #[cfg(feature = "cpu")]
    pub fn reference() -> Device {
        Device::from_backend(tercet_cpu::ReferenceBackend::new())
    }

    /// The best device of this machine: a real GPU through Vulkan, else through wgpu, else the CPU.
    /// A GPU that is emulated on the processor is not chosen.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] in a build without executors.
    pub fn auto() -> Result<Device, DeviceError> {
        Device::auto_with(&DeviceOptions::default())
    }

    fn auto_with(options: &DeviceOptions) -> Result<Device, DeviceError> {
        let real = |e: &&Entry| {
            let host = e.feature == "cpu";
            host || (e.list)().iter().any(|d| d.usable && !d.emulated)
        };
        let usable = DEVICES.iter().filter(|e| e.open.is_some()).filter(real);
        let mut opened = usable.filter_map(|e| e.open?(options).ok());
        opened.next().ok_or_else(|| unknown("auto"))
    }

    /// The device of this name: `auto`, or one of [`devices`].
    ///
    /// # Errors
    /// [`DeviceError`] that lists the names, or names the feature or what this machine lacks.
    ///
    /// ```
    /// let e = tercet::Device::by_name("abacus").unwrap_err();
    /// assert!(e.to_string().contains("this build has: auto, "));
    /// ```
    pub fn by_name(name: &str) -> Result<Device, DeviceError> {
        Device::open(name, &DeviceOptions::default())
    }

    /// The device of this name with these options.
    ///
    /// # Errors
    /// As [`Device::by_name`].
    pub fn open(name: &str, options: &DeviceOptions) -> Result<Device, DeviceError> {
        let (name, which) = chosen(name)?;
        let options = DeviceOptions {
            which: which.or_else(|| options.which.clone()),
            ..options.clone()
        };
        if name == "auto" {
            return Device::auto_with(&options);
        }
        let entry = DEVICES.iter().find(|e| e.name == name);
        let Entry {
            name,
            feature,
            open,
            ..
        } = *entry.ok_or_else(|| unknown(name))?;
        open.ok_or(DeviceError::Feature { name, feature })
            .and_then(|open| open(&options))
    }

    /// A device of a backend made by other means.
    pub fn from_backend(backend: impl Backend + 'static) -> Device {
        Device {
            backend: Arc::new(backend),
        }
    }

    /// The backend, which the caller may keep.
    pub(crate) fn shared(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    /// The executor's name.
    pub fn name(&self) -> &'static str {
        self.backend.name()
    }

    /// The types of 16 bits that the device multiplies faster than F32: what [`CompileOptions::products`] may name to
    /// gain something. None on processors.
    pub fn products(&self) -> Vec<DType> {
        self.backend.products()
    }

    /// The same for products with packed weights only. F16 on processors that gain by integers of 16 bits.
    pub fn packed_products(&self) -> Vec<DType> {
        self.backend.packed_products()
    }

    /// Rows up to which a product with weights that are packed in this scheme gains by more of them in one run. None where each row takes its time, as on processors.
    pub fn packed_rows(&self, scheme: Scheme) -> Option<usize> {
        self.backend.packed_rows(scheme)
    }

    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Compiles a graph for this device.
    ///
    /// # Errors
    /// [`CompileError`] that lists every node the device cannot run, or names the symbol without a
    /// bound; one where the compiler that built this program fails [`compiler_trial`].
    pub fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        compiler_trial()?;
        self.backend.compile(graph, options)
    }

    /// What [`Device::compile`] would run where: kernels, dispatches, barriers, memory. Nothing is
    /// allocated on the device.
    ///
    /// # Errors
    /// As [`Device::compile`]: what the device cannot run is listed all at once, with remedies.
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

/// A device's name, and which of several it asks for: `vulkan:1` the second, `vulkan:radeon` the one of that name.
///
/// # Errors
/// [`DeviceError::Choice`] where there is only one, or nothing follows the colon.
pub(crate) fn chosen(given: &str) -> Result<(&str, Option<String>), DeviceError> {
    let Some((name, which)) = given.split_once(':') else {
        return Ok((given, None));
    };
    let entry = DEVICES.iter().find(|e| e.name == name);
    let remedy = match entry {
        None if name != "auto" => return Err(unknown(given)),
        Some(entry) if entry.several && !which.is_empty() => {
            return Ok((name, Some(which.to_string())));
        }
        Some(entry) if entry.several => {
            format!("give a number or a part of a name after the colon, or `{name}` for the best")
        }
        Some(_) | None => format!("give `{name}`"),
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
