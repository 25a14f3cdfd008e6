//! The largest or smallest elements along an axis, sorted.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{AxisView, exactly, expect_axis, extreme_order, scalars};

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
