//! Compiled graphs on arrays.
//!
//! Deadlock avoidance: the GIL is released before the lock of the session is taken, and is taken
//! again only after that lock is released.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyList, PyString, PyTuple};
use tercet::{CompileOptions, DeviceTensor, Executable, Port, Signature, Tensor};

use crate::device_tensor::PyDeviceTensor;
use crate::errors::{self, RunError};
use crate::sampling::drawn_seed;
use crate::{array, graph, html};

/// A compiled graph with its parameters and states.
#[pyclass(name = "Session", module = "tercet", frozen)]
pub(crate) struct PySession {
    exe: Mutex<Box<dyn Executable>>,
    signature: Signature,
}

impl PySession {
    pub(crate) fn new(exe: Box<dyn Executable>) -> PySession {
        let signature = exe.signature().clone();
        PySession {
            exe: Mutex::new(exe),
            signature,
        }
    }

    /// Calls `f` with the executable, without the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut dyn Executable) -> Result<T, tercet::RunError> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            // A panic during a run is a bug. The executable is then in the same state as after a
            // failed run.
            let mut exe = self.exe.lock().unwrap_or_else(PoisonError::into_inner);
            f(&mut **exe)
        });
        done.map_err(errors::run)
    }
}

/// Upper bounds of symbols.
pub(crate) fn bounds_of(bounds: Option<&Bound<'_, PyDict>>) -> PyResult<CompileOptions> {
    let mut options = CompileOptions::new();
    for (symbol, bound) in bounds.into_iter().flat_map(|b| b.iter()) {
        options = options.bound(&symbol.extract::<String>()?, bound.extract()?);
    }
    Ok(options)
}

/// The arguments of a run: inputs and names of outputs in either order, so that
/// `run({"x": x}, ["y"])` and `run(["y"], {"x": x})` mean the same run. The second returns a list.
pub(crate) struct RunCallArgs<'py> {
    pub(crate) inputs: Bound<'py, PyDict>,
    pub(crate) outputs: Option<Vec<String>>,
    /// Whether the names of outputs come first, as for ONNX Runtime.
    pub(crate) names_first: bool,
}

impl<'py> RunCallArgs<'py> {
    /// # Errors
    /// `TypeError` if no argument or both are inputs.
    pub(crate) fn new(
        first: Option<&Bound<'py, PyAny>>,
        second: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<RunCallArgs<'py>> {
        let is_given = |value: &&Bound<'py, PyAny>| !value.is_none();
        let (first, second) = (first.filter(is_given), second.filter(is_given));
        let dict = |value: Option<&Bound<'py, PyAny>>| {
            value.and_then(|value| value.cast::<PyDict>().ok()).cloned()
        };
        let (inputs, names, names_first) = match (dict(first), dict(second)) {
            (Some(inputs), None) => (inputs, second, false),
            (None, Some(inputs)) => (inputs, first, true),
            (Some(_), Some(_)) => {
                return Err(PyTypeError::new_err(
                    "run() got two dictionaries; expected one with the inputs, and the names of outputs",
                ));
            }
            (None, None) => {
                return Err(PyTypeError::new_err(
                    "run() got no dictionary; expected the inputs by name, such as {\"x\": array}",
                ));
            }
        };
        let outputs = match names {
            None => None,
            Some(name) if name.is_instance_of::<PyString>() => Some(vec![name.extract()?]),
            Some(names) => {
                let names: PyResult<Vec<String>> =
                    names.try_iter()?.map(|name| name?.extract()).collect();
                let names = names?;
                // ONNX Runtime: no names stand for all outputs.
                (!(names_first && names.is_empty())).then_some(names)
            }
        };
        Ok(RunCallArgs {
            inputs,
            outputs,
            names_first,
        })
    }

    /// The inputs of a call: by position in the order of `ports`, and by name.
    ///
    /// # Errors
    /// `TypeError` for too many arguments, or an input that is given twice.
    pub(crate) fn from_call(
        py: Python<'py>,
        positional: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
        names: &[&str],
    ) -> PyResult<RunCallArgs<'py>> {
        let inputs = PyDict::new(py);
        if positional.len() > names.len() {
            return Err(PyTypeError::new_err(format!(
                "{} were given; expected at most {}: {}",
                tercet::counted(positional.len(), "positional input", "positional inputs"),
                names.len(),
                names.join(", ")
            )));
        }
        for (name, value) in names.iter().zip(positional.iter()) {
            inputs.set_item(name, value)?;
        }
        for (name, value) in named.into_iter().flat_map(|named| named.iter()) {
            if inputs.contains(&name)? {
                return Err(PyTypeError::new_err(format!(
                    "input `{name}` is given twice"
                )));
            }
            inputs.set_item(name, value)?;
        }
        Ok(RunCallArgs {
            inputs,
            outputs: None,
            names_first: false,
        })
    }

    /// The results as a dictionary, or as a list if the names came first.
    pub(crate) fn returned(
        &self,
        py: Python<'py>,
        results: Vec<(String, Bound<'py, PyAny>)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.names_first {
            let results = results.into_iter().map(|(_, result)| result);
            return Ok(PyList::new(py, results.collect::<Vec<_>>())?.into_any());
        }
        let named = PyDict::new(py);
        for (name, result) in results {
            named.set_item(name, result)?;
        }
        Ok(named.into_any())
    }
}

