//! What rules share: short spellings of operators, each legalized when it is added.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::legalize::Builder;
use crate::ops::{
    Binary, Cast, Compare, Const, CumSum, Expand, MatMul, Reduce, ReduceFn, Reshape, ScanFn, Slice,
    Transpose, Unary, Where,
};
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType};

pub(super) type Built = Result<Value, OpError>;

/// The most indices that a rule writes down.
pub(super) const MOST_INDICES: usize = 1 << 22;

/// The dtype in which sums over values of a dtype are made: F16 and BF16 accumulate in F32.
pub(super) fn wide(dtype: DType) -> DType {
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

impl Builder<'_> {
    pub(super) fn dtype(&self, v: Value) -> DType {
        self.ty(v).dtype
    }

    pub(super) fn shape(&self, v: Value) -> Shape {
        self.ty(v).shape.clone()
    }

    pub(super) fn constant(&mut self, tensor: Tensor) -> Built {
        self.add(Const { tensor }, &[])
    }

    pub(super) fn scalar(&mut self, dtype: DType, value: f64) -> Built {
        let tensor = Tensor::from_f64s(TensorType::new(dtype, &[]), &[value])
            .expect("invariant: one value fits a scalar");
        self.constant(tensor)
    }

    pub(super) fn unary(&mut self, f: UnaryFn, x: Value) -> Built {
        self.add(Unary { f }, &[x])
    }

    pub(super) fn binary(&mut self, f: BinaryFn, a: Value, b: Value) -> Built {
        self.add(Binary { f }, &[a, b])
    }

    pub(super) fn compare(&mut self, f: CompareFn, a: Value, b: Value) -> Built {
        self.add(Compare { f }, &[a, b])
    }

    pub(super) fn select(&mut self, cond: Value, a: Value, b: Value) -> Built {
        self.add(Where {}, &[cond, a, b])
    }

    pub(super) fn matmul(&mut self, a: Value, b: Value) -> Built {
        self.add(MatMul {}, &[a, b])
    }

    /// `x` in another dtype.
    pub(super) fn cast(&mut self, x: Value, to: DType) -> Built {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.add(Cast { to }, &[x])
    }

    /// `x` in the dtype in which sums over it are made.
    pub(super) fn widen(&mut self, x: Value) -> Built {
        self.cast(x, wide(self.dtype(x)))
    }

    pub(super) fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Built {
        let shape = shape.into();
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        self.add(Reshape { shape }, &[x])
    }

    pub(super) fn expand(&mut self, x: Value, shape: impl Into<Shape>) -> Built {
        let shape = shape.into();
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        self.add(Expand { shape }, &[x])
    }

    pub(super) fn transpose(&mut self, x: Value, perm: &[usize]) -> Built {
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            return Ok(x);
        }
        let perm = perm.to_vec();
        self.add(Transpose { perm }, &[x])
    }

    /// `x` with its last two axes exchanged.
    pub(super) fn swap_last(&mut self, x: Value) -> Built {
        let rank = self.ty(x).rank();
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        self.transpose(x, &perm)
    }

    /// Part of one axis; `end` may be `i64::MAX` for the rest.
    pub(super) fn slice(
        &mut self,
        x: Value,
        axis: usize,
        start: i64,
        end: i64,
        step: i64,
    ) -> Built {
        let rank = self.ty(x).rank();
        let mut slice = Slice {
            starts: vec![0; rank],
            ends: vec![i64::MAX; rank],
            steps: vec![1; rank],
        };
        (slice.starts[axis], slice.ends[axis], slice.steps[axis]) = (start, end, step);
        self.add(slice, &[x])
    }

    /// A reduction over `axes` that keeps them with size 1.
    pub(super) fn reduce(&mut self, f: ReduceFn, x: Value, axes: &[usize]) -> Built {
        let axes = axes.to_vec();
        let keep_dim = true;
        self.add(Reduce { f, axes, keep_dim }, &[x])
    }

    /// `0, 1, ..` or `n-1, n-2, ..` as `I32[n]`. Of a symbolic length it is a running sum of ones:
    /// the core has no operator that counts. So it is of a length that a graph should not hold.
    pub(super) fn iota(&mut self, n: &Dim, reverse: bool) -> Built {
        if let Some(n) = n.known().filter(|n| *n <= MOST_INDICES) {
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
