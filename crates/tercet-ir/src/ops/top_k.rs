//! The largest or smallest elements along an axis, sorted.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{AxisView, exactly, expect_axis, extreme_order, reject, scalars};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The `k` largest (or smallest) elements along an axis, the most extreme first, and their
    /// `I32` indices. NaN is the most extreme in both cases; ties go to the lower index.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[4], &[3f32, 1.0, 4.0, 2.0])?)?;
    /// let largest = g.top_k(x, 2, 0, true)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(largest).as_slice::<f32>()?, [4.0, 3.0]);
    /// assert_eq!(done.get(largest.port(1)).as_slice::<i32>()?, [2, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct TopK {
        /// Number of elements, at most the size of the axis.
        pub k: usize,
        /// The axis of the selection.
        pub axis: usize,
        /// Selects the largest elements if true, else the smallest.
        pub largest: bool,
    }
}

impl OpSpec for TopK {
    const DOC: OpDoc = OpDoc {
        name: "top_k",
        text: "The `k` largest (or smallest) elements along an axis, the most extreme first, and \
               their `i32` indices. NaN is the most extreme in both cases; ties go to the lower \
               index.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::top_k);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_axis(self.axis, x.rank())?;
        let size = &x.shape[self.axis];
        if size.known().is_some_and(|n| self.k > n) {
            let reason = format!("{} exceeds the axis of size {size}", self.k);
            return Err(TypeError::Attr { name: "k", reason });
        }
        let mut y = x.clone();
        y.shape.dims_mut()[self.axis] = Dim::Known(self.k);
        Ok(vec![y.clone(), y.with_dtype(DType::I32)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        let view = AxisView::new(x.shape(), self.axis);
        if self.k > view.len {
            let reason = format!(
                "top {} of an axis of size {}; at most its size",
                self.k, view.len
            );
            return Err(EvalError::Data(reason));
        }
        let data = scalars(x);
        let size = x.dtype().size_bytes();
        let mut values = Tensor::zeros(results[0].clone())?;
        let mut indices = vec![0i64; results[1].numel()];
        let to = values.bytes_mut();
        let mut order: Vec<usize> = Vec::with_capacity(view.len);
        let mut line = 0;
        view.for_each_line(|start| {
            order.clear();
            order.extend(0..view.len);
            // The sort is stable, so equal elements keep their index order.
            let at = |i: usize| start + i * view.inner;
            order.sort_by(|&a, &b| extreme_order(data[at(a)], data[at(b)], self.largest));
            let first = line / view.inner * self.k * view.inner + line % view.inner;
            for (rank, &i) in order.iter().take(self.k).enumerate() {
                let slot = first + rank * view.inner;
                indices[slot] = i as i64;
                to[slot * size..][..size].copy_from_slice(&x.bytes()[at(i) * size..][..size]);
            }
            line += 1;
        });
        Ok(vec![
            values,
            Tensor::from_i64s(results[1].clone(), &indices)?,
        ])
    }

    fn cases() -> Vec<OpCase> {
        // Long: this function is a table of test cases, one per row.
        let shaped = |name: &str,
                      shape: &'static [usize],
                      k: usize,
                      axis: usize,
                      largest: bool,
                      fill: InputFill| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, fill.clone())?;
                let y = c.graph.top_k(x, k, axis, largest)?;
                c.output(y)?;
                c.output(y.port(1))
            })
        };
        let line = |name: &str,
                    x: &'static [f64],
                    largest: bool,
                    values: &'static [f64],
                    at: &'static [f64]| {
            OpCase::new(name, move |c| {
                let x = c.input("x", [x.len()], InputFill::Values(x.to_vec()))?;
                let y = c.graph.top_k(x, values.len(), 0, largest)?;
                c.output_expect(y, values)?;
                c.output_expect(y.port(1), at)
            })
        };
        const NAN: f64 = f64::NAN;
        const INF: f64 = f64::INFINITY;
        const WIDE: &[DType] = &[DType::I32, DType::U32, DType::I64];
        vec![
            shaped("odd_7x33", &[7, 33], 5, 1, true, InputFill::Normal),
            shaped("least", &[7, 33], 5, 1, false, InputFill::Normal),
            shaped("first_axis", &[9, 4], 3, 0, true, InputFill::Normal),
            shaped("middle_axis", &[2, 5, 3], 2, 1, false, InputFill::Normal),
            shaped("whole_axis", &[3, 21], 21, 1, true, InputFill::Special),
            shaped(
                "whole_axis_least",
                &[3, 21],
                21,
                1,
                false,
                InputFill::Special,
            ),
            shaped("long_line", &[3000], 40, 0, true, InputFill::Normal),
            shaped(
                "whole_long_lines",
                &[2, 2100],
                2100,
                1,
                true,
                InputFill::Special,
            ),
            shaped(
                "most_of_a_long_line",
                &[3, 1100],
                700,
                1,
                false,
                InputFill::Normal,
            ),
            shaped("none", &[3, 4], 0, 1, true, InputFill::Normal),
            shaped("none_of_nothing", &[3, 0], 0, 1, true, InputFill::Normal),
            shaped("no_rows", &[0, 4], 2, 1, true, InputFill::Normal),
            line(
                "ties_to_the_lower_index",
                &[1.0, 3.0, 3.0, 2.0, 3.0],
                true,
                &[3.0, 3.0, 3.0, 2.0],
                &[1.0, 2.0, 4.0, 3.0],
            )
            .only(DType::NUMBERS),
            line(
                "ties_of_the_least",
                &[1.0, 0.0, 0.0, 1.0],
                false,
                &[0.0, 0.0, 1.0],
                &[1.0, 2.0, 0.0],
            ),
            line(
                "nan_is_greatest",
                &[INF, NAN, 1.0, NAN],
                true,
                &[NAN, NAN, INF],
                &[1.0, 3.0, 0.0],
            )
            .only(DType::FLOATS),
            line(
                "nan_is_least",
                &[-INF, NAN, 1.0],
                false,
                &[NAN, -INF],
                &[1.0, 0.0],
            )
            .only(DType::FLOATS),
            line(
                "zeros_are_equal",
                &[-0.0, 0.0, -1.0],
                true,
                &[0.0, 0.0],
                &[0.0, 1.0],
            )
            .only(DType::FLOATS),
            line(
                "wide_integers",
                &[16_777_216.0, 16_777_217.0],
                true,
                &[16_777_217.0],
                &[1.0],
            )
            .only(WIDE),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s, 7.into()], InputFill::Normal)?;
                let y = c.graph.top_k(x, 3, 1, true)?;
                c.output(y)?;
                c.output(y.port(1))
            }),
            OpCase::new("symbolic_axis_too_short", |c| {
                let s = c.sym("s", 2, 9);
                let x = c.input("x", [s], InputFill::Normal)?;
                let y = c.graph.top_k(x, 3, 0, true)?;
                c.expect_fault("top 3 of an axis of size 2");
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, k: usize, axis: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            g.top_k(x, k, axis, true)
        }
        vec![
            reject("too_many", "3 exceeds the axis of size 2", |g| {
                build(g, 3, 1)
            }),
            reject("axis", "axis 2 is out of range for rank 2", |g| {
                build(g, 1, 2)
            }),
        ]
    }
}

impl Graph {
    /// The `k` largest (or smallest) elements of `x`, of any dtype, along `axis`, the most extreme
    /// first. `.port(1)` of the result is their `I32` indices.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range or `k` exceeds its size. If the size is symbolic,
    /// the run fails instead.
    pub fn top_k(
        &mut self,
        x: Value,
        k: usize,
        axis: usize,
        largest: bool,
    ) -> Result<Value, OpError> {
        self.add(TopK { k, axis, largest }, &[x])
    }
}
