//! Graphs under construction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tercet::{Bindings, Device, DeviceOptions, Graph, Port, Signature, Tensor, Value};

use crate::array;
use crate::device;
use crate::errors;
use crate::html;
use crate::literal::to_type;
use crate::operator::{self, PyOperator};
use crate::report::{PyExplanation, PyTrace, PyVerification};
use crate::session::{PySession, bounds_of, named_tensors};
use crate::value::{PyValue, own};

/// A graph under construction, shared with its values.
pub(crate) type SharedGraph = Arc<Mutex<Graph>>;

/// A typed graph of operators, built value by value.
#[pyclass(name = "Graph", module = "tercet", frozen)]
pub(crate) struct PyGraph {
    graph: SharedGraph,
}
pub(crate) fn lock(graph: &SharedGraph) -> MutexGuard<'_, Graph> {
    // Each call of `add` leaves the graph valid, so a poisoned lock can be used.
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PyGraph {
    pub(crate) fn from_graph(graph: Graph) -> PyGraph {
        PyGraph {
            graph: Arc::new(Mutex::new(graph)),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Graph> {
        lock(&self.graph)
    }

    fn value(&self, value: Value) -> PyValue {
        PyValue::new(&self.graph, value)
    }

    fn own(&self, value: &PyValue) -> PyResult<Value> {
        own(&self.graph, value)
    }
}

#[pymethods]
impl PyGraph {
    /// Creates an empty graph, or parses a graph in text form.
    #[new]
    #[pyo3(signature = (text=None))]
    fn new(text: Option<&str>) -> PyResult<PyGraph> {
        match text {
            Some(text) => Ok(PyGraph::from_graph(
                tercet::parse(text).map_err(errors::text)?,
            )),
            None => Ok(PyGraph::from_graph(Graph::new())),
        }
    }

    /// Adds an input: a tensor for each run, with a type such as "f32[rows, 3]".
    fn input(&self, name: &str, ty: &str) -> PyResult<PyValue> {
        let value = self.lock().input(name, to_type(ty)?);
        Ok(self.value(value.map_err(errors::graph)?))
    }

    /// Adds a parameter (weight), which is set once.
    fn param(&self, name: &str, ty: &str) -> PyResult<PyValue> {
        let value = self.lock().param(name, to_type(ty)?);
        Ok(self.value(value.map_err(errors::graph)?))
    }

    /// Adds a state: a tensor that the session stores between runs, initially zero.
    fn state(&self, name: &str, ty: &str) -> PyResult<PyValue> {
        let value = self.lock().state(name, to_type(ty)?);
        Ok(self.value(value.map_err(errors::graph)?))
    }

    /// Adds a constant. Numbers and lists get the dtype `dtype`, which is f32 by default.
    #[pyo3(signature = (array, dtype="f32"))]
    fn constant(&self, array: &Bound<'_, PyAny>, dtype: &str) -> PyResult<PyValue> {
        let tensor = array::to_tensor("constant", array, array::dtype(dtype)?)?;
        let value = self.lock().constant(tensor);
        Ok(self.value(value.map_err(errors::graph)?))
    }

    /// Adds an operator by name, with its attributes as keywords.
    #[pyo3(signature = (name, *operands, **attributes))]
    fn op<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        operands: Vec<Bound<'py, PyAny>>,
        attributes: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        operator::results(
            py,
            &self.graph,
            operator::add(&self.graph, name, &operands, attributes)?,
        )
    }

    /// Makes a value an output of the graph, with this name.
    fn output(&self, name: &str, value: &PyValue) -> PyResult<()> {
        let value = self.own(value)?;
        self.lock().output(name, value).map_err(errors::graph)
    }

    /// Sets the value that a state has after a run.
    fn assign(&self, state: &PyValue, value: &PyValue) -> PyResult<()> {
        let (state, value) = (self.own(state)?, self.own(value)?);
        self.lock().assign(state, value).map_err(errors::graph)
    }

    /// Adds the gradients of a scalar loss with respect to the given values, and returns them.
    fn gradients(&self, loss: &PyValue, wanted: Vec<PyRef<'_, PyValue>>) -> PyResult<Vec<PyValue>> {
        let loss = self.own(loss)?;
        let wanted: PyResult<Vec<Value>> = wanted.iter().map(|v| self.own(v)).collect();
        let made = self.lock().gradients(loss, &wanted?);
        let made = made.map_err(|e| errors::raise::<errors::GradientError>(&e))?;
        Ok(made.into_iter().map(|v| self.value(v)).collect())
    }

    /// Compiles the graph for a device and for sizes up to `bounds`.
    #[pyo3(signature = (device="auto", bounds=None))]
    fn compile(
        &self,
        py: Python<'_>,
        device: &str,
        bounds: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PySession> {
        let options = bounds_of(bounds)?;
        let graph = self.lock().clone();
        let exe = py.detach(|| {
            device::open(device)?
                .compile(&graph, &options)
                .map_err(errors::compile)
        })?;
        Ok(PySession::new(exe))
    }

    /// Describes the compiled program: kernels, dispatches, barriers, memory. Nothing is allocated
    /// on the device.
    #[pyo3(signature = (device="auto", bounds=None))]
    fn explain(
        &self,
        py: Python<'_>,
        device: &str,
        bounds: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyExplanation> {
        let options = bounds_of(bounds)?;
        let graph = self.lock().clone();
        let explanation = py.detach(|| {
            device::open(device)?
                .explain(&graph, &options)
                .map_err(errors::compile)
        })?;
        Ok(PyExplanation::new(explanation))
    }

    /// Compares every value on a device with the reference, for these inputs, parameters and
    /// states.
    #[pyo3(signature = (tensors, device="auto"))]
    fn verify(
        &self,
        py: Python<'_>,
        tensors: &Bound<'_, PyDict>,
        device: &str,
    ) -> PyResult<PyVerification> {
        let graph = self.lock().clone();
        let signature = Signature::of(&graph);
        let ports = || {
            signature
                .inputs
                .iter()
                .chain(&signature.params)
                .chain(&signature.states)
        };
        let tensors = named_tensors(tensors, ports)?;
        let made = py.detach(|| {
            let device = device::open(device)?;
            let tensors: Vec<_> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
            tercet::verify(&graph, &tensors, &device).map_err(errors::verify)
        })?;
        Ok(PyVerification::new(made))
    }

    /// Runs the graph `runs` times on these inputs, parameters and states, and measures each step
    /// if the device is a GPU. The graph is compiled for the sizes of the inputs.
    #[pyo3(signature = (tensors, device="auto", runs=1))]
    fn trace(
        &self,
        py: Python<'_>,
        tensors: &Bound<'_, PyDict>,
        device: &str,
        runs: usize,
    ) -> PyResult<PyTrace> {
        let graph = self.lock().clone();
        let signature = Signature::of(&graph);
        let ports = || {
            signature
                .inputs
                .iter()
                .chain(&signature.params)
                .chain(&signature.states)
        };
        let tensors = named_tensors(tensors, ports)?;
        let traced = py.detach(|| traced(&graph, &signature, &tensors, device, runs))?;
        Ok(PyTrace::new(traced))
    }

    /// Names and types of the inputs.
    #[getter]
    fn inputs(&self) -> Vec<(String, String)> {
        ports(&Signature::of(&self.lock()).inputs)
    }

    /// Names and types of the outputs.
    #[getter]
    fn outputs(&self) -> Vec<(String, String)> {
        ports(&Signature::of(&self.lock()).outputs)
    }

    /// Names of the symbolic dimensions, which need a bound to compile.
    #[getter]
    fn symbols(&self) -> Vec<String> {
        self.lock()
            .symbols()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn __getattr__(&self, name: &str) -> PyResult<PyOperator> {
        operator::named(&self.graph, name, None)
    }

    fn __dir__(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        let own = slf.get_type().dir()?;
        let own: PyResult<Vec<String>> = own.iter().map(|n| n.extract()).collect();
        Ok(own?.into_iter().chain(operator::names()).collect())
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    fn __str__(&self) -> String {
        self.lock().to_string()
    }

    fn __repr__(&self) -> String {
        let graph = self.lock();
        format!(
            "<tercet.Graph: {}>",
            tercet::counted(graph.len(), "node", "nodes")
        )
    }

    fn _repr_html_(&self) -> String {
        html::graph(&self.lock())
    }
}

pub(crate) fn ports(ports: &[tercet::Port]) -> Vec<(String, String)> {
    ports
        .iter()
        .map(|p| (p.name.clone(), p.ty.to_string()))
        .collect()
}

/// Start and duration of each run in microseconds, and its steps.
fn traced(
    graph: &Graph,
    signature: &Signature,
    tensors: &[(String, Tensor)],
    device: &str,
    runs: usize,
) -> PyResult<Vec<(f64, f64, Vec<tercet::StepTime>)>> {
    let options = DeviceOptions {
        timings: true,
        ..DeviceOptions::default()
    };
    let device = Device::open(device, &options).map_err(errors::device)?;
    let is = |ports: &[Port], name: &str| ports.iter().any(|port| port.name == name);
    let inputs = tensors
        .iter()
        .filter(|(name, _)| is(&signature.inputs, name));
    let inputs: Vec<(&str, &Tensor)> = inputs.map(|(name, t)| (name.as_str(), t)).collect();
    let mut options = tercet::CompileOptions::new();
    let bound = signature.bind(&inputs, &Bindings::new(), &mut options.bounds);
    bound.map_err(errors::run)?;
    let mut exe = device.compile(graph, &options).map_err(errors::compile)?;
    let compiled = exe.signature().clone();
    for (name, tensor) in tensors {
        // Compilation removes parameters that no result depends on.
        if is(&compiled.params, name) {
            exe.set_param(name, tensor.clone()).map_err(errors::run)?;
        } else if is(&compiled.states, name) {
            exe.write_state(name, tensor).map_err(errors::run)?;
        }
    }
    let (zero, mut outputs) = (Instant::now(), Vec::new());
    let mut all = Vec::new();
    for _ in 0..runs {
        let at = zero.elapsed().as_secs_f64() * 1e6;
        exe.run_into(&inputs, &mut outputs).map_err(errors::run)?;
        let took = zero.elapsed().as_secs_f64() * 1e6 - at;
        all.push((at, took, exe.timings()));
    }
    Ok(all)
}
