//! Tensor types: a dtype and a shape, symbolic in graphs and concrete at run time.

use std::fmt;
use std::ops::Deref;

use crate::dim::{Bindings, Dim, DimError, Symbol};
use crate::dtype::DType;

/// Maximum number of axes of a tensor.
pub const MAX_RANK: usize = 8;

/// The dimensions of a tensor, outermost first (row-major).
///
/// ```
/// use tercet_tensor::{Bindings, Dim, Shape};
/// let shape = Shape::from([Dim::sym("batch"), Dim::Known(3)]);
/// assert_eq!((shape.rank(), shape.to_string()), (2, "[batch, 3]".to_string()));
/// assert_eq!(shape.as_known(), None);
/// assert_eq!(shape.eval(&Bindings::new().with("batch", 8))?, [8, 3]);
/// # Ok::<(), tercet_tensor::DimError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(Vec<Dim>);

impl Shape {
    /// A shape with these dimensions.
    pub fn new(dims: impl Into<Vec<Dim>>) -> Shape {
        Shape(dims.into())
    }

    /// A shape with known sizes.
    pub fn known(sizes: &[usize]) -> Shape {
        sizes.iter().map(|&n| Dim::Known(n)).collect()
    }

    /// The sizes, if all are known.
    pub fn as_known(&self) -> Option<Vec<usize>> {
        self.0.iter().map(Dim::known).collect()
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The product of all dimensions; `None` on overflow.
    pub fn numel(&self) -> Option<Dim> {
        self.0
            .iter()
            .try_fold(Dim::Known(1), |n, d| n.checked_mul(d))
    }

    /// The sizes for the given values of the symbols.
    ///
    /// # Errors
    /// [`DimError`] of the first dimension without a value, or [`DimError::TooMany`].
    pub fn eval(&self, values: &Bindings) -> Result<Vec<usize>, DimError> {
        let sizes: Result<Vec<usize>, _> = self.0.iter().map(|d| d.eval(values)).collect();
        sizes.and_then(|sizes| {
            check_count(&sizes, || self.clone())?;
            Ok(sizes)
        })
    }

    /// The maximum sizes when the symbols are within their bounds.
    ///
    /// # Errors
    /// [`DimError`] of the first dimension without a bound.
    pub fn upper_bound(&self, bounds: &Bindings) -> Result<Vec<usize>, DimError> {
        self.0.iter().map(|d| d.upper_bound(bounds)).collect()
    }

    /// The dimensions as a vector, for building another shape.
    pub fn into_dims(self) -> Vec<Dim> {
        self.0
    }

    /// Mutable access to the dimensions.
    pub fn dims_mut(&mut self) -> &mut Vec<Dim> {
        &mut self.0
    }
}

impl Deref for Shape {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.0
    }
}

impl FromIterator<Dim> for Shape {
    fn from_iter<I: IntoIterator<Item = Dim>>(dims: I) -> Shape {
        Shape(dims.into_iter().collect())
    }
}

impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Shape {
        Shape::known(sizes)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Shape {
        Shape::known(&sizes)
    }
}

impl<const N: usize> From<[Dim; N]> for Shape {
    fn from(dims: [Dim; N]) -> Shape {
        Shape(dims.into())
    }
}

impl From<Vec<Dim>> for Shape {
    fn from(dims: Vec<Dim>) -> Shape {
        Shape(dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, &self.0)
    }
}

fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    f.write_str("[")?;
    for (i, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
    }
    f.write_str("]")
}

/// The type of a graph value: `f32[b, s, 768]`.
///
/// ```
/// use tercet_tensor::{DType, Dim, Type};
/// let ty = Type::new(DType::F32, [Dim::sym("batch"), Dim::Known(768)]);
/// assert_eq!(ty.to_string(), "f32[batch, 768]");
/// assert_eq!(ty.with_dtype(DType::F16).with_shape([4]).to_string(), "f16[4]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// The element type.
    pub dtype: DType,
    /// The dimensions.
    pub shape: Shape,
}

impl Type {
    /// A type with this dtype and shape.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Type {
        Type {
            dtype,
            shape: shape.into(),
        }
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The same shape with another dtype.
    pub fn with_dtype(&self, dtype: DType) -> Type {
        Type {
            dtype,
            shape: self.shape.clone(),
        }
    }

