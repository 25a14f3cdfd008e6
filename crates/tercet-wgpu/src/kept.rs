//! What is kept of kernels and pipelines from one process to the next, where Vulkan is below.
//!
//! Kernels in WGSL then go to the device as SPIR-V of our own, the one that `tercet-vulkan` makes: it lies in the
//! folder of caches, where wgpu would translate the text in each process. What the driver makes of it lies beside it.

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
mod none {
    /// Nothing: wgpu translates.
    #[derive(Debug, Default)]
    pub(crate) struct ShaderCache;

    impl ShaderCache {
        pub(crate) fn lowers(&self) -> bool {
            false
        }

        pub(crate) fn lower(&self, _: &str) -> Result<Vec<u32>, String> {
            Err("this device takes no SPIR-V".to_string())
        }

        pub(crate) fn driver_cache(&self) -> Option<&wgpu::PipelineCache> {
            None
        }

        pub(crate) fn save(&self, _: u64) {}
    }

    /// What a module asks of subgroups.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct SubgroupUsage {
        pub(crate) subgroups: bool,
        pub(crate) coop: bool,
    }

    pub(crate) fn uses(_: &[u32]) -> SubgroupUsage {
        SubgroupUsage::default()
    }
}

#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
mod vulkan {
    use std::path::Path;
    use std::sync::Mutex;

    use tercet_spirv::{DriverIdentity, ENTRY, ModuleCache, PipelineFile, RuntimeChecks};

    use crate::device::lock;
    use crate::trusted;

    /// The modules of a device, and its driver's cache.
    #[derive(Debug, Default)]
    pub(crate) struct ShaderCache {
        /// `None` where wgpu translates.
        modules: Option<ModuleCache>,
        driver: Option<(PipelineFile, wgpu::PipelineCache)>,
        /// The pipelines that there were when the file was last written.
        saved: Mutex<u64>,
    }

    impl ShaderCache {
        /// What the folder holds for a device that takes SPIR-V.
        pub(crate) fn new(
            device: &wgpu::Device,
            identity: Option<DriverIdentity>,
            cache_dir: Option<&Path>,
        ) -> ShaderCache {
            let features = device.features();
            let takes = features.contains(wgpu::Features::PASSTHROUGH_SHADERS);
            let caches = features.contains(wgpu::Features::PIPELINE_CACHE);
            let file = match (cache_dir, identity) {
                (Some(dir), Some(identity)) if caches => {
                    Some(PipelineFile::new(dir, "pipelines-wgpu", identity))
                }
                (_, _) => None,
            };
            let driver = file.map(|file| {
                let cache = trusted::driver_cache(device, file.load().as_deref());
                (file, cache)
            });
            ShaderCache {
                modules: takes.then(|| ModuleCache::new(cache_dir)),
                driver,
                saved: Mutex::default(),
            }
        }

        /// Whether kernels go to the device as SPIR-V.
        pub(crate) fn lowers(&self) -> bool {
            self.modules.is_some()
        }

        /// The SPIR-V of a kernel, whose entry point is `main`.
        pub(crate) fn lower(&self, text: &str) -> Result<Vec<u32>, String> {
            let modules = self.modules.as_ref().ok_or("this device takes no SPIR-V")?;
            (modules.lower(text, ENTRY, RuntimeChecks::None)).map_err(|e| e.to_string())
        }

        /// The driver's cache.
        pub(crate) fn driver_cache(&self) -> Option<&wgpu::PipelineCache> {
            self.driver.as_ref().map(|(_, cache)| cache)
        }

        /// Writes the driver's cache if it is not that of so many pipelines. Failure costs start-up time only.
        pub(crate) fn save(&self, pipelines: u64) {
            let Some((file, cache)) = &self.driver else {
                return;
            };
            let mut saved = lock(&self.saved);
            if *saved != pipelines
                && let Some(blob) = cache.get_data()
            {
                file.store(&blob);
            }
            *saved = pipelines;
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
pub(crate) use none::{ShaderCache, SubgroupUsage, uses};
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) use tercet_spirv::{SubgroupUsage, uses};
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) use vulkan::ShaderCache;
