//! Clamping to an interval.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer};
use crate::scalar::ScalarOp;

attrs! {
    /// `min(max(x, lo), hi)`; NaN stays NaN. The bounds are rounded to the dtype of floats, and
    /// inwards for integers.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[-2f32, 0.5, 9.0])?)?;
    /// let y = g.clamp(x, 0.0, 1.0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Clamp {
        /// The lower bound; `-inf` for none.
        pub lo: FloatAttr,
        /// The upper bound; `inf` for none.
        pub hi: FloatAttr,
    }
}

impl Clamp {
    fn scalar_op(&self) -> ScalarOp {
        ScalarOp::Clamp {
            lo: self.lo,
            hi: self.hi,
        }
    }
}

impl OpSpec for Clamp {
    const DOC: OpDoc = OpDoc {
        name: "clamp",
        text: "`min(max(x, lo), hi)`; NaN stays NaN.",
        operands: &["x"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::clamp);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&self.scalar_op(), operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&self.scalar_op(), operands, &results[0])
    }
}

impl Graph {
    /// `min(max(x, lo), hi)` of numbers of any shape; NaN stays NaN.
    ///
    /// # Errors
    /// [`OpError`] when `x` is `Bool`, a bound is NaN, or `lo > hi`.
    pub fn clamp(&mut self, x: Value, lo: f64, hi: f64) -> Result<Value, OpError> {
        let (lo, hi) = (FloatAttr(lo), FloatAttr(hi));
        self.add(Clamp { lo, hi }, &[x])
    }
}
