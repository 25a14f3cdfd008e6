//! Short spellings of what rules build.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::{CumSum, PadMode, ReduceFn, ScanFn};
use crate::scalar::{BinaryFn, CompareFn};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type};

use super::error::NoGradient;

type Built = Result<Value, OpError>;

/// The dtype in which sums over values of a dtype are made.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::F32
        | DType::F64
        | DType::I32
        | DType::U32
        | DType::I64
        | DType::I8
        | DType::U8
        | DType::Bool => dtype,
    }
}

/// The product of dimensions; no gradient where it has too many terms.
pub(crate) fn numel(dims: &[Dim]) -> Result<Dim, NoGradient> {
    let mut dims = dims.iter();
    let product = dims.try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    product.ok_or_else(|| NoGradient::because("a product of its sizes is too large"))
}

impl Graph {
    pub(crate) fn dtype(&self, v: Value) -> DType {
        self.ty(v).dtype
    }

    pub(crate) fn shape(&self, v: Value) -> Shape {
        self.ty(v).shape.clone()
    }

    pub(crate) fn rank(&self, v: Value) -> usize {
        self.ty(v).rank()
    }

    /// One number everywhere.
    pub(crate) fn filled(&mut self, ty: &Type, value: f64) -> Built {
        let scalar = self.scalar(ty.dtype, value)?;
        self.spread(scalar, ty.shape.clone())
    }

    pub(crate) fn zeros_like(&mut self, v: Value) -> Built {
        let ty = self.ty(v).clone();
        self.filled(&ty, 0.0)
    }

    /// `x` in another dtype.
    pub(crate) fn in_dtype(&mut self, x: Value, to: DType) -> Built {
        match self.dtype(x) == to {
            true => Ok(x),
            false => self.cast(x, to),
        }
    }

    /// `x` in the dtype of another value.
    pub(crate) fn in_dtype_of(&mut self, x: Value, like: Value) -> Built {
        self.in_dtype(x, self.dtype(like))
    }

    /// `x` in the dtype in which sums over it are made.
    pub(crate) fn widen(&mut self, x: Value) -> Built {
        self.in_dtype(x, wide(self.dtype(x)))
    }

    /// `f(x, value)`
    pub(crate) fn with(&mut self, f: BinaryFn, x: Value, value: f64) -> Built {
        let value = self.scalar(self.dtype(x), value)?;
        self.binary(f, x, value)
    }

    pub(crate) fn times(&mut self, x: Value, factor: f64) -> Built {
        self.with(BinaryFn::Mul, x, factor)
    }

    pub(crate) fn shifted(&mut self, x: Value, by: f64) -> Built {
        self.with(BinaryFn::Add, x, by)
    }

    /// `value - x`
    pub(crate) fn number_less(&mut self, value: f64, x: Value) -> Built {
        let value = self.scalar(self.dtype(x), value)?;
        self.sub(value, x)
    }

    pub(crate) fn is(&mut self, f: CompareFn, x: Value, value: f64) -> Built {
        let value = self.scalar(self.dtype(x), value)?;
        self.compare(f, x, value)
    }

    /// `x` where the condition holds, else 0.
    pub(crate) fn only_where(&mut self, cond: Value, x: Value) -> Built {
        let zero = self.scalar(self.dtype(x), 0.0)?;
        self.where_(cond, x, zero)
    }

    /// 0 where the condition holds, else `x`.
    pub(crate) fn except_where(&mut self, cond: Value, x: Value) -> Built {
        let zero = self.scalar(self.dtype(x), 0.0)?;
        self.where_(cond, zero, x)
    }

    /// `x` in another shape of as many elements.
    pub(crate) fn shaped(&mut self, x: Value, shape: impl Into<Shape>) -> Built {
        let shape = shape.into();
        match self.ty(x).shape == shape {
            true => Ok(x),
            false => self.reshape(x, shape),
        }
    }

    /// `x` broadcast to a shape.
    pub(crate) fn spread(&mut self, x: Value, shape: impl Into<Shape>) -> Built {
        let shape = shape.into();
        match self.ty(x).shape == shape {
            true => Ok(x),
            false => self.expand(x, shape),
        }
    }

    /// `x` with its axes in another order.
    pub(crate) fn permuted(&mut self, x: Value, perm: &[usize]) -> Built {
        match perm.iter().enumerate().all(|(i, &p)| i == p) {
            true => Ok(x),
            false => self.transpose(x, perm),
        }
    }

    /// `x` with its last two axes exchanged.
    pub(crate) fn swapped(&mut self, x: Value) -> Built {
        let rank = self.rank(x);
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        self.transpose(x, &perm)
    }

