//! Fused multiply-add.

use crate::accuracy::Accuracy;
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

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, a: &'static [usize], b: &'static [usize], d: &'static [usize]| {
            OpCase::new(name, move |c| {
                let a = c.input("a", a, InputFill::Normal)?;
                let b = c.input("b", b, InputFill::Normal)?;
                let d = c.input("c", d, InputFill::Normal)?;
                let y = c.graph.fma(a, b, d)?;
                c.output(y)
            })
        };
        const INF: f64 = f64::INFINITY;
        const NAN: f64 = f64::NAN;
        let fma = |g: &mut Graph, v: &[Value]| g.fma(v[0], v[1], v[2]);
        vec![
            shaped("odd_7x33", &[7, 33], &[7, 33], &[7, 33]),
            shaped("all_broadcast", &[3, 1, 1], &[5, 1], &[23]),
            shaped("rank_0", &[], &[], &[]),
            shaped("empty", &[0], &[1], &[]),
            OpCase::new("one_rounding", |c| {
                // (1 + e)^2 - (1 + 2e) = e^2, which a rounded product would lose.
                let e = match c.dtype {
                    DType::F16 => 2f64.powi(-10),
                    DType::BF16 => 2f64.powi(-7),
                    DType::F64 => f64::EPSILON,
                    _ => f64::from(f32::EPSILON),
                };
                let a = c.input("a", [1], InputFill::Values(vec![1.0 + e]))?;
                let d = c.input("c", [1], InputFill::Values(vec![-1.0 - 2.0 * e]))?;
                let y = c.graph.fma(a, a, d)?;
                c.output_expect(y, &[e * e])
            })
            .only(DType::FLOATS),
            // The sum is just above the midpoint of two F16 numbers; rounding it to F32 first would
            // give a tie.
            pinned(
                "no_rounding_through_f32",
                &[DType::F16],
                &[
                    &[2f64.powi(-12)],
                    &[2f64.powi(-13)],
                    &[1.0 + 2f64.powi(-10)],
                ],
                &[1.0 + 2f64.powi(-10)],
                fma,
            ),
            pinned(
                "nan_and_infinity",
                DType::FLOATS,
                &[
                    &[NAN, INF, INF, 0.0],
                    &[1.0, 2.0, 1.0, INF],
                    &[1.0, 1.0, -INF, 1.0],
                ],
                &[NAN, INF, NAN, NAN],
                fma,
            ),
            pinned(
                "u8_wraps",
                &[DType::U8],
                &[&[200.0], &[2.0], &[1.0]],
                &[145.0],
                fma,
            ),
            pinned(
                "integers_stay_integers",
                &[DType::I32, DType::I64],
                &[&[16_777_217.0], &[1.0], &[2.0]],
                &[16_777_219.0],
                fma,
            ),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 9);
                let a = c.input("a", [s, 3.into()], InputFill::Normal)?;
                let b = c.input("b", [3], InputFill::Normal)?;
                let y = c.graph.fma(a, b, a)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn three(g: &mut Graph, a: DType, d: DType, n: usize) -> Result<Value, OpError> {
            let a = g.input("a", Type::new(a, [2]))?;
            let c = g.input("c", Type::new(d, [n]))?;
            g.fma(a, a, c)
        }
        vec![
            reject("bool", "accepted: floats and integers", |g| {
                three(g, DType::Bool, DType::Bool, 2)
            }),
            reject("mixed_dtypes", "cast one of them", |g| {
                three(g, DType::F32, DType::F16, 2)
            }),
            reject("shapes", "do not broadcast", |g| {
                three(g, DType::F32, DType::F32, 3)
            }),
        ]
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
