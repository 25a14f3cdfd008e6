//! NumPy arrays as tensors and back.
//!
//! Whatever NumPy reads is taken: arrays, what has `__dlpack__` in host memory (`torch` tensors), buffers
//! (`memoryview`, `array.array`), numbers and lists. Arrays keep their dtype, which has to be that of the graph;
//! numbers and lists of Python, which have none, take the graph's. Inputs of a run are read where they are, and results are
//! arrays over the memory that the run wrote ([`lent`](crate::lent)); what is kept beyond a run is copied.
//!
//! `bf16` is the dtype `bfloat16` of the package `ml_dtypes`.

use half::f16;
use numpy::{PyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple};
use tercet::{DType, Element, Tensor};

use crate::errors::TensorError;
use crate::lent;

/// The tensor of what Python gave for `name`; `wanted` is the dtype of what has none by itself.
///
/// # Errors
/// `TensorError` for a dtype that Tercet does not have; NumPy's own errors.
pub(crate) fn to_tensor(name: &str, value: &Bound<'_, PyAny>, wanted: DType) -> PyResult<Tensor> {
    let mut tensor = lent_tensor(name, value, wanted)?;
    // Python may write into its array later.
    tensor.bytes_mut();
    Ok(tensor)
}

/// As [`to_tensor`], over the memory of an array where that is as it has to be: for a run, not for what is kept beyond it.
///
/// # Errors
/// As [`to_tensor`].
pub(crate) fn lent_tensor(name: &str, value: &Bound<'_, PyAny>, wanted: DType) -> PyResult<Tensor> {
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
                return lent::tensor(typed, <$T as Element>::DTYPE);
            }
        )*};
    }
    of!(f32, i32, i64, f64, f16, u8, i8, u32);
    if let Ok(typed) = any.cast::<PyArrayDyn<bool>>() {
        return lent::tensor(typed, DType::Bool);
    }
    let dtype = array.dtype().to_string();
    if dtype == "bfloat16" {
        let bits = any.call_method1("view", ("uint16",))?;
        return lent::tensor(bits.cast::<PyArrayDyn<u16>>()?, DType::BF16);
    }
    let known: Vec<&str> = DType::ALL.iter().map(|d| numpy_name(*d)).collect();
    let known = known.join(", ");
    Err(TensorError::new_err(format!(
        "`{name}` has dtype {dtype}; expected {} (known: {known}); convert it with `.astype(...)`",
        numpy_name(wanted)
    )))
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

/// An array over the memory of a tensor; it is copied where another tensor shares it.
///
/// # Errors
/// `ImportError` for `bf16` without `ml_dtypes`.
pub(crate) fn to_numpy(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let array = match tensor.dtype() {
        DType::F32 => lent::array::<f32>(py, tensor)?.into_any(),
        DType::F64 => lent::array::<f64>(py, tensor)?.into_any(),
        DType::F16 => lent::array::<f16>(py, tensor)?.into_any(),
        DType::I32 => lent::array::<i32>(py, tensor)?.into_any(),
        DType::I64 => lent::array::<i64>(py, tensor)?.into_any(),
        DType::U32 => lent::array::<u32>(py, tensor)?.into_any(),
        DType::I8 => lent::array::<i8>(py, tensor)?.into_any(),
        DType::U8 => lent::array::<u8>(py, tensor)?.into_any(),
        DType::Bool => viewed(lent::array::<u8>(py, tensor)?.into_any(), DType::Bool)?,
        DType::BF16 => viewed(lent::array::<u16>(py, tensor)?.into_any(), DType::BF16)?,
    };
    Ok(array)
}

/// The same memory as another dtype of the same size.
fn viewed<'py>(array: Bound<'py, PyAny>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    let dtype = numpy_dtype(array.py(), dtype)?;
    array.call_method1("view", (dtype,))
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
