//! ONNX models on arrays.
//!
//! As in [`session`](crate::session), the GIL is released before the lock of the model is taken.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyFileNotFoundError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes, PyDict, PyList, PyTuple};
use tercet::{DType, Device, Port, Tensor};
use tercet_models::onnx::{
    ImportOptions, OnnxModelInfo, OnnxModelSource, OnnxPort, Session, SessionError, StringTable,
};

use crate::device_tensor::PyDeviceTensor;
use crate::errors::{self, ModelError, RunError};
use crate::onnx_session::{PyModelMeta, PyNodeArg};
use crate::session::RunCallArgs;
use crate::{array, device, graph, html, onnx_session, session};

/// An ONNX model on a device. It compiles at the first run, and later only for sizes or shape
/// operands that no compiled variant covers.
#[pyclass(name = "OnnxModel", module = "tercet", frozen)]
pub(crate) struct PyOnnxModel {
    session: Mutex<Session>,
    inputs: Vec<Port>,
    about: OnnxModelInfo,
    strings: StringTable,
    device: &'static str,
}

impl PyOnnxModel {
    pub(crate) fn open<'a>(
        source: impl Into<OnnxModelSource<'a>>,
        device: &Device,
        bounds: Vec<(String, usize)>,
    ) -> Result<PyOnnxModel, SessionError> {
        let options = bounds
            .iter()
            .fold(ImportOptions::new(), |o, (symbol, n)| o.bound(symbol, *n));
        let session = Session::open(source, device, &options)?;
        Ok(PyOnnxModel {
            inputs: session.inputs().to_vec(),
            about: session.about().clone(),
            strings: session.strings().clone(),
            device: device.name(),
            session: Mutex::new(session),
        })
    }

    /// The tensors of a run. A list for a sequence `s` gives the inputs `s[0]`, `s[1]` and so on;
    /// `None` leaves an optional input out.
    fn tensors(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyDict>,
    ) -> PyResult<Vec<(String, Tensor)>> {
        let given = PyDict::new(py);
        for (key, value) in inputs {
            let name: String = key.extract()?;
            let declared = self.about.inputs.iter().find(|port| port.name == name);
            match declared.map(|port| port.dtype.as_str()) {
                Some("sequence" | "optional")
                    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() =>
                {
                    for (at, part) in value.try_iter()?.enumerate() {
                        given.set_item(format!("{name}[{at}]"), part?)?;
                    }
                }
                Some("optional") if value.is_none() => {}
                _ => given.set_item(key, value)?,
            }
        }
        let given = self.with_places(py, &given)?;
        let tensor = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            let name: String = name.extract()?;
            let whole = name
                .split_once('[')
                .map_or(name.as_str(), |(whole, _)| whole);
            let port = self.inputs.iter().find(|port| port.name == name);
            let is_part = |port: &&OnnxPort| port.name == name || port.name == whole;
            if port.is_none() && !self.about.inputs.iter().any(|port| is_part(&port)) {
                let known: Vec<&str> = self.inputs.iter().map(|p| p.name.as_str()).collect();
                return Err(RunError::new_err(format!(
                    "unexpected name `{name}`; expected one of: {}",
                    known.join(", ")
                )));
            }
            let dtype = port.map_or(DType::F32, |port| port.ty.dtype);
            Ok((name.clone(), array::borrow_tensor(&name, &value, dtype)?))
        };
        given.iter().map(tensor).collect()
    }

    /// The names of the outputs of a run, in the order of the results.
    fn wanted(&self, args: &RunCallArgs<'_>) -> Vec<String> {
        let all = || self.about.outputs.iter().map(|o| o.name.clone());
        args.outputs.clone().unwrap_or_else(|| all().collect())
    }

    /// The results of a run by the names of the file: the parts of a sequence are a list, and an
    /// optional output without a value is `None`.
    fn named_results<'py>(
        &self,
        py: Python<'py>,
        names: Vec<String>,
        mut parts: Vec<(String, Bound<'py, PyAny>)>,
    ) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let named = |name: String| {
            if let Some(at) = parts.iter().position(|(part, _)| *part == name) {
                return Ok(parts.swap_remove(at));
            }
            let declared = self.about.outputs.iter().find(|port| port.name == name);
            let own: Vec<_> = (0..parts.len())
                .map_while(|at| {
                    let part = format!("{name}[{at}]");
                    parts.iter().find(|(other, _)| *other == part)
                })
                .map(|(_, array)| array.clone())
                .collect();
            let result = match declared.map(|port| port.dtype.as_str()) {
                Some("optional") if own.is_empty() => py.None().into_bound(py),
                _ => PyList::new(py, own)?.into_any(),
            };
            Ok((name, result))
        };
        names.into_iter().map(named).collect()
    }

    fn run_with<'py>(
        &self,
        py: Python<'py>,
        args: &RunCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let inputs = args.inputs.copy()?;
        for (name, tensor) in session::take_device_tensors(&inputs)? {
            // A result whose size depends on data has its exact size only if the inputs are in host memory.
            let tensor = py.detach(|| tensor.read()).map_err(errors::run)?;
            inputs.set_item(name, array::to_numpy(py, tensor)?)?;
        }
        let tensors = self.tensors(py, &inputs)?;
        let wanted = args.outputs.as_ref();
        let results = py.detach(|| {
            let inputs: Vec<_> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let wanted: Option<Vec<&str>> =
                wanted.map(|names| names.iter().map(String::as_str).collect());
            // A panic during a run is a bug. The session is then in the same state as after a
            // failed run.
            let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            let results = session.run(&inputs, wanted.as_deref())?;
            let strings =
                |(name, tensor): (String, Tensor)| (session.is_string_output(&name), name, tensor);
            Ok(results.into_iter().map(strings).collect::<Vec<_>>())
        });
        let mut arrays = Vec::new();
        for (strings, name, tensor) in results.map_err(error)? {
            let array = array::to_numpy(py, tensor)?;
            let declared = self.about.outputs.iter().find(|port| port.name == name);
            let array = match declared.map(|port| port.dtype.as_str()) {
                _ if strings => self.texts(py, &array)?,
                // Dtypes that tensors do not have are computed in wider ones.
                Some(dtype @ ("uint16" | "uint64")) => array.call_method1("astype", (dtype,))?,
                _ => array,
            };
            arrays.push((name, array));
        }
        let names = self.wanted(args);
        args.returned(py, self.named_results(py, names, arrays)?)
    }

    /// Replaces string arrays among the inputs by positions in the model's string list.
    /// Unsigned integers of 16 and 64 bits become the dtype that stores them.
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
                Some("uint16") => "int32",
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

