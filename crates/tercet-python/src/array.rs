//! Conversion between NumPy arrays and tensors.
//!
//! Every input that NumPy can read is accepted: arrays, objects with `__dlpack__` in host memory
//! (`torch` tensors), buffers (`memoryview`, `array.array`), numbers and lists. Arrays keep their
//! dtype, which must match the graph; their byte order and layout may be any. Numbers of Python and
//! NumPy, and lists, have no dtype and get that of the graph. Inputs of a run are read in place.
//! Results are arrays over the memory that the run wrote ([`as_refs`](crate::as_refs)). Data that is
//! stored longer than a run is copied.
//!
//! `bf16` corresponds to the dtype `bfloat16` of the package `ml_dtypes`. NumPy's DLPack does not
//! know it: [`dlpack`] reads such tensors, and results are arrays of a class that exports it.

use half::f16;
use numpy::{PyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple};
use tercet::{DType, Element, Tensor};

use crate::errors::TensorError;
use crate::{dlpack, numpy_buffer};

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
    let array = match to_array(name, value, wanted)? {
        ArraySource::Array(array) => in_native_order(name, array)?,
        ArraySource::Tensor(tensor) => return Ok(tensor),
    };
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
    of!(f32, i32, i64, f64, f16, u8, i8, i16, u32);
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

/// A value as NumPy sees it, or a tensor of a dtype that NumPy does not exchange.
enum ArraySource<'py> {
    Array(Bound<'py, PyUntypedArray>),
    Tensor(Tensor),
}

/// Whether a value is a number or a list: its dtype is that of the place where it is used.
fn has_no_dtype(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PyBool>()
        || value.is_instance_of::<PyInt>()
        || value.is_instance_of::<PyFloat>()
    {
        return Ok(true);
    }
    value.is_instance(&value.py().import("numpy")?.getattr("generic")?)
}

/// Converts a value to a NumPy array.
fn to_array<'py>(
    name: &str,
    value: &Bound<'py, PyAny>,
    wanted: DType,
) -> PyResult<ArraySource<'py>> {
    let numpy = value.py().import("numpy")?;
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        let is_masked = value.hasattr("mask")?
            && (numpy.getattr("ma")?)
                .call_method1("is_masked", (value,))?
                .is_truthy()?;
        return match is_masked {
            false => Ok(ArraySource::Array(array.clone())),
            true => Err(TensorError::new_err(format!(
                "`{name}` has masked elements, which have no value; fill them with `.filled(...)`"
            ))),
        };
    }
    let array = if has_no_dtype(value)? {
        numbers_to_array(&numpy, value, wanted)?
    } else if value.hasattr("__dlpack__")? {
        dlpack::check_device(name, value)?;
        match numpy.call_method1("from_dlpack", (value,)) {
            Ok(array) => array,
            // NumPy does not know the dtype.
            Err(e) => match dlpack::bfloat16(name, value)? {
                Some(tensor) => return Ok(ArraySource::Tensor(tensor)),
                None => return Err(e),
            },
        }
    } else {
        numpy.call_method1("asarray", (value,))?
    };
    Ok(ArraySource::Array(array.cast_into::<PyUntypedArray>()?))
}

/// Converts an array to the byte order of the machine.
fn in_native_order<'py>(
    name: &str,
    array: Bound<'py, PyUntypedArray>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let dtype = array.dtype();
    if dtype.getattr("isnative")?.is_truthy()? {
        return Ok(array);
    }
    let native = dtype.call_method1("newbyteorder", ("=",))?;
    let swapped = array.as_any().call_method1("astype", (native,));
    let swapped = swapped.map_err(|e| {
        TensorError::new_err(format!(
            "`{name}` has dtype {dtype} of another byte order: {e}"
        ))
    })?;
    Ok(swapped.cast_into::<PyUntypedArray>()?)
}

/// Converts numbers to the dtype of the graph. Floats do not become integers.
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
        DType::I16 => numpy_buffer::array::<i16>(py, tensor)?.into_any(),
        DType::I8 => numpy_buffer::array::<i8>(py, tensor)?.into_any(),
        DType::U8 => numpy_buffer::array::<u8>(py, tensor)?.into_any(),
        DType::Bool => viewed(
            numpy_buffer::array::<u8>(py, tensor)?.into_any(),
            DType::Bool,
        )?,
        DType::BF16 => {
            let bits = numpy_buffer::array::<u16>(py, tensor)?.into_any();
            let class = py.import("tercet._arrays")?.getattr("BFloat16Array")?;
            viewed(bits, DType::BF16)?.call_method1("view", (class,))?
        }
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
        DType::I16 => "int16",
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

/// The dtype that a value names: a string, or a dtype or number class of NumPy, `ml_dtypes` or
/// `torch`.
///
/// # Errors
/// `TensorError`, which lists the known names.
pub(crate) fn dtype_of(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Ok(name) = value.extract::<String>() {
        return dtype(&name);
    }
    let known = value.py().import("numpy")?.call_method1("dtype", (value,));
    let name: String = match known {
        Ok(known) => known.getattr("name")?.extract()?,
        // `torch.float32` and its like print their name last.
        Err(_) => value
            .str()?
            .to_string_lossy()
            .rsplit('.')
            .next()
            .unwrap_or_default()
            .to_string(),
    };
    dtype(&name)
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
