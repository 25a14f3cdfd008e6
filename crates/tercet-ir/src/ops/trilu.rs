//! Upper and lower triangles of matrices.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_rank_at_least};

attrs! {
    /// Matrices with 0 below (or above) a diagonal (NumPy `triu` and `tril`).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let upper = g.trilu(x, true, 0)?;
    /// let below = g.trilu(x, false, -1)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(upper).as_slice::<f32>()?, [1.0, 2.0, 0.0, 4.0]);
    /// assert_eq!(done.get(below).as_slice::<f32>()?, [0.0, 0.0, 3.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Trilu {
        /// Keeps the upper triangle if true, else the lower one.
        pub upper: bool,
        /// The outermost kept diagonal: 0 is the main diagonal, positive ones are above it.
        pub k: i64,
    }
}

impl Trilu {
    /// Whether the element at this position of a matrix is kept.
    pub fn is_kept(&self, row: usize, column: usize) -> bool {
        let diagonal = column as i64 - row as i64;
        match self.upper {
            true => diagonal >= self.k,
            false => diagonal <= self.k,
        }
    }
}

impl OpSpec for Trilu {
    const DOC: OpDoc = OpDoc {
        name: "trilu",
        text: "The upper triangle (`column - row >= k`) or the lower one (`column - row <= k`) of \
               the matrices in the last two axes; 0 elsewhere.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::trilu);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_rank_at_least("x", x, 2)?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let ty = &results[0];
        let [.., rows, columns] = ty.shape[..] else {
            unreachable!("invariant: the operand has two axes")
        };
        let size = ty.dtype.size_bytes();
        let mut y = operands[0].clone();
        for (i, element) in y.bytes_mut().chunks_exact_mut(size).enumerate() {
            if !self.is_kept(i / columns % rows, i % columns) {
                element.fill(0);
            }
        }
        Ok(vec![y])
    }
}

impl Graph {
    /// The upper (else the lower) triangle of the matrices in the last two axes of `x`, of any
    /// dtype, including diagonal `k`; 0 elsewhere.
    ///
    /// # Errors
    /// [`OpError`] when `x` has fewer than two axes.
    pub fn trilu(&mut self, x: Value, upper: bool, k: i64) -> Result<Value, OpError> {
        self.add(Trilu { upper, k }, &[x])
    }
}