    /// `x` with an axis moved to another place.
    pub(crate) fn axis_moved(&mut self, x: Value, from: usize, to: usize) -> Built {
        let mut perm: Vec<usize> = (0..self.rank(x)).collect();
        let axis = perm.remove(from);
        perm.insert(to, axis);
        self.permuted(x, &perm)
    }

    /// The sum over axes, which stay.
    pub(crate) fn sum_along(&mut self, x: Value, axes: &[usize]) -> Built {
        self.reduce_sum(x, axes, true)
    }

    /// `x`, which an operand of this shape was broadcast to, summed back to that shape.
    pub(crate) fn summed_to(&mut self, x: Value, shape: &Shape) -> Built {
        let own = self.shape(x);
        if own == *shape {
            return Ok(x);
        }
        let missing = own.rank() - shape.rank();
        let repeated = |axis: &usize| {
            *axis < missing || shape[*axis - missing].is_one() && !own[*axis].is_one()
        };
        let axes: Vec<usize> = (0..own.rank()).filter(repeated).collect();
        let sum = match axes.is_empty() {
            true => x,
            false => self.reduce(ReduceFn::Sum, x, &axes, false)?,
        };
        self.shaped(sum, shape.clone())
    }

    /// The number of elements of these sizes, as a scalar. Of symbols it is a sum of ones.
    pub(crate) fn count_of(&mut self, dims: &[Dim], dtype: DType) -> Built {
        let known = numel(dims).ok().and_then(|n| n.known());
        if let Some(n) = known {
            return self.scalar(dtype, n as f64);
        }
        let ones = self.filled(&Type::new(dtype, dims.to_vec()), 1.0)?;
        let axes: Vec<usize> = (0..dims.len()).collect();
        self.reduce_sum(ones, &axes, false)
    }

    /// `0, 1, ..` as `I32[n]`. Of a symbolic length it is a running sum of ones, and so it is of one that a graph
    /// should not hold.
    pub(crate) fn iota(&mut self, n: &Dim) -> Built {
        const MOST: usize = 1 << 16;
        if let Some(n) = n.known().filter(|n| *n <= MOST) {
            let values: Vec<i64> = (0..n as i64).collect();
            let ty = TensorType::new(DType::I32, &[n]);
            let tensor =
                Tensor::from_i64s(ty, &values).expect("invariant: as many values as elements");
            return self.constant(tensor);
        }
        let ones = self.filled(&Type::new(DType::I32, [n.clone()]), 1.0)?;
        let count = CumSum {
            axis: 0,
            f: ScanFn::Sum,
            exclusive: true,
            reverse: false,
        };
        self.scan(ones, count)
    }

    /// Values that have each symbol of these types as a dimension by itself: captures by which a graph inside a node may
    /// name them.
    pub(crate) fn with_symbols(&mut self, types: &[Type]) -> Result<Vec<Value>, OpError> {
        let mut symbols = Vec::new();
        for ty in types {
            ty.for_each_symbol(|s| {
                if !symbols.contains(s) {
                    symbols.push(s.clone());
                }
            });
        }
        let dims = || types.iter().flat_map(|ty| ty.shape.iter());
        let mut values = Vec::new();
        for symbol in symbols {
            if !dims().any(|dim| dim.as_symbol() == Some(&symbol)) {
                let ty = Type::new(DType::I32, [Dim::sym(symbol.name())]);
                values.push(self.filled(&ty, 0.0)?);
            }
        }
        Ok(values)
    }

    /// Zeros around an axis.
    pub(crate) fn zeros_around(
        &mut self,
        x: Value,
        axis: usize,
        before: usize,
        after: usize,
    ) -> Built {
        if (before, after) == (0, 0) {
            return Ok(x);
        }
        let rank = self.rank(x);
        let (mut first, mut last) = (vec![0; rank], vec![0; rank]);
        (first[axis], last[axis]) = (before, after);
        self.pad(x, &first, &last, PadMode::Constant, 0.0)
    }

    /// The elements along an axis in the opposite order.
    pub(crate) fn flipped(&mut self, x: Value, axis: usize) -> Built {
        self.slice_axis(x, axis, i64::MAX, i64::MIN, -1)
    }

    /// For each place of an axis of `n` elements the sum of the slices of `x` whose index names it.
    pub(crate) fn added_at(&mut self, x: Value, axis: usize, indices: Value, n: &Dim) -> Built {
        let first = self.axis_moved(x, axis, 0)?;
        let sums = self.scatter_add(first, indices, n.clone())?;
        self.axis_moved(sums, 0, axis)
    }
}
