//! Conversion between tensors and arrays of the crate `ndarray`.

use ndarray::{ArrayBase, ArrayD, ArrayViewD, Data, Dimension, IxDyn};
use tercet_ir::{Element, Tensor, TensorError};

/// Conversions of a [`Tensor`] from and to arrays of `ndarray`.
///
/// ```
/// use ndarray::array;
/// use tercet::{Tensor, TensorArrays};
/// let columns = array![[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let tensor = Tensor::from_array(&columns.t())?;
/// assert_eq!(tensor.as_slice::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// assert_eq!(tensor.as_array::<f32>()?, columns.t().into_dyn());
/// # Ok::<(), tercet::TensorError>(())
/// ```
pub trait TensorArrays: Sized {
    /// A tensor with a copy of an array of any layout.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`].
    fn from_array<S, D>(array: &ArrayBase<S, D>) -> Result<Self, TensorError>
    where
        S: Data<Elem: Element>,
        D: Dimension;

    /// A view of the elements, without a copy.
    ///
    /// # Errors
    /// [`TensorError`] if the tensor has another dtype.
    fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>, TensorError>;

    /// An array with a copy of the elements.
    ///
    /// # Errors
    /// The errors of [`Self::as_array`].
    fn to_array<T: Element>(&self) -> Result<ArrayD<T>, TensorError> {
        Ok(self.as_array()?.to_owned())
    }
}

impl TensorArrays for Tensor {
    fn from_array<S, D>(array: &ArrayBase<S, D>) -> Result<Tensor, TensorError>
    where
        S: Data<Elem: Element>,
        D: Dimension,
    {
        match array.as_slice() {
            Some(elements) => Tensor::from_slice(array.shape(), elements),
            // Elements in another order than that of a tensor.
            None => {
                let elements: Vec<S::Elem> = array.iter().copied().collect();
                Tensor::from_slice(array.shape(), &elements)
            }
        }
    }

    fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>, TensorError> {
        let elements = self.as_slice::<T>()?;
        // `ndarray` limits the product of the axes that are not empty.
        ArrayViewD::from_shape(IxDyn(self.shape()), elements).map_err(|_| TensorError::Overflow {
            ty: self.ty().clone(),
        })
    }
}
