//! Distinct values of a tensor.

use std::cmp::Ordering;

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::non_zero::{expect_countable, max_count};
use crate::ops::sort::sorted_order;
use crate::ops::util::{exactly, reject, scalars};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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

    fn cases() -> Vec<OpCase> {
        let found = |name: &str, shape: &'static [usize], fill: InputFill| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, fill.clone())?;
                let y = c.graph.unique(x)?;
                (0..5).try_for_each(|port| c.output(y.port(port)))
            })
        };
        vec![
            found("odd_7x33", &[7, 33], InputFill::Uniform(0.0, 7.9)),
            found("special", &[3, 50], InputFill::Special),
            found("one_value", &[5, 3], InputFill::Uniform(1.0, 1.0)),
            found("rank_0", &[], InputFill::Normal),
            found("rank_1", &[40], InputFill::Normal),
            found("rank_4", &[2, 3, 1, 5], InputFill::Normal),
            found("rank_6", &[2, 1, 3, 1, 2, 2], InputFill::Normal),
            found("empty", &[0, 3], InputFill::Normal),
            OpCase::new("pinned", |c| {
                let x = c.input("x", [2, 2], InputFill::Values(vec![3.0, 1.0, 3.0, 2.0]))?;
                let y = c.graph.unique(x)?;
                c.output_expect(y, &[1.0, 2.0, 3.0, 0.0])?;
                c.output_expect(y.port(1), &[1.0, 3.0, 0.0, 0.0])?;
                c.output_expect(y.port(2), &[1.0, 1.0, 2.0, 0.0])?;
                c.output_expect(y.port(3), &[2.0, 0.0, 2.0, 1.0])?;
                c.output_expect(y.port(4), &[3.0])
            })
            .only(DType::NUMBERS),
            OpCase::new("nan_once_zeros_once", |c| {
                const NAN: f64 = f64::NAN;
                let x = InputFill::Values(vec![NAN, -0.0, 0.0, NAN, -1.0]);
                let x = c.input("x", [5], x)?;
                let y = c.graph.unique(x)?;
                c.output_expect(y, &[-1.0, -0.0, NAN, 0.0, 0.0])?;
                c.output_expect(y.port(2), &[1.0, 2.0, 2.0, 0.0, 0.0])?;
                c.output_expect(y.port(4), &[3.0])
            })
            .only(DType::FLOATS),
            OpCase::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
                let y = c.graph.unique(x)?;
                c.output(y)?;
                c.output(y.port(4))
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![reject("two_operands", "expected 1 operands, got 2", |g| {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            g.add(Unique {}, &[x, x])
        })]
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
