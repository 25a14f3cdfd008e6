//! Helpers of rules: short methods that add operators, each legalized when it is added.

use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType};

use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{
    Binary, Cast, Compare, Const, CumSum, Expand, MatMul, Reduce, ReduceFn, Reshape, ScanFn, Slice,
    Transpose, Unary, Where,
};
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};

pub(super) type ValueResult = Result<Value, OpError>;

/// Maximum length of an index constant.
pub(super) const MAX_INDICES: usize = 1 << 22;

/// The accumulation dtype: F16 and BF16 accumulate in F32.
pub(super) fn accumulate_dtype(dtype: DType) -> DType {
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

impl LegalizeBuilder<'_> {
    pub(super) fn dtype(&self, v: Value) -> DType {
        self.ty(v).dtype
    }

    pub(super) fn shape(&self, v: Value) -> Shape {
        self.ty(v).shape.clone()
    }

    pub(super) fn constant(&mut self, tensor: Tensor) -> ValueResult {
        self.add(Const { tensor }, &[])
    }

    pub(super) fn scalar(&mut self, dtype: DType, value: f64) -> ValueResult {
        let tensor = Tensor::from_f64s(TensorType::new(dtype, &[]), &[value])
            .expect("invariant: one value fits a scalar");
        self.constant(tensor)
    }

    pub(super) fn unary(&mut self, f: UnaryFn, x: Value) -> ValueResult {
        self.add(Unary { f }, &[x])
    }

    pub(super) fn binary(&mut self, f: BinaryFn, a: Value, b: Value) -> ValueResult {
        self.add(Binary { f }, &[a, b])
    }

    pub(super) fn compare(&mut self, f: CompareFn, a: Value, b: Value) -> ValueResult {
        self.add(Compare { f }, &[a, b])
    }

    pub(super) fn select(&mut self, cond: Value, a: Value, b: Value) -> ValueResult {
        self.add(Where {}, &[cond, a, b])
    }

    pub(super) fn matmul(&mut self, a: Value, b: Value) -> ValueResult {
        self.add(MatMul {}, &[a, b])
    }

    /// Converts `x` to another dtype.
    pub(super) fn cast(&mut self, x: Value, to: DType) -> ValueResult {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.add(Cast { to }, &[x])
    }

    /// Converts `x` to its accumulation dtype.
    pub(super) fn widen(&mut self, x: Value) -> ValueResult {
        self.cast(x, accumulate_dtype(self.dtype(x)))
    }

    pub(super) fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> ValueResult {
        let shape = shape.into();
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        self.add(Reshape { shape }, &[x])
    }

    pub(super) fn expand(&mut self, x: Value, shape: impl Into<Shape>) -> ValueResult {
        let shape = shape.into();
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        self.add(Expand { shape }, &[x])
    }

    pub(super) fn transpose(&mut self, x: Value, perm: &[usize]) -> ValueResult {
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            return Ok(x);
        }
        let perm = perm.to_vec();
        self.add(Transpose { perm }, &[x])
    }

    /// Swaps the last two axes of `x`.
    pub(super) fn transpose_last_two(&mut self, x: Value) -> ValueResult {
        let rank = self.ty(x).rank();
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        self.transpose(x, &perm)
    }

    /// A slice of one axis; `end` may be `i64::MAX` for the rest.
    pub(super) fn slice(
        &mut self,
        x: Value,
        axis: usize,
        start: i64,
        end: i64,
        step: i64,
    ) -> ValueResult {
        let rank = self.ty(x).rank();
        let mut slice = Slice {
            starts: vec![0; rank],
            ends: vec![i64::MAX; rank],
            steps: vec![1; rank],
        };
        (slice.starts[axis], slice.ends[axis], slice.steps[axis]) = (start, end, step);
        self.add(slice, &[x])
    }

    /// A reduction over `axes`, which remain with size 1.
    pub(super) fn reduce(&mut self, f: ReduceFn, x: Value, axes: &[usize]) -> ValueResult {
        let axes = axes.to_vec();
        let keep_dim = true;
        self.add(Reduce { f, axes, keep_dim }, &[x])
    }

    /// `0, 1, ..` or `n-1, n-2, ..` as `I32[n]`. If the length is symbolic or too long for a
    /// constant, the numbers are a running sum of ones, because the core has no counting operator.
    pub(super) fn iota(&mut self, n: &Dim, reverse: bool) -> ValueResult {
        if let Some(n) = n.known().filter(|n| *n <= MAX_INDICES) {
            let mut values: Vec<i64> = (0..n as i64).collect();
            if reverse {
                values.reverse();
            }
            let ty = TensorType::new(DType::I32, &[n]);
            let tensor =
                Tensor::from_i64s(ty, &values).expect("invariant: as many values as elements");
            return self.constant(tensor);
        }
        let one = self.scalar(DType::I32, 1.0)?;
        let ones = self.expand(one, vec![n.clone()])?;
        let count = CumSum {
            axis: 0,
            f: ScanFn::Sum,
            exclusive: true,
            reverse,
        };
        self.add(count, &[ones])
    }
}
