//! Suites with the limits of a portability driver: the Vulkan layer of the tests reports MoltenVK's
//! extensions, features and limits, and fails what they do not permit.
//!
//! `cargo xtask test` runs a part of the Vulkan suites with it, and `cargo xtask parity --portability`
//! all of them.

use std::ffi::OsString;
use std::path::Path;

use tercet_vulkan_layer::{InstalledLayer, VIOLATION};

use crate::error::{self, XtaskError};
use crate::process;

/// The switch of the layer.
const PORTABILITY: &str = "portability";

/// The installed layer.
pub(crate) struct PortabilityLayer(InstalledLayer);

impl PortabilityLayer {
    /// Installs the layer into the target folder. `libraries` is the folder with its library.
    pub(crate) fn new(libraries: &Path) -> Result<PortabilityLayer, XtaskError> {
        let folder = process::target_dir().join("vulkan-layer");
        std::fs::create_dir_all(&folder).map_err(error::file("create", &folder))?;
        let layer = InstalledLayer::with_library(&folder, libraries);
        let layer = PortabilityLayer(layer.map_err(error::file("use the layer in", libraries))?);
        // An interrupted run leaves its log.
        layer.violations()?;
        Ok(layer)
    }

    /// The environment variables of a program that runs with the layer.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        self.0.variables(PORTABILITY)
    }

    /// The uses since the last call that MoltenVK does not permit.
    fn violations(&self) -> Result<Vec<String>, XtaskError> {
        let log = self.0.take_log();
        let mut lines = log.map_err(error::file("read the log in", &process::target_dir()))?;
        lines.retain(|line| line.starts_with(VIOLATION));
        lines.sort();
        lines.dedup();
        Ok(lines)
    }

    /// Fails if a program did what MoltenVK does not permit.
    pub(crate) fn check(&self) -> Result<(), XtaskError> {
        let problems = self.violations()?;
        match problems.is_empty() {
            true => Ok(()),
            false => Err(XtaskError::Artifacts { problems }),
        }
    }
}
