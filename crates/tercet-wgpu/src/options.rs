//! Which device is opened, and why none could be.

use std::fmt;
use std::path::PathBuf;

/// The limits and features that a device is opened with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitSet {
    /// What the adapter offers.
    #[default]
    Found,
    /// WebGPU's default limits and no features: what every browser offers.
    WebGpu,
    /// What wgpu calls downlevel: as [`LimitSet::WebGpu`], with 4 storage buffers per kernel.
    Downlevel,
}

/// How a device is chosen and opened.
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// The adapter's number in [`WgpuBackend::adapters`](crate::WgpuBackend::adapters) or a part of its
    /// name, in any case; the most capable adapter without.
    pub adapter: Option<String>,
    /// Its limits.
    pub limits: LimitSet,
    /// Whether executables measure their steps, where the device takes times; see
    /// [`Executable::timings`](tercet_ir::Executable::timings).
    pub timings: bool,
    /// Whether shaders check every access, count the turns of loops and zero workgroup memory. Kernels
    /// guard their accesses themselves and programs are checked, so that this is for finding bugs.
    pub checked: bool,
    /// Whether the API's own validation is asked for, where it is installed.
    pub validation: bool,
    /// The folder of what is kept of kernels and pipelines, where Vulkan is below; without one every process makes
    /// them anew. Several processes may share it.
    pub cache_dir: Option<PathBuf>,
}

impl WgpuOptions {
    /// The most capable adapter with all it offers.
    pub fn new() -> WgpuOptions {
        WgpuOptions::default()
    }
}

/// An adapter of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSummary {
    /// Its name, as the driver gives it.
    pub name: String,
    /// `discrete gpu`, `integrated gpu`, `virtual gpu`, `cpu` or `other`.
    pub kind: &'static str,
    /// The API: `vulkan`, `metal`, `dx12`, `gl`, `webgpu`.
    pub api: String,
    /// The driver and its version.
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

impl fmt::Display for AdapterSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}), {}", self.name, self.kind, self.api)
    }
}

/// No device could be opened.
#[derive(Debug, thiserror::Error)]
pub enum WgpuOpenError {
    /// There is no adapter, or none of this name.
    #[error("{}", no_adapter(.wanted.as_deref(), .found))]
    NoAdapter {
        /// The part of a name asked for.
        wanted: Option<String>,
        /// The adapters there are.
        found: Vec<AdapterSummary>,
    },
    /// The adapter refuses a device.
    #[error("{adapter} gives no device")]
    Refused {
        /// The adapter.
        adapter: AdapterSummary,
        /// What wgpu said.
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
        (Some(name), false) => format!("no adapter `{name}`; there are: {}", list.join("; ")),
        (None, false) => format!("no adapter runs compute; there are: {}", list.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_adapter_is_named_with_those_there_are() {
        let e = WgpuOpenError::NoAdapter {
            wanted: Some("titan".to_string()),
            found: vec![AdapterSummary {
                name: "llvmpipe".to_string(),
                kind: "cpu",
                api: "vulkan".to_string(),
                driver: String::new(),
            }],
        };
        let text = "no adapter `titan`; there are: llvmpipe (cpu), vulkan";
        assert_eq!(e.to_string(), text);
    }
}
