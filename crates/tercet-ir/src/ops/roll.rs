//! Cyclic shift along axes.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{counted, exactly, pick, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type, row_major_strides};

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

    fn cases() -> Vec<OpCase> {
        let rolled = |name: &str, shape: &'static [usize], shifts: &'static [i64]| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Special)?;
                let y = c.graph.roll(x, shifts)?;
                c.output(y)
            })
        };
        let symbolic = |name: &str, shifts: &'static [i64]| {
            OpCase::new(name, move |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
                let y = c.graph.roll(x, shifts)?;
                c.output(y)
            })
        };
        vec![
            rolled("rows_7x33", &[7, 33], &[3, 0]),
            rolled("columns_back_7x33", &[7, 33], &[0, -5]),
            rolled("both", &[3, 5], &[-1, 2]),
            rolled("by_whole_axes", &[3, 5], &[3, -10]),
            rolled("further_than_the_axes", &[3, 5], &[100, -101]),
            rolled("as_far_as_numbers_go", &[3, 5], &[i64::MIN, i64::MAX]),
            rolled("rank_0", &[], &[]),
            rolled("rank_1", &[13], &[4]),
            rolled("one_element", &[1], &[4]),
            rolled("rank_3", &[2, 4, 7], &[1, 0, 3]),
            rolled("rank_4", &[2, 3, 2, 3], &[1, 1, 1, 1]),
            rolled("rank_5", &[1, 2, 1, 2, 3], &[1, 1, 0, 0, 2]),
            rolled("rank_6", &[1, 2, 3, 1, 2, 2], &[0, 1, -1, 5, 0, 1]),
            rolled("empty", &[0, 5], &[3, 2]),
            rolled("empty_rows", &[3, 0], &[1, 2]),
            OpCase::new("pinned", |c| {
                let x = c.input("x", [2, 3], counted(&[2, 3]))?;
                let y = c.graph.roll(x, &[1, 1])?;
                c.output_expect(y, &[5.0, 3.0, 4.0, 2.0, 0.0, 1.0])
            })
            .only(DType::NUMBERS),
            OpCase::new("of_a_view", |c| {
                let x = c.input("x", [3, 5, 7], InputFill::Special)?;
                let x = c.graph.transpose(x, &[2, 0, 1])?;
                let y = c.graph.roll(x, &[2, 1, -2])?;
                c.output(y)
            }),
            symbolic("symbolic", &[2, -1]),
            symbolic("symbolic_back_and_far", &[-12, 0]),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, shifts: &[i64]) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            g.roll(x, shifts)
        }
        vec![
            reject("too_few", "1 values for 2 axes", |g| build(g, &[2])),
            reject("too_many", "3 values for 2 axes", |g| build(g, &[2, 1, 1])),
            reject(
                "too_far",
                "does not fit i32, which an axis of size s requires",
                |g| {
                    let x = g.input("x", Type::new(DType::F32, [Dim::sym("s")]))?;
                    g.roll(x, &[1 << 40])
                },
            ),
        ]
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
