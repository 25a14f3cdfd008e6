//! Opens and lists GPUs, for the GPU runtimes of this build.

#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use tercet_ir::one_line;

use super::{DeviceInfo, OpenDeviceFn};

/// Device name at a position of the listing; the first device has no number.
#[cfg(any(feature = "vulkan", all(feature = "wgpu", not(target_arch = "wasm32"))))]
fn numbered(name: &str, at: usize) -> String {
    match at {
        0 => name.to_string(),
        at => format!("{name}:{at}"),
    }
}

#[cfg(feature = "vulkan")]
pub(super) const VULKAN: Option<OpenDeviceFn> =
    Some(|options| Ok(super::Device::from_backend(open_vulkan(options)?)));

#[cfg(feature = "vulkan")]
pub(crate) fn open_vulkan(
    options: &super::DeviceOptions,
) -> Result<tercet_vulkan::VulkanBackend, super::DeviceError> {
    let options = tercet_vulkan::VulkanOptions {
        device: options.which.clone(),
        cache_dir: options.cache_dir.clone(),
        timestamps: options.timings,
        switches: options.switches.clone(),
        ..tercet_vulkan::VulkanOptions::default()
    };
    let opened = tercet_vulkan::VulkanBackend::new(options);
    opened.map_err(|e| match e {
        tercet_vulkan::VulkanOpenError::Switch(e) => e.into(),
        e => super::DeviceError::NoSuchDevice {
            name: "vulkan",
            reason: one_line(&e),
        },
    })
}

#[cfg(feature = "vulkan")]
pub(super) fn list_vulkan() -> Vec<DeviceInfo> {
    let devices = match tercet_vulkan::VulkanBackend::devices() {
        Ok(devices) => devices,
        Err(e) => return vec![unusable("vulkan", one_line(&e))],
    };
    let infos = devices.into_iter().map(|d| DeviceInfo {
        name: numbered("vulkan", d.index),
        emulated: d.kind == tercet_vulkan::VulkanDeviceKind::Cpu,
        usable: true,
        description: format!("{} ({}, {})", d.name, d.kind, d.driver),
    });
    infos.collect()
}

/// Opening a device synchronously is an error in a browser.
#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
pub(crate) fn open_wgpu(
    _: &super::DeviceOptions,
) -> Result<tercet_wgpu::WgpuBackend, super::DeviceError> {
    Err(super::DeviceError::NoSuchDevice {
        name: "wgpu",
        reason: "a browser opens devices asynchronously; await `Device::request_wgpu`".to_string(),
    })
}

#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
pub(super) fn list_wgpu() -> Vec<DeviceInfo> {
    let reason = "a browser lists devices asynchronously; await `Device::request_wgpu`";
    vec![unusable("wgpu", reason.to_string())]
}

#[cfg(feature = "wgpu")]
pub(super) const WGPU: Option<OpenDeviceFn> = Some(|options| {
    let mut backend = open_wgpu(options)?;
    let tuning = match options.cache_dir.as_deref() {
        Some(dir) => crate::tune::load(dir, &backend)?,
        None => None,
    };
    if let Some(tuning) = tuning {
        // The file belongs to the adapter, so its switches are known only after opening.
        if !tuning.switches().is_empty() {
            backend = open_wgpu(&super::DeviceOptions {
                switches: options.switches.clone().over(tuning.switches()),
                ..options.clone()
            })?;
        }
        backend = backend.tuned(tuning);
    }
    Ok(super::Device::from_backend(backend))
});

#[cfg(feature = "wgpu")]
fn wgpu_options(options: &super::DeviceOptions) -> tercet_wgpu::WgpuOptions {
    tercet_wgpu::WgpuOptions {
        adapter: options.which.clone(),
        timings: options.timings,
        cache_dir: options.cache_dir.clone(),
        switches: options.switches.clone(),
        ..tercet_wgpu::WgpuOptions::default()
    }
}

#[cfg(feature = "wgpu")]
fn absent(e: tercet_wgpu::WgpuOpenError) -> super::DeviceError {
    match e {
        tercet_wgpu::WgpuOpenError::Switch(e) => e.into(),
        e => super::DeviceError::NoSuchDevice {
            name: "wgpu",
            reason: one_line(&e),
        },
    }
}

#[cfg(feature = "wgpu")]
pub(super) async fn request_wgpu(
    options: &super::DeviceOptions,
) -> Result<tercet_wgpu::WgpuBackend, super::DeviceError> {
    let requested = tercet_wgpu::WgpuBackend::request(&wgpu_options(options)).await;
    requested.map_err(absent)
}

#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
pub(crate) fn open_wgpu(
    options: &super::DeviceOptions,
) -> Result<tercet_wgpu::WgpuBackend, super::DeviceError> {
    tercet_wgpu::WgpuBackend::new(&wgpu_options(options)).map_err(absent)
}

#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
pub(super) fn list_wgpu() -> Vec<DeviceInfo> {
    let adapters = tercet_wgpu::WgpuBackend::adapters();
    if adapters.is_empty() {
        return vec![unusable(
            "wgpu",
            "no graphics adapter was found".to_string(),
        )];
    }
    let infos = adapters.iter().enumerate().map(|(at, a)| DeviceInfo {
        name: numbered("wgpu", at),
        emulated: a.kind == "cpu",
        usable: true,
        description: a.to_string(),
    });
    infos.collect()
}

#[cfg(any(feature = "vulkan", feature = "wgpu"))]
fn unusable(name: &str, reason: String) -> DeviceInfo {
    DeviceInfo {
        name: name.to_string(),
        description: format!("cannot be used: {reason}"),
        usable: false,
        emulated: false,
    }
}

#[cfg(not(feature = "vulkan"))]
pub(super) const VULKAN: Option<OpenDeviceFn> = None;
#[cfg(not(feature = "vulkan"))]
pub(super) fn list_vulkan() -> Vec<DeviceInfo> {
    Vec::new()
}
#[cfg(not(feature = "wgpu"))]
pub(super) const WGPU: Option<OpenDeviceFn> = None;
#[cfg(not(feature = "wgpu"))]
pub(super) fn list_wgpu() -> Vec<DeviceInfo> {
    Vec::new()
}
