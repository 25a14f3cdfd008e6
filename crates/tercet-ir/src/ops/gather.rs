//! Selection of slices by index.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{AxisView, INDEX_DTYPES, exactly, expect_axis, expect_dtype, resolve_index};

attrs! {
    /// The slices of `data` along an axis at the indices in `idx` (NumPy `take`). The result has
    /// the shape of `data` with the axis replaced by the axes of `idx`. Negative indices count from
    /// the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let data = g.constant(Tensor::from_slice(&[3], &[10f32, 20.0, 30.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[2], &[2i32, -3])?)?;
    /// let y = g.gather(data, idx, 0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [30.0, 10.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Gather {
        /// The indexed axis of `data`.
        pub axis: usize,
    }
}

impl OpSpec for Gather {
    const DOC: OpDoc = OpDoc {
        name: "gather",
        text: "The slices of `data` along an axis at the indices in `idx`, whose axes replace that \
               axis. Negative indices count from the end. A run with an out-of-range index fails.",
        operands: &["data", "idx"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::gather);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [data, idx] = exactly(operands)?;
        expect_dtype("idx", idx, INDEX_DTYPES)?;
        expect_axis(self.axis, data.rank())?;
        let mut dims = data.shape.to_vec();
        dims.splice(self.axis..=self.axis, idx.shape.iter().cloned());
        Ok(vec![data.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let data = operands[0];
        let view = AxisView::new(data.shape(), self.axis);
        let at: Result<Vec<usize>, EvalError> = (operands[1].to_i64s().into_iter())
            .map(|i| resolve_index(i, view.len))
            .collect();
        let at = at?;
        let mut y = Tensor::zeros(results[0].clone())?;
        let row = view.inner * data.dtype().size_bytes();
        if row > 0 {
            let mut to = y.bytes_mut().chunks_exact_mut(row);
            for block in 0..view.outer {
                for (&i, slot) in at.iter().zip(&mut to) {
                    slot.copy_from_slice(&data.bytes()[(block * view.len + i) * row..][..row]);
                }
            }
        }
        Ok(vec![y])
    }
}

impl Graph {
    /// The slices of `data`, of any dtype, along `axis` at the indices in `idx` (`I32` or `I64`,
    /// any shape). The axes of `idx` replace `axis`.
    ///
    /// # Errors
    /// [`OpError`] when the dtype of `idx` is not an index dtype or `axis` is out of range. A run
    /// fails if an index is outside `-n..n`.
    pub fn gather(&mut self, data: Value, idx: Value, axis: usize) -> Result<Value, OpError> {
        self.add(Gather { axis }, &[data, idx])
    }
}
