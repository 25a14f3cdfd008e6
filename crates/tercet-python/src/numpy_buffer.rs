//! Zero-copy sharing of memory between NumPy and tensors on the CPU ("Arrays" in
//! `docs/guide/python.md`). Of this crate, only this file and `dlpack.rs` use `unsafe`.

#![allow(
    unsafe_code,
    reason = "shares memory with Python; each block documents its lifetime"
)]

use std::sync::Arc;

use numpy::ndarray::{ArrayView, IxDyn};
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tercet::{DType, Tensor, TensorType};

use crate::errors;

/// Borrowed elements of a NumPy array, which is kept alive.
struct NumpyBuffer {
    start: *const u8,
    bytes: usize,
    /// Keeps the memory valid: NumPy does not move the data of an array that is referenced.
    _array: Py<PyUntypedArray>,
}

// SAFETY: the pointer is used only to read plain numbers, which threads may share. The reference to
// the array is only dropped, which `Py` supports on any thread.
unsafe impl Send for NumpyBuffer {}
// SAFETY: as above; nothing is written.
unsafe impl Sync for NumpyBuffer {}

impl AsRef<[u8]> for NumpyBuffer {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `start` and `bytes` describe the elements of a contiguous array, which `_array`
        // keeps alive. Python code that writes into the array during a run violates a documented
        // rule, as with every library that borrows NumPy memory; the run then reads a mixture of
        // old and new numbers. Every kernel checks the indices that it uses, so such a race cannot
        // cause an out-of-bounds access.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

/// A tensor over the elements of a row-major array. Aligned elements are not copied. `bool` is
/// always copied, since bytes of NumPy arrays may differ from 0 and 1.
///
/// # Errors
/// `TensorError` if the size of the array overflows.
pub(crate) fn tensor<T: Element>(
    array: &Bound<'_, PyArrayDyn<T>>,
    dtype: DType,
) -> PyResult<Tensor> {
    debug_assert!(array.is_c_contiguous() && size_of::<T>() == dtype.size_bytes());
    let ty = TensorType::new(dtype, array.shape());
    let bytes = array.len() * size_of::<T>();
    let lent = NumpyBuffer {
        start: array.data().cast_const().cast(),
        bytes,
        _array: array.as_untyped().clone().unbind(),
    };
    Tensor::from_owner(ty, Arc::new(lent), 0..bytes).map_err(errors::tensor)
}

/// Owner of the memory of a returned array.
#[pyclass(name = "Memory", module = "tercet", frozen)]
struct PyTensorMemory {
    /// Accessed only through the array.
    _tensor: Tensor,
}

/// An array over the memory of a tensor. The memory lives as long as the array and its views. The
/// memory is copied only if another tensor shares it. The size of `T` must equal the element size.
pub(crate) fn array<T: Element + Copy>(
    py: Python<'_>,
    mut tensor: Tensor,
) -> PyResult<Bound<'_, PyArrayDyn<T>>> {
    assert_eq!(
        size_of::<T>(),
        tensor.dtype().size_bytes(),
        "invariant: the element type has the size of the dtype"
    );
    let shape = IxDyn(tensor.shape());
    // `bytes_mut` makes the memory unique, so Python may write to it. Owned tensors are aligned for
    // all dtypes.
    let start = tensor.bytes_mut().as_mut_ptr().cast_const().cast::<T>();
    let memory = Bound::new(py, PyTensorMemory { _tensor: tensor })?;
    // SAFETY: `start` points to as many elements as the shape has, and every bit pattern is a valid
    // number. The heap allocation of the elements does not move with the tensor. Nothing accesses
    // the tensor while `memory` is alive.
    let array = unsafe {
        let view = ArrayView::<T, IxDyn>::from_shape_ptr(shape, start);
        PyArrayDyn::borrow_from_array(&view, memory.into_any())
    };
    Ok(array)
}
