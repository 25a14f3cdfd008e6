//! Elementwise selection by a boolean condition.

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
    /// `cond ? a : b`, all three broadcast; the value that is not selected has no effect, even NaN.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let cond = g.constant(Tensor::from_bools(&[2], &[true, false])?)?;
    /// let a = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let b = g.constant(Tensor::from_slice(&[2], &[3f32, 4.0])?)?;
    /// let y = g.where_(cond, a, b)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Where {}
}

impl OpSpec for Where {
    const DOC: OpDoc = OpDoc {
        name: "where",
        text: "`cond ? a : b`, broadcast; the value that is not selected has no effect, even NaN.",
        operands: &["cond", "a", "b"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::select);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Where, operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Where, operands, &results[0])
    }
}

impl Graph {
    /// `cond ? a : b` with a `Bool` condition and `a` and `b` of one dtype; all three broadcast.
    ///
    /// # Errors
    /// [`OpError`] when `cond` is not `Bool`, the dtypes of `a` and `b` differ, or the shapes do
    /// not broadcast.
    pub fn where_(&mut self, cond: Value, a: Value, b: Value) -> Result<Value, OpError> {
        self.add(Where {}, &[cond, a, b])
    }
}
