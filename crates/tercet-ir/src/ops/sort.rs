//! Sorting along an axis.

use std::cmp::Ordering;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{AxisView, exactly, expect_axis, extreme_order, scalars};
use crate::scalar::Scalar;

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
