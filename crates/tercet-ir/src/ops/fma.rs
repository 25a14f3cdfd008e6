//! Fused multiply-add.

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
    /// `a b + c` with one rounding (IEEE 754 `fusedMultiplyAdd`); integers wrap.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{DType, EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let a = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let b = g.constant(Tensor::from_slice(&[2], &[3f32, 4.0])?)?;
    /// let c = g.scalar(DType::F32, 0.5)?;
    /// let y = g.fma(a, b, c)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [3.5, 8.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Fma {}
}

impl OpSpec for Fma {
    const DOC: OpDoc = OpDoc {
        name: "fma",
        text: "`a b + c`, broadcast, with one rounding; integers wrap.",
        operands: &["a", "b", "c"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::fma);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Fma, operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Fma, operands, &results[0])
    }
}

impl Graph {
    /// `a b + c` of numbers of one dtype with one rounding; all three broadcast.
    ///
    /// # Errors
    /// [`OpError`] when the dtypes differ or are `Bool`, or the shapes do not broadcast.
    pub fn fma(&mut self, a: Value, b: Value, c: Value) -> Result<Value, OpError> {
        self.add(Fma {}, &[a, b, c])
    }
}
