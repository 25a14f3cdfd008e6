//! Models by name: the argument of `load` that is no path.

use std::path::PathBuf;

use pyo3::prelude::*;
use tercet_hub::{Hub, HubError, HubName, HubSettings, ModelFormat, PullEvent, PullOptions};

use crate::errors::{self, ModelError};

/// The path of a model whose name is given instead of a path. A full name is downloaded if the cache
/// lacks it; a short name must be there. Other paths stay, even if nothing is there.
pub(crate) fn path_of(py: Python<'_>, path: PathBuf, device: Option<&str>) -> PyResult<PathBuf> {
    let Some(text) = path.to_str().filter(|_| !path.exists()) else {
        return Ok(path);
    };
    let is_full = HubName::from_argument(text).is_some();
    let name = text.strip_prefix("hf:").unwrap_or(text);
    let found = py.detach(|| {
        let free = || {
            let device = crate::device::open(device.unwrap_or("auto")).ok()?;
            device.free_memory_bytes()
        };
        let options = PullOptions {
            free_bytes: Some(&free),
            ..PullOptions::default()
        };
        let hub = Hub::new(HubSettings::from_env()?);
        match is_full {
            true => hub.open(name, &options, &|_: PullEvent<'_>| {}).map(Some),
            false => hub.find(name),
        }
    });
    match found {
        Ok(Some(model)) if model.format == ModelFormat::Adapter => {
            let text = format!("{text} is an adapter; load its base model with `adapters`");
            Err(PyErr::new::<ModelError, _>(text))
        }
        Ok(Some(model)) => Ok(model.path),
        Ok(None) => Ok(path),
        // Without a folder of the cache, a text that is no full name is a path.
        Err(HubError::NoCache | HubError::BadSetting { .. }) if !is_full => Ok(path),
        Err(e) => Err(errors::raise::<ModelError>(&e)),
    }
}
