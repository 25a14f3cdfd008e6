//! Tensors in the memory of a device: outputs of one run that are inputs of another.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tercet::{CompileOptions, DType, DeviceTensor, Graph, Tensor, Type};

use crate::{array, device, errors, html};

/// A tensor in the memory of a device. It never changes.
#[pyclass(name = "DeviceTensor", module = "tercet", frozen)]
pub(crate) struct PyDeviceTensor {
    tensor: DeviceTensor,
}

impl PyDeviceTensor {
    pub(crate) fn new(tensor: DeviceTensor) -> PyDeviceTensor {
        PyDeviceTensor { tensor }
    }

    pub(crate) fn tensor(&self) -> &DeviceTensor {
        &self.tensor
    }

    fn described(&self) -> String {
        format!("{} on {}", self.tensor.ty(), self.tensor.device())
    }
}

/// Copies a tensor to a device. Executables do so for their device, and the smallest one returns
/// its input.
fn uploaded(tensor: &Tensor, name: &str) -> PyResult<DeviceTensor> {
    let mut graph = Graph::new();
    let ty = Type::new(tensor.dtype(), tensor.shape());
    let input = graph.input("x", ty).map_err(errors::graph)?;
    graph.output("x", input).map_err(errors::graph)?;
    let exe = device::open(name)?
        .compile(&graph, &CompileOptions::new())
        .map_err(errors::compile)?;
    exe.upload(tensor).map_err(errors::run)
}

#[pymethods]
impl PyDeviceTensor {
    /// Copies an array to a device. Numbers and lists get the dtype `dtype`, which is f32 by
    /// default.
    #[new]
    #[pyo3(signature = (array, device="auto", dtype=None))]
    fn copied(
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        device: &str,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyDeviceTensor> {
        let dtype = dtype.map_or(Ok(DType::F32), array::dtype_of)?;
        let tensor = array::to_tensor("array", array, dtype)?;
        let tensor = py.detach(|| uploaded(&tensor, device))?;
        Ok(PyDeviceTensor::new(tensor))
    }

    /// Copies the tensor to the host.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = py.detach(|| self.tensor.read()).map_err(errors::run)?;
        array::to_numpy(py, tensor)
    }

    /// NumPy's name of the dtype.
    #[getter]
    fn dtype(&self) -> &'static str {
        array::numpy_name(self.tensor.ty().dtype)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tensor.ty().shape)
    }

    /// Name of the executor whose device has the tensor.
    #[getter]
    fn device(&self) -> &'static str {
        self.tensor.device()
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The array is a copy in any case.
        let _ = copy;
        let array = self.numpy(py)?;
        match dtype {
            Some(dtype) => array.call_method1("astype", (dtype,)),
            None => Ok(array),
        }
    }

    /// Exports a copy on the host.
    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.numpy(py)?.call_method("__dlpack__", (), options)
    }

    /// DLPack's code of host memory.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.tensor.ty().shape.first().copied();
        let no_axis = "a tensor without axes has no length";
        first.ok_or_else(|| pyo3::exceptions::PyTypeError::new_err(no_axis))
    }

    fn __repr__(&self) -> String {
        format!("<tercet.DeviceTensor: {}>", self.described())
    }

    fn _repr_html_(&self) -> String {
        html::record("tercet.DeviceTensor", &[("tensor", self.described())])
    }
}
