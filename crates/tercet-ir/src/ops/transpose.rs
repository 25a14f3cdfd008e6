//! Permutation of axes.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{counted, exactly, pick, reject};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type, row_major_strides};

attrs! {
    /// Permutation of axes: axis `i` of the result is axis `perm[i]` of the operand.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let y = g.transpose(x, &[1, 0])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Transpose {
        /// A permutation of the axes.
        pub perm: Vec<usize>,
    }
}

impl OpSpec for Transpose {
    const DOC: OpDoc = OpDoc {
        name: "transpose",
        text: "Permutation of axes: axis `i` of the result is axis `perm[i]` of the operand.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::transpose);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let mut sorted = self.perm.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..x.rank()) {
            let reason = format!("{:?} is not a permutation of {} axes", self.perm, x.rank());
            return Err(TypeError::Attr {
                name: "perm",
                reason,
            });
        }
        let shape: Shape = self
            .perm
            .iter()
            .map(|&axis| x.shape[axis].clone())
            .collect();
        Ok(vec![x.with_shape(shape)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let own = row_major_strides(operands[0].shape());
        let strides: Vec<usize> = self.perm.iter().map(|&axis| own[axis]).collect();
        let y = pick(operands[0], &results[0], |index| {
            index.iter().zip(&strides).map(|(i, s)| i * s).sum()
        })?;
        Ok(vec![y])
    }

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, shape: &'static [usize], perm: &'static [usize]| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Special)?;
                let y = c.graph.transpose(x, perm)?;
                c.output(y)
            })
        };
        vec![
            shaped("odd_17x33", &[17, 33], &[1, 0]),
            shaped("heads_2x5x3x7", &[2, 5, 3, 7], &[0, 2, 1, 3]),
            shaped("rotate", &[2, 3, 5], &[2, 0, 1]),
            shaped("identity", &[4, 5], &[0, 1]),
            shaped("rank_0", &[], &[]),
            shaped("empty", &[3, 0, 2], &[2, 0, 1]),
            shaped(
                "rank_8",
                &[1, 2, 1, 3, 1, 2, 1, 2],
                &[7, 6, 5, 4, 3, 2, 1, 0],
            ),
            OpCase::new("values", |c| {
                let x = c.input("x", [2, 3], counted(&[2, 3]))?;
                let y = c.graph.transpose(x, &[1, 0])?;
                c.output_expect(y, &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
            }),
            OpCase::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
                let y = c.graph.transpose(x, &[1, 0])?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, perm: &[usize]) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
            g.transpose(x, perm)
        }
        vec![
            reject("repeated", "not a permutation", |g| build(g, &[0, 0])),
            reject("too_short", "not a permutation", |g| build(g, &[0])),
            reject("out_of_range", "not a permutation", |g| build(g, &[0, 2])),
        ]
    }
}

impl Graph {
    /// `x`, of any dtype, with its axes permuted: axis `i` of the result is axis `perm[i]` of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `perm` is not a permutation of the axes.
    pub fn transpose(&mut self, x: Value, perm: &[usize]) -> Result<Value, OpError> {
        self.add(
            Transpose {
                perm: perm.to_vec(),
            },
            &[x],
        )
    }
}
