//! ONNX models on arrays.
//!
//! As in [`session`](crate::session), the GIL is released before the lock of the model is taken.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict};
use tercet::{Device, Port, Tensor};
use tercet_models::onnx::{ImportOptions, OnnxModelInfo, Session, SessionError, StringTable};

use crate::errors::{self, ModelError, RunError};
use crate::{array, graph, session};

/// An ONNX model on a device. It compiles at the first run, and later only for sizes or shape
/// operands that no compiled variant covers.
#[pyclass(name = "OnnxModel", module = "tercet", frozen)]
pub(crate) struct PyOnnxModel {
    session: Mutex<Session>,
    inputs: Vec<Port>,
    about: OnnxModelInfo,
    strings: StringTable,
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
            strings: session.strings().clone(),
            session: Mutex::new(session),
        })
    }

    /// Replaces string arrays among the inputs by positions in the model's string list, and integers
    /// of 16 bits or of 64 bits without sign by the wider dtype that stores them.
    fn with_places<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let given = inputs.copy()?;
        for (key, value) in inputs {
            let name: String = key.extract()?;
            let declared = self.about.inputs.iter().find(|d| d.name == name);
            if declared.is_some_and(|d| d.dtype == "string") {
                let numpy = py.import("numpy")?;
                let array = numpy.call_method1("asarray", (value, "str"))?;
                let texts: Vec<String> = array
                    .call_method0("ravel")?
                    .call_method0("tolist")?
                    .extract()?;
                let places = numpy.call_method1("array", (self.strings.places(&texts), "int64"))?;
                let shape = array.getattr("shape")?;
                given.set_item(key, places.call_method1("reshape", (shape,))?)?;
                continue;
            }
            // Dtypes that tensors do not have are stored in wider ones.
            let carrier = match declared.map(|d| d.dtype.as_str()) {
                Some("uint16" | "int16") => "int32",
                Some("uint64") => "int64",
                _ => continue,
            };
            let array = py.import("numpy")?.call_method1("asarray", (value,))?;
            let own: String = array.getattr("dtype")?.getattr("name")?.extract()?;
            if declared.is_some_and(|d| d.dtype == own) {
                given.set_item(key, array.call_method1("astype", (carrier,))?)?;
            }
        }
        Ok(given)
    }

    /// Converts positions to strings. Positions outside the model's string list give empty strings.
    fn texts<'py>(
        &self,
        py: Python<'py>,
        places: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let flat: Vec<i64> = places
            .call_method0("ravel")?
            .call_method0("tolist")?
            .extract()?;
        let text = |place: &i64| self.strings.at(*place).unwrap_or_default();
        let texts: Vec<&str> = flat.iter().map(text).collect();
        let array = py.import("numpy")?.call_method1("array", (texts, "str"))?;
        array.call_method1("reshape", (places.getattr("shape")?,))
    }
}

/// Converts an error: run errors to `RunError`, import errors to `ModelError`, compile errors to
/// `CompileError`.
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
    /// Runs the model on arrays by name. Returns the outputs by name, or only the requested ones.
    /// Inputs with a default are optional.
    #[pyo3(signature = (inputs, outputs=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyDict>,
        outputs: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let inputs = self.with_places(py, inputs)?;
        let tensors = session::named_tensors(&inputs, || self.inputs.iter())?;
        let results = py.detach(|| {
            let inputs: Vec<_> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let wanted: Option<Vec<&str>> = outputs
                .as_ref()
                .map(|names| names.iter().map(String::as_str).collect());
            // A panic during a run is a bug. The session is then in the same state as after a
            // failed run.
            let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            let results = session.run(&inputs, wanted.as_deref())?;
            let strings =
                |(name, tensor): (String, Tensor)| (session.is_string_output(&name), name, tensor);
            Ok(results.into_iter().map(strings).collect::<Vec<_>>())
        });
        let arrays = PyDict::new(py);
        for (strings, name, tensor) in results.map_err(error)? {
            let array = array::to_numpy(py, tensor)?;
            arrays.set_item(
                name,
                if strings {
                    self.texts(py, &array)?
                } else {
                    array
                },
            )?;
        }
        Ok(arrays)
    }

    /// Like `run`, with the inputs as keywords.
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

    /// Name, ONNX dtype and shape of each output, as far as the file specifies them: `None` for an
    /// unknown rank, `"?"` for an unknown size.
    #[getter]
    fn outputs(&self) -> Vec<(String, String, Option<Vec<String>>)> {
        let outputs = self.about.outputs.iter();
        outputs
            .map(|o| (o.name.clone(), o.dtype.clone(), o.shape.clone()))
            .collect()
    }

    /// The model's string list. Inputs and outputs with strings are arrays of strings; inputs can
    /// only contain strings of this list.
    #[getter]
    fn strings(&self) -> Vec<String> {
        self.strings.list().to_vec()
    }

    /// Keys of the columns of an output that represents ONNX maps, known after a run.
    fn columns(&self, py: Python<'_>, output: &str) -> Option<Vec<String>> {
        py.detach(|| {
            let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            session.columns(output).map(<[String]>::to_vec)
        })
    }

    /// Operator set versions by domain; `ai.onnx` is ONNX's default domain.
    #[getter]
    fn opsets(&self) -> HashMap<String, i64> {
        self.about.opsets.iter().cloned().collect()
    }

    /// Metadata of the file.
    #[getter]
    fn metadata(&self) -> HashMap<String, String> {
        self.about.metadata.iter().cloned().collect()
    }

    /// Name of the tool that wrote the file.
    #[getter]
    fn producer(&self) -> &str {
        &self.about.producer
    }

    /// Number of compilations so far.
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
