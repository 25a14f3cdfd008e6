//! Places of values in sorted rows.

use std::cmp::Ordering;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::sort::sorted_order;
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, expect_same_dtype,
    scalars,
};

attrs! {
    /// The `I32` index at which each value must be inserted to keep a row sorted (PyTorch
    /// `searchsorted`, and `bucketize` for one row). Rows are ascending along the last axis, in the
    /// order of [`Sort`](super::Sort): NaN is above every number, and both zeros are equal.
    ///
    /// The index is the number of elements below the value, or with `right` of those that are not
    /// above it. The indices in a row that is not ascending have no meaning, but are the same on
    /// every executor.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let sorted = g.constant(Tensor::from_slice(&[4], &[1f32, 3.0, 3.0, 5.0])?)?;
    /// let values = g.constant(Tensor::from_slice(&[3], &[0f32, 3.0, 9.0])?)?;
    /// let left = g.search_sorted(sorted, values, false)?;
    /// let right = g.search_sorted(sorted, values, true)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(left).as_slice::<i32>()?, [0, 1, 4]);
    /// assert_eq!(done.get(right).as_slice::<i32>()?, [0, 3, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct SearchSorted {
        /// Inserts after equal elements if true, else before them.
        pub right: bool,
    }
}

impl OpSpec for SearchSorted {
    const DOC: OpDoc = OpDoc {
        name: "search_sorted",
        text: "The `i32` index at which each value must be inserted to keep a row of `sorted` \
               ascending, before equal elements or (`right`) after them. The rows are those of \
               the last axis; a single row serves values of any shape. NaN is above every number.",
        operands: &["sorted", "values"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("indices are integers");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [sorted, values] = exactly(operands)?;
        expect_dtype("sorted", sorted, DType::NUMBERS)?;
        expect_same_dtype("values", values, sorted)?;
        expect_rank_at_least("sorted", sorted, 1)?;
        let last = sorted.rank() - 1;
        if sorted.shape[last].known() > Some(i32::MAX as usize) {
            let reason = format!(
                "a row of {} elements has indices beyond i32",
                sorted.shape[last]
            );
            return Err(TypeError::Other(reason));
        }
        if last > 0 {
            expect_rank("values", values, last + 1)?;
        }
        for axis in 0..last {
            let what = format!("axis {axis} of the rows and of the values");
            expect_equal(&what, &sorted.shape[axis], &values.shape[axis])?;
        }
        Ok(vec![values.with_dtype(DType::I32)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [sorted, values] = [operands[0], operands[1]];
        let [.., len] = *sorted.shape() else {
            unreachable!("invariant: inference checked the rank")
        };
        let (width, step) = match sorted.shape() {
            [_] => (values.numel(), 0),
            _ => (values.shape().last().copied().unwrap_or(1), len),
        };
        let rows = scalars(sorted);
        let places = scalars(values).into_iter().enumerate().map(|(i, value)| {
            let row = &rows[i / width * step..][..len];
            let (mut low, mut high) = (0, len);
            while low < high {
                let middle = low + (high - low) / 2;
                match sorted_order(row[middle], value, false) {
                    Ordering::Less => low = middle + 1,
                    Ordering::Equal if self.right => low = middle + 1,
                    Ordering::Equal | Ordering::Greater => high = middle,
                }
            }
            low as i64
        });
        let places: Vec<i64> = places.collect();
        Ok(vec![Tensor::from_i64s(results[0].clone(), &places)?])
    }
}

impl Graph {
    /// The `I32` index at which each element of `values` must be inserted to keep its row of
    /// `sorted` ascending: before equal elements, or after them if `right`. The rows are those of
    /// the last axis, and all other axes of the operands agree; a `sorted` of one axis serves
    /// values of any shape.
    ///
    /// # Errors
    /// [`OpError`] when the dtypes differ, or an axis other than the last one.
    pub fn search_sorted(
        &mut self,
        sorted: Value,
        values: Value,
        right: bool,
    ) -> Result<Value, OpError> {
        self.add(SearchSorted { right }, &[sorted, values])
    }
}
