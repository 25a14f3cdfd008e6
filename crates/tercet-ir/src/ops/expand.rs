//! Explicit broadcasting.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{broadcast_indices, counted, exactly, reject};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type, broadcast_shapes};

attrs! {
    /// The operand broadcast to a shape by NumPy's rule: missing leading axes and axes of size 1
    /// repeat.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 1], &[1f32, 2.0])?)?;
    /// let y = g.expand(x, [2usize, 3])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Expand {
        /// The shape of the result.
        pub shape: Shape,
    }
}

impl OpSpec for Expand {
    const DOC: OpDoc = OpDoc {
        name: "expand",
        text: "The operand broadcast to a shape: missing leading axes and axes of size 1 repeat.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::expand);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let y = x.with_shape(self.shape.clone());
        if broadcast_shapes(&x.shape, &self.shape).as_ref() != Some(&self.shape) {
            return Err(TypeError::Broadcast {
                left: x.clone(),
                right: y,
            });
        }
        Ok(vec![y])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let size = results[0].dtype.size_bytes();
        let mut y = Tensor::zeros(results[0].clone())?;
        let from = operands[0].bytes();
        let at = broadcast_indices(operands[0].shape(), &results[0].shape);
        for (slot, i) in y.bytes_mut().chunks_exact_mut(size).zip(at) {
            slot.copy_from_slice(&from[i * size..][..size]);
        }
        Ok(vec![y])
    }

    fn cases() -> Vec<OpCase> {
        let to = |name: &str, from: &'static [usize], to: &'static [usize]| {
            OpCase::new(name, move |c| {
                let x = c.input("x", from, InputFill::Special)?;
                let y = c.graph.expand(x, to)?;
                c.output(y)
            })
        };
        vec![
            to("rows", &[33], &[17, 33]),
            to("columns", &[17, 1], &[17, 33]),
            to("middle", &[2, 1, 3], &[2, 5, 3]),
            to("same", &[3, 4], &[3, 4]),
            to("rank_0", &[], &[2, 3]),
            to("rank_0_to_0", &[], &[]),
            to("to_empty", &[1, 3], &[0, 3]),
            OpCase::new("values", |c| {
                let x = c.input("x", [2, 1], counted(&[2, 1]))?;
                let y = c.graph.expand(x, [2, 2, 2])?;
                c.output_expect(y, &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
            }),
            OpCase::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s.clone(), 1.into()], InputFill::Normal)?;
                let y = c.graph.expand(x, [Dim::Known(2), s, 3.into()])?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, shape: impl Into<Shape>) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
            g.expand(x, shape)
        }
        vec![
            reject("sizes", "do not broadcast", |g| build(g, [4, 3])),
            reject("shrinks", "do not broadcast", |g| build(g, [1, 3])),
            reject("rank", "do not broadcast", |g| build(g, [3])),
            reject("symbol", "do not broadcast", |g| {
                build(g, [Dim::sym("s"), Dim::Known(3)])
            }),
        ]
    }
}

impl Graph {
    /// `x`, of any dtype, broadcast to `shape`.
    ///
    /// # Errors
    /// [`OpError`] when `x` does not broadcast to `shape`.
    pub fn expand(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value, OpError> {
        self.add(
            Expand {
                shape: shape.into(),
            },
            &[x],
        )
    }
}
