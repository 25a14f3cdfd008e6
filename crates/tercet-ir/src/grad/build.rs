//! Helpers of gradient rules: short methods that add operators.

use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type};

use super::error::NoGradient;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::{CumSum, PadMode, ReduceFn, ScanFn};
use crate::scalar::{BinaryFn, CompareFn};

type GradValueResult = Result<Value, OpError>;

/// The accumulation dtype of a dtype.
pub(crate) fn accumulate_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::F32
        | DType::F64
        | DType::I32
        | DType::U32
        | DType::I64
        | DType::I16
        | DType::I8
        | DType::U8
        | DType::Bool => dtype,
    }
}

/// The product of dimensions; an error if it has too many terms.
pub(crate) fn numel(dims: &[Dim]) -> Result<Dim, NoGradient> {
    let mut dims = dims.iter();
    let product = dims.try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    product.ok_or_else(|| NoGradient::because("a product of its sizes overflows"))
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

    /// A tensor filled with one value.
    pub(crate) fn filled(&mut self, ty: &Type, value: f64) -> GradValueResult {
        let scalar = self.scalar(ty.dtype, value)?;
        self.broadcast_to_shape(scalar, ty.shape.clone())
    }

    pub(crate) fn zeros_like(&mut self, v: Value) -> GradValueResult {
        let ty = self.ty(v).clone();
        self.filled(&ty, 0.0)
    }

    /// Converts `x` to another dtype.
    pub(crate) fn in_dtype(&mut self, x: Value, to: DType) -> GradValueResult {
        match self.dtype(x) == to {
            true => Ok(x),
            false => self.cast(x, to),
        }
    }

    /// Converts `x` to the dtype of another value.
    pub(crate) fn in_dtype_of(&mut self, x: Value, like: Value) -> GradValueResult {
        self.in_dtype(x, self.dtype(like))
    }

    /// Converts `x` to its accumulation dtype.
    pub(crate) fn widen(&mut self, x: Value) -> GradValueResult {
        self.in_dtype(x, accumulate_dtype(self.dtype(x)))
    }

    /// `f(x, value)`
    pub(crate) fn with(&mut self, f: BinaryFn, x: Value, value: f64) -> GradValueResult {
        let value = self.scalar(self.dtype(x), value)?;
        self.binary(f, x, value)
    }

    pub(crate) fn times(&mut self, x: Value, factor: f64) -> GradValueResult {
        self.with(BinaryFn::Mul, x, factor)
    }

    pub(crate) fn shifted(&mut self, x: Value, by: f64) -> GradValueResult {
        self.with(BinaryFn::Add, x, by)
    }

    /// `value - x`
    pub(crate) fn number_less(&mut self, value: f64, x: Value) -> GradValueResult {
        let value = self.scalar(self.dtype(x), value)?;
        self.sub(value, x)
    }

    pub(crate) fn is(&mut self, f: CompareFn, x: Value, value: f64) -> GradValueResult {
        let value = self.scalar(self.dtype(x), value)?;
        self.compare(f, x, value)
    }

    /// `x` if the condition is true, else 0.
    pub(crate) fn only_where(&mut self, cond: Value, x: Value) -> GradValueResult {
        let zero = self.scalar(self.dtype(x), 0.0)?;
        self.where_(cond, x, zero)
    }

    /// 0 if the condition is true, else `x`.
    pub(crate) fn except_where(&mut self, cond: Value, x: Value) -> GradValueResult {
        let zero = self.scalar(self.dtype(x), 0.0)?;
        self.where_(cond, zero, x)
    }

    /// Reshapes `x` to a shape with the same element count.
    pub(crate) fn shaped(&mut self, x: Value, shape: impl Into<Shape>) -> GradValueResult {
        let shape = shape.into();
        match self.ty(x).shape == shape {
            true => Ok(x),
            false => self.reshape(x, shape),
        }
    }

    /// `x` broadcast to a shape.
    pub(crate) fn broadcast_to_shape(
        &mut self,
        x: Value,
        shape: impl Into<Shape>,
    ) -> GradValueResult {
        let shape = shape.into();
        match self.ty(x).shape == shape {
            true => Ok(x),
            false => self.expand(x, shape),
        }
    }

    /// Permutes the axes of `x`.
    pub(crate) fn permuted(&mut self, x: Value, perm: &[usize]) -> GradValueResult {
        match perm.iter().enumerate().all(|(i, &p)| i == p) {
            true => Ok(x),
            false => self.transpose(x, perm),
        }
    }

    /// Swaps the last two axes of `x`.
    pub(crate) fn swapped(&mut self, x: Value) -> GradValueResult {
        let rank = self.rank(x);
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        self.transpose(x, &perm)
    }

    /// Moves an axis of `x` to another position.
    pub(crate) fn move_axis(&mut self, x: Value, from: usize, to: usize) -> GradValueResult {
        let mut perm: Vec<usize> = (0..self.rank(x)).collect();
        let axis = perm.remove(from);
        perm.insert(to, axis);
        self.permuted(x, &perm)
    }

    /// The sum over axes, which remain with size 1.
    pub(crate) fn sum_along(&mut self, x: Value, axes: &[usize]) -> GradValueResult {
        self.reduce_sum(x, axes, true)
    }

    /// Sums `x` back to the shape from which an operand was broadcast.
    pub(crate) fn summed_to(&mut self, x: Value, shape: &Shape) -> GradValueResult {
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

    /// The element count of a shape, as a scalar. If a size is symbolic, the count is computed as a
    /// sum of ones.
    pub(crate) fn count_of(&mut self, dims: &[Dim], dtype: DType) -> GradValueResult {
        let known = numel(dims).ok().and_then(|n| n.known());
        if let Some(n) = known {
            return self.scalar(dtype, n as f64);
        }
        let ones = self.filled(&Type::new(dtype, dims.to_vec()), 1.0)?;
        let axes: Vec<usize> = (0..dims.len()).collect();
        self.reduce_sum(ones, &axes, false)
    }

    /// `0, 1, ..` as `I32[n]`. If the length is symbolic or too long for a constant, the numbers
    /// are computed as a running sum of ones.
    pub(crate) fn iota(&mut self, n: &Dim) -> GradValueResult {
        const MAX_IOTA_LEN: usize = 1 << 16;
        if let Some(n) = n.known().filter(|n| *n <= MAX_IOTA_LEN) {
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

    /// Returns values whose shapes together contain each symbol of these types as a dimension. If a
    /// nested graph captures these values, it can use the symbols.
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

    /// Pads an axis with zeros.
    pub(crate) fn zeros_around(
        &mut self,
        x: Value,
        axis: usize,
        before: usize,
        after: usize,
    ) -> GradValueResult {
        if (before, after) == (0, 0) {
            return Ok(x);
        }
        let rank = self.rank(x);
        let (mut first, mut last) = (vec![0; rank], vec![0; rank]);
        (first[axis], last[axis]) = (before, after);
        self.pad(x, &first, &last, PadMode::Constant, 0.0)
    }

    /// Start indices of a window at the first element of each axis.
    pub(crate) fn first_element(&mut self, rank: usize) -> GradValueResult {
        let starts = Tensor::from_i64s(TensorType::new(DType::I32, &[rank]), &vec![0; rank]);
        self.constant(starts.expect("invariant: as many values as axes"))
    }

    /// Reverses the elements along an axis.
    pub(crate) fn flipped(&mut self, x: Value, axis: usize) -> GradValueResult {
        self.slice_axis(x, axis, i64::MAX, i64::MIN, -1)
    }

    /// For each index of an axis of size `n`, the sum of the slices of `x` whose index equals it.
    pub(crate) fn added_at(
        &mut self,
        x: Value,
        axis: usize,
        indices: Value,
        n: &Dim,
    ) -> GradValueResult {
        let first = self.move_axis(x, axis, 0)?;
        let sums = self.scatter_add(first, indices, n.clone())?;
        self.move_axis(sums, 0, axis)
    }
}
