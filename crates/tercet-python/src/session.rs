//! Compiled graphs on arrays.
//!
//! Deadlock avoidance: the GIL is released before the lock of the session is taken, and is taken
//! again only after that lock is released.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict};
use tercet::{CompileOptions, Executable, Port, Signature, Tensor};

use crate::array;
use crate::errors::{self, RunError};
use crate::graph;

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
    #[pyo3(signature = (inputs, outputs=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyDict>,
        outputs: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let tensors = named_tensors(inputs, || self.signature.inputs.iter())?;
        let all = || {
            self.signature
                .outputs
                .iter()
                .map(|o| o.name.clone())
                .collect()
        };
        let names: Vec<String> = outputs.unwrap_or_else(all);
        let results = self.with(py, |exe| {
            let inputs: Vec<_> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
            let results = exe.run_outputs(&inputs, &wanted);
            exe.release_outputs();
            results
        })?;
        let arrays = PyDict::new(py);
        for (name, tensor) in names.iter().zip(results) {
            arrays.set_item(name, array::to_numpy(py, tensor)?)?;
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

    /// Sets the seed of random numbers, from the next run on.
    fn set_seed(&self, py: Python<'_>, seed: u64) -> PyResult<()> {
        self.with(py, |exe| {
            let random = exe.random();
            exe.set_random(tercet::random::RngState {
                seed: Some(seed),
                ..random
            });
            Ok(())
        })
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

impl PySession {
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
