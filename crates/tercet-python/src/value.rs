//! Values of a graph, with Python's operators.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::types::{PyDict, PyString, PyTuple};
use tercet::{Dim, Type, Value};

use crate::errors::{self, GraphError};
use crate::graph::{SharedGraph, lock};
use crate::operator::{self, PyOperator, add, results, value_of};
use crate::{arithmetic, array, html, index};

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

    fn own_type(&self) -> Type {
        lock(&self.graph).ty(self.value).clone()
    }

    fn unary<'py>(&self, name: &str, of: &Bound<'py, PyValue>) -> PyResult<Bound<'py, PyAny>> {
        let operands = [of.clone().into_any()];
        results(
            of.py(),
            &self.graph,
            add(&self.graph, name, &operands, None)?,
        )
    }

    fn binary<'py>(
        &self,
        name: &str,
        a: &Bound<'py, PyAny>,
        b: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let made = match name {
            "floor_div" | "floor_mod" => {
                let dtype = self.own_type().dtype;
                let a = value_of(&self.graph, a, dtype)?;
                let b = value_of(&self.graph, b, dtype)?;
                let mut graph = lock(&self.graph);
                let made = match name {
                    "floor_div" => arithmetic::floor_div(&mut graph, a, b),
                    _ => arithmetic::floor_mod(&mut graph, a, b),
                };
                vec![made.map_err(errors::graph)?]
            }
            _ => add(&self.graph, name, &[a.clone(), b.clone()], None)?,
        };
        results(a.py(), &self.graph, made)
    }

    /// The matrix product of a value and a value or an array.
    fn product<'py>(
        &self,
        a: &Bound<'py, PyAny>,
        b: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.own_type().dtype;
        let (first, second) = (
            value_of(&self.graph, a, dtype)?,
            value_of(&self.graph, b, dtype)?,
        );
        let made = lock(&self.graph).matmul(first, second);
        results(a.py(), &self.graph, vec![made.map_err(errors::graph)?])
    }

    fn permuted(&self, axes: &[usize]) -> PyResult<PyValue> {
        let value = lock(&self.graph).transpose(self.value, axes);
        Ok(PyValue::new(&self.graph, value.map_err(errors::graph)?))
    }
}

fn no_modulus(modulo: Option<Bound<'_, PyAny>>) -> PyResult<()> {
    match modulo {
        None => Ok(()),
        Some(_) => Err(PyTypeError::new_err(
            "pow() of values does not support a modulus",
        )),
    }
}

/// One axis or several.
#[derive(FromPyObject)]
enum AxisList {
    One(isize),
    Several(Vec<isize>),
}

impl AxisList {
    fn len(&self) -> usize {
        match self {
            AxisList::One(_) => 1,
            AxisList::Several(axes) => axes.len(),
        }
    }

    /// The axes, counted from the first one, in ascending order.
    fn resolve(&self, operator: &str, rank: usize) -> PyResult<Vec<usize>> {
        let axes = match self {
            AxisList::One(axis) => std::slice::from_ref(axis),
            AxisList::Several(axes) => axes,
        };
        let axes = axes.iter().map(|axis| axis_of(operator, *axis, rank));
        let mut axes = axes.collect::<PyResult<Vec<usize>>>()?;
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }
}

