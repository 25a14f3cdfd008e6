//! Cross-executor tests: the executors of this build, opened once per process, and the suites that
//! run on them.
//!
//! `cargo test --test suites` and the self-contained program `tercet-parity` run the suites.

pub mod data;
pub mod harness;
pub mod package;
#[cfg(doctest)]
mod pages;
pub mod report;
pub mod steps;
pub mod suites;
mod test;

use std::sync::{Arc, OnceLock};

use tercet::{Backend, Device, DeviceSwitches};
use tercet_cpu::CpuBackend;
use tercet_plan::DeviceCaps;

pub use data::data;
pub use test::SuiteTest;

/// Comma-separated executors to run on; the default is every executor in the build.
pub const ONLY: &str = "TERCET_EXECUTORS";

/// An executor under test.
#[derive(Debug)]
pub struct TestExecutor {
    /// Its name in `TERCET_REQUIRE`.
    pub name: &'static str,
    open: fn() -> Result<Device, String>,
    opened: OnceLock<Result<Device, String>>,
    /// The messages that the device's validation has reported so far.
    pub complaints: fn() -> Vec<String>,
    /// The same device with switches added to its switches.
    ///
    /// # Errors
    /// The reason why the device could not be opened, or cannot run a forced variant.
    pub switched: fn(&DeviceSwitches) -> Result<Arc<dyn Backend>, String>,
    /// The capabilities that planning depends on; `None` for a CPU.
    pub caps: fn() -> Option<DeviceCaps>,
}

impl TestExecutor {
    fn new(
        name: &'static str,
        open: fn() -> Result<Device, String>,
        complaints: fn() -> Vec<String>,
    ) -> TestExecutor {
        TestExecutor {
            name,
            open,
            opened: OnceLock::new(),
            complaints,
            switched: |switches| {
                let opened = CpuBackend::new().switched(switches);
                Ok(Arc::new(opened.map_err(|e| e.to_string())?))
            },
            caps: || None,
        }
    }

    /// The executor of a GPU, with its switches and capabilities.
    #[cfg(any(feature = "vulkan", feature = "wgpu"))]
    fn gpu(
        self,
        switched: fn(&DeviceSwitches) -> Result<Arc<dyn Backend>, String>,
        caps: fn() -> Option<DeviceCaps>,
    ) -> TestExecutor {
        TestExecutor {
            switched,
            caps,
            ..self
        }
    }

    /// The device, shared by all tests of a process.
    ///
    /// # Errors
    /// The reason why the device could not be opened.
    pub fn device(&self) -> Result<&Device, String> {
        let opened = self.opened.get_or_init(self.open);
        opened.as_ref().map_err(String::clone)
    }

    /// Whether `TERCET_REQUIRE` (a comma-separated list) names the executor, so that its absence is
    /// a failure.
    pub fn is_required(&self) -> bool {
        let required = std::env::var("TERCET_REQUIRE").unwrap_or_default();
        required.split(',').any(|name| name.trim() == self.name)
    }
}

/// The executors of this build.
pub fn executors() -> &'static [TestExecutor] {
    static EXECUTORS: OnceLock<Vec<TestExecutor>> = OnceLock::new();
    EXECUTORS.get_or_init(|| {
        let mut all = vec![
            TestExecutor::new("cpu", || Ok(Device::cpu()), Vec::new),
            #[cfg(feature = "vulkan")]
            TestExecutor::new("vulkan", vulkan::device, vulkan::complaints)
                .gpu(vulkan::switched, vulkan::caps),
            #[cfg(feature = "wgpu")]
            TestExecutor::new("wgpu", wgpu::device, Vec::new).gpu(wgpu::switched, wgpu::caps),
        ];
        if let Ok(only) = std::env::var(ONLY) {
            let known = |name: &&str| all.iter().any(|e| e.name == *name);
            let unknown = only.split(',').find(|name| !known(name));
            assert_eq!(
                unknown, None,
                "{ONLY} names an executor that is not in this build"
            );
            all.retain(|e| only.split(',').any(|name| name == e.name));
        }
        all
    })
}

/// Runs a test on every available executor.
///
/// # Panics
/// Panics if a required executor is missing, or if its validation reported a message.
pub fn for_each_executor(test: impl Fn(&Device)) {
    for executor in executors() {
        match executor.device() {
            Ok(device) => test(device),
            Err(e) => assert!(!executor.is_required(), "{}: {e}", executor.name),
        }
        let complaints = (executor.complaints)();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }
}

