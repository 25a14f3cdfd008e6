//! Reshape: other sizes for the same elements, in row-major order.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_axis, expect_equal, overflow};

attrs! {
    /// The same elements with other sizes, in row-major order.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 6]))?;
    /// let y = g.reshape(x, [4, 3])?;
    /// assert_eq!(g.ty(y).to_string(), "f32[4, 3]");
    /// let z = g.reshape(x, [2, -1, 2])?;
    /// assert_eq!(g.ty(z).to_string(), "f32[2, 3, 2]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Reshape {
        /// The shape of the result, whose element count provably equals the operand's.
        pub shape: Shape,
    }
}

impl OpSpec for Reshape {
    const DOC: OpDoc = OpDoc {
        name: "reshape",
        text: "The same elements with another shape, in row-major order.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::reshape);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let y = x.with_shape(self.shape.clone());
        let count = |ty: &Type| ty.shape.numel().ok_or_else(|| overflow(ty));
        expect_equal("numbers of elements", &count(x)?, &count(&y)?)?;
        Ok(vec![y])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        Ok(vec![operands[0].reshaped(&results[0].shape)?])
    }
}

/// A reshape target; one axis may be inferred: -1, or `None` among dimensions.
///
/// ```
/// use tercet_ir::{DType, Dim, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [Dim::sym("rows"), Dim::Known(12)]))?;
/// let y = g.reshape(x, [-1, 3, 4])?;
/// assert_eq!(g.ty(y).to_string(), "f32[rows, 3, 4]");
/// let z = g.reshape(y, [Some(Dim::sym("rows")), None])?;
/// assert_eq!(g.ty(z), g.ty(x));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReshapeTarget(Vec<Result<Option<Dim>, i32>>);

impl<const N: usize> From<[i32; N]> for ReshapeTarget {
    fn from(sizes: [i32; N]) -> ReshapeTarget {
        sizes.as_slice().into()
    }
}

impl From<&[i32]> for ReshapeTarget {
    fn from(sizes: &[i32]) -> ReshapeTarget {
        let extent = |&n: &i32| match n {
            -1 => Ok(None),
            n => usize::try_from(n)
                .map(|n| Some(Dim::Known(n)))
                .map_err(|_| n),
        };
        ReshapeTarget(sizes.iter().map(extent).collect())
    }
}

impl<const N: usize> From<[Option<Dim>; N]> for ReshapeTarget {
    fn from(dims: [Option<Dim>; N]) -> ReshapeTarget {
        ReshapeTarget(dims.into_iter().map(Ok).collect())
    }
}

impl From<Shape> for ReshapeTarget {
    fn from(shape: Shape) -> ReshapeTarget {
        ReshapeTarget(shape.into_dims().into_iter().map(|d| Ok(Some(d))).collect())
    }
}

impl<const N: usize> From<[Dim; N]> for ReshapeTarget {
    fn from(dims: [Dim; N]) -> ReshapeTarget {
        Shape::from(dims).into()
    }
}

impl<const N: usize> From<[usize; N]> for ReshapeTarget {
    fn from(sizes: [usize; N]) -> ReshapeTarget {
        Shape::from(sizes).into()
    }
}

impl From<&[usize]> for ReshapeTarget {
    fn from(sizes: &[usize]) -> ReshapeTarget {
        Shape::from(sizes).into()
    }
}

impl From<Vec<Dim>> for ReshapeTarget {
    fn from(dims: Vec<Dim>) -> ReshapeTarget {
        Shape::from(dims).into()
    }
}

