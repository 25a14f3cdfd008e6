//! Sums of rows by index (scatter-add).

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use super::{ScatterReduce, scatter};
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least,
    resolve_index,
};

attrs! {
    /// For each row, the sum of the updates with its index, in order; 0 for rows without updates.
    /// The operator is the adjoint of `Gather` along axis 0. Negative indices count from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let updates = g.constant(Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[3], &[1i32, 0, 1])?)?;
    /// let y = g.scatter_add(updates, idx, 3)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [2.0, 5.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ScatterAdd {
        /// The number of rows of the result.
        pub rows: Dim,
    }
}

impl OpSpec for ScatterAdd {
    const DOC: OpDoc = OpDoc {
        name: "scatter_add",
        text: "For each of `rows` rows, the sum of the updates with its index, in order; 0 for \
               rows without updates. Negative indices count from the end. A run with an \
               out-of-range index fails.",
        operands: &["updates", "idx"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::scatter::add);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [updates, idx] = exactly(operands)?;
        expect_dtype("updates", updates, DType::NUMBERS)?;
        expect_dtype("idx", idx, INDEX_DTYPES)?;
        expect_rank_at_least("updates", updates, 1)?;
        expect_rank("idx", idx, 1)?;
        expect_equal(
            "numbers of updates and indices",
            &updates.shape[0],
            &idx.shape[0],
        )?;
        let mut dims = updates.shape.to_vec();
        dims[0] = self.rows.clone();
        Ok(vec![updates.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (updates, shape) = (operands[0], &results[0].shape);
        let rows: Result<Vec<usize>, EvalError> = (operands[1].to_i64s().into_iter())
            .map(|i| resolve_index(i, shape[0]))
            .collect();
        let zeros = Tensor::zeros(results[0].clone())?;
        let inner = shape[1..].iter().product();
        let y = scatter(&zeros, updates, inner, &rows?, ScatterReduce::Add)?;
        Ok(vec![y])
    }
}

impl Graph {
    /// For each of `rows` rows, the sum of the rows of `updates`, numbers of any dtype, with this
    /// index (`I32` or `I64`), in order.
    ///
    /// # Errors
    /// [`OpError`] when there is not one index for each update, or the dtypes do not match. A run
    /// fails if an index is outside `-rows..rows`.
    pub fn scatter_add(
        &mut self,
        updates: Value,
        idx: Value,
        rows: impl Into<Dim>,
    ) -> Result<Value, OpError> {
        let rows = rows.into();
        self.add(ScatterAdd { rows }, &[updates, idx])
    }
}
