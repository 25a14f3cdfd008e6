//! Identity operators that only affect differentiation: `StopGradient` and `Checkpoint`.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::exactly;

attrs! {
    /// The operand, which gradients treat as a constant.
    ///
    /// ```
    /// use tercet_ir::{DType, GradError, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [3]))?;
    /// let fixed = g.stop_gradient(x)?;
    /// let loss = g.reduce_sum(fixed, &[0], false)?;
    /// assert!(matches!(g.gradients(loss, &[x]), Err(GradError::Unused { .. })));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct StopGradient {}
}

attrs! {
    /// The operand, which is saved for gradients. Gradients recompute the values that depend on the
    /// saved operand, up to the next checkpoint (Chen et al., "Training deep nets with sublinear
    /// memory cost", 2016).
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [3]))?;
    /// let saved = g.checkpoint(x)?;
    /// let y = g.exp(saved)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// let loss = g.reduce_sum(y, &[0], false)?;
    /// assert!(g.gradients(loss, &[x]).is_ok());
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Checkpoint {}
}

/// Implements [`OpSpec`] for an identity operator, from its name, meaning, gradient and builder
/// method.
macro_rules! identities {
    ($($Op:ident $name:literal $text:literal $gradient:expr;)*) => {$(
        impl OpSpec for $Op {
            const DOC: OpDoc = OpDoc {
                name: $name,
                text: $text,
                operands: &["x"],
                dtypes: DType::ALL,
                accuracy: Accuracy::Exact,
                tier: Tier::Composite,
            };
            const GRADIENT: Gradient<Self> = $gradient;
            fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
                let [x] = exactly(operands)?;
                Ok(vec![x.clone()])
            }
            fn eval(
                &self,
                _: &EvalCtx,
                operands: &[&Tensor],
                _: &[TensorType],
            ) -> Result<Vec<Tensor>, EvalError> {
                Ok(vec![operands[0].clone()])
            }
        }
    )*};
}

identities! {
    StopGradient "stop_gradient" "The operand, which gradients treat as a constant."
        Gradient::Zero("the operator stops gradients");
    Checkpoint "checkpoint" "The operand, which is saved for gradients. They recompute the values that depend on it, up to the next checkpoint."
        Gradient::Rule(rules::shape::identity);
}

impl Graph {
    /// `x` of any type, which gradients treat as a constant.
    ///
    /// # Errors
    /// [`OpError`] when `x` belongs to another graph.
    pub fn stop_gradient(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(StopGradient {}, &[x])
    }

    /// `x` of any type, which is saved for gradients. In a graph with checkpoints, gradients
    /// recompute values from them instead of saving all values until the backward pass reads them.
    ///
    /// # Errors
    /// [`OpError`] when `x` belongs to another graph.
    pub fn checkpoint(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(Checkpoint {}, &[x])
    }
}
