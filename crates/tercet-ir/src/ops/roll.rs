//! Cyclic shift along axes.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type, row_major_strides};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, pick};

attrs! {
    /// The operand with the elements of each axis shifted cyclically towards its end (NumPy `roll`
    /// with a shift for each axis).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let y = g.roll(x, &[1])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [4.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Roll {
        /// The shift along each axis, any integer; negative shifts move towards the start.
        pub shifts: Vec<i64>,
    }
}

impl OpSpec for Roll {
    const DOC: OpDoc = OpDoc {
        name: "roll",
        text: "Cyclic shift of the elements of each axis: element `i` of an axis of size `n` is \
               element `(i - shift) mod n`.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::roll);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        if self.shifts.len() != x.rank() {
            let reason = format!("{} values for {} axes", self.shifts.len(), x.rank());
            return Err(TypeError::Attr {
                name: "shifts",
                reason,
            });
        }
        for (n, &shift) in x.shape.iter().zip(&self.shifts) {
            if n.known().is_none() && i32::try_from(shift).is_err() {
                let reason =
                    format!("{shift} does not fit i32, which an axis of size {n} requires");
                return Err(TypeError::Attr {
                    name: "shifts",
                    reason,
                });
            }
        }
        Ok(vec![x.clone()])
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
            let own = index.iter().zip(x.shape()).zip(&self.shifts).zip(&strides);
            own.map(|(((&i, &n), &shift), &stride)| {
                let n = n as i64;
                let from = (i as i64 - shift.rem_euclid(n)).rem_euclid(n);
                from as usize * stride
            })
            .sum()
        })?;
        Ok(vec![y])
    }
}

impl Graph {
    /// `x`, of any dtype, with the elements of each axis shifted cyclically by `shifts[axis]`.
    ///
    /// # Errors
    /// [`OpError`] when there is not one shift for each axis.
    pub fn roll(&mut self, x: Value, shifts: &[i64]) -> Result<Value, OpError> {
        let shifts = shifts.to_vec();
        self.add(Roll { shifts }, &[x])
    }
}
