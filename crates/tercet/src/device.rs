//! Devices: what compiles a graph, by constructor or by name.

use std::fmt;
use std::sync::Arc;

use tercet_ir::{Backend, CompileError, CompileOptions, Executable, Graph};

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
}

/// A device in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name that [`Device::by_name`] takes.
    pub name: &'static str,
    /// What it is.
    pub description: String,
}

/// A device that compiles graphs. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

/// One row of the table of devices: the name, the feature it needs, what it is, how it is made.
struct Entry {
    name: &'static str,
    feature: &'static str,
    description: fn() -> String,
    make: Make,
}

/// How a device is made; `None` without its feature.
type Make = Option<fn() -> Device>;

#[cfg(feature = "cpu")]
const CPU: [Make; 2] = [Some(Device::cpu), Some(Device::reference)];
#[cfg(not(feature = "cpu"))]
const CPU: [Make; 2] = [None, None];

const DEVICES: &[Entry] = &[
    Entry {
        name: "cpu",
        feature: "cpu",
        description: || {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            format!("{} CPU, {threads} threads", std::env::consts::ARCH)
        },
        make: CPU[0],
    },
    Entry {
        name: "reference",
        feature: "cpu",
        description: || "the meaning of every operator, evaluated plainly in f64: slow".to_string(),
        make: CPU[1],
    },
];

/// The devices of this machine that this build can use, best first.
///
/// ```
/// assert!(tercet::devices().iter().any(|d| d.name == "cpu"));
/// ```
pub fn devices() -> Vec<DeviceInfo> {
    let usable = DEVICES.iter().filter(|e| e.make.is_some());
    usable
        .map(|e| DeviceInfo {
            name: e.name,
            description: (e.description)(),
        })
        .collect()
}

impl Device {
    /// The fast CPU executor on all cores.
    #[cfg(feature = "cpu")]
    pub fn cpu() -> Device {
        Device::from_backend(tercet_cpu::CpuBackend::new())
    }

    /// The reference interpreter: each operator's own `eval`, in f64, without any pass.
    #[cfg(feature = "cpu")]
    pub fn reference() -> Device {
        Device::from_backend(tercet_cpu::ReferenceBackend::new())
    }

    /// The first device of the listing.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] in a build without executors.
    pub fn auto() -> Result<Device, DeviceError> {
        let first = DEVICES.iter().find_map(|e| e.make);
        first.map(|make| make()).ok_or_else(|| unknown("auto"))
    }

    /// The device of this name: `auto`, or one of [`devices`].
    ///
    /// # Errors
    /// [`DeviceError`] that lists the names, or names the feature that is missing.
    ///
    /// ```
    /// let e = tercet::Device::by_name("abacus").unwrap_err();
    /// assert!(e.to_string().contains("this build has: auto, cpu"));
    /// ```
    pub fn by_name(name: &str) -> Result<Device, DeviceError> {
        if name == "auto" {
            return Device::auto();
        }
        let entry = DEVICES
            .iter()
            .find(|e| e.name == name)
            .ok_or_else(|| unknown(name))?;
        let Entry { name, feature, .. } = *entry;
        entry
            .make
            .map(|make| make())
            .ok_or(DeviceError::Feature { name, feature })
    }

    /// A device of a backend made by other means.
    pub fn from_backend(backend: impl Backend + 'static) -> Device {
        Device {
            backend: Arc::new(backend),
        }
    }

    /// The executor's name.
    pub fn name(&self) -> &'static str {
        self.backend.name()
    }

    /// Compiles a graph for this device.
    ///
    /// # Errors
    /// [`CompileError`] that lists every node the device cannot run, or names the symbol without a
    /// bound.
    pub fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        self.backend.compile(graph, options)
    }
}

fn unknown(name: &str) -> DeviceError {
    let mut known = vec!["auto"];
    known.extend(DEVICES.iter().filter(|e| e.make.is_some()).map(|e| e.name));
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
