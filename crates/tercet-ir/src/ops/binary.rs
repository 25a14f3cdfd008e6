//! Elementwise functions of two operands.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer};
use crate::scalar::{BinaryFn, ScalarOp};

attrs! {
    /// A function of two broadcast operands of one dtype: `y = f(a, b)`.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::ops::Binary;
    /// use tercet_ir::scalar::BinaryFn;
    /// use tercet_ir::{DType, EvalCtx, Graph, Op, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let a = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let b = g.scalar(DType::F32, 10.0)?;
    /// let y = g.mul(a, b)?;
    /// assert_eq!(g.node(y.node).op, Op::from(Binary { f: BinaryFn::Mul }));
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [10.0, 20.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Binary {
        /// The elementwise function.
        pub f: BinaryFn,
    }
}

impl OpSpec for Binary {
    const DOC: OpDoc = OpDoc {
        name: "binary",
        text: "A function of two broadcast operands of one dtype: `y = f(a, b)`. Integers wrap; `x \
               / 0 = x`, `x % 0 = 0`; shift counts are taken modulo the width.",
        operands: &["a", "b"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Elementwise,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::binary);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Binary(self.f), operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Binary(self.f), operands, &results[0])
    }
}

/// Declares builder methods that apply a [`BinaryFn`].
macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident => $f:ident),* $(,)?) => { impl Graph { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`OpError`] when the dtypes differ or are not accepted, or the shapes do not broadcast.
        pub fn $name(&mut self, a: Value, b: Value) -> Result<Value, OpError> {
            self.binary(BinaryFn::$f, a, b)
        }
    )* } };
}

impl Graph {
    /// Applies `f` to the elements of `a` and `b`, which broadcast.
    ///
    /// # Errors
    /// [`OpError`] when the dtypes differ or are not accepted, or the shapes do not broadcast.
    pub fn binary(&mut self, f: BinaryFn, a: Value, b: Value) -> Result<Value, OpError> {
        self.add(Binary { f }, &[a, b])
    }
}

binary_methods! {
    /// `a + b` of numbers. (The method `add` adds any operator.)
    plus => Add,
    /// `a - b` of numbers.
    sub => Sub,
    /// `a b` of numbers.
    mul => Mul,
    /// `a / b` of numbers; integers truncate, `x / 0 = x`.
    div => Div,
    /// Remainder with the sign of `a`; integers: `x % 0 = 0`.
    rem => Rem,
    /// `a^b` of numbers.
    pow => Pow,
    /// The maximum of two numbers; NaN if either is NaN.
    max => Max,
    /// The minimum of two numbers; NaN if either is NaN.
    min => Min,
    /// The angle of the point `(b, a)` in radians, for floats.
    atan2 => Atan2,
    /// Logical or bitwise and of booleans or integers.
    and => And,
    /// Logical or bitwise or of booleans or integers.
    or => Or,
    /// Logical or bitwise exclusive or of booleans or integers.
    xor => Xor,
    /// Shift left of integers; the count is taken modulo the width.
    shl => Shl,
    /// Shift right of integers, arithmetic for signed ones; the count is taken modulo the width.
    shr => Shr,
}
