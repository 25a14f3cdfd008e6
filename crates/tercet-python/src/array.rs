//! Conversion between NumPy arrays and tensors.
//!
//! Every input that NumPy can read is accepted: arrays, objects with `__dlpack__` in host memory
//! (`torch` tensors), buffers (`memoryview`, `array.array`), numbers and lists. Arrays keep their
//! dtype, which must match the graph. Python numbers and lists have no dtype and get that of the
//! graph. Inputs of a run are read in place. Results are arrays over the memory that the run wrote
//! ([`as_refs`](crate::as_refs)). Data that is stored longer than a run is copied.
//!
//! `bf16` corresponds to the dtype `bfloat16` of the package `ml_dtypes`.

use half::f16;
use numpy::{PyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple};
use tercet::{DType, Element, Tensor};

use crate::errors::TensorError;
use crate::numpy_buffer;

/// Converts a Python value to a tensor that owns its memory. `wanted` is the dtype of values
/// without one.
///
/// # Errors
/// `TensorError` for an unsupported dtype, or an exception of NumPy.
pub(crate) fn to_tensor(name: &str, value: &Bound<'_, PyAny>, wanted: DType) -> PyResult<Tensor> {
    let mut tensor = borrow_tensor(name, value, wanted)?;
    // Copy, because Python may write into its array later.
    tensor.bytes_mut();
    Ok(tensor)
}

/// Like [`to_tensor`], but reads the memory of an array in place if its layout allows. Use it for a
/// run, and not for data that is stored longer.
///
/// # Errors
/// Those of [`to_tensor`].
pub(crate) fn borrow_tensor(
    name: &str,
    value: &Bound<'_, PyAny>,
    wanted: DType,
) -> PyResult<Tensor> {
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
                return numpy_buffer::tensor(typed, <$T as Element>::DTYPE);
            }
        )*};
    }
    of!(f32, i32, i64, f64, f16, u8, i8, u32);
    if let Ok(typed) = any.cast::<PyArrayDyn<bool>>() {
        return numpy_buffer::tensor(typed, DType::Bool);
    }
    let dtype = array.dtype().to_string();
    if dtype == "bfloat16" {
        let bits = any.call_method1("view", ("uint16",))?;
        return numpy_buffer::tensor(bits.cast::<PyArrayDyn<u16>>()?, DType::BF16);
    }
    let known: Vec<&str> = DType::ALL.iter().map(|d| numpy_name(*d)).collect();
    let known = known.join(", ");
    Err(TensorError::new_err(format!(
        "`{name}` has dtype {dtype}; expected {} (known: {known}); convert it with `.astype(...)`",
        numpy_name(wanted)
    )))
}

/// Converts a value to a NumPy array.
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
        numbers_to_array(&numpy, value, wanted)?
    } else if value.hasattr("__dlpack__")? {
        numpy.call_method1("from_dlpack", (value,))?
    } else {
        numpy.call_method1("asarray", (value,))?
    };
    Ok(array.cast_into::<PyUntypedArray>()?)
}

/// Converts Python numbers to the dtype of the graph. Floats do not become integers.
fn numbers_to_array<'py>(
    numpy: &Bound<'py, PyModule>,
    value: &Bound<'py, PyAny>,
    wanted: DType,
) -> PyResult<Bound<'py, PyAny>> {
    let found = numpy.call_method1("asarray", (value,))?;
    let dtype = numpy_dtype(value.py(), wanted)?;
    let kind: String = found.getattr("dtype")?.getattr("kind")?.extract()?;
    let fits = numpy.call_method1("can_cast", (found.getattr("dtype")?, &dtype, "same_kind"))?;
    let empty = found.getattr("size")?.extract::<usize>()? == 0;
    // `same_kind` does not allow a signed number for an unsigned dtype; NumPy checks its range
    // below.
    if !(empty || fits.is_truthy()? || (kind == "i" && wanted.is_int())) {
        return Ok(found);
    }
    numpy.call_method1("asarray", (value, dtype))
}

/// Returns an array over the memory of a tensor. The memory is copied if another tensor shares it.
///
/// # Errors
/// `ImportError` for `bf16` without `ml_dtypes`.
pub(crate) fn to_numpy(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let array = match tensor.dtype() {
        DType::F32 => numpy_buffer::array::<f32>(py, tensor)?.into_any(),
        DType::F64 => numpy_buffer::array::<f64>(py, tensor)?.into_any(),
        DType::F16 => numpy_buffer::array::<f16>(py, tensor)?.into_any(),
        DType::I32 => numpy_buffer::array::<i32>(py, tensor)?.into_any(),
        DType::I64 => numpy_buffer::array::<i64>(py, tensor)?.into_any(),
        DType::U32 => numpy_buffer::array::<u32>(py, tensor)?.into_any(),
        DType::I8 => numpy_buffer::array::<i8>(py, tensor)?.into_any(),
        DType::U8 => numpy_buffer::array::<u8>(py, tensor)?.into_any(),
        DType::Bool => viewed(
            numpy_buffer::array::<u8>(py, tensor)?.into_any(),
            DType::Bool,
        )?,
        DType::BF16 => viewed(
            numpy_buffer::array::<u16>(py, tensor)?.into_any(),
            DType::BF16,
        )?,
    };
    Ok(array)
}

/// Reinterprets the memory as another dtype of the same size.
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

/// Parses a dtype name of Tercet (`f32`) or NumPy (`float32`).
///
/// # Errors
/// `TensorError`, which lists the known names.
pub(crate) fn dtype(name: &str) -> PyResult<DType> {
    let of_numpy = || DType::ALL.iter().copied().find(|d| numpy_name(*d) == name);
    DType::from_name(name).or_else(of_numpy).ok_or_else(|| {
        let known: Vec<&str> = DType::ALL.iter().map(|d| d.name()).collect();
        TensorError::new_err(format!(
            "unknown dtype `{name}`; expected one of {}",
            known.join(", ")
        ))
    })
}