    /// The same dtype with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Type {
        Type {
            dtype: self.dtype,
            shape: shape.into(),
        }
    }

    /// The concrete type for the given values of the symbols.
    ///
    /// # Errors
    /// [`DimError`] when a dimension has no value.
    pub fn eval(&self, values: &Bindings) -> Result<TensorType, DimError> {
        Ok(TensorType {
            dtype: self.dtype,
            shape: self.shape.eval(values)?,
        })
    }

    /// Calls `f` with each symbol of the shape.
    pub fn for_each_symbol<'a>(&'a self, mut f: impl FnMut(&'a Symbol)) {
        self.shape.iter().for_each(|d| d.for_each_symbol(&mut f));
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// The type of a tensor at run time, with concrete sizes.
///
/// ```
/// use tercet_tensor::{DType, TensorType};
/// let ty = TensorType::new(DType::F16, &[2, 3]);
/// assert_eq!((ty.numel(), ty.size_bytes()), (6, 12));
/// assert_eq!(ty.to_string(), "f16[2, 3]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The sizes, outermost first.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// A type with this dtype and these sizes.
    pub fn new(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType {
            dtype,
            shape: shape.to_vec(),
        }
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The number of bytes of a dense tensor of this type.
    pub fn size_bytes(&self) -> usize {
        self.numel() * self.dtype.size_bytes()
    }

    /// The number of bytes of a dense tensor of this type, saturated at `u64::MAX`. This method is
    /// for types whose sizes were not validated, so the product may overflow.
    pub fn saturating_bytes(&self) -> u64 {
        let sizes = self.shape.iter().map(|&n| n as u64);
        match self.shape.contains(&0) {
            true => 0,
            false => sizes.fold(self.dtype.size_bytes() as u64, u64::saturating_mul),
        }
    }
}

impl From<&TensorType> for Type {
    fn from(t: &TensorType) -> Type {
        Type {
            dtype: t.dtype,
            shape: Shape::known(&t.shape),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        write_list(f, &self.shape)
    }
}

/// The NumPy broadcast of two shapes.
///
/// A known size 1 broadcasts to any dimension. Other dimensions must be equal as symbolic
/// expressions; otherwise the result is `None`.
pub fn broadcast_shapes(a: &[Dim], b: &[Dim]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let one = Dim::Known(1);
    let at = |s: &[Dim], i: usize| -> Dim {
        let missing = rank - s.len();
        if i < missing {
            one.clone()
        } else {
            s[i - missing].clone()
        }
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (x, y) if x.is_one() => Some(y),
            (x, y) if y.is_one() => Some(x),
            _ => None,
        })
        .collect()
}

/// Advances to the next index of `sizes` in row-major order. Returns false after the last index,
/// and leaves zeros.
///
/// The loop advances axis by axis. The alternative, finding the axis first and zeroing the inner
/// axes at once, is miscompiled by a compiler version ([`compiler_trial`](crate::compiler_trial)).
pub fn next_index(index: &mut [usize], sizes: &[usize]) -> bool {
    for (i, &size) in index.iter_mut().zip(sizes).rev() {
        *i += 1;
        if *i < size {
            return true;
        }
        *i = 0;
    }
    false
}

/// Base-2 logarithm of the maximum element count of a shape at run time. The limit exceeds any
/// practical size. Derived numbers (bytes, bytes for each thread) still fit a `usize`.
pub const MAX_ELEMENTS_LOG2: u32 = 48;

/// Returns an error if the product of the nonzero sizes exceeds the supported element count. Zeros
/// are skipped because strides need the product of the other sizes.
///
/// # Errors
/// [`DimError::TooMany`] with the shape.
pub fn check_count(sizes: &[usize], shape: impl FnOnce() -> Shape) -> Result<(), DimError> {
    let mut sizes = sizes.iter().filter(|n| **n > 0);
    let count = sizes.try_fold(1usize, |count, n| count.checked_mul(*n));
    match count.is_some_and(|count| count as u64 <= 1 << MAX_ELEMENTS_LOG2) {
        true => Ok(()),
        false => Err(DimError::TooMany {
            shape: shape().to_string(),
            log2: MAX_ELEMENTS_LOG2,
        }),
    }
}

/// Row-major strides, in elements, of a dense tensor with these sizes.
pub fn row_major_strides(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i] * sizes[i];
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_walked_in_row_major_order() {
        let mut index = [0; 3];
        let mut seen = vec![index];
        while next_index(&mut index, &[2, 1, 3]) {
            seen.push(index);
        }
        let want = [
            [0, 0, 0],
            [0, 0, 1],
            [0, 0, 2],
            [1, 0, 0],
            [1, 0, 1],
            [1, 0, 2],
        ];
        assert_eq!(seen, want);
        assert_eq!(index, [0; 3]);
        assert!(!next_index(&mut [], &[]));
    }

    #[test]
    fn broadcasting_is_numpys() {
        let s = Dim::sym("s");
        let a = [s.clone(), Dim::Known(1)];
        let b = [Dim::Known(4)];
        assert_eq!(
            broadcast_shapes(&a, &b),
            Some([s.clone(), Dim::Known(4)].into())
        );
        assert_eq!(broadcast_shapes(&[s], &[Dim::sym("t")]), None);
        assert_eq!(broadcast_shapes(&[], &[Dim::Known(0)]), Some([0].into()));
        assert_eq!(broadcast_shapes(&[Dim::Known(2)], &[Dim::Known(3)]), None);
    }

    #[test]
    fn types_print_readably() {
        let t = Type::new(DType::F16, [Dim::sym("b"), Dim::Known(3)]);
        assert_eq!(t.to_string(), "f16[b, 3]");
        assert_eq!(row_major_strides(&[2, 3, 4]), [12, 4, 1]);
    }
}
