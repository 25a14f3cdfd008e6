//! Values of a graph, with Python's operators.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tercet::Value;

use crate::array;
use crate::errors::{self, GraphError};
use crate::graph::{SharedGraph, lock};
use crate::operator::{self, PyOperator, add, results};

/// One result of a graph node.
#[pyclass(name = "Value", module = "tercet", frozen)]
pub(crate) struct PyValue {
    graph: SharedGraph,
    value: Value,
}

/// Checks that a value belongs to this graph, and returns it.
pub(crate) fn own(graph: &SharedGraph, value: &PyValue) -> PyResult<Value> {
    match Arc::ptr_eq(graph, &value.graph) {
        true => Ok(value.value),
        false => Err(GraphError::new_err(format!(
            "{} belongs to another graph",
            value.value
        ))),
    }
}
impl PyValue {
    pub(crate) fn new(graph: &SharedGraph, value: Value) -> PyValue {
        PyValue {
            graph: Arc::clone(graph),
            value,
        }
    }

    fn binary<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        a: Bound<'py, PyAny>,
        b: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        results(py, &self.graph, add(&self.graph, name, &[a, b], None)?)
    }
}

/// Python's operators; each adds a node.
#[pymethods]
impl PyValue {
    /// The type, such as "f32[rows, 3]".
    #[getter(r#type)]
    fn ty(&self) -> String {
        lock(&self.graph).ty(self.value).to_string()
    }

    /// NumPy's name of the dtype.
    #[getter]
    fn dtype(&self) -> &'static str {
        array::numpy_name(lock(&self.graph).ty(self.value).dtype)
    }

    /// The shape: integers for known sizes, strings for symbolic ones.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let graph = lock(&self.graph);
        let dims = graph.ty(self.value).shape.iter();
        let dims: PyResult<Vec<Bound<'py, PyAny>>> = dims
            .map(|dim| match dim.known() {
                Some(size) => Ok(size.into_pyobject(py)?.into_any()),
                None => Ok(dim.to_string().into_pyobject(py)?.into_any()),
            })
            .collect();
        PyTuple::new(py, dims?)
    }

    fn __getattr__(&self, name: &str) -> PyResult<PyOperator> {
        operator::named(&self.graph, name, Some(self.value))
    }

    fn __add__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get()
            .binary(slf.py(), "add", slf.clone().into_any(), other)
    }

    fn __radd__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get()
            .binary(slf.py(), "add", other, slf.clone().into_any())
    }

    fn __sub__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get()
            .binary(slf.py(), "sub", slf.clone().into_any(), other)
    }

    fn __rsub__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get()
            .binary(slf.py(), "sub", other, slf.clone().into_any())
    }

    fn __mul__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get()
            .binary(slf.py(), "mul", slf.clone().into_any(), other)
    }

    fn __rmul__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get()
            .binary(slf.py(), "mul", other, slf.clone().into_any())
    }

    fn __truediv__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get()
            .binary(slf.py(), "div", slf.clone().into_any(), other)
    }

    fn __rtruediv__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get()
            .binary(slf.py(), "div", other, slf.clone().into_any())
    }

    fn __matmul__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (graph, py) = (&slf.get().graph, slf.py());
        let other = other
            .cast_into::<PyValue>()
            .map_err(|_| PyTypeError::new_err("@ requires a value of the graph on both sides"))?;
        let (a, b) = (slf.get().value, own(graph, other.get())?);
        let made = lock(graph).matmul(a, b).map_err(errors::graph)?;
        results(py, graph, vec![made])
    }

    fn __pow__<'py>(
        slf: Bound<'py, Self>,
        other: Bound<'py, PyAny>,
        modulo: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match modulo {
            None => slf
                .get()
                .binary(slf.py(), "pow", slf.clone().into_any(), other),
            Some(_) => Err(PyTypeError::new_err(
                "pow() of values does not support a modulus",
            )),
        }
    }

    fn __neg__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let graph = &slf.get().graph;
        results(
            slf.py(),
            graph,
            add(graph, "neg", &[slf.clone().into_any()], None)?,
        )
    }

    fn __repr__(&self) -> String {
        format!("<tercet.Value {}: {}>", self.value, self.ty())
    }
}