/// Runs a test on the reference and on every available executor.
///
/// # Panics
/// Panics if the test fails, or in the cases of [`for_each_executor`].
pub fn everywhere(test: impl Fn(&Device) -> Result<(), Box<dyn std::error::Error>>) {
    let checked = |device: &Device| {
        if let Err(e) = test(device) {
            panic!("{}: {}", device.name(), tercet::one_line(&*e));
        }
    };
    checked(&Device::reference());
    for_each_executor(checked);
}

/// The validation messages of all opened executors.
pub fn complaints() -> Vec<String> {
    let opened = executors().iter().filter(|e| e.opened.get().is_some());
    let of = |e: &TestExecutor| {
        let found = (e.complaints)().into_iter();
        found
            .map(|text| format!("{}: {text}", e.name))
            .collect::<Vec<_>>()
    };
    opened.flat_map(of).collect()
}

/// The switches of both GPU executors, from `TERCET_WITHOUT` and `TERCET_FORCE`.
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
fn switches() -> Result<DeviceSwitches, String> {
    tercet::switches_in_effect(&DeviceSwitches::default()).map_err(|e| e.to_string())
}

/// The Vulkan device. `TERCET_VALIDATION=1` enables the Vulkan validation layers, and redzones
/// between buffer slots. `TERCET_VULKAN_DEVICE` selects one of several devices.
#[cfg(feature = "vulkan")]
pub mod vulkan {
    use std::sync::{Arc, OnceLock};

    use tercet::{Backend, Device, DeviceSwitches};
    use tercet_plan::DeviceCaps;
    use tercet_vulkan::{VulkanBackend, VulkanOptions};

    /// The Vulkan backend with its counters, messages and capabilities.
    ///
    /// # Errors
    /// The reason why the device could not be opened.
    pub fn backend() -> Result<Arc<VulkanBackend>, String> {
        static BACKEND: OnceLock<Result<Arc<VulkanBackend>, String>> = OnceLock::new();
        let open = || {
            let validation = std::env::var("TERCET_VALIDATION").is_ok_and(|v| v == "1");
            let options = VulkanOptions {
                device: std::env::var("TERCET_VULKAN_DEVICE").ok(),
                validation,
                sentinels: validation,
                switches: super::switches()?,
                ..VulkanOptions::default()
            };
            let opened = VulkanBackend::new(options);
            opened.map(Arc::new).map_err(|e| tercet::one_line(&e))
        };
        BACKEND.get_or_init(open).clone()
    }

    pub(super) fn device() -> Result<Device, String> {
        Ok(Device::from_backend(backend()?))
    }

    pub(super) fn complaints() -> Vec<String> {
        backend().map(|b| b.messages()).unwrap_or_default()
    }

    pub(super) fn switched(switches: &DeviceSwitches) -> Result<Arc<dyn Backend>, String> {
        let switched = backend()?.switched(switches);
        Ok(Arc::new(switched.map_err(|e| e.to_string())?))
    }

    pub(super) fn caps() -> Option<DeviceCaps> {
        backend().ok().map(|b| b.caps().clone())
    }
}

/// The wgpu device. `TERCET_WGPU_LIMITS` can be `webgpu` for the limits of browsers, or `downlevel`
/// for fewer bindings.
#[cfg(feature = "wgpu")]
mod wgpu {
    use std::sync::{Arc, OnceLock};

    use tercet::{Backend, Device, DeviceSwitches};
    use tercet_plan::DeviceCaps;
    use tercet_wgpu::{LimitSet, WgpuBackend, WgpuOptions};

    fn open() -> Result<WgpuBackend, String> {
        let limits = match std::env::var("TERCET_WGPU_LIMITS").as_deref() {
            Ok("webgpu") => LimitSet::WebGpu,
            Ok("downlevel") => LimitSet::Downlevel,
            Ok(other) => {
                return Err(format!(
                    "TERCET_WGPU_LIMITS is `{other}`; accepted: webgpu, downlevel"
                ));
            }
            Err(_) => LimitSet::Found,
        };
        let options = WgpuOptions {
            limits,
            switches: super::switches()?,
            ..WgpuOptions::new()
        };
        WgpuBackend::new(&options).map_err(|e| tercet::one_line(&e))
    }

    fn backend() -> Result<WgpuBackend, String> {
        static BACKEND: OnceLock<Result<WgpuBackend, String>> = OnceLock::new();
        BACKEND.get_or_init(open).clone()
    }

    pub(super) fn device() -> Result<Device, String> {
        Ok(Device::from_backend(backend()?))
    }

    pub(super) fn switched(switches: &DeviceSwitches) -> Result<Arc<dyn Backend>, String> {
        let switched = backend()?.switched(switches);
        Ok(Arc::new(switched.map_err(|e| e.to_string())?))
    }

    pub(super) fn caps() -> Option<DeviceCaps> {
        backend().ok().map(|b| b.caps().clone())
    }
}
