//! Matmul of each row with the matrix that an index selects: a mixture of experts.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, exactly, expect_dtype, expect_equal, expect_rank, expect_same_dtype,
    resolve_index,
};

attrs! {
    /// `y[m, n] = sum_k x[m, k] w[expert[m], k, n]`. Negative indices count from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 1], &[1f32, 2.0])?)?;
    /// // The matrices of two experts.
    /// let w = g.constant(Tensor::from_slice(&[2, 1, 1], &[10f32, 100.0])?)?;
    /// let expert = g.constant(Tensor::from_slice(&[2], &[1i32, 0])?)?;
    /// let y = g.grouped_matmul(x, w, expert)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [100.0, 20.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct GroupedMatMul {}
}

impl OpSpec for GroupedMatMul {
    const DOC: OpDoc = OpDoc {
        name: "grouped_mat_mul",
        text: "Each row of `x [M, K]` times the matrix of `w [E, K, N]` that its index selects: \
               `sum_k x[m, k] w[expert[m], k, n]`. Negative indices count from the end. A run with \
               an out-of-range index fails.",
        operands: &["x", "w", "expert"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::grouped);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, w, expert] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_same_dtype("w", w, x)?;
        expect_dtype("expert", expert, INDEX_DTYPES)?;
        expect_rank("x", x, 2)?;
        expect_rank("w", w, 3)?;
        expect_rank("expert", expert, 1)?;
        expect_equal("numbers of rows and indices", &x.shape[0], &expert.shape[0])?;
        expect_equal("the inner dimensions", &x.shape[1], &w.shape[1])?;
        Ok(vec![x.with_shape([x.shape[0].clone(), w.shape[2].clone()])])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (operands[0].to_f64s(), operands[1].to_f64s());
        let [experts, k, n] = operands[1].shape()[..] else {
            unreachable!("invariant: w has three axes")
        };
        let mut y = vec![0.0; results[0].numel()];
        for (m, index) in operands[2].to_i64s().into_iter().enumerate() {
            let first = resolve_index(index, experts)? * k * n;
            for i in 0..k {
                for j in 0..n {
                    y[m * n + j] += x[m * k + i] * w[first + i * n + j];
                }
            }
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Multiplies each row of floats `x [M, K]` by the matrix of `w [E, K, N]` that its index in
    /// `expert [M]` (`I32` or `I64`) selects: `[M, N]`.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match. A run fails if an index is outside `-E..E`.
    pub fn grouped_matmul(&mut self, x: Value, w: Value, expert: Value) -> Result<Value, OpError> {
        self.add(GroupedMatMul {}, &[x, w, expert])
    }
}
