//! Updates of elements by index along one axis.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use super::{ScatterReduce, expect_updates, scatter};
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::gather_elements::{expect_within, places};
use crate::ops::util::{exactly, expect_equal, expect_rank};

attrs! {
    /// `data` with each update written to its position along all axes but one. Along that axis, its
    /// index is the position. The operator equals ONNX `ScatterElements` and PyTorch `scatter` and
    /// `scatter_reduce`: with axis 1, `y[i, idx[i, j]] = updates[i, j]`. Negative indices count
    /// from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::ScatterReduce};
    /// let mut g = Graph::new();
    /// let data = g.constant(Tensor::from_slice(&[3], &[1f32, 2.0, 3.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[2], &[2i32, 0])?)?;
    /// let updates = g.constant(Tensor::from_slice(&[2], &[10f32, 20.0])?)?;
    /// let y = g.scatter_elements(data, idx, updates, 0, ScatterReduce::Replace)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [20.0, 2.0, 10.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ScatterElements {
        /// The indexed axis of `data`.
        pub axis: usize,
        /// How updates are combined with an element.
        pub reduce: ScatterReduce,
    }
}

impl OpSpec for ScatterElements {
    const DOC: OpDoc = OpDoc {
        name: "scatter_elements",
        text: "`data` with each update written at its position, except that its index replaces the \
               position along the axis: `y[i, idx[i, j]] = updates[i, j]` for axis 1. Updates of \
               one element are applied in row-major order: the last one remains, or with `reduce` \
               they are combined with the old element. Negative indices count from the end. A run \
               with an out-of-range index fails.",
        operands: &["data", "idx", "updates"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::scatter::elements);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [data, idx, updates] = exactly(operands)?;
        expect_updates(self.reduce, data, updates)?;
        expect_within(self.axis, data, idx)?;
        expect_rank("updates", updates, data.rank())?;
        for (axis, (m, n)) in idx.shape.iter().zip(updates.shape.iter()).enumerate() {
            expect_equal(&format!("sizes of idx and updates along axis {axis}"), m, n)?;
        }
        Ok(vec![data.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        _: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [data, idx, updates] = [operands[0], operands[1], operands[2]];
        let places = places(self.axis, data.shape(), idx)?;
        Ok(vec![scatter(data, updates, 1, &places, self.reduce)?])
    }
}

impl Graph {
    /// `data`, of any dtype, with the elements of `updates` written to indexed positions. Along
    /// `axis`, the element's index in `idx` (`I32` or `I64`, of the shape of `updates`) is the
    /// position; along the other axes, the position does not change. Updates of one element are
    /// applied in row-major order.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, `axis` is out of range, or booleans would be
    /// combined. A run fails if an index is outside `-n..n`.
    pub fn scatter_elements(
        &mut self,
        data: Value,
        idx: Value,
        updates: Value,
        axis: usize,
        reduce: ScatterReduce,
    ) -> Result<Value, OpError> {
        self.add(ScatterElements { axis, reduce }, &[data, idx, updates])
    }
}