/// The inputs of a run: those on the host, and those on the device.
type GivenInputs = (Vec<(String, Tensor)>, Vec<(String, DeviceTensor)>);

/// Takes the device tensors out of the inputs.
pub(crate) fn take_device_tensors(
    inputs: &Bound<'_, PyDict>,
) -> PyResult<Vec<(String, DeviceTensor)>> {
    let mut found = Vec::new();
    for (name, value) in inputs.copy()? {
        if let Ok(tensor) = value.cast::<PyDeviceTensor>() {
            found.push((name.extract()?, tensor.get().tensor().clone()));
            inputs.del_item(&name)?;
        }
    }
    Ok(found)
}

/// Converts a dictionary to tensors, which read array memory in place. Values without a dtype get
/// that of the port.
pub(crate) fn named_tensors<'a, I: Iterator<Item = &'a Port>>(
    given: &Bound<'_, PyDict>,
    ports: impl Fn() -> I,
) -> PyResult<Vec<(String, Tensor)>> {
    let tensor = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = name.extract()?;
        let Some(port) = ports().find(|p| p.name == name) else {
            let known: Vec<&str> = ports().map(|p| p.name.as_str()).collect();
            return Err(RunError::new_err(format!(
                "unexpected name `{name}`; expected one of: {}",
                known.join(", ")
            )));
        };
        let tensor = array::borrow_tensor(&name, &value, port.ty.dtype)?;
        Ok((name, tensor))
    };
    given.iter().map(tensor).collect()
}

#[pymethods]
impl PySession {
    /// Runs the graph on arrays by name. Returns the outputs by name, or only the requested ones.
    /// With the names first, `run(["y"], {"x": x})`, the outputs are a list.
    #[pyo3(signature = (inputs, outputs=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.run_with(py, &RunCallArgs::new(Some(inputs), outputs)?)
    }

    /// Like `run`, with the inputs as keywords, or in their order.
    #[pyo3(signature = (*inputs, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let names: Vec<&str> = self
            .signature
            .inputs
            .iter()
            .map(|p| p.name.as_str())
            .collect();
        self.run_with(py, &RunCallArgs::from_call(py, inputs, named, &names)?)
    }

    /// Like `run`; the outputs stay on the device, as tensors that later runs take as inputs.
    #[pyo3(signature = (inputs, outputs=None))]
    fn run_on_device<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let args = RunCallArgs::new(Some(inputs), outputs)?;
        let names = self.wanted(&args);
        let (tensors, bound) = self.given(&args)?;
        let results = self.with(py, |exe| {
            let inputs = bind(exe, &tensors, &bound)?;
            let results = (|| {
                exe.run_outputs(&inputs, &[])?;
                let names = names.iter();
                names.map(|name| exe.output_on_device(name)).collect()
            })();
            unbind(exe, &bound)?;
            results
        });
        let results: Vec<DeviceTensor> = results?;
        let results = names.into_iter().zip(results).map(|(name, tensor)| {
            let tensor = Bound::new(py, PyDeviceTensor::new(tensor))?;
            Ok((name, tensor.into_any()))
        });
        args.returned(py, results.collect::<PyResult<_>>()?)
    }

    /// Sets a parameter for all later runs.
    fn set_param(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = self.tensor(&self.signature.params, name, value)?;
        self.with(py, |exe| exe.set_param(name, tensor))
    }

    /// Replaces the contents of a state.
    fn write_state(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = self.tensor(&self.signature.states, name, value)?;
        self.with(py, |exe| exe.write_state(name, &tensor))
    }

    /// Returns the contents of a state.
    fn read_state<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.with(py, |exe| exe.read_state(name))?;
        array::to_numpy(py, tensor)
    }

    /// Sets the seed of random numbers, from the next run on. Without one, draws and returns it.
    #[pyo3(signature = (seed=None))]
    fn set_seed(&self, py: Python<'_>, seed: Option<i128>) -> PyResult<u64> {
        let seed = drawn_seed(seed)?;
        self.with(py, |exe| {
            let random = exe.random();
            exe.set_random(tercet::random::RngState {
                seed: Some(seed),
                ..random
            });
            Ok(())
        })?;
        Ok(seed)
    }

    /// Sets every state to zeros, and the random number counter to 0.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |exe| {
            exe.reset();
            Ok(())
        })
    }

    /// Names and types of the inputs.
    #[getter]
    fn inputs(&self) -> Vec<(String, String)> {
        graph::ports(&self.signature.inputs)
    }

    /// Names and types of the parameters.
    #[getter]
    fn params(&self) -> Vec<(String, String)> {
        graph::ports(&self.signature.params)
    }

    /// Names and types of the states.
    #[getter]
    fn states(&self) -> Vec<(String, String)> {
        graph::ports(&self.signature.states)
    }

    /// Names and types of the outputs.
    #[getter]
    fn outputs(&self) -> Vec<(String, String)> {
        graph::ports(&self.signature.outputs)
    }

    fn _repr_html_(&self) -> String {
        let of = |role: &'static str, ports: &'_ [Port]| -> Vec<(&'static str, String, String)> {
            let ports = ports.iter();
            ports
                .map(|p| (role, p.name.clone(), p.ty.to_string()))
                .collect()
        };
        let Signature {
            inputs,
            params,
            states,
            outputs,
            ..
        } = &self.signature;
        let all = [
            of("input", inputs),
            of("parameter", params),
            of("state", states),
            of("output", outputs),
        ];
        html::ports("tercet.Session", all.concat())
    }

    fn __repr__(&self) -> String {
        let list = |ports: &[Port]| {
            ports
                .iter()
                .map(|p| format!("{}: {}", p.name, p.ty))
                .collect::<Vec<_>>()
                .join(", ")
        };
        format!(
            "<tercet.Session ({}) -> ({})>",
            list(&self.signature.inputs),
            list(&self.signature.outputs)
        )
    }
}

