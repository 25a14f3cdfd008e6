//! Elementwise selection by a boolean condition.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{elementwise_eval, elementwise_infer, reject};
use crate::scalar::ScalarOp;
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type};

attrs! {
    /// `cond ? a : b`, all three broadcast; the value that is not selected has no effect, even NaN.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let cond = g.constant(Tensor::from_bools(&[2], &[true, false])?)?;
    /// let a = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let b = g.constant(Tensor::from_slice(&[2], &[3f32, 4.0])?)?;
    /// let y = g.where_(cond, a, b)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Where {}
}

impl OpSpec for Where {
    const DOC: OpDoc = OpDoc {
        name: "where",
        text: "`cond ? a : b`, broadcast; the value that is not selected has no effect, even NaN.",
        operands: &["cond", "a", "b"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::elementwise::select);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        elementwise_infer(&ScalarOp::Where, operands)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        elementwise_eval(&ScalarOp::Where, operands, &results[0])
    }

    fn cases() -> Vec<OpCase> {
        let shaped =
            |name: &str, cond: &'static [usize], a: &'static [usize], b: &'static [usize]| {
                OpCase::new(name, move |c| {
                    let cond =
                        c.input_of("cond", Type::new(DType::Bool, cond), InputFill::Normal)?;
                    let a = c.input("a", a, InputFill::Special)?;
                    let b = c.input("b", b, InputFill::Normal)?;
                    let y = c.graph.where_(cond, a, b)?;
                    c.output(y)
                })
            };
        vec![
            shaped("odd_7x33", &[7, 33], &[7, 33], &[7, 33]),
            shaped("all_broadcast", &[3, 1, 1], &[5, 1], &[23]),
            shaped("scalar_condition", &[], &[5], &[5]),
            shaped("rank_0", &[], &[], &[]),
            shaped("empty", &[2, 0], &[1], &[]),
            OpCase::new("nan_is_not_chosen", |c| {
                let cond = Type::new(DType::Bool, [2]);
                let cond = c.input_of("cond", cond, InputFill::Values(vec![1.0, 0.0]))?;
                let a = c.input("a", [2], InputFill::Values(vec![1.0, f64::NAN]))?;
                let b = c.input("b", [2], InputFill::Values(vec![f64::NAN, 2.0]))?;
                let y = c.graph.where_(cond, a, b)?;
                c.output_expect(y, &[1.0, 2.0])
            })
            .only(DType::FLOATS),
            OpCase::new("wide_integers_stay", |c| {
                let cond = Type::new(DType::Bool, [2]);
                let cond = c.input_of("cond", cond, InputFill::Values(vec![1.0, 0.0]))?;
                let a = c.input("a", [1], InputFill::Values(vec![16_777_217.0]))?;
                let b = c.input("b", [1], InputFill::Values(vec![16_777_219.0]))?;
                let y = c.graph.where_(cond, a, b)?;
                c.output_expect(y, &[16_777_217.0, 16_777_219.0])
            })
            .only(&[DType::I32, DType::U32, DType::I64]),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 9);
                let cond = Type::new(DType::Bool, [s.clone(), 1.into()]);
                let cond = c.input_of("cond", cond, InputFill::Normal)?;
                let a = c.input("a", [s, 3.into()], InputFill::Normal)?;
                let b = c.input("b", Shape::default(), InputFill::Normal)?;
                let y = c.graph.where_(cond, a, b)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn three(g: &mut Graph, cond: Type, a: Type, b: Type) -> Result<Value, OpError> {
            let cond = g.input("cond", cond)?;
            let a = g.input("a", a)?;
            let b = g.input("b", b)?;
            g.where_(cond, a, b)
        }
        vec![
            reject("condition", "operand cond is i32; accepted: bool", |g| {
                let t = Type::new(DType::I32, [2]);
                three(g, t.clone(), t.clone(), t)
            }),
            reject("mixed_dtypes", "cast one of them", |g| {
                let cond = Type::new(DType::Bool, [2]);
                three(
                    g,
                    cond,
                    Type::new(DType::F32, [2]),
                    Type::new(DType::F16, [2]),
                )
            }),
            reject("shapes", "do not broadcast", |g| {
                let cond = Type::new(DType::Bool, [3]);
                three(
                    g,
                    cond,
                    Type::new(DType::F32, [2]),
                    Type::new(DType::F32, [1]),
                )
            }),
        ]
    }
}

impl Graph {
    /// `cond ? a : b` with a `Bool` condition and `a` and `b` of one dtype; all three broadcast.
    ///
    /// # Errors
    /// [`OpError`] when `cond` is not `Bool`, the dtypes of `a` and `b` differ, or the shapes do
    /// not broadcast.
    pub fn where_(&mut self, cond: Value, a: Value, b: Value) -> Result<Value, OpError> {
        self.add(Where {}, &[cond, a, b])
    }
}
