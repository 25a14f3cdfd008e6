//! Memory that Python and the engine lend each other, so that nothing is copied on its way in or out on the CPU
//! ([ADR 0036](../../../docs/adr/0036-memory-that-python-lends.md)); the one file here with `unsafe`.

#![allow(
    unsafe_code,
    reason = "memory of another language: what keeps it alive and still is said at each place"
)]

use std::sync::Arc;

use numpy::ndarray::{ArrayView, IxDyn};
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tercet::{DType, Tensor, TensorType};

use crate::errors;

/// The elements of an array of NumPy, which is kept.
struct Lent {
    start: *const u8,
    bytes: usize,
    /// Keeps the memory where it is: NumPy moves no array that is referred to.
    _array: Py<PyUntypedArray>,
}

// SAFETY: what is read through the pointer are plain numbers, which threads share; the reference to the array is only
// dropped, which `Py` may do on any thread.
unsafe impl Send for Lent {}
// SAFETY: as above; nothing is written.
unsafe impl Sync for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `start` and `bytes` are those of the elements of a contiguous array, which `_array` keeps alive. Whoever
        // writes into it during a run breaks a rule that the documentation states, as with every library that NumPy's
        // arrays are lent to: the numbers read are some mixture then. No kernel uses an index without a check of its own.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

/// A tensor over the elements of an array in the order of rows, without a copy where they are aligned; `bool` is copied, since
/// bytes of arrays may be other than 0 and 1.
///
/// # Errors
/// `TensorError` for more elements than memory has.
pub(crate) fn tensor<T: Element>(
    array: &Bound<'_, PyArrayDyn<T>>,
    dtype: DType,
) -> PyResult<Tensor> {
    debug_assert!(array.is_c_contiguous() && size_of::<T>() == dtype.size_bytes());
    let ty = TensorType::new(dtype, array.shape());
    let bytes = array.len() * size_of::<T>();
    let lent = Lent {
        start: array.data().cast_const().cast(),
        bytes,
        _array: array.as_untyped().clone().unbind(),
    };
    Tensor::from_owner(ty, Arc::new(lent), 0..bytes).map_err(errors::tensor)
}

/// What owns the memory of an array that was given out.
#[pyclass(name = "Memory", module = "tercet", frozen)]
struct Memory {
    /// Written and read through the array alone.
    _tensor: Tensor,
}

/// An array over the memory of a tensor, which lives as long as the array and its views. It is copied only where another
/// tensor shares it. `T` is as large as an element.
pub(crate) fn array<T: Element + Copy>(
    py: Python<'_>,
    mut tensor: Tensor,
) -> PyResult<Bound<'_, PyArrayDyn<T>>> {
    assert_eq!(
        size_of::<T>(),
        tensor.dtype().size_bytes(),
        "invariant: elements are as large there as here"
    );
    let shape = IxDyn(tensor.shape());
    // Unique from here on: it may be written through. Every tensor of its own is aligned for all dtypes.
    let start = tensor.bytes_mut().as_mut_ptr().cast_const().cast::<T>();
    let memory = Bound::new(py, Memory { _tensor: tensor })?;
    // SAFETY: at `start` are as many elements as the shape has, numbers of any bits. They lie in an allocation of their own,
    // which neither moves with the tensor nor changes while `memory` is alive, as nothing reaches the tensor in it.
    let array = unsafe {
        let view = ArrayView::<T, IxDyn>::from_shape_ptr(shape, start);
        PyArrayDyn::borrow_from_array(&view, memory.into_any())
    };
    Ok(array)
}
