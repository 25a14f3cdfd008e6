//! Values that occur, each once.

use std::cmp::Ordering;

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, Fill, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::non_zero::{expect_countable, most};
use crate::ops::sort::sorted_order;
use crate::ops::util::{exactly, reject, scalars};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The values of all elements in ascending order, each once (NumPy `unique` with all its results).
    /// NaN counts as one value above every number, zeros of both signs as one; of equal elements the
    /// first is taken.
    ///
    /// How many values there are depends on the data, the shape of a result does not: there is room
    /// for as many as there are elements, and what lies after the last value is 0.
    pub struct Unique {}
}

impl OpSpec for Unique {
    const DOC: Doc = Doc {
        name: "unique",
        text: "The values of all elements in ascending order, each once; for each value the place of \
               the first element that has it and how many have it; for each element the number of its \
               value; how many values there are (`i32[]`). NaN is one value above all. Lists of values \
               have as many places as there are elements; those after the last value are 0. The results \
               are values, firsts, counts, numbers, count.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::unique);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let list = Type::new(DType::I32, [most(x)?]);
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
            // The sort is stable: the first of a group is the first element.
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

    fn cases() -> Vec<Case> {
        let found = |name: &str, shape: &'static [usize], fill: Fill| {
            Case::new(name, move |c| {
                let x = c.input("x", shape, fill.clone())?;
                let y = c.graph.unique(x)?;
                (0..5).try_for_each(|port| c.output(y.port(port)))
            })
        };
        vec![
            found("odd_7x33", &[7, 33], Fill::Uniform(0.0, 7.9)),
            found("special", &[3, 50], Fill::Special),
            found("one_value", &[5, 3], Fill::Uniform(1.0, 1.0)),
            found("rank_0", &[], Fill::Normal),
            found("rank_1", &[40], Fill::Normal),
            found("rank_4", &[2, 3, 1, 5], Fill::Normal),
            found("rank_6", &[2, 1, 3, 1, 2, 2], Fill::Normal),
            found("empty", &[0, 3], Fill::Normal),
            Case::new("pinned", |c| {
                let x = c.input("x", [2, 2], Fill::Values(vec![3.0, 1.0, 3.0, 2.0]))?;
                let y = c.graph.unique(x)?;
                c.output_expect(y, &[1.0, 2.0, 3.0, 0.0])?;
                c.output_expect(y.port(1), &[1.0, 3.0, 0.0, 0.0])?;
                c.output_expect(y.port(2), &[1.0, 1.0, 2.0, 0.0])?;
                c.output_expect(y.port(3), &[2.0, 0.0, 2.0, 1.0])?;
                c.output_expect(y.port(4), &[3.0])
            })
            .only(DType::NUMBERS),
            Case::new("nan_once_zeros_once", |c| {
                const NAN: f64 = f64::NAN;
                let x = Fill::Values(vec![NAN, -0.0, 0.0, NAN, -1.0]);
                let x = c.input("x", [5], x)?;
                let y = c.graph.unique(x)?;
                c.output_expect(y, &[-1.0, -0.0, NAN, 0.0, 0.0])?;
                c.output_expect(y.port(2), &[1.0, 2.0, 2.0, 0.0, 0.0])?;
                c.output_expect(y.port(4), &[3.0])
            })
            .only(DType::FLOATS),
            Case::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s, 3.into()], Fill::Normal)?;
                let y = c.graph.unique(x)?;
                c.output(y)?;
                c.output(y.port(4))
            }),
        ]
    }

    fn rejects() -> Vec<Reject> {
        vec![reject("two_operands", "expected 1 operands, got 2", |g| {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            g.add(Unique {}, &[x, x])
        })]
    }
}

impl Graph {
    /// The values of `x`, of any dtype, in ascending order, each once; then the first place of each,
    /// how often each occurs, the number of the value of each element, and how many values there are.
    ///
    /// # Errors
    /// [`OpError`] when `x` has more elements than `I32` counts.
    pub fn unique(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(Unique {}, &[x])
    }
}
