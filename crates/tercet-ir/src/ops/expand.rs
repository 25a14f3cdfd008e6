//! Explicit broadcasting.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Shape, Tensor, TensorType, Type, broadcast_shapes};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{broadcast_indices, exactly};

attrs! {
    /// The operand broadcast to a shape by NumPy's rule: missing leading axes and axes of size 1
    /// repeat.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 1], &[1f32, 2.0])?)?;
    /// let y = g.expand(x, [2usize, 3])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Expand {
        /// The shape of the result.
        pub shape: Shape,
    }
}

impl OpSpec for Expand {
    const DOC: OpDoc = OpDoc {
        name: "expand",
        text: "The operand broadcast to a shape: missing leading axes and axes of size 1 repeat.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::expand);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let y = x.with_shape(self.shape.clone());
        if broadcast_shapes(&x.shape, &self.shape).as_ref() != Some(&self.shape) {
            return Err(TypeError::Broadcast {
                left: x.clone(),
                right: y,
            });
        }
        Ok(vec![y])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let size = results[0].dtype.size_bytes();
        let mut y = Tensor::zeros(results[0].clone())?;
        let from = operands[0].bytes();
        let at = broadcast_indices(operands[0].shape(), &results[0].shape);
        for (slot, i) in y.bytes_mut().chunks_exact_mut(size).zip(at) {
            slot.copy_from_slice(&from[i * size..][..size]);
        }
        Ok(vec![y])
    }
}

impl Graph {
    /// `x`, of any dtype, broadcast to `shape`.
    ///
    /// # Errors
    /// [`OpError`] when `x` does not broadcast to `shape`.
    pub fn expand(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value, OpError> {
        self.add(
            Expand {
                shape: shape.into(),
            },
            &[x],
        )
    }
}
