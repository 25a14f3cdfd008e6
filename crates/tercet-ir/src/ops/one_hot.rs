//! One-hot encoding of indices.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{INDEX_DTYPES, exactly, expect_dtype, resolve_index};

attrs! {
    /// For each index, a row of `depth` elements that is 1 at the index and 0 elsewhere. Negative
    /// indices count from the end. The rows form a new last axis. `Transpose` moves that axis
    /// elsewhere, and `Where` gives other values.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{DType, EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let idx = g.constant(Tensor::from_slice(&[2], &[1i32, -1])?)?;
    /// let y = g.one_hot(idx, 3, DType::F32)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct OneHot {
        /// The size of the new last axis.
        pub depth: usize,
        /// The dtype of the result.
        pub to: DType,
    }
}

impl OpSpec for OneHot {
    const DOC: OpDoc = OpDoc {
        name: "one_hot",
        text: "For each index, a row of `depth` elements of dtype `to` in a new last axis: 1 at \
               the index, 0 elsewhere. Negative indices count from the end. A run with an \
               out-of-range index fails.",
        operands: &["idx"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("its operand is an index");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [idx] = exactly(operands)?;
        expect_dtype("idx", idx, INDEX_DTYPES)?;
        let mut dims = idx.shape.to_vec();
        dims.push(Dim::Known(self.depth));
        Ok(vec![Type::new(self.to, dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let mut y = vec![0; results[0].numel()];
        for (row, index) in operands[0].to_i64s().into_iter().enumerate() {
            y[row * self.depth + resolve_index(index, self.depth)?] = 1;
        }
        Ok(vec![Tensor::from_i64s(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// For each index (`I32` or `I64`, any shape), a row of `depth` elements of dtype `to`: 1 at
    /// the index, 0 elsewhere.
    ///
    /// # Errors
    /// [`OpError`] when the dtype of `idx` is not an index dtype. A run fails if an index is
    /// outside `-depth..depth`.
    pub fn one_hot(&mut self, idx: Value, depth: usize, to: DType) -> Result<Value, OpError> {
        self.add(OneHot { depth, to }, &[idx])
    }
}
