//! Elementwise operators of one operand.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{dtypes_that, elementwise_eval, elementwise_infer, pinned};
use crate::scalar::{ScalarOp, UnaryFn};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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

    fn cases() -> Vec<OpCase> {
        let each = UnaryFn::ALL.iter().flat_map(|&f| cases_of(f));
        each.chain(pinned_cases()).chain(curves()).collect()
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            RejectCase {
                name: "exp_of_integers",
                message: "accepted: floats",
                build: |g| {
                    let x = g.input("x", Type::new(DType::I32, [1]))?;
                    g.unary(UnaryFn::Exp, x)
                },
            },
            RejectCase {
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

fn cases_of(f: UnaryFn) -> [OpCase; 5] {
    let dtypes = dtypes_that(|d| ScalarOp::Unary(f).infer(&[d]).is_ok());
    // Beyond this range the results of sin, cos and tan depend on the target's range reduction.
    let fill = match f {
        UnaryFn::Sin | UnaryFn::Cos | UnaryFn::Tan => InputFill::Uniform(-100.0, 100.0),
        _ => InputFill::Special,
    };
    let shaped = |what: &str, shape: &'static [usize], fill: InputFill| {
        OpCase::new(format!("{}_{what}", f.name()), move |c| {
            let x = c.input("x", shape, fill.clone())?;
            let y = c.graph.unary(f, x)?;
            c.output(y)
        })
        .only(dtypes)
    };
    [
        shaped("odd_3x7", &[3, 7], InputFill::Normal),
        shaped("special", &[63], fill),
        shaped("rank_0", &[], InputFill::Normal),
        shaped("empty", &[2, 0], InputFill::Normal),
        OpCase::new(format!("{}_symbolic", f.name()), move |c| {
            let s = c.sym("s", 5, 9);
            let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
            let y = c.graph.unary(f, x)?;
            c.output(y)
        })
        .only(dtypes),
    ]
}

/// Tests functions at points inside and just outside of the range for which executors have fast
/// implementations. The tens of thousands of points are denser towards zero. The element count is
/// small enough that GPU threads process several vectors each.
fn curves() -> Vec<OpCase> {
    use UnaryFn::{Exp, Gelu, GeluTanh, Sqrt, Tanh};
    const ROWS: usize = 8192;
    const MAX_ROWS: usize = 1 << 18;
    let curve = |(f, reach): (UnaryFn, f64)| {
        OpCase::new(format!("{}_curve", f.name()), move |c| {
            let rows = c.sym("s", ROWS, MAX_ROWS);
            let places = (0..4 * ROWS).map(|i| i as f64 / (2 * ROWS) as f64 - 1.0);
            let values = places.map(|t| reach * t * t.abs()).collect();
            let x = c.input("x", [rows, 4.into()], InputFill::Values(values))?;
            let y = c.graph.unary(f, x)?;
            c.output(y)
        })
        .only(&[DType::F32, DType::F16])
    };
    let reaches = [
        (Gelu, 5.0),
        (GeluTanh, 4.5),
        (Tanh, 5.0),
        (Exp, 15.0),
        (Sqrt, 70.0),
    ];
    reaches.map(curve).into()
}

fn pinned_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    use UnaryFn::*;
    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;
    let float = |name: &str, f: UnaryFn, x: &[f64], y: &[f64]| {
        pinned(name, DType::FLOATS, &[x], y, move |g, v| g.unary(f, v[0]))
    };
    let of = |d: &'static [DType], name: &str, f: UnaryFn, x: &[f64], y: &[f64]| {
        pinned(name, d, &[x], y, move |g, v| g.unary(f, v[0]))
    };
    let i32_min = f64::from(i32::MIN);
    vec![
        float(
            "relu_keeps_nan",
            Relu,
            &[NAN, -1.0, -INF, 2.0],
            &[NAN, 0.0, 0.0, 2.0],
        ),
        float(
            "round_half_to_even",
            Round,
            &[0.5, 1.5, 2.5, -0.5, -1.5, 2.75],
            &[0.0, 2.0, 2.0, 0.0, -2.0, 3.0],
        ),
        float(
            "trunc_towards_zero",
            Trunc,
            &[0.5, 1.5, -0.5, -2.75, INF, NAN],
            &[0.0, 1.0, 0.0, -2.0, INF, NAN],
        ),
        float(
            "limits_of_relu6",
            Relu6,
            &[-INF, -1.0, 2.5, 6.5, INF, NAN],
            &[0.0, 0.0, 2.5, 6.0, 6.0, NAN],
        ),
        float(
            "sign_of_nan_and_zero",
            Sign,
            &[NAN, 0.0, -3.0, INF],
            &[NAN, 0.0, -1.0, 1.0],
        ),
        float(
            "limits_of_sigmoid",
            Sigmoid,
            &[-INF, 0.0, INF, NAN],
            &[0.0, 0.5, 1.0, NAN],
        ),
        float(
            "limits_of_silu",
            Silu,
            &[-INF, 0.0, INF, NAN],
            &[0.0, 0.0, INF, NAN],
        ),
        float(
            "limits_of_gelu",
            Gelu,
            &[-INF, 0.0, INF, NAN],
            &[0.0, 0.0, INF, NAN],
        ),
        float(
            "limits_of_gelu_tanh",
            GeluTanh,
            &[-INF, 0.0, INF, NAN],
            &[0.0, 0.0, INF, NAN],
        ),
        float(
            "limits_of_softplus",
            Softplus,
            &[-INF, INF, NAN],
            &[0.0, INF, NAN],
        ),
        float(
            "limits_of_erf",
            Erf,
            &[-INF, 0.0, INF, NAN],
            &[-1.0, 0.0, 1.0, NAN],
        ),
        float(
            "domain_of_ln",
            Ln,
            &[-1.0, 0.0, 1.0, INF],
            &[NAN, -INF, 0.0, INF],
        ),
        float(
            "domain_of_sqrt",
            Sqrt,
            &[-1.0, 0.0, 4.0, INF],
            &[NAN, 0.0, 2.0, INF],
        ),
        float(
            "domain_of_rsqrt",
            Rsqrt,
            &[-1.0, 0.0, 4.0, INF],
            &[NAN, INF, 0.5, 0.0],
        ),
        float(
            "powers_of_two",
            Exp2,
            &[-2.0, 0.0, 3.0, -INF],
            &[0.25, 1.0, 8.0, 0.0],
        ),
        float(
            "is_nan_only_of_nan",
            IsNan,
            &[NAN, INF, 0.0],
            &[1.0, 0.0, 0.0],
        ),
        float(
            "is_inf_of_both",
            IsInf,
            &[NAN, INF, -INF, 0.0],
            &[0.0, 1.0, 1.0, 0.0],
        ),
        of(
            &[DType::I32],
            "neg_of_the_least",
            Neg,
            &[i32_min, 5.0],
            &[i32_min, -5.0],
        ),
        of(
            &[DType::I32],
            "abs_of_the_least",
            Abs,
            &[i32_min, -5.0],
            &[i32_min, 5.0],
        ),
        of(
            &[DType::I8],
            "abs_of_the_least_i8",
            Abs,
            &[-128.0, -5.0],
            &[-128.0, 5.0],
        ),
        of(&[DType::U8], "neg_wraps", Neg, &[1.0, 0.0], &[255.0, 0.0]),
        of(
            &[DType::I32, DType::I64],
            "floor_of_wide_integers",
            Floor,
            &[16_777_217.0],
            &[16_777_217.0],
        ),
        of(
            &[DType::Bool],
            "not_of_truth",
            Not,
            &[0.0, 1.0],
            &[1.0, 0.0],
        ),
        of(
            &[DType::U8],
            "not_of_bits",
            Not,
            &[0.0, 5.0],
            &[255.0, 250.0],
        ),
        of(
            &[DType::I8, DType::I32, DType::I64],
            "not_of_signed",
            Not,
            &[0.0, 5.0],
            &[-1.0, -6.0],
        ),
    ]
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
