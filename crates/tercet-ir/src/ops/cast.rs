//! Conversion between dtypes.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer};
use crate::scalar::ScalarOp;

attrs! {
    /// Conversion of each element to a dtype. Floats round to nearest even. Floats to integers
    /// truncate and saturate, and NaN becomes 0. Integers to narrower integers wrap. `Bool` is "not
    /// 0".
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{DType, EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[-1.9f32, 2.5, 1e20])?)?;
    /// let y = g.cast(x, DType::I32)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<i32>()?, [-1, 2, i32::MAX]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Cast {
        /// The dtype of the result.
        pub to: DType,
    }
}

impl OpSpec for Cast {
    const DOC: OpDoc = OpDoc {
        name: "cast",
        text: "Conversion to a dtype: floats round to nearest even; floats to integers truncate and \
               saturate, NaN becomes 0; integers to narrower integers wrap; `bool` is \"not 0\".",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::cast);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Cast(self.to), operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Cast(self.to), operands, &results[0])
    }
}

impl Graph {
    /// `x` of any dtype and shape converted to `to`, by the rules of [`Cast`].
    ///
    /// # Errors
    /// [`OpError`] when `x` belongs to another graph.
    pub fn cast(&mut self, x: Value, to: DType) -> Result<Value, OpError> {
        self.add(Cast { to }, &[x])
    }
}
