//! Distinct values of a tensor.

use std::cmp::Ordering;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::non_zero::{expect_countable, max_count};
use crate::ops::sort::sorted_order;
use crate::ops::util::{exactly, scalars};

attrs! {
    /// The distinct values of all elements in ascending order (NumPy `unique` with all its
    /// results). All NaNs count as one value above every number, and zeros of both signs as one
    /// value. Of equal elements the first is returned.
    ///
    /// The number of values depends on the data, but the shape of the results does not: they have
    /// one entry per element, and entries after the last value are 0.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[4], &[2i32, 7, 2, 1])?)?;
    /// let values = g.unique(x)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(values).as_slice::<i32>()?, [1, 2, 7, 0]);
    /// // The counts, and the number of values.
    /// assert_eq!(done.get(values.port(2)).as_slice::<i32>()?, [1, 2, 1, 0]);
    /// assert_eq!(done.get(values.port(4)).as_slice::<i32>()?, [3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Unique {}
}

impl OpSpec for Unique {
    const DOC: OpDoc = OpDoc {
        name: "unique",
        text: "The distinct values of all elements in ascending order. The results are: the \
               values; for each value the index of its first element and its count; for each \
               element the number of its value; the number of values (`i32[]`). All NaNs count as \
               one value above every number. The lists of values have one entry per element; \
               entries after the last value are 0.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::unique);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let list = Type::new(DType::I32, [max_count(x)?]);
        Ok(vec![
            list.with_dtype(x.dtype),
            list.clone(),
            list,
            x.with_dtype(DType::I32),
            Type::new(DType::I32, [0usize; 0]),
        ])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        expect_countable(x.numel())?;
        let (data, size) = (scalars(x), x.dtype().size_bytes());
        let mut order: Vec<usize> = (0..data.len()).collect();
        order.sort_by(|&a, &b| sorted_order(data[a], data[b], false));
        let mut values = Tensor::zeros(results[0].clone())?;
        let (mut firsts, mut counts) = (vec![0i64; data.len()], vec![0i64; data.len()]);
        let mut numbers = vec![0i64; data.len()];
        let to = values.bytes_mut();
        let mut count = 0;
        let same =
            |a: &usize, b: &usize| sorted_order(data[*a], data[*b], false) == Ordering::Equal;
        for group in order.chunk_by(same) {
            // The sort is stable, so the first of a group is the first element.
            let from = &x.bytes()[group[0] * size..][..size];
            to[count * size..][..size].copy_from_slice(from);
            firsts[count] = group[0] as i64;
            counts[count] = group.len() as i64;
            group.iter().for_each(|&i| numbers[i] = count as i64);
            count += 1;
        }
        let ints = |at: usize, list: &[i64]| Tensor::from_i64s(results[at].clone(), list);
        Ok(vec![
            values,
            ints(1, &firsts)?,
            ints(2, &counts)?,
            ints(3, &numbers)?,
            ints(4, &[count as i64])?,
        ])
    }
}

impl Graph {
    /// The distinct values of `x`, of any dtype, in ascending order. The further results are: the
    /// first index of each value, the count of each value, the value number of each element, and
    /// the number of values.
    ///
    /// # Errors
    /// [`OpError`] when the element count of `x` exceeds `I32`.
    pub fn unique(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(Unique {}, &[x])
    }
}
