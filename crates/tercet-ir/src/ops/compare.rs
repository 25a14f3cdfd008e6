//! Elementwise comparisons.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer};
use crate::scalar::{CompareFn, ScalarOp};

attrs! {
    /// A comparison of two broadcast operands of one dtype; the result is `Bool`.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::ops::Compare;
    /// use tercet_ir::scalar::CompareFn;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let a = g.constant(Tensor::from_slice(&[3], &[1i32, 2, 3])?)?;
    /// let b = g.constant(Tensor::from_slice(&[1], &[2i32])?)?;
    /// let y = g.add(Compare { f: CompareFn::Lt }, &[a, b])?;
    /// assert_eq!(g.ty(y).to_string(), "bool[3]");
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).bytes(), [1, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Compare {
        /// The comparison function.
        pub f: CompareFn,
    }
}

impl OpSpec for Compare {
    const DOC: OpDoc = OpDoc {
        name: "compare",
        text: "A comparison of two broadcast operands of one dtype; the result is `bool`. Every \
               comparison with NaN is false, except `ne`.",
        operands: &["a", "b"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("the derivative of a boolean is zero");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Compare(self.f), operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Compare(self.f), operands, &results[0])
    }
}

/// Declares builder methods that apply a [`CompareFn`].
macro_rules! compare_methods {
    ($($(#[$doc:meta])* $name:ident => $f:ident),* $(,)?) => { impl Graph { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`OpError`] when the dtypes differ or are not accepted, or the shapes do not broadcast.
        pub fn $name(&mut self, a: Value, b: Value) -> Result<Value, OpError> {
            self.compare(CompareFn::$f, a, b)
        }
    )* } };
}

impl Graph {
    /// Compares the elements of `a` and `b`, which broadcast; the result is `Bool`.
    ///
    /// # Errors
    /// [`OpError`] when the dtypes differ or are not accepted, or the shapes do not broadcast.
    pub fn compare(&mut self, f: CompareFn, a: Value, b: Value) -> Result<Value, OpError> {
        self.add(Compare { f }, &[a, b])
    }
}

compare_methods! {
    /// `a == b` of any dtype. (`eq` compares graphs.)
    equal => Eq,
    /// `a != b` of any dtype.
    not_equal => Ne,
    /// `a < b` of numbers.
    lt => Lt,
    /// `a <= b` of numbers.
    le => Le,
    /// `a > b` of numbers.
    gt => Gt,
    /// `a >= b` of numbers.
    ge => Ge,
}
