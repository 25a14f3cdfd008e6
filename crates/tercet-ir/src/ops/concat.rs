//! Concatenation along an axis.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    AxisView, expect_axis, expect_equal, expect_rank, expect_same_dtype, overflow, reject,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The concatenation of one or more operands along an axis. All operands have one dtype and
    /// equal sizes of the other axes.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let a = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let b = g.constant(Tensor::from_slice(&[1], &[3f32])?)?;
    /// let y = g.concat(&[a, b], 0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Concat {
        /// The concatenated axis.
        pub axis: usize,
    }
}

impl OpSpec for Concat {
    const DOC: OpDoc = OpDoc {
        name: "concat",
        text: "The concatenation of the operands along an axis.",
        operands: &["x..."],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::concat);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [first, rest @ ..] = operands else {
            return Err(TypeError::Arity {
                expected: "1 or more".to_string(),
                given: 0,
            });
        };
        expect_axis(self.axis, first.rank())?;
        let mut dims = first.shape.to_vec();
        for ty in rest {
            expect_same_dtype("x", ty, first)?;
            expect_rank("x", ty, first.rank())?;
            for axis in (0..first.rank()).filter(|&a| a != self.axis) {
                expect_equal(
                    &format!("sizes of axis {axis}"),
                    &dims[axis],
                    &ty.shape[axis],
                )?;
            }
            let sum = dims[self.axis].checked_add(&ty.shape[self.axis]);
            dims[self.axis] = sum.ok_or_else(|| overflow(ty))?;
        }
        Ok(vec![first.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let mut y = Tensor::zeros(results[0].clone())?;
        let view = AxisView::new(&results[0].shape, self.axis);
        let row = view.inner * results[0].dtype.size_bytes();
        let mut at = 0;
        for x in operands {
            let part = x.shape()[self.axis] * row;
            if part > 0 {
                let lines = y.bytes_mut().chunks_exact_mut(view.len * row);
                for (to, from) in lines.zip(x.bytes().chunks_exact(part)) {
                    to[at..at + part].copy_from_slice(from);
                }
            }
            at += part;
        }
        Ok(vec![y])
    }

    fn cases() -> Vec<OpCase> {
        let joined = |name: &str, shapes: &'static [&'static [usize]], axis: usize| {
            OpCase::new(name, move |c| {
                let mut parts = Vec::new();
                for (i, &shape) in shapes.iter().enumerate() {
                    parts.push(c.input(&format!("x{i}"), shape, InputFill::Special)?);
                }
                let y = c.graph.concat(&parts, axis)?;
                c.output(y)
            })
        };
        vec![
            joined("rows", &[&[3, 7], &[1, 7], &[5, 7]], 0),
            joined("columns", &[&[3, 7], &[3, 1], &[3, 2]], 1),
            joined("middle", &[&[2, 3, 5], &[2, 4, 5]], 1),
            joined("one_operand", &[&[3, 7]], 1),
            joined("empty_part", &[&[2, 0], &[2, 3], &[2, 0]], 1),
            joined("all_empty", &[&[2, 0], &[2, 0]], 1),
            joined("no_rows", &[&[0, 3], &[0, 4]], 1),
            joined(
                "many_odd_columns",
                &[
                    &[3, 1],
                    &[3, 2],
                    &[3, 5],
                    &[3, 1],
                    &[3, 3],
                    &[3, 0],
                    &[3, 1],
                    &[3, 7],
                    &[3, 1],
                    &[3, 2],
                    &[3, 1],
                    &[3, 4],
                    &[3, 1],
                    &[3, 1],
                    &[3, 6],
                    &[3, 3],
                ],
                1,
            ),
            joined("whole_words", &[&[3, 8], &[3, 4], &[3, 12]], 1),
            OpCase::new("views", |c| {
                let a = c.input("a", [3, 5], InputFill::Special)?;
                let b = c.input("b", [5, 7], InputFill::Special)?;
                let turned = c.graph.transpose(a, &[1, 0])?;
                let cut = c.graph.slice(b, &[0, 1], &[5, 6], &[1, 2])?;
                let y = c.graph.concat(&[turned, b, cut], 1)?;
                c.output(y)
            }),
            OpCase::new("values", |c| {
                let a = c.input("a", [2, 1], InputFill::Values(vec![1.0, 2.0]))?;
                let b = c.input("b", [2, 2], InputFill::Values(vec![3.0, 4.0, 5.0, 6.0]))?;
                let y = c.graph.concat(&[a, b, a], 1)?;
                c.output_expect(y, &[1.0, 3.0, 4.0, 1.0, 2.0, 5.0, 6.0, 2.0])
            }),
            OpCase::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let a = c.input("a", [s.clone(), 3.into()], InputFill::Normal)?;
                let b = c.input("b", [Dim::Known(2), 3.into()], InputFill::Normal)?;
                let rows = c.graph.concat(&[a, b, a], 0)?;
                let columns = c.graph.concat(&[a, a], 1)?;
                c.output(rows)?;
                c.output(columns)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn two(g: &mut Graph, a: Type, b: Type, axis: usize) -> Result<Value, OpError> {
            let a = g.input("a", a)?;
            let b = g.input("b", b)?;
            g.concat(&[a, b], axis)
        }
        vec![
            reject("none", "expected 1 or more operands, got 0", |g| {
                g.concat(&[], 0)
            }),
            reject("axis", "axis 1 is out of range for rank 1", |g| {
                two(g, Type::new(DType::F32, [2]), Type::new(DType::F32, [2]), 1)
            }),
            reject("rank", "expected rank 1", |g| {
                two(
                    g,
                    Type::new(DType::F32, [2]),
                    Type::new(DType::F32, [2, 1]),
                    0,
                )
            }),
            reject("dtype", "cast one of them", |g| {
                two(g, Type::new(DType::F32, [2]), Type::new(DType::F16, [2]), 0)
            }),
            reject("sizes", "sizes of axis 1: 2 and 3 differ", |g| {
                two(
                    g,
                    Type::new(DType::F32, [1, 2]),
                    Type::new(DType::F32, [1, 3]),
                    0,
                )
            }),
        ]
    }
}

impl Graph {
    /// Concatenates one or more values of one dtype and rank along `axis`; their other sizes must
    /// be equal.
    ///
    /// # Errors
    /// [`OpError`] when there is no operand, or dtypes, ranks or other sizes differ.
    pub fn concat(&mut self, parts: &[Value], axis: usize) -> Result<Value, OpError> {
        self.add(Concat { axis }, parts)
    }
}
