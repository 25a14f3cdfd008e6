//! The objects around a session of ONNX Runtime: descriptions of inputs and outputs, metadata,
//! providers.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use tercet_models::onnx::{OnnxModelInfo, OnnxPort};

use crate::errors::DeviceError;
use crate::html;

/// End of ONNX Runtime's names of providers.
const PROVIDER: &str = "ExecutionProvider";

/// ONNX Runtime's providers of GPUs that Vulkan has too.
const GPUS: [&str; 8] = [
    "CUDA",
    "Tensorrt",
    "NvTensorRTRTX",
    "ROCM",
    "MIGraphX",
    "Dml",
    "OpenVINO",
    "Vulkan",
];

/// The device of the first provider that this machine has. A provider is a name, or a name with
/// options.
///
/// # Errors
/// `DeviceError` if there is none, `TypeError` for another object.
pub(crate) fn device_of(providers: &Bound<'_, PyAny>) -> PyResult<String> {
    let all: Vec<Bound<'_, PyAny>> = match providers.is_instance_of::<PyString>() {
        true => vec![providers.clone()],
        false => providers.try_iter()?.collect::<PyResult<_>>()?,
    };
    let mut names = Vec::new();
    for provider in all {
        let name: String = match provider.is_instance_of::<PyString>() {
            true => provider.extract()?,
            false => provider.get_item(0)?.extract()?,
        };
        let Some(device) = name.strip_suffix(PROVIDER) else {
            return Ok(name);
        };
        let found = match device {
            "CPU" => Some("cpu".to_string()),
            "WebGpu" => gpu(providers.py(), "wgpu"),
            _ if GPUS.contains(&device) => gpu(providers.py(), "vulkan"),
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        names.push(name);
    }
    match names.is_empty() {
        true => Ok("auto".to_string()),
        false => Err(DeviceError::new_err(format!(
            "this machine has none of the providers {}; add `CPU{PROVIDER}`, or pass device=",
            names.join(", ")
        ))),
    }
}

/// The first usable GPU of an executor.
fn gpu(py: Python<'_>, executor: &str) -> Option<String> {
    let found = py.detach(tercet::devices).into_iter();
    let mut usable = found.filter(|device| device.usable && !device.emulated);
    usable
        .find(|device| device.name.starts_with(executor))
        .map(|device| device.name)
}

/// ONNX Runtime's name of a device, as far as it has one.
pub(crate) fn provider_of(device: &str) -> String {
    let name = match device {
        "cpu" | "reference" => "CPU",
        "wgpu" => "WebGpu",
        "vulkan" => "Vulkan",
        other => other,
    };
    format!("{name}{PROVIDER}")
}

/// An input or output of an ONNX model.
#[pyclass(name = "NodeArg", module = "tercet", frozen)]
pub(crate) struct PyNodeArg {
    port: OnnxPort,
}

impl PyNodeArg {
    pub(crate) fn new(port: &OnnxPort) -> PyNodeArg {
        PyNodeArg { port: port.clone() }
    }

    fn type_name(&self) -> String {
        match self.port.dtype.as_str() {
            "sequence" => "seq(tensor)".to_string(),
            "optional" => "optional(tensor)".to_string(),
            other => format!("tensor({other})"),
        }
    }
}

#[pymethods]
impl PyNodeArg {
    #[getter]
    fn name(&self) -> &str {
        &self.port.name
    }

    /// The type, such as "tensor(float)".
    #[getter(r#type)]
    fn ty(&self) -> String {
        self.type_name()
    }

    /// Sizes: numbers, names of symbols, or `None` if unknown. Empty if the rank is unknown.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for size in self.port.shape.iter().flatten() {
            match (size.parse::<u64>(), size.as_str()) {
                (Ok(size), _) => list.append(size)?,
                (Err(_), "?") => list.append(py.None())?,
                (Err(_), symbol) => list.append(symbol)?,
            }
        }
        Ok(list)
    }

    fn __repr__(&self) -> String {
        let shape = self.port.shape.as_ref().map(|shape| shape.join(", "));
        format!(
            "<tercet.NodeArg {}: {} [{}]>",
            self.port.name,
            self.type_name(),
            shape.as_deref().unwrap_or("...")
        )
    }

    fn _repr_html_(&self) -> String {
        let shape = self.port.shape.as_ref().map(|shape| shape.join(", "));
        let rows = [
            ("name", self.port.name.clone()),
            ("type", self.type_name()),
            ("shape", shape.unwrap_or_else(|| "unknown".to_string())),
        ];
        html::record("tercet.NodeArg", &rows)
    }
}

/// The metadata of an ONNX model.
#[pyclass(name = "ModelMetadata", module = "tercet", frozen)]
pub(crate) struct PyModelMeta {
    about: OnnxModelInfo,
}

impl PyModelMeta {
    pub(crate) fn new(about: &OnnxModelInfo) -> PyModelMeta {
        PyModelMeta {
            about: about.clone(),
        }
    }
}

#[pymethods]
impl PyModelMeta {
    /// Name of the tool that wrote the file.
    #[getter]
    fn producer_name(&self) -> &str {
        &self.about.producer
    }

    /// Metadata of the file.
    #[getter]
    fn custom_metadata_map(&self) -> HashMap<String, String> {
        self.about.metadata.iter().cloned().collect()
    }

    fn __repr__(&self) -> String {
        format!("<tercet.ModelMetadata of {}>", self.about.producer)
    }

    fn _repr_html_(&self) -> String {
        let producer = ("producer_name", self.about.producer.clone());
        let rows = self.about.metadata.iter();
        let rows = rows.map(|(name, value)| (name.as_str(), value.clone()));
        let rows: Vec<(&str, String)> = std::iter::once(producer).chain(rows).collect();
        html::record("tercet.ModelMetadata", &rows)
    }
}
