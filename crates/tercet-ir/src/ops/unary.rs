//! Elementwise operators of one operand.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer};
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

/// Declares builder methods that apply a [`UnaryFn`].
macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident => $f:ident),* $(,)?) => { impl Graph { $(
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

unary_methods! {
    /// `max(x, 0)`
    relu => Relu,
    /// `1 / (1 + exp(-x))`
    sigmoid => Sigmoid,
    /// Hyperbolic tangent.
    tanh => Tanh,
    /// `e^x`
    exp => Exp,
    /// Natural logarithm.
    ln => Ln,
    /// Square root.
    sqrt => Sqrt,
    /// `1 / sqrt(x)`
    rsqrt => Rsqrt,
    /// `1 / x`
    recip => Recip,
    /// `-x`
    neg => Neg,
    /// `|x|`
    abs => Abs,
    /// `x Phi(x)` with the Gaussian distribution function, computed with `erf`.
    gelu => Gelu,
    /// `min(max(x, 0), 6)`
    relu6 => Relu6,
    /// `x sigmoid(x)`
    silu => Silu,
    /// Logical or bitwise not.
    not => Not,
    /// `-1`, `0` or `1`; NaN stays NaN.
    sign => Sign,
    /// The tanh approximation of gelu.
    gelu_tanh => GeluTanh,
    /// `ln(1 + exp(x))`
    softplus => Softplus,
    /// The error function.
    erf => Erf,
    /// Sine of radians.
    sin => Sin,
    /// Cosine of radians.
    cos => Cos,
    /// Tangent of radians.
    tan => Tan,
    /// Arc sine.
    asin => Asin,
    /// Arc cosine.
    acos => Acos,
    /// Arc tangent.
    atan => Atan,
    /// Hyperbolic sine.
    sinh => Sinh,
    /// Hyperbolic cosine.
    cosh => Cosh,
    /// Largest integer `<= x`.
    floor => Floor,
    /// Smallest integer `>= x`.
    ceil => Ceil,
    /// Nearest integer, ties to even.
    round => Round,
    /// Nearest integer towards zero.
    trunc => Trunc,
    /// `2^x`
    exp2 => Exp2,
    /// Base 2 logarithm.
    log2 => Log2,
    /// `ln(1 + x)`, accurate near 0.
    log1p => Log1p,
    /// `e^x - 1`, accurate near 0.
    expm1 => Expm1,
    /// True for NaN.
    is_nan => IsNan,
    /// True for positive and negative infinity.
    is_inf => IsInf,
}
