//! Elementwise operators of one operand.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer};
use crate::scalar::unary::unary_functions;
use crate::scalar::{ScalarOp, UnaryFn};

attrs! {
    /// A function of each element: `y = f(x)`.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::ops::Unary;
    /// use tercet_ir::scalar::UnaryFn;
    /// use tercet_ir::{EvalCtx, Graph, Op, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[-1f32, 0.0, 2.0])?)?;
    /// let y = g.relu(x)?;
    /// assert_eq!(g.node(y.node).op, Op::from(Unary { f: UnaryFn::Relu }));
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [0.0, 0.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Unary {
        /// The elementwise function.
        pub f: UnaryFn,
    }
}

impl OpSpec for Unary {
    const DOC: OpDoc = OpDoc {
        name: "unary",
        text: "A function of each element: `y = f(x)`.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Elementwise,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::unary);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Unary(self.f), operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Unary(self.f), operands, &results[0])
    }
}

/// Declares the builder method of each [`UnaryFn`].
macro_rules! unary_methods {
    ($($(#[$doc:meta])* $f:ident $name:ident: $domain:ident = |$x:ident| $body:expr;)*) => { impl Graph { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`OpError`] when the dtype of `x` is not accepted.
        pub fn $name(&mut self, x: Value) -> Result<Value, OpError> {
            self.unary(UnaryFn::$f, x)
        }
    )* } };
}

impl Graph {
    /// Applies `f` to each element of `x`, of any shape.
    ///
    /// # Errors
    /// [`OpError`] when the dtype of `x` is not accepted.
    pub fn unary(&mut self, f: UnaryFn, x: Value) -> Result<Value, OpError> {
        self.add(Unary { f }, &[x])
    }
}

unary_functions!(unary_methods);
