//! DLPack capsules of `bfloat16` tensors, which NumPy neither reads nor writes. All other dtypes go
//! through NumPy.

#![allow(
    unsafe_code,
    reason = "reads and writes DLPack's C structures; each block documents its lifetime"
)]

use std::ffi::{CStr, c_void};

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use tercet::{DType, Tensor, TensorType};

use crate::errors::{self, TensorError};

/// Name of a capsule that nobody has consumed.
const NAME: &CStr = c"dltensor";
/// DLPack's codes of memory that the host reads: plain, and pinned by CUDA or ROCm.
const HOST: [i32; 3] = [1, 3, 11];
/// DLPack's code of `bfloat16`.
const BFLOAT: u8 = 4;
/// Maximum number of axes; NumPy has at most 64.
const MAX_AXES: i32 = 64;

#[repr(C)]
struct DLDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    axes: i32,
    dtype: DLDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DLManagedTensor {
    tensor: DLTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// Returns an error if the memory of an object with `__dlpack__` is not readable by the host.
///
/// # Errors
/// `TensorError`, or an exception of the object.
pub(crate) fn check_device(name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if !value.hasattr("__dlpack_device__")? {
        return Ok(());
    }
    let device = value.call_method0("__dlpack_device__")?;
    let code: i32 = device.get_item(0)?.call_method0("__int__")?.extract()?;
    match HOST.contains(&code) {
        true => Ok(()),
        false => Err(TensorError::new_err(format!(
            "`{name}` is in the memory of a device (DLPack device type {code}); expected host memory; copy it first, \
             for example with `.cpu()`"
        ))),
    }
}

/// Copies a `bfloat16` tensor of an object with `__dlpack__`, with any strides. `None` for other
/// dtypes.
///
/// # Errors
/// `TensorError` for a malformed tensor, or an exception of the object.
pub(crate) fn bfloat16(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    let capsule = value.call_method0("__dlpack__")?;
    // SAFETY: `capsule` is a Python object. A capsule of this name points to a `DLManagedTensor`,
    // which lives as long as the capsule: this function does not rename the capsule, so its
    // destructor frees the tensor.
    let managed = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), NAME.as_ptr()) == 0 {
            return Ok(None);
        }
        let found = ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr());
        &*found.cast::<DLManagedTensor>()
    };
    let own = &managed.tensor;
    if (own.dtype.code, own.dtype.bits, own.dtype.lanes) != (BFLOAT, 16, 1) {
        return Ok(None);
    }
    let malformed = |problem: &str| TensorError::new_err(format!("`{name}`: {problem}"));
    if !HOST.contains(&own.device_type) || !(0..=MAX_AXES).contains(&own.axes) {
        return Err(malformed("the DLPack tensor is not in host memory"));
    }
    let axes = own.axes as usize;
    // SAFETY: DLPack: `shape` has `axes` elements, and so has `strides` unless it is null. Both
    // may be null without axes.
    let (shape, strides) = unsafe {
        let list = |start: *mut i64| match axes {
            0 => Vec::new(),
            _ => std::slice::from_raw_parts(start, axes).to_vec(),
        };
        let strides = (!own.strides.is_null()).then(|| list(own.strides));
        (list(own.shape), strides)
    };
    let sizes: Result<Vec<usize>, _> = shape.iter().map(|n| usize::try_from(*n)).collect();
    let sizes = sizes.map_err(|_| malformed("the DLPack tensor has a negative size"))?;
    let total = sizes
        .iter()
        .try_fold(1usize, |n, size| n.checked_mul(*size))
        .filter(|n| n.checked_mul(2).is_some())
        .ok_or_else(|| malformed("the DLPack tensor is too large"))?;
    let strides = strides.unwrap_or_else(|| row_major(&shape));
    let mut elements = Vec::with_capacity(total);
    let start = own.data.cast::<u8>().wrapping_add(own.byte_offset as usize);
    let mut index = vec![0i64; axes];
    for _ in 0..total {
        let at: i64 = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        let place = start.wrapping_offset(2 * at as isize).cast::<u16>();
        // SAFETY: the index is below the sizes, so the element is part of the tensor, which the
        // capsule keeps alive. It may be unaligned.
        elements.push(unsafe { place.read_unaligned() });
        for axis in (0..axes).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let tensor = Tensor::from_bytes(TensorType::new(DType::BF16, &sizes), &bytes);
    tensor.map(Some).map_err(errors::tensor)
}

/// Strides of a tensor without gaps, in elements.
fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides
}

/// A tensor that is lent to another library. Its memory belongs to the array.
#[repr(C)]
struct LentArray {
    managed: DLManagedTensor,
    shape: Vec<i64>,
    _array: Py<PyUntypedArray>,
}

unsafe extern "C" fn free_lent(managed: *mut DLManagedTensor) {
    if managed.is_null() {
        return;
    }
    // SAFETY: `context` is the box that `capsule` leaked, and DLPack calls the deleter once. `Py`
    // may be dropped without the GIL.
    drop(unsafe { Box::from_raw((*managed).context.cast::<LentArray>()) });
}

unsafe extern "C" fn free_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with a capsule of `capsule`. A consumer renames the capsule and
    // calls the deleter itself.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            free_lent(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

/// A DLPack capsule over the memory of a `bfloat16` array, which is copied only if it is not
/// row-major.
///
/// # Errors
/// `BufferError` for another dtype.
#[pyfunction(name = "_bfloat16_capsule")]
pub(crate) fn capsule<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    let dtype: String = array.getattr("dtype")?.getattr("name")?.extract()?;
    if dtype != "bfloat16" {
        return Err(PyBufferError::new_err(format!(
            "the array has dtype {dtype}; expected bfloat16"
        )));
    }
    let numpy = py.import("numpy")?;
    // Axes of rank 0 arrays stay: `ascontiguousarray` would add one.
    let bits = array.call_method1("view", ("uint16",))?;
    let bits = bits.call_method1("view", (numpy.getattr("ndarray")?,))?;
    let bits = match bits.cast::<PyArrayDyn<u16>>()?.is_c_contiguous() {
        true => bits,
        false => bits.call_method0("copy")?,
    };
    let bits = bits.cast::<PyArrayDyn<u16>>()?;
    let shape: Vec<i64> = bits.shape().iter().map(|n| *n as i64).collect();
    let tensor = DLTensor {
        data: bits.data().cast(),
        device_type: HOST[0],
        device_id: 0,
        axes: shape.len() as i32,
        dtype: DLDataType {
            code: BFLOAT,
            bits: 16,
            lanes: 1,
        },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensor {
        tensor,
        context: std::ptr::null_mut(),
        deleter: Some(free_lent),
    };
    let lent = Box::into_raw(Box::new(LentArray {
        managed,
        shape,
        _array: bits.as_untyped().clone().unbind(),
    }));
    // SAFETY: the box was just leaked; its vector does not move. The capsule owns the box until it
    // is consumed or freed.
    unsafe {
        (*lent).managed.context = lent.cast();
        (*lent).managed.tensor.shape = (*lent).shape.as_mut_ptr();
        let made = ffi::PyCapsule_New(lent.cast(), NAME.as_ptr(), Some(free_capsule));
        match made.is_null() {
            true => {
                free_lent(lent.cast());
                Err(PyErr::fetch(py))
            }
            false => Ok(Bound::from_owned_ptr(py, made)),
        }
    }
}
