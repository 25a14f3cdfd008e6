//! Repetition along axes.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type, row_major_strides};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, overflow, pick};

attrs! {
    /// The operand repeated as a whole along each axis (NumPy `tile` with one number for each
    /// axis).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let y = g.tile(x, &[3])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Tile {
        /// Number of repetitions along each axis; 0 gives an empty result.
        pub reps: Vec<usize>,
    }
}

impl OpSpec for Tile {
    const DOC: OpDoc = OpDoc {
        name: "tile",
        text: "The operand repeated as a whole along each axis: element `i` of an axis of size `n` \
               is element `i mod n`.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::tile);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        if self.reps.len() != x.rank() {
            let reason = format!("{} values for {} axes", self.reps.len(), x.rank());
            return Err(TypeError::Attr {
                name: "reps",
                reason,
            });
        }
        let repeated = |(n, &reps): (&Dim, &usize)| {
            // Sizes beyond i64 would wrap in dimension arithmetic.
            let reps = (reps <= i64::MAX as usize).then_some(Dim::Known(reps));
            let dim = reps.and_then(|reps| n.checked_mul(&reps));
            dim.ok_or_else(|| overflow(x))
        };
        let dims: Result<Vec<Dim>, TypeError> =
            x.shape.iter().zip(&self.reps).map(repeated).collect();
        Ok(vec![x.with_shape(dims?)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        let strides = row_major_strides(x.shape());
        let y = pick(x, &results[0], |index| {
            let own = index.iter().zip(x.shape()).zip(&strides);
            own.map(|((&i, &n), &s)| i % n * s).sum()
        })?;
        Ok(vec![y])
    }
}

impl Graph {
    /// `x`, of any dtype, repeated `reps[axis]` times along each axis.
    ///
    /// # Errors
    /// [`OpError`] when there is not one number for each axis, or the result is too large.
    pub fn tile(&mut self, x: Value, reps: &[usize]) -> Result<Value, OpError> {
        let reps = reps.to_vec();
        self.add(Tile { reps }, &[x])
    }
}
