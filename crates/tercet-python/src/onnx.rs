//! ONNX models on arrays.
//!
//! As in [`session`](crate::session) Python's lock is released before the model's own is taken.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tercet::{Device, Port};
use tercet_models::onnx::{Description, ImportOptions, Session, SessionError};

use crate::errors::{self, ModelError, RunError};
use crate::{array, graph, session};

/// An ONNX model on a device. It compiles at the first run, and again only for sizes or shape operands that no compiled
/// form serves.
#[pyclass(name = "OnnxModel", module = "tercet", frozen)]
pub(crate) struct PyOnnxModel {
    session: Mutex<Session>,
    inputs: Vec<Port>,
    about: Description,
}

impl PyOnnxModel {
    pub(crate) fn open(
        path: &Path,
        device: &Device,
        bounds: Vec<(String, usize)>,
    ) -> Result<PyOnnxModel, SessionError> {
        let options = bounds
            .iter()
            .fold(ImportOptions::new(), |o, (symbol, n)| o.bound(symbol, *n));
        let session = Session::open(path, device, &options)?;
        Ok(PyOnnxModel {
            inputs: session.inputs().to_vec(),
            about: session.about().clone(),
            session: Mutex::new(session),
        })
    }
}

/// A failure of a run is a `RunError`, one of import a `ModelError`, one of compilation a `CompileError`.
pub(crate) fn error(e: SessionError) -> PyErr {
    match e {
        SessionError::Import(e) => errors::raise::<ModelError>(&e),
        SessionError::Compile(e) => errors::compile(e),
        SessionError::Run(e) => errors::run(e),
        e => errors::raise::<RunError>(&e),
    }
}

#[pymethods]
impl PyOnnxModel {
    /// Runs the model on arrays by name and gives the outputs by name, or only those that are named. Inputs with a
    /// default need not be given.
    #[pyo3(signature = (inputs, outputs=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyDict>,
        outputs: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let tensors = session::named_tensors(inputs, || self.inputs.iter())?;
        let results = py.detach(|| {
            let inputs: Vec<_> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let wanted: Option<Vec<&str>> = outputs
                .as_ref()
                .map(|names| names.iter().map(String::as_str).collect());
            // A run that panicked is a bug of the engine; what it left is as after a failed run.
            let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            session.run(&inputs, wanted.as_deref())
        });
        let arrays = PyDict::new(py);
        for (name, tensor) in results.map_err(error)? {
            arrays.set_item(name, array::to_numpy(py, tensor)?)?;
        }
        Ok(arrays)
    }

    /// As `run`, with the inputs as keywords.
    #[pyo3(signature = (**inputs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        match inputs {
            Some(inputs) => self.run(py, inputs, None),
            None => self.run(py, &PyDict::new(py), None),
        }
    }

    /// Names and types of the inputs; a size may be a symbol.
    #[getter]
    fn inputs(&self) -> Vec<(String, String)> {
        graph::ports(&self.inputs)
    }

    /// Name, dtype in ONNX's words and shape of each output, as far as the file says: `None` for a rank that it leaves
    /// open, `"?"` for such a size.
    #[getter]
    fn outputs(&self) -> Vec<(String, String, Option<Vec<String>>)> {
        let outputs = self.about.outputs.iter();
        outputs
            .map(|o| (o.name.clone(), o.dtype.clone(), o.shape.clone()))
            .collect()
    }

    /// Operator sets by domain, `ai.onnx` for ONNX's own.
    #[getter]
    fn opsets(&self) -> HashMap<String, i64> {
        self.about.opsets.iter().cloned().collect()
    }

    /// What the writer of the file noted.
    #[getter]
    fn metadata(&self) -> HashMap<String, String> {
        self.about.metadata.iter().cloned().collect()
    }

    /// Who wrote the file.
    #[getter]
    fn producer(&self) -> &str {
        &self.about.producer
    }

    /// How often the model was compiled.
    #[getter]
    fn compilations(&self, py: Python<'_>) -> usize {
        py.detach(|| {
            let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            session.compilations()
        })
    }

    fn __repr__(&self) -> String {
        let inputs: Vec<String> = self
            .inputs
            .iter()
            .map(|p| format!("{}: {}", p.name, p.ty))
            .collect();
        let outputs: Vec<&str> = self.about.outputs.iter().map(|o| o.name.as_str()).collect();
        format!(
            "<tercet.OnnxModel ({}) -> ({})>",
            inputs.join(", "),
            outputs.join(", ")
        )
    }
}
