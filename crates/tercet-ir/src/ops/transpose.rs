//! Permutation of axes.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Shape, Tensor, TensorType, Type, row_major_strides};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, pick};

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
