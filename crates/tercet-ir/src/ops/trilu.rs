//! Upper and lower triangles of matrices.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{counted, exactly, expect_rank_at_least, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// Matrices with 0 below (or above) a diagonal (NumPy `triu` and `tril`).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let upper = g.trilu(x, true, 0)?;
    /// let below = g.trilu(x, false, -1)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(upper).as_slice::<f32>()?, [1.0, 2.0, 0.0, 4.0]);
    /// assert_eq!(done.get(below).as_slice::<f32>()?, [0.0, 0.0, 3.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Trilu {
        /// Keeps the upper triangle if true, else the lower one.
        pub upper: bool,
        /// The outermost kept diagonal: 0 is the main diagonal, positive ones are above it.
        pub k: i64,
    }
}

impl Trilu {
    /// Whether the element at this position of a matrix is kept.
    pub fn is_kept(&self, row: usize, column: usize) -> bool {
        let diagonal = column as i64 - row as i64;
        match self.upper {
            true => diagonal >= self.k,
            false => diagonal <= self.k,
        }
    }
}

impl OpSpec for Trilu {
    const DOC: OpDoc = OpDoc {
        name: "trilu",
        text: "The upper triangle (`column - row >= k`) or the lower one (`column - row <= k`) of \
               the matrices in the last two axes; 0 elsewhere.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::shape::trilu);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_rank_at_least("x", x, 2)?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let ty = &results[0];
        let [.., rows, columns] = ty.shape[..] else {
            unreachable!("invariant: the operand has two axes")
        };
        let size = ty.dtype.size_bytes();
        let mut y = operands[0].clone();
        for (i, element) in y.bytes_mut().chunks_exact_mut(size).enumerate() {
            if !self.is_kept(i / columns % rows, i % columns) {
                element.fill(0);
            }
        }
        Ok(vec![y])
    }

    fn cases() -> Vec<OpCase> {
        let cut = |name: &str, shape: &'static [usize], upper: bool, k: i64| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Special)?;
                let y = c.graph.trilu(x, upper, k)?;
                c.output(y)
            })
        };
        vec![
            cut("upper_7x33", &[7, 33], true, 0),
            cut("lower_7x33", &[7, 33], false, 0),
            cut("upper_of_tall_33x7", &[33, 7], true, 0),
            cut("lower_of_tall_33x7", &[33, 7], false, 0),
            cut("upper_above", &[5, 6], true, 2),
            cut("upper_below", &[5, 6], true, -2),
            cut("lower_above", &[5, 6], false, 2),
            cut("lower_below", &[5, 6], false, -2),
            cut("all_of_it", &[5, 6], true, i64::MIN),
            cut("nothing_of_it", &[5, 6], true, i64::MAX),
            cut("all_below", &[5, 6], false, i64::MAX),
            cut("nothing_below", &[5, 6], false, -100),
            cut("one_element", &[1, 1], false, 0),
            cut("rank_3", &[2, 5, 3], true, 1),
            cut("rank_4", &[2, 1, 3, 4], false, -1),
            cut("rank_5", &[2, 1, 2, 3, 3], true, 0),
            cut("rank_6", &[2, 1, 1, 2, 3, 5], false, 0),
            cut("no_rows", &[0, 4], true, 0),
            cut("no_columns", &[4, 0], false, 0),
            cut("no_matrices", &[0, 3, 3], false, 0),
            OpCase::new("pinned", |c| {
                let x = c.input("x", [2, 3], counted(&[2, 3]))?;
                let upper = c.graph.trilu(x, true, 1)?;
                let lower = c.graph.trilu(x, false, 0)?;
                c.output_expect(upper, &[0.0, 1.0, 2.0, 0.0, 0.0, 5.0])?;
                c.output_expect(lower, &[0.0, 0.0, 0.0, 3.0, 4.0, 0.0])
            })
            .only(DType::NUMBERS),
            OpCase::new("of_a_view", |c| {
                let x = c.input("x", [3, 5, 7], InputFill::Special)?;
                let x = c.graph.transpose(x, &[1, 2, 0])?;
                let y = c.graph.trilu(x, true, -1)?;
                c.output(y)
            }),
            OpCase::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [2.into(), s.clone(), s], InputFill::Special)?;
                let y = c.graph.trilu(x, false, 0)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![reject("vector", "rank 2 or more", |g| {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            g.trilu(x, true, 0)
        })]
    }
}

impl Graph {
    /// The upper (else the lower) triangle of the matrices in the last two axes of `x`, of any
    /// dtype, including diagonal `k`; 0 elsewhere.
    ///
    /// # Errors
    /// [`OpError`] when `x` has fewer than two axes.
    pub fn trilu(&mut self, x: Value, upper: bool, k: i64) -> Result<Value, OpError> {
        self.add(Trilu { upper, k }, &[x])
    }
}