impl ReshapeTarget {
    /// The explicit shape for the elements of `x`.
    fn resolve(self, x: &Type) -> Result<Shape, TypeError> {
        let bad = |reason: String| TypeError::Attr {
            name: "shape",
            reason,
        };
        let mut remaining = None;
        let mut dims = Vec::with_capacity(self.0.len());
        for (axis, extent) in self.0.into_iter().enumerate() {
            let extent = extent.map_err(|n| bad(format!("{n} is not a size; -1 infers a size")))?;
            if extent.is_none() && remaining.replace(axis).is_some() {
                return Err(bad("at most one size can be inferred".to_string()));
            }
            // A factor of 1 leaves the product of the other axes unchanged.
            dims.push(extent.unwrap_or(Dim::Known(1)));
        }
        let Some(axis) = remaining else {
            return Ok(dims.into());
        };
        let others = Shape::new(dims.clone());
        let all = x.shape.numel().ok_or_else(|| overflow(x))?;
        let given = others
            .numel()
            .ok_or_else(|| overflow(&x.with_shape(others.clone())))?;
        dims[axis] = all.div_exact(&given).ok_or_else(|| {
            bad(format!(
                "the {all} elements of {x} are not a multiple of {given}; specify every size"
            ))
        })?;
        Ok(dims.into())
    }
}

impl Graph {
    /// `x`, of any dtype, with another shape. One axis may be -1 (among dimensions: `None`), and
    /// its size is then inferred.
    ///
    /// # Errors
    /// [`OpError`] when the element counts are not provably equal, or the inferred size is not
    /// unique.
    pub fn reshape(&mut self, x: Value, shape: impl Into<ReshapeTarget>) -> Result<Value, OpError> {
        let shape = match self.get_type(x) {
            Some(ty) => shape
                .into()
                .resolve(ty)
                .map_err(|source| self.attr_error(Reshape::DOC.name, x, source))?,
            None => Shape::default(),
        };
        self.add(Reshape { shape }, &[x])
    }

    /// `x` without an axis of size 1.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range or its size is not 1.
    pub fn squeeze(&mut self, x: Value, axis: usize) -> Result<Value, OpError> {
        let mut dims = self.dims_of(x);
        expect_axis(axis, dims.len()).map_err(|e| self.attr_error(Reshape::DOC.name, x, e))?;
        let size = dims.remove(axis);
        if !size.is_one() {
            let source = TypeError::Other(format!(
                "axis {axis} has size {size}; only axes of size 1 can be removed"
            ));
            return Err(self.attr_error(Reshape::DOC.name, x, source));
        }
        self.reshape(x, dims)
    }

    /// `x` with an axis of size 1 inserted before `axis`; if `axis` is the rank, the new axis is
    /// last.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is above the rank.
    pub fn unsqueeze(&mut self, x: Value, axis: usize) -> Result<Value, OpError> {
        let mut dims = self.dims_of(x);
        if axis > dims.len() {
            let rank = dims.len();
            return Err(self.attr_error(Reshape::DOC.name, x, TypeError::Axis { axis, rank }));
        }
        dims.insert(axis, Dim::Known(1));
        self.reshape(x, dims)
    }

    /// `x` with a range of axes merged into one; an empty range inserts an axis of size 1.
    ///
    /// # Errors
    /// [`OpError`] when the range is outside the rank or its product overflows.
    pub fn flatten(&mut self, x: Value, axes: std::ops::Range<usize>) -> Result<Value, OpError> {
        let mut dims = self.dims_of(x);
        if axes.end > dims.len() || axes.start > axes.end {
            let (axis, rank) = (axes.end.max(axes.start), dims.len());
            return Err(self.attr_error(Reshape::DOC.name, x, TypeError::Axis { axis, rank }));
        }
        let merged = Shape::new(&dims[axes.clone()]).numel();
        let merged =
            merged.ok_or_else(|| self.attr_error(Reshape::DOC.name, x, overflow(self.ty(x))))?;
        dims.splice(axes, [merged]);
        self.reshape(x, dims)
    }

    /// The dimensions of a value; empty for a value of another graph, which [`Graph::add`] rejects.
    pub(crate) fn dims_of(&self, x: Value) -> Vec<Dim> {
        self.get_type(x)
            .map_or_else(Vec::new, |ty| ty.shape.to_vec())
    }

    /// The error of an operator on `x` whose attributes could not be built.
    pub(crate) fn attr_error(&self, op: &'static str, x: Value, source: TypeError) -> OpError {
        OpError {
            op,
            operands: self.get_type(x).cloned().into_iter().collect(),
            source,
        }
    }
}
