//! Clamping to an interval.

use crate::accuracy::Accuracy;
use crate::attr::FloatAttr;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer, pinned, reject};
use crate::scalar::ScalarOp;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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

    fn cases() -> Vec<OpCase> {
        const INF: f64 = f64::INFINITY;
        const NAN: f64 = f64::NAN;
        let shaped = |name: &str, shape: &'static [usize], lo: f64, hi: f64| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Special)?;
                let y = c.graph.clamp(x, lo, hi)?;
                c.output(y)
            })
        };
        let pin = |name: &str, d: &'static [DType], lo: f64, hi: f64, x: &[f64], y: &[f64]| {
            pinned(name, d, &[x], y, move |g, v| g.clamp(v[0], lo, hi))
        };
        const SIGNED: &[DType] = &[DType::I32, DType::I64, DType::I8];
        vec![
            shaped("odd_7x33", &[7, 33], -1.0, 1.5),
            shaped("one_point", &[21], 1.0, 1.0),
            shaped("no_bounds", &[21], -INF, INF),
            shaped("rank_0", &[], 0.0, 1.0),
            shaped("empty", &[3, 0], 0.0, 1.0),
            pin(
                "nan_stays",
                DType::FLOATS,
                0.0,
                6.0,
                &[NAN, -INF, INF, 3.0],
                &[NAN, 0.0, 6.0, 3.0],
            ),
            pin(
                "fractions_round_inwards",
                SIGNED,
                -2.5,
                2.5,
                &[-9.0, -2.0, 9.0],
                &[-2.0, -2.0, 2.0],
            ),
            pin(
                "bounds_beyond_the_dtype",
                &[DType::U8, DType::I8],
                -1e3,
                1e3,
                &[0.0, 9.0],
                &[0.0, 9.0],
            ),
            pin(
                "above_the_dtype",
                &[DType::U8],
                300.0,
                400.0,
                &[0.0, 9.0],
                &[255.0, 255.0],
            ),
            pin(
                "wide_integers_stay",
                &[DType::I32, DType::U32, DType::I64],
                0.0,
                16_777_219.0,
                &[16_777_217.0, 16_777_221.0],
                &[16_777_217.0, 16_777_219.0],
            ),
            pin(
                "bounds_are_rounded",
                &[DType::F16],
                0.0,
                2049.0,
                &[5000.0],
                &[2048.0],
            ),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
                let y = c.graph.clamp(x, -0.5, 1.0)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, dtype: DType, lo: f64, hi: f64) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(dtype, [2]))?;
            g.clamp(x, lo, hi)
        }
        vec![
            reject("bool", "accepted: floats and integers", |g| {
                build(g, DType::Bool, 0.0, 1.0)
            }),
            reject("crossed", "lo <= hi", |g| build(g, DType::F32, 2.0, 1.0)),
            reject("nan", "must be numbers", |g| {
                build(g, DType::F32, f64::NAN, 1.0)
            }),
        ]
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
