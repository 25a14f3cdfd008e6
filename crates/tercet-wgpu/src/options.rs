//! Device options, adapter descriptions and the errors of opening a device.

use std::fmt;
use std::path::PathBuf;

use tercet_ir::{DeviceSwitches, SwitchError};

/// The limits and features that a device is opened with.
///
/// ```
/// use tercet_wgpu::{LimitSet, WgpuOptions};
/// let as_in_browsers = WgpuOptions { limits: LimitSet::WebGpu, ..WgpuOptions::new() };
/// assert_ne!(as_in_browsers.limits, WgpuOptions::new().limits);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitSet {
    /// Everything that the adapter offers.
    #[default]
    Found,
    /// WebGPU's default limits and no features, which every browser offers.
    WebGpu,
    /// wgpu's downlevel limits: as [`LimitSet::WebGpu`], with 4 storage buffers per kernel.
    Downlevel,
}

/// Options for selecting and opening a wgpu device.
///
/// ```
/// use tercet_wgpu::{LimitSet, WgpuOptions};
/// let options = WgpuOptions { adapter: Some("radeon".to_string()), ..WgpuOptions::new() };
/// assert_eq!(options.limits, LimitSet::Found);
/// assert!(!options.checked && !options.validation);
/// ```
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// The adapter's index in [`WgpuBackend::adapters`](crate::WgpuBackend::adapters), or a
    /// case-insensitive part of its name. `None` selects the most capable adapter.
    pub adapter: Option<String>,
    /// The limits that the device is opened with.
    pub limits: LimitSet,
    /// Whether executables measure step times, if the device supports timestamps; see
    /// [`Executable::timings`](tercet_ir::Executable::timings).
    pub timings: bool,
    /// Whether shaders check every access, limit loop iterations and zero workgroup memory. For
    /// debugging: kernels already check their own bounds and programs are validated.
    pub checked: bool,
    /// Whether to enable the validation layer of the underlying API, if it is installed.
    pub validation: bool,
    /// The cache folder for shader modules and pipelines (Vulkan only). Without a cache folder,
    /// every process compiles shader modules and pipelines again. Processes may share the folder.
    pub cache_dir: Option<PathBuf>,
    /// Features that programs must not use, and kernel variants that are forced or forbidden.
    pub switches: DeviceSwitches,
}

impl WgpuOptions {
    /// The most capable adapter with all its limits and features.
    pub fn new() -> WgpuOptions {
        WgpuOptions::default()
    }
}

/// A description of a graphics adapter.
///
/// ```
/// use tercet_wgpu::AdapterSummary;
/// let adapter = AdapterSummary {
///     name: "llvmpipe".to_string(),
///     kind: "cpu",
///     api: "vulkan".to_string(),
///     driver: "Mesa 25".to_string(),
/// };
/// assert_eq!(adapter.to_string(), "llvmpipe (cpu), vulkan");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSummary {
    /// The name that the driver reports.
    pub name: String,
    /// The device type: `discrete gpu`, `integrated gpu`, `virtual gpu`, `cpu` or `other`.
    pub kind: &'static str,
    /// The graphics API: `vulkan`, `metal`, `dx12`, `gl` or `webgpu`.
    pub api: String,
    /// The driver name and version.
    pub driver: String,
}

impl AdapterSummary {
    pub(crate) fn new(info: &wgpu::AdapterInfo) -> AdapterSummary {
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => "discrete gpu",
            wgpu::DeviceType::IntegratedGpu => "integrated gpu",
            wgpu::DeviceType::VirtualGpu => "virtual gpu",
            wgpu::DeviceType::Cpu => "cpu",
            wgpu::DeviceType::Other => "other",
        };
        AdapterSummary {
            name: info.name.clone(),
            kind,
            api: info.backend.to_string(),
            driver: format!("{} {}", info.driver, info.driver_info),
        }
    }
}

impl AdapterSummary {
    /// A word for names of cache files, which is unique per adapter, graphics API and driver.
    pub fn file_stem(&self) -> String {
        let all = format!("{}-{}-{}", self.name, self.api, self.driver);
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        all.chars().map(plain).take(120).collect()
    }
}

impl fmt::Display for AdapterSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}), {}", self.name, self.kind, self.api)
    }
}

/// The error of opening a wgpu device.
///
/// ```
/// use tercet_wgpu::WgpuOpenError;
/// let error = WgpuOpenError::NoAdapter { wanted: Some("titan".to_string()), found: Vec::new() };
/// assert!(error.to_string().starts_with("no graphics adapter was found"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum WgpuOpenError {
    /// There is no adapter, or none matches the requested name.
    #[error("{}", no_adapter(.wanted.as_deref(), .found))]
    NoAdapter {
        /// The requested part of the name.
        wanted: Option<String>,
        /// The available adapters.
        found: Vec<AdapterSummary>,
    },
    /// A switch does not exist, or the device cannot run a forced variant.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The adapter rejected the device request.
    #[error("cannot open a device on {adapter}")]
    Refused {
        /// The adapter that rejected the request.
        adapter: AdapterSummary,
        /// The error that wgpu reported.
        #[source]
        source: wgpu::RequestDeviceError,
    },
}

fn no_adapter(wanted: Option<&str>, found: &[AdapterSummary]) -> String {
    let list: Vec<String> = found.iter().map(AdapterSummary::to_string).collect();
    match (wanted, list.is_empty()) {
        (_, true) => "no graphics adapter was found; install a driver for Vulkan, Metal or DX12, \
                      or use the CPU"
            .to_string(),
        (Some(name), false) => format!("no adapter `{name}`; available: {}", list.join("; ")),
        (None, false) => format!(
            "no adapter supports compute; available: {}",
            list.join("; ")
        ),
    }
}