/// Binds inputs to device tensors for one run. Returns the other inputs.
fn bind<'a>(
    exe: &mut dyn Executable,
    tensors: &'a [(String, Tensor)],
    bound: &[(String, DeviceTensor)],
) -> Result<Vec<(&'a str, &'a Tensor)>, tercet::RunError> {
    for (at, (name, tensor)) in bound.iter().enumerate() {
        if let Err(e) = exe.bind(name, tensor) {
            unbind(exe, &bound[..at])?;
            return Err(e);
        }
    }
    Ok(tensors.iter().map(|(n, t)| (n.as_str(), t)).collect())
}

fn unbind(
    exe: &mut dyn Executable,
    bound: &[(String, DeviceTensor)],
) -> Result<(), tercet::RunError> {
    bound.iter().try_for_each(|(name, _)| exe.unbind(name))
}

impl PySession {
    /// The names of the outputs of a run.
    fn wanted(&self, args: &RunCallArgs<'_>) -> Vec<String> {
        let all = || self.signature.outputs.iter().map(|o| o.name.clone());
        args.outputs.clone().unwrap_or_else(|| all().collect())
    }

    /// The inputs of a run, on the host and on the device.
    fn given(&self, args: &RunCallArgs<'_>) -> PyResult<GivenInputs> {
        let inputs = args.inputs.copy()?;
        let bound = take_device_tensors(&inputs)?;
        Ok((
            named_tensors(&inputs, || self.signature.inputs.iter())?,
            bound,
        ))
    }

    fn run_with<'py>(
        &self,
        py: Python<'py>,
        args: &RunCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (tensors, bound) = self.given(args)?;
        let names = self.wanted(args);
        let results = self.with(py, |exe| {
            let inputs = bind(exe, &tensors, &bound)?;
            let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
            let results = exe.run_outputs(&inputs, &wanted);
            exe.release_outputs();
            unbind(exe, &bound)?;
            results
        })?;
        let results = names.into_iter().zip(results);
        let results = results.map(|(name, tensor)| Ok((name, array::to_numpy(py, tensor)?)));
        args.returned(py, results.collect::<PyResult<_>>()?)
    }

    fn tensor(&self, ports: &[Port], name: &str, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let Some(port) = ports.iter().find(|p| p.name == name) else {
            let known: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
            return Err(RunError::new_err(format!(
                "unknown name `{name}`; expected one of: {}",
                known.join(", ")
            )));
        };
        array::to_tensor(name, value, port.ty.dtype)
    }
}
