//! Sorting along an axis.

use std::cmp::Ordering;

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{AxisView, exactly, expect_axis, extreme_order, reject, scalars};
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The sorted elements along an axis, and their `I32` indices (PyTorch `sort`). The sort is
    /// stable: equal elements, also zeros of both signs, keep their order. NaN is above every
    /// number: last in ascending order, first in descending order.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[3f32, 1.0, 2.0])?)?;
    /// let sorted = g.sort(x, 0, false)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(sorted).as_slice::<f32>()?, [1.0, 2.0, 3.0]);
    /// assert_eq!(done.get(sorted.port(1)).as_slice::<i32>()?, [1, 2, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Sort {
        /// The sorted axis.
        pub axis: usize,
        /// Sorts in descending order if true, else ascending.
        pub descending: bool,
    }
}

/// Ascending order with NaN above every number, or descending order.
pub(crate) fn sorted_order(a: Scalar, b: Scalar, descending: bool) -> Ordering {
    // This descending order puts NaN first and treats equal elements as equal; its reverse is
    // ascending.
    let order = extreme_order(a, b, true);
    if descending { order } else { order.reverse() }
}

impl OpSpec for Sort {
    const DOC: OpDoc = OpDoc {
        name: "sort",
        text: "The elements along an axis in ascending (or descending) order, and their `i32` \
               indices. The sort is stable. NaN is above every number: last in ascending order, \
               first in descending order.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::sort);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_axis(self.axis, x.rank())?;
        Ok(vec![x.clone(), x.with_dtype(DType::I32)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        let view = AxisView::new(x.shape(), self.axis);
        let data = scalars(x);
        let size = x.dtype().size_bytes();
        let mut values = Tensor::zeros(results[0].clone())?;
        let mut indices = vec![0i64; results[1].numel()];
        let to = values.bytes_mut();
        view.for_each_line(|start| {
            let line: Vec<usize> = view.line(start).collect();
            let mut order: Vec<usize> = (0..view.len).collect();
            order.sort_by(|&a, &b| sorted_order(data[line[a]], data[line[b]], self.descending));
            for (&slot, &i) in line.iter().zip(&order) {
                indices[slot] = i as i64;
                let from = line[i] * size;
                to[slot * size..][..size].copy_from_slice(&x.bytes()[from..from + size]);
            }
        });
        let indices = Tensor::from_i64s(results[1].clone(), &indices)?;
        Ok(vec![values, indices])
    }

    fn cases() -> Vec<OpCase> {
        // Long: this function is a table of test cases, one per row.
        let shaped = |name: &str,
                      shape: &'static [usize],
                      axis: usize,
                      descending: bool,
                      fill: InputFill| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, fill.clone())?;
                let y = c.graph.sort(x, axis, descending)?;
                c.output(y)?;
                c.output(y.port(1))
            })
        };
        let line = |name: &str, x: &[f64], descending: bool, values: &[f64], at: &[f64]| {
            let (x, values, at) = (x.to_vec(), values.to_vec(), at.to_vec());
            OpCase::new(name, move |c| {
                let x = c.input("x", [x.len()], InputFill::Values(x.clone()))?;
                let y = c.graph.sort(x, 0, descending)?;
                c.output_expect(y, &values)?;
                c.output_expect(y.port(1), &at)
            })
        };
        const NAN: f64 = f64::NAN;
        const INF: f64 = f64::INFINITY;
        const WIDE: &[DType] = &[DType::I32, DType::U32, DType::I64];
        let ties = [1.0, 3.0, 0.0, 3.0, 1.0];
        let mixed = [1.0, NAN, -INF, INF, NAN, -1.0];
        vec![
            shaped("rows_7x33", &[7, 33], 1, false, InputFill::Normal),
            shaped("rows_7x33_down", &[7, 33], 1, true, InputFill::Normal),
            shaped("columns_33x7", &[33, 7], 0, false, InputFill::Normal),
            shaped("middle_axis", &[2, 5, 3], 1, true, InputFill::Normal),
            shaped("special", &[3, 47], 1, false, InputFill::Special),
            shaped("special_down", &[3, 47], 1, true, InputFill::Special),
            shaped("rank_1", &[13], 0, false, InputFill::Normal),
            shaped("rank_4", &[2, 3, 5, 2], 2, false, InputFill::Normal),
            shaped("rank_6", &[2, 1, 3, 2, 1, 5], 5, true, InputFill::Normal),
            shaped("one_element", &[3, 1], 1, false, InputFill::Normal),
            shaped("long_line_3000", &[3000], 0, false, InputFill::Normal),
            shaped(
                "long_lines_2x2100_down",
                &[2, 2100],
                1,
                true,
                InputFill::Special,
            ),
            shaped(
                "long_special_line",
                &[1, 1100],
                1,
                false,
                InputFill::Special,
            ),
            shaped("nothing_in_rows", &[3, 0], 1, false, InputFill::Normal),
            shaped("no_rows", &[0, 4], 1, true, InputFill::Normal),
            line(
                "ties_keep_their_order",
                &ties,
                false,
                &[0.0, 1.0, 1.0, 3.0, 3.0],
                &[2.0, 0.0, 4.0, 1.0, 3.0],
            )
            .only(DType::NUMBERS),
            line(
                "ties_keep_their_order_down",
                &ties,
                true,
                &[3.0, 3.0, 1.0, 1.0, 0.0],
                &[1.0, 3.0, 0.0, 4.0, 2.0],
            )
            .only(DType::NUMBERS),
            line(
                "nan_is_last",
                &mixed,
                false,
                &[-INF, -1.0, 1.0, INF, NAN, NAN],
                &[2.0, 5.0, 0.0, 3.0, 1.0, 4.0],
            )
            .only(DType::FLOATS),
            line(
                "nan_is_first_down",
                &mixed,
                true,
                &[NAN, NAN, INF, 1.0, -1.0, -INF],
                &[1.0, 4.0, 3.0, 0.0, 5.0, 2.0],
            )
            .only(DType::FLOATS),
            line(
                "zeros_are_equal",
                &[0.0, -0.0, -1.0],
                false,
                &[-1.0, 0.0, 0.0],
                &[2.0, 0.0, 1.0],
            )
            .only(DType::FLOATS),
            line(
                "wide_integers",
                &[16_777_217.0, 16_777_216.0],
                false,
                &[16_777_216.0, 16_777_217.0],
                &[1.0, 0.0],
            )
            .only(WIDE),
            OpCase::new("of_a_view", |c| {
                let x = c.input("x", [3, 5, 7], InputFill::Normal)?;
                let x = c.graph.transpose(x, &[2, 0, 1])?;
                let x = c.graph.reverse(x, 0)?;
                let y = c.graph.sort(x, 0, false)?;
                c.output(y)?;
                c.output(y.port(1))
            }),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s, 7.into()], InputFill::Normal)?;
                let y = c.graph.sort(x, 1, true)?;
                c.output(y)?;
                c.output(y.port(1))
            }),
            OpCase::new("symbolic_axis", |c| {
                let s = c.sym("s", 5, 2500);
                let x = c.input("x", [s, 2.into()], InputFill::Normal)?;
                let y = c.graph.sort(x, 0, false)?;
                c.output(y)?;
                c.output(y.port(1))
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject("axis", "axis 2 is out of range for rank 2", |g| {
                let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
                g.sort(x, 2, false)
            }),
            reject("rank_0", "axis 0 is out of range for rank 0", |g| {
                let x = g.input("x", Type::new(DType::F32, [0usize; 0]))?;
                g.sort(x, 0, false)
            }),
        ]
    }
}

impl Graph {
    /// The sorted elements of `x`, of any dtype, along `axis`, descending if `descending`. The
    /// second result is their `I32` indices. The sort is stable; NaN is above every number.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range.
    pub fn sort(&mut self, x: Value, axis: usize, descending: bool) -> Result<Value, OpError> {
        self.add(Sort { axis, descending }, &[x])
    }
}
