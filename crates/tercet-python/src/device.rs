//! Devices by name. A process opens each device once.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;
use tercet::Device;

use crate::errors;

/// Opens a device by name, or returns the one that is already open.
///
/// # Errors
/// `DeviceError`, with the known names or the missing hardware.
pub(crate) fn open(name: &str) -> PyResult<Device> {
    static OPEN: OnceLock<Mutex<HashMap<String, Device>>> = OnceLock::new();
    let open = OPEN.get_or_init(Mutex::default);
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = open.get(name) {
        return Ok(device.clone());
    }
    let device = Device::by_name(name).map_err(errors::device)?;
    open.insert(name.to_string(), device.clone());
    Ok(device)
}

/// Lists the devices of this machine, best first, as tuples (name, description, usable).
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> Vec<(String, String, bool)> {
    let found = py.detach(tercet::devices);
    found
        .into_iter()
        .map(|d| (d.name, d.description, d.usable))
        .collect()
}
