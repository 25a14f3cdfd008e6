//! Updates of slices by coordinates.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use super::{ScatterReduce, expect_updates, scatter};
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::gather_nd::{coordinates, slices};
use crate::ops::util::{exactly, expect_equal, expect_rank};

attrs! {
    /// `data` with each slice of `updates` written at its row of coordinates in the last axis of
    /// `idx` (ONNX `ScatterND`): `y[idx[i, 0], idx[i, 1], ..] = updates[i, ..]`. Negative
    /// coordinates count from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::ScatterReduce};
    /// let mut g = Graph::new();
    /// let data = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[1, 2], &[1i32, 0])?)?;
    /// let updates = g.constant(Tensor::from_slice(&[1], &[10f32])?)?;
    /// let y = g.scatter_nd(data, idx, updates, ScatterReduce::Add)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 2.0, 13.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ScatterNd {
        /// How updates are combined with an element.
        pub reduce: ScatterReduce,
    }
}

impl OpSpec for ScatterNd {
    const DOC: OpDoc = OpDoc {
        name: "scatter_nd",
        text: "`data` with each slice of `updates` written at its row of coordinates in the last \
               axis of `idx`: `y[idx[i, 0], idx[i, 1], ..] = updates[i, ..]`. Updates of one \
               element are applied in row-major order: the last one remains, or with `reduce` they \
               are combined with the old element. Negative coordinates count from the end. A run \
               with an out-of-range coordinate fails.",
        operands: &["data", "idx", "updates"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::scatter::nd);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [data, idx, updates] = exactly(operands)?;
        expect_updates(self.reduce, data, updates)?;
        let k = coordinates(idx)?;
        if k > data.rank() {
            let reason = format!("{k} coordinates for data of {} axes", data.rank());
            return Err(TypeError::Other(reason));
        }
        let rows = &idx.shape[..idx.rank() - 1];
        expect_rank("updates", updates, rows.len() + data.rank() - k)?;
        let wanted = rows.iter().chain(&data.shape[k..]);
        for (axis, (m, n)) in wanted.zip(updates.shape.iter()).enumerate() {
            expect_equal(
                &format!("expected and actual sizes of updates along axis {axis}"),
                m,
                n,
            )?;
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
        let k = idx.shape()[idx.shape().len() - 1];
        let (lens, slice) = data.shape().split_at(k);
        // All rows belong to one batch.
        let slices = slices(lens, idx, usize::MAX)?;
        let inner = slice.iter().product();
        Ok(vec![scatter(data, updates, inner, &slices, self.reduce)?])
    }
}

impl Graph {
    /// `data`, of any dtype, with each slice of `updates` written at its row of coordinates in the
    /// last axis of `idx` (`I32` or `I64`). Updates of one element are applied in row-major order.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, the last axis of `idx` is not of known size,
    /// or booleans would be combined. A run fails if a coordinate is outside `-n..n`.
    pub fn scatter_nd(
        &mut self,
        data: Value,
        idx: Value,
        updates: Value,
        reduce: ScatterReduce,
    ) -> Result<Value, OpError> {
        self.add(ScatterNd { reduce }, &[data, idx, updates])
    }
}
