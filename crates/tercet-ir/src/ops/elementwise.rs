//! Elementwise operators of one operand.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, Fill, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{exactly, from_scalars, scalars};
use crate::scalar::{ScalarOp, UnaryFn};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// A function of each element: `y = f(x)`.
    pub struct Unary {
        /// The function.
        pub f: UnaryFn,
    }
}

impl OpSpec for Unary {
    const DOC: Doc = Doc {
        name: "unary",
        text: "A function of each element: `y = f(x)`.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Elementwise,
        tier: Tier::Core,
    };

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        Ok(vec![
            x.with_dtype(ScalarOp::Unary(self.f).infer(&[x.dtype])?),
        ])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let to = results[0].dtype;
        let y: Vec<_> = scalars(operands[0])
            .into_iter()
            .map(|x| self.f.eval(to, x))
            .collect();
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<Case> {
        UnaryFn::ALL.iter().flat_map(|&f| unary_cases(f)).collect()
    }

    fn rejects() -> Vec<Reject> {
        vec![
            Reject {
                name: "exp_of_integers",
                message: "accepted: floats",
                build: |g| {
                    let x = g.input("x", Type::new(DType::I32, [1]))?;
                    g.unary(UnaryFn::Exp, x)
                },
            },
            Reject {
                name: "not_of_floats",
                message: "accepted: bool and integers",
                build: |g| {
                    let x = g.input("x", Type::new(DType::F32, [1]))?;
                    g.unary(UnaryFn::Not, x)
                },
            },
        ]
    }
}

fn unary_cases(f: UnaryFn) -> [Case; 3] {
    let dtypes = accepted(f);
    // Beyond this range sin, cos and tan depend on range reductions that targets do differently.
    let fill = match f {
        UnaryFn::Sin | UnaryFn::Cos | UnaryFn::Tan => Fill::Uniform(-100.0, 100.0),
        _ => Fill::Special,
    };
    let name = f.name();
    [
        Case::new(format!("{name}_odd_3x7"), move |c| {
            let x = c.input("x", [3, 7], Fill::Normal)?;
            let y = c.graph.unary(f, x)?;
            c.output(y)
        })
        .only(dtypes),
        Case::new(format!("{name}_special"), move |c| {
            let x = c.input("x", [63], fill.clone())?;
            let y = c.graph.unary(f, x)?;
            c.output(y)
        })
        .only(dtypes),
        Case::new(format!("{name}_empty"), move |c| {
            let x = c.input("x", [2, 0], Fill::Normal)?;
            let y = c.graph.unary(f, x)?;
            c.output_expect(y, &[])
        })
        .only(dtypes),
    ]
}

/// The dtypes that a function accepts, as one of the static lists.
fn accepted(f: UnaryFn) -> &'static [DType] {
    const NOT: &[DType] = &[
        DType::I32,
        DType::U32,
        DType::I64,
        DType::I8,
        DType::U8,
        DType::Bool,
    ];
    let takes = |d| ScalarOp::Unary(f).infer(&[d]).is_ok();
    match (takes(DType::F32), takes(DType::I32)) {
        (true, true) => DType::NUMBERS,
        (true, false) => DType::FLOATS,
        (false, _) => NOT,
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
    /// `x Phi(x)`, by the error function.
    gelu => Gelu,
    /// `x sigmoid(x)`
    silu => Silu,
    /// Logical or bitwise not.
    not => Not,
}
