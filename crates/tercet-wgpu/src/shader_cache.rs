//! Disk cache of shader modules and pipelines, for the Vulkan backend of wgpu.
//!
//! WGSL kernels reach the device as SPIR-V that `tercet-spirv` generates, as in `tercet-vulkan`.
//! The cache folder stores that SPIR-V, whereas wgpu would compile the source in every process. The
//! driver's pipeline cache is stored next to the SPIR-V.

#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
mod none {
    use std::sync::Arc;

    /// The cache on platforms without Vulkan: it does nothing, and wgpu compiles all modules.
    #[derive(Debug, Default)]
    pub(crate) struct ShaderCache;

    impl ShaderCache {
        pub(crate) fn lowers(&self) -> bool {
            false
        }

        pub(crate) fn lower(&self, _: &str) -> Result<Vec<u32>, String> {
            Err("this device does not accept SPIR-V".to_string())
        }

        pub(crate) fn preserve_special_values(&self, words: Arc<[u32]>) -> Arc<[u32]> {
            words
        }

        pub(crate) fn driver_cache(&self) -> Option<&wgpu::PipelineCache> {
            None
        }

        pub(crate) fn save(&self, _: u64) {}
    }

    /// How a module uses subgroups.
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
    use std::sync::{Arc, Mutex};

    use tercet_spirv::{ENTRY, FloatControls, ModuleCache, PipelineFile, RuntimeChecks};

    use crate::device::lock;
    use crate::unchecked_shaders;
    use crate::vulkan_hal::HalProperties;

    /// The cached modules of a device, and the driver's pipeline cache.
    #[derive(Debug, Default)]
    pub(crate) struct ShaderCache {
        /// `None` if wgpu compiles the modules.
        modules: Option<ModuleCache>,
        driver: Option<(PipelineFile, wgpu::PipelineCache)>,
        float_controls: FloatControls,
        /// The number of compiled pipelines when the driver's cache file was last written.
        saved: Mutex<u64>,
    }

    impl ShaderCache {
        /// Opens the cache folder, for a device that accepts SPIR-V.
        pub(crate) fn new(
            device: &wgpu::Device,
            below: &HalProperties,
            cache_dir: Option<&Path>,
        ) -> ShaderCache {
            let features = device.features();
            let takes = features.contains(wgpu::Features::PASSTHROUGH_SHADERS);
            let caches = features.contains(wgpu::Features::PIPELINE_CACHE);
            let file = match (cache_dir, below.identity) {
                (Some(dir), Some(identity)) if caches => {
                    Some(PipelineFile::new(dir, "pipelines-wgpu", identity))
                }
                (_, _) => None,
            };
            let driver = file.map(|file| {
                let cache = unchecked_shaders::driver_cache(device, file.load().as_deref());
                (file, cache)
            });
            ShaderCache {
                modules: takes.then(|| ModuleCache::new(cache_dir)),
                driver,
                float_controls: below.float_controls,
                saved: Mutex::default(),
            }
        }

        /// Whether kernels reach the device as SPIR-V.
        pub(crate) fn lowers(&self) -> bool {
            self.modules.is_some()
        }

        /// Compiles a WGSL kernel with the entry point `main` to SPIR-V.
        pub(crate) fn lower(&self, text: &str) -> Result<Vec<u32>, String> {
            let modules = self
                .modules
                .as_ref()
                .ok_or("this device does not accept SPIR-V")?;
            (modules.lower(text, ENTRY, RuntimeChecks::None)).map_err(|e| e.to_string())
        }

        /// The module with signed zeros, infinities and NaN preserved if the device supports it.
        pub(crate) fn preserve_special_values(&self, words: Arc<[u32]>) -> Arc<[u32]> {
            self.float_controls.apply(words.to_vec()).into()
        }

        /// The driver's pipeline cache.
        pub(crate) fn driver_cache(&self) -> Option<&wgpu::PipelineCache> {
            self.driver.as_ref().map(|(_, cache)| cache)
        }

        /// Writes the driver's cache to disk if the number of pipelines changed. A failed write
        /// only costs start-up time later.
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
