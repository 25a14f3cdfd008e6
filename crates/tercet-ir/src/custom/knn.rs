//! The nearest neighbours from a matrix of distances.

use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use super::{CustomOp, WgslGrid, WgslKernel, WgslParam};
use crate::attr::{AttrLiteral, Attrs};
use crate::attrs;
use crate::error::{EvalError, TypeError};
use crate::grad::{Vjp, VjpResult};
use crate::ops::ScatterReduce;
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank};
use crate::scalar::CompareFn;

attrs! {
    /// The `k` nearest neighbours of each point. F32 distances `[n, n]` give the neighbour indices,
    /// I32 `[n, k]`, and their distances, F32 `[n, k]`, from the nearest on. Row `i` ignores
    /// element `i`, the point itself. Ties go to the lower index, and NaN sorts after all numbers.
    /// If there are fewer than `k` neighbours, the remaining entries are index -1 at infinity.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, custom::PairwiseKnn};
    /// let mut g = Graph::new();
    /// let distances = g.input("distances", Type::new(DType::F32, [5, 5]))?;
    /// let indices = g.custom(PairwiseKnn { k: 2 }, &[distances])?;
    /// assert_eq!(g.ty(indices).to_string(), "i32[5, 2]");
    /// assert_eq!(g.ty(indices.port(1)).to_string(), "f32[5, 2]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct PairwiseKnn {
        /// Number of neighbours.
        pub k: usize,
    }
}

/// Threads per row.
const WORKGROUP: u32 = 64;

impl PairwiseKnn {
    /// Name of the operator.
    pub const NAME: &'static str = "knn.pairwise";
}

impl CustomOp for PairwiseKnn {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
        self.to_literals()
    }

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [distances] = exactly(operands)?;
        expect_dtype("distances", distances, &[DType::F32])?;
        expect_rank("distances", distances, 2)?;
        let [rows, columns] = [0, 1].map(|axis| &distances.shape[axis]);
        expect_equal("rows and columns of the distances", rows, columns)?;
        if i32::try_from(self.k).is_err() {
            let reason = format!("{} exceeds {}", self.k, i32::MAX);
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
            // A stable sort keeps ties in index order; NaN sorts last.
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

    /// Each selected distance receives its cotangent; entries without a neighbour contribute none.
    fn gradient(&self, v: &mut Vjp<'_>) -> VjpResult {
        let (distances, numbers, dy) = (v.x(0), v.y(0), v.dy(1)?);
        let exists = v.is(CompareFn::Ge, numbers, 0.0)?;
        let dy = v.only_where(exists, dy)?;
        let zeros = v.zeros_like(distances)?;
        let dx = v.scatter_elements(zeros, numbers, dy, 1, ScatterReduce::Add)?;
        Ok(v.accumulate(0, dx)?)
    }

    fn kernels(&self, operands: &[&Type], _: &[Type]) -> Option<Vec<WgslKernel>> {
        let n = &operands[0].shape[0];
        Some(vec![WgslKernel {
            source: include_str!("knn.wgsl").to_string(),
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