impl PyOnnxModel {
    /// Adds the class with the methods `get_inputs` and `get_outputs`, whose names pyo3 has taken for
    /// the getters of `inputs` and `outputs`.
    pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add_class::<PyOnnxModel>()?;
        let class = module.py().get_type::<PyOnnxModel>();
        for (name, own) in [
            ("get_inputs", "_described_inputs"),
            ("get_outputs", "_described_outputs"),
        ] {
            class.setattr(name, class.getattr(own)?)?;
        }
        Ok(())
    }
}

#[pymethods]
impl PyOnnxModel {
    /// Opens a model as ONNX Runtime does: from a path or the bytes of a file. The first of
    /// `providers` that this machine has selects the device; they are ONNX Runtime's names, or names
    /// of devices. Session and provider options have no effect.
    #[new]
    #[pyo3(signature = (path_or_bytes, sess_options=None, providers=None, provider_options=None, *, device=None,
        bounds=None))]
    fn from_file(
        py: Python<'_>,
        path_or_bytes: &Bound<'_, PyAny>,
        sess_options: Option<&Bound<'_, PyAny>>,
        providers: Option<&Bound<'_, PyAny>>,
        provider_options: Option<&Bound<'_, PyAny>>,
        device: Option<&str>,
        bounds: Option<BTreeMap<String, usize>>,
    ) -> PyResult<PyOnnxModel> {
        let _ = (sess_options, provider_options);
        let device = match (device, providers) {
            (Some(device), _) => device.to_string(),
            (None, Some(providers)) if !providers.is_none() => onnx_session::device_of(providers)?,
            (None, _) => "auto".to_string(),
        };
        let bounds: Vec<(String, usize)> = bounds.into_iter().flatten().collect();
        let bytes = path_or_bytes.cast::<PyBytes>().ok();
        let bytes = bytes.map(|bytes| bytes.as_bytes().to_vec());
        let path: Option<PathBuf> = match &bytes {
            Some(_) => None,
            None => Some(path_or_bytes.extract()?),
        };
        if let Some(path) = path.as_ref().filter(|path| !path.exists()) {
            return Err(PyFileNotFoundError::new_err(format!(
                "{}: no such file or folder",
                path.display()
            )));
        }
        py.detach(|| {
            let device = device::open(&device)?;
            let opened = match (bytes, path) {
                (Some(bytes), _) => PyOnnxModel::open(bytes, &device, bounds),
                (None, path) => PyOnnxModel::open(&*path.unwrap_or_default(), &device, bounds),
            };
            opened.map_err(error)
        })
    }

    /// Runs the model on arrays by name. Returns the outputs by name, or only the requested ones.
    /// Inputs with a default are optional.
    ///
    /// As in ONNX Runtime, the names may come first: `run(None, {"x": x})` and `run(["y"], {"x": x})`
    /// return a list. A sequence is a list of arrays, and an optional input may be `None`.
    #[pyo3(signature = (first=None, second=None, run_options=None, *, inputs=None, outputs=None, output_names=None,
        input_feed=None))]
    #[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        first: Option<&Bound<'py, PyAny>>,
        second: Option<&Bound<'py, PyAny>>,
        run_options: Option<&Bound<'py, PyAny>>,
        inputs: Option<&Bound<'py, PyAny>>,
        outputs: Option<&Bound<'py, PyAny>>,
        output_names: Option<&Bound<'py, PyAny>>,
        input_feed: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = run_options;
        let args = match (output_names, input_feed) {
            (None, None) => RunCallArgs::new(first.or(inputs), second.or(outputs))?,
            _ => RunCallArgs::new(output_names.or(first), input_feed.or(second))?,
        };
        self.run_with(py, &args)
    }

    /// Like `run`; the outputs stay on the device, as tensors that later runs take as inputs.
    /// Outputs of data-dependent size have their maximum size, and strings are positions in
    /// `strings`.
    #[pyo3(signature = (inputs, outputs=None))]
    fn run_on_device<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let args = RunCallArgs::new(Some(inputs), outputs)?;
        let inputs = args.inputs.copy()?;
        let bound = session::take_device_tensors(&inputs)?;
        let tensors = self.tensors(py, &inputs)?;
        let wanted = args.outputs.as_ref();
        let results = py.detach(|| {
            let inputs: Vec<_> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let bound: Vec<_> = bound.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let wanted: Option<Vec<&str>> =
                wanted.map(|names| names.iter().map(String::as_str).collect());
            let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            session.run_on_device(&inputs, &bound, wanted.as_deref())
        });
        let mut tensors = Vec::new();
        for (name, tensor) in results.map_err(error)? {
            tensors.push((
                name,
                Bound::new(py, PyDeviceTensor::new(tensor))?.into_any(),
            ));
        }
        let names = self.wanted(&args);
        args.returned(py, self.named_results(py, names, tensors)?)
    }

    /// Like `run`, with the inputs as keywords, or in their order.
    #[pyo3(signature = (*inputs, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ports = self.about.inputs.iter().filter(|port| !port.has_default);
        let names: Vec<&str> = ports.map(|port| port.name.as_str()).collect();
        self.run_with(py, &RunCallArgs::from_call(py, inputs, named, &names)?)
    }

    /// The inputs, as ONNX Runtime describes them.
    fn _described_inputs(&self) -> Vec<PyNodeArg> {
        let ports = self.about.inputs.iter().filter(|port| !port.has_default);
        ports.map(PyNodeArg::new).collect()
    }

    /// The inputs with a default, as ONNX Runtime describes them.
    fn get_overridable_initializers(&self) -> Vec<PyNodeArg> {
        let ports = self.about.inputs.iter().filter(|port| port.has_default);
        ports.map(PyNodeArg::new).collect()
    }

    /// The outputs, as ONNX Runtime describes them.
    fn _described_outputs(&self) -> Vec<PyNodeArg> {
        self.about.outputs.iter().map(PyNodeArg::new).collect()
    }

    /// The name of the device's provider.
    fn get_providers(&self) -> Vec<String> {
        vec![onnx_session::provider_of(self.device)]
    }

    /// The metadata of the file, as ONNX Runtime describes it.
    fn get_modelmeta(&self) -> PyModelMeta {
        PyModelMeta::new(&self.about)
    }

    /// Inputs and outputs that are bound to places on the host or on the device.
    fn io_binding<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let class = slf.py().import("tercet._binding")?.getattr("IOBinding")?;
        class.call1((slf,))
    }

    /// Runs the model with the inputs and outputs of a binding.
    #[pyo3(signature = (iobinding, run_options=None))]
    fn run_with_iobinding<'py>(
        slf: Bound<'py, Self>,
        iobinding: &Bound<'py, PyAny>,
        run_options: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let _ = run_options;
        iobinding.call_method1("_run", (slf,)).map(drop)
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

    fn _repr_html_(&self) -> String {
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|p| ("input", p.name.clone(), p.ty.to_string()));
        let outputs = self.about.outputs.iter().map(|port| {
            let shape = port.shape.as_ref().map(|shape| shape.join(", "));
            let ty = format!("{}[{}]", port.dtype, shape.as_deref().unwrap_or("..."));
            ("output", port.name.clone(), ty)
        });
        html::ports("tercet.OnnxModel", inputs.chain(outputs).collect())
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
