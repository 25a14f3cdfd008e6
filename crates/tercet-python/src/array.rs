//! NumPy arrays as tensors and back.
//!
//! Whatever NumPy reads is taken: arrays, what has `__dlpack__` in host memory (`torch` tensors), buffers
//! (`memoryview`, `array.array`), numbers and lists. Arrays keep their dtype, which has to be that of the graph;
//! numbers and lists of Python, which have none, take the graph's. Data is copied in and copied out: memory that
//! Python may write to meanwhile cannot be lent to a run without `unsafe`.
//!
//! `bf16` is the dtype `bfloat16` of the package `ml_dtypes`.

use half::{bf16, f16};
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple};
use tercet::{DType, Element, Tensor, TensorType};

use crate::errors::{self, TensorError};

/// The tensor of what Python gave for `name`; `wanted` is the dtype of what has none by itself.
///
/// # Errors
/// `TensorError` for a dtype that Tercet does not have; NumPy's own errors.
pub(crate) fn to_tensor(name: &str, value: &Bound<'_, PyAny>, wanted: DType) -> PyResult<Tensor> {
    let array = to_array(value, wanted)?;
    let array = match array.is_c_contiguous() {
        true => array,
        false => {
            let order = PyDict::new(value.py());
            order.set_item("order", "C")?;
            let packed = array.as_any().call_method("copy", (), Some(&order))?;
            packed.cast_into::<PyUntypedArray>()?
        }
    };
    let any = array.as_any();
    macro_rules! of {
        ($($T:ty),*) => {$(
            if let Ok(typed) = any.cast::<PyArrayDyn<$T>>() {
                return copied(typed);
            }
        )*};
    }
    of!(f32, i32, i64, f64, f16, u8, i8, u32);
    if let Ok(typed) = any.cast::<PyArrayDyn<bool>>() {
        let shape = typed.shape().to_vec();
        let lent = typed.try_readonly()?;
        return Tensor::from_bools(&shape, lent.as_slice()?).map_err(errors::tensor);
    }
    let dtype = array.dtype().to_string();
    if dtype == "bfloat16" {
        let bits = any.call_method1("view", ("uint16",))?;
        let bits = bits.cast::<PyArrayDyn<u16>>()?;
        let ty = TensorType::new(DType::BF16, bits.shape());
        let bytes: Vec<u8> = bits
            .try_readonly()?
            .as_slice()?
            .iter()
            .flat_map(|b| b.to_le_bytes())
            .collect();
        return Tensor::from_bytes(ty, &bytes).map_err(errors::tensor);
    }
    let known: Vec<&str> = DType::ALL.iter().map(|d| numpy_name(*d)).collect();
    let known = known.join(", ");
    Err(TensorError::new_err(format!(
        "`{name}` has dtype {dtype}; expected {} (known: {known}); convert it with `.astype(...)`",
        numpy_name(wanted)
    )))
}

fn copied<T: Element + numpy::Element>(array: &Bound<'_, PyArrayDyn<T>>) -> PyResult<Tensor> {
    let shape = array.shape().to_vec();
    let lent = array.try_readonly()?;
    Tensor::from_slice(&shape, lent.as_slice()?).map_err(errors::tensor)
}

/// What NumPy makes of a value.
fn to_array<'py>(value: &Bound<'py, PyAny>, wanted: DType) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let numpy = value.py().import("numpy")?;
    let without_dtype = value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PyBool>()
        || value.is_instance_of::<PyInt>()
        || value.is_instance_of::<PyFloat>();
    let array = if without_dtype {
        of_numbers(&numpy, value, wanted)?
    } else if value.hasattr("__dlpack__")? {
        numpy.call_method1("from_dlpack", (value,))?
    } else {
        numpy.call_method1("asarray", (value,))?
    };
    Ok(array.cast_into::<PyUntypedArray>()?)
}

/// Numbers of Python take the dtype of the graph, but floats do not become integers.
fn of_numbers<'py>(
    numpy: &Bound<'py, PyModule>,
    value: &Bound<'py, PyAny>,
    wanted: DType,
) -> PyResult<Bound<'py, PyAny>> {
    let found = numpy.call_method1("asarray", (value,))?;
    let dtype = numpy_dtype(value.py(), wanted)?;
    let kind: String = found.getattr("dtype")?.getattr("kind")?.extract()?;
    let fits = numpy.call_method1("can_cast", (found.getattr("dtype")?, &dtype, "same_kind"))?;
    let empty = found.getattr("size")?.extract::<usize>()? == 0;
    // A signed number to an unsigned dtype is no `same_kind`; NumPy checks its range below.
    if !(empty || fits.is_truthy()? || (kind == "i" && wanted.is_int())) {
        return Ok(found);
    }
    numpy.call_method1("asarray", (value, dtype))
}

/// A new array with the elements of a tensor.
///
/// # Errors
/// `ImportError` for `bf16` without `ml_dtypes`.
pub(crate) fn to_numpy<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let shape = tensor.shape().to_vec();
    fn made<'py, T: Element + numpy::Element>(
        py: Python<'py>,
        t: &Tensor,
        shape: Vec<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let elements = t.as_slice::<T>().map_err(errors::tensor)?;
        Ok(PyArray1::from_slice(py, elements)
            .reshape(shape)?
            .into_any())
    }
    match tensor.dtype() {
        DType::F32 => made::<f32>(py, tensor, shape),
        DType::F64 => made::<f64>(py, tensor, shape),
        DType::F16 => made::<f16>(py, tensor, shape),
        DType::I32 => made::<i32>(py, tensor, shape),
        DType::I64 => made::<i64>(py, tensor, shape),
        DType::U32 => made::<u32>(py, tensor, shape),
        DType::I8 => made::<i8>(py, tensor, shape),
        DType::U8 => made::<u8>(py, tensor, shape),
        DType::Bool => {
            let elements: Vec<bool> = tensor.bytes().iter().map(|&b| b != 0).collect();
            Ok(PyArray1::from_vec(py, elements).reshape(shape)?.into_any())
        }
        DType::BF16 => {
            let elements = tensor.as_slice::<bf16>().map_err(errors::tensor)?;
            let bits: Vec<u16> = elements.iter().map(|x| x.to_bits()).collect();
            let bits = PyArray1::from_vec(py, bits).reshape(shape)?;
            bits.call_method1("view", (numpy_dtype(py, DType::BF16)?,))
        }
    }
}

/// NumPy's name of a dtype.
pub(crate) fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U32 => "uint32",
        DType::I8 => "int8",
        DType::U8 => "uint8",
        DType::Bool => "bool",
    }
}

fn numpy_dtype(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    match dtype {
        DType::BF16 => py.import("ml_dtypes")?.getattr("bfloat16"),
        _ => py
            .import("numpy")?
            .call_method1("dtype", (numpy_name(dtype),)),
    }
}

/// The dtype of a name as Tercet (`f32`) or NumPy (`float32`) has it.
///
/// # Errors
/// `TensorError` that lists the names.
pub(crate) fn dtype(name: &str) -> PyResult<DType> {
    let of_numpy = || DType::ALL.iter().copied().find(|d| numpy_name(*d) == name);
    DType::from_name(name).or_else(of_numpy).ok_or_else(|| {
        let known: Vec<&str> = DType::ALL.iter().map(|d| d.name()).collect();
        TensorError::new_err(format!("`{name}` is no dtype; known: {}", known.join(", ")))
    })
}
