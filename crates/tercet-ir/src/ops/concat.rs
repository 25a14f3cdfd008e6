//! Concatenation along an axis.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    AxisView, expect_axis, expect_equal, expect_rank, expect_same_dtype, overflow,
};

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
