//! The nearest others by a matrix of distances.

use super::{CustomOp, WgslGrid, WgslKernel, WgslParam};
use crate::attr::{Attrs, Literal};
use crate::attrs;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, TypeError};
use crate::grad::{Ruled, Vjp};
use crate::ops::ScatterReduce;
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank};
use crate::scalar::CompareFn;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The `k` nearest others of each point: F32 distances `[n, n]` give their numbers, I32 `[n, k]`, and
    /// distances, F32 `[n, k]`, from the nearest on. Row `i` is read without its own place `i`; ties go to the
    /// lower number, NaN is farther than everything. Where there are fewer others than `k`, the rest are
    /// number -1 at infinity.
    pub struct PairwiseKnn {
        /// How many others.
        pub k: usize,
    }
}

/// Invocations of a row.
const WORKGROUP: u32 = 64;

impl PairwiseKnn {
    /// The operator's name.
    pub const NAME: &'static str = "knn.pairwise";
}

impl CustomOp for PairwiseKnn {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Literal)> {
        self.to_literals()
    }

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [distances] = exactly(operands)?;
        expect_dtype("distances", distances, &[DType::F32])?;
        expect_rank("distances", distances, 2)?;
        let [rows, columns] = [0, 1].map(|axis| &distances.shape[axis]);
        expect_equal("rows and columns of the distances", rows, columns)?;
        if i32::try_from(self.k).is_err() {
            let reason = format!("{} is not at most {}", self.k, i32::MAX);
            return Err(TypeError::Attr { name: "k", reason });
        }
        let shape = vec![rows.clone(), Dim::Known(self.k)];
        let near = distances.with_shape(shape);
        Ok(vec![near.with_dtype(DType::I32), near])
    }

    fn eval(&self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        let distances = operands[0].to_f64s();
        let n = operands[0].shape()[0];
        let (mut numbers, mut near) = (Vec::new(), Vec::new());
        for (i, row) in distances.chunks_exact(n.max(1)).enumerate() {
            let mut others: Vec<usize> = (0..n).filter(|j| *j != i).collect();
            // A stable sort; NaN last.
            others.sort_by(|a, b| {
                let (a, b) = (row[*a], row[*b]);
                let both = a.is_nan().cmp(&b.is_nan());
                both.then(a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal))
            });
            let found = others.into_iter().map(|j| (j as i64, row[j]));
            let none = std::iter::repeat((-1, f64::INFINITY));
            for (number, distance) in found.chain(none).take(self.k) {
                numbers.push(number);
                near.push(distance);
            }
        }
        Ok(vec![
            Tensor::from_i64s(results[0].clone(), &numbers)?,
            Tensor::from_f64s(results[1].clone(), &near)?,
        ])
    }

    /// A distance that was chosen gets its cotangent; where there is no other, nothing does.
    fn gradient(&self, v: &mut Vjp<'_>) -> Ruled {
        let (distances, numbers, dy) = (v.x(0), v.y(0), v.dy(1)?);
        let exists = v.is(CompareFn::Ge, numbers, 0.0)?;
        let dy = v.only_where(exists, dy)?;
        let zeros = v.zeros_like(distances)?;
        let dx = v.scatter_elements(zeros, numbers, dy, 1, ScatterReduce::Add)?;
        Ok(v.give(0, dx)?)
    }

    fn kernels(&self, operands: &[&Type], _: &[Type]) -> Option<Vec<WgslKernel>> {
        let n = &operands[0].shape[0];
        Some(vec![WgslKernel {
            source: include_str!("../../../../shaders/custom/pairwise_knn.wgsl").to_string(),
            entry: "nearest".to_string(),
            workgroup: [WORKGROUP, 1, 1],
            writes: vec![0, 1],
            params: vec![
                WgslParam::U32(n.clone()),
                WgslParam::U32(Dim::Known(self.k)),
            ],
            grid: WgslGrid::Line(n.checked_mul(&Dim::Known(WORKGROUP as usize))?),
        }])
    }
}