/// Counts a negative axis from the end.
fn axis_of(operator: &str, axis: isize, rank: usize) -> PyResult<usize> {
    let from_start = if axis < 0 { axis + rank as isize } else { axis };
    let found = usize::try_from(from_start).ok().filter(|axis| *axis < rank);
    found.ok_or_else(|| {
        GraphError::new_err(format!(
            "{operator}: axis {axis} is out of range for {}",
            tercet::counted(rank, "axis", "axes")
        ))
    })
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
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("add", slf.as_any(), &other)
    }

    fn __radd__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("add", &other, slf.as_any())
    }

    fn __sub__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("sub", slf.as_any(), &other)
    }

    fn __rsub__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("sub", &other, slf.as_any())
    }

    fn __mul__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("mul", slf.as_any(), &other)
    }

    fn __rmul__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("mul", &other, slf.as_any())
    }

    fn __truediv__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("div", slf.as_any(), &other)
    }

    fn __rtruediv__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("div", &other, slf.as_any())
    }

    fn __floordiv__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("floor_div", slf.as_any(), &other)
    }

    fn __rfloordiv__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("floor_div", &other, slf.as_any())
    }

    fn __mod__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("floor_mod", slf.as_any(), &other)
    }

    fn __rmod__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("floor_mod", &other, slf.as_any())
    }

    fn __and__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("and", slf.as_any(), &other)
    }

    fn __rand__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("and", &other, slf.as_any())
    }

    fn __or__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("or", slf.as_any(), &other)
    }

    fn __ror__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("or", &other, slf.as_any())
    }

    fn __xor__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("xor", slf.as_any(), &other)
    }

    fn __rxor__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("xor", &other, slf.as_any())
    }

    fn __lshift__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("shl", slf.as_any(), &other)
    }

    fn __rlshift__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("shl", &other, slf.as_any())
    }

    fn __rshift__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("shr", slf.as_any(), &other)
    }

    fn __rrshift__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().binary("shr", &other, slf.as_any())
    }

    fn __matmul__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().product(slf.as_any(), &other)
    }

    fn __rmatmul__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().product(&other, slf.as_any())
    }

    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
        modulo: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        no_modulus(modulo)?;
        slf.get().binary("pow", slf.as_any(), &other)
    }

    fn __rpow__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
        modulo: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        no_modulus(modulo)?;
        slf.get().binary("pow", &other, slf.as_any())
    }

    fn __neg__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().unary("neg", slf)
    }

    fn __pos__<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }

    fn __abs__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().unary("abs", slf)
    }

    fn __invert__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().unary("not", slf)
    }

    fn __floor__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().unary("floor", slf)
    }

    fn __ceil__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().unary("ceil", slf)
    }

    fn __trunc__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().unary("trunc", slf)
    }

    /// Compares each element; the result has dtype bool.
    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
        op: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Like other objects, a value is equal to no text and no `None`.
        if other.is_none() || other.is_instance_of::<PyString>() {
            return Ok(slf.py().NotImplemented().into_bound(slf.py()));
        }
        let name = match op {
            CompareOp::Lt => "lt",
            CompareOp::Le => "le",
            CompareOp::Eq => "eq",
            CompareOp::Ne => "ne",
            CompareOp::Gt => "gt",
            CompareOp::Ge => "ge",
        };
        slf.get().binary(name, slf.as_any(), &other)
    }

    fn __hash__(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (
            Arc::as_ptr(&self.graph) as usize,
            self.value.node,
            self.value.port,
        )
            .hash(&mut hash);
        hash.finish()
    }

    fn __bool__(&self) -> PyResult<bool> {
        Err(PyTypeError::new_err(
            "the truth value of a graph's value is known only in a run; use where(), `&` and `|`",
        ))
    }

    /// NumPy leaves operators between arrays and values to this class.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }

    #[pyo3(signature = (*_arguments, **_options))]
    fn __array__(
        &self,
        _arguments: &Bound<'_, PyTuple>,
        _options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        Err(PyTypeError::new_err(
            "a value of a graph has no elements before a run; use the operators of the graph, and `g.output`",
        ))
    }

    /// Size of the first axis.
    fn __len__(&self) -> PyResult<usize> {
        let ty = self.own_type();
        let first = ty.shape.iter().next();
        let first =
            first.ok_or_else(|| PyTypeError::new_err("a value without axes has no length"))?;
        first.known().ok_or_else(|| {
            PyTypeError::new_err(format!(
                "the size {first} is known only in a run; use `shape`"
            ))
        })
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let rows = slf.get().__len__()?;
        let rows: PyResult<Vec<_>> = (0..rows)
            .map(|row| {
                slf.get()
                    .__getitem__(&row.into_pyobject(slf.py())?.into_any())
            })
            .collect();
        Ok(PyTuple::new(slf.py(), rows?)?.try_iter()?.into_any())
    }

    /// Indices, slices, `...`, `None`, and lists, arrays or values of indices, as in NumPy.
    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let value = index::indexed(&self.graph, self.value, key)?;
        results(key.py(), &self.graph, vec![value])
    }

    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.own_type().rank()
    }

    /// The value with its axes in reverse order.
    #[getter(T)]
    fn transposed(&self) -> PyResult<PyValue> {
        let axes: Vec<usize> = (0..self.own_type().rank()).rev().collect();
        self.permuted(&axes)
    }

    /// The value with its last two axes exchanged.
    #[getter(mT)]
    fn matrix_transposed(&self) -> PyResult<PyValue> {
        let rank = self.own_type().rank();
        if rank < 2 {
            return Err(GraphError::new_err(format!(
                "mT requires at least two axes; the value is {}",
                self.ty()
            )));
        }
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 2, rank - 1);
        self.permuted(&axes)
    }

    /// The value without an axis of size 1, or without all of them.
    #[pyo3(signature = (axis=None))]
    fn squeeze(&self, axis: Option<AxisList>) -> PyResult<PyValue> {
        let ty = self.own_type();
        let is_one = |axis: &usize| ty.shape.get(*axis).is_some_and(Dim::is_one);
        let axes = match axis {
            None => (0..ty.rank()).filter(is_one).collect(),
            Some(axes) => axes.resolve("squeeze", ty.rank())?,
        };
        let mut value = self.value;
        for axis in axes.into_iter().rev() {
            value = lock(&self.graph)
                .squeeze(value, axis)
                .map_err(errors::graph)?;
        }
        Ok(PyValue::new(&self.graph, value))
    }

    /// The value with an axis of size 1 at these places of the result.
    fn unsqueeze(&self, axis: AxisList) -> PyResult<PyValue> {
        let rank = self.own_type().rank() + axis.len();
        let mut value = self.value;
        for axis in axis.resolve("unsqueeze", rank)? {
            value = lock(&self.graph)
                .unsqueeze(value, axis)
                .map_err(errors::graph)?;
        }
        Ok(PyValue::new(&self.graph, value))
    }

    /// The same as `unsqueeze`.
    fn expand_dims(&self, axis: AxisList) -> PyResult<PyValue> {
        self.unsqueeze(axis)
    }

    /// The value with the axes from `start` to `end` merged into one.
    #[pyo3(signature = (start=0, end=-1))]
    fn flatten(&self, start: isize, end: isize) -> PyResult<PyValue> {
        let rank = self.own_type().rank();
        let axes = match rank {
            0 => 0..0,
            _ => axis_of("flatten", start, rank)?..axis_of("flatten", end, rank)? + 1,
        };
        let value = lock(&self.graph)
            .flatten(self.value, axes)
            .map_err(errors::graph)?;
        Ok(PyValue::new(&self.graph, value))
    }

    /// The value with one axis.
    fn ravel(&self) -> PyResult<PyValue> {
        self.flatten(0, -1)
    }

    fn _repr_html_(&self) -> String {
        html::record(
            "tercet.Value",
            &[("value", self.value.to_string()), ("type", self.ty())],
        )
    }

    fn __repr__(&self) -> String {
        format!("<tercet.Value {}: {}>", self.value, self.ty())
    }
}
