//! One-hot encoding of indices.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{INDEX_DTYPES, exactly, expect_dtype, reject, resolve_index};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// For each index, a row of `depth` elements that is 1 at the index and 0 elsewhere. Negative
    /// indices count from the end. The rows form a new last axis. `Transpose` moves that axis
    /// elsewhere, and `Where` gives other values.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{DType, EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let idx = g.constant(Tensor::from_slice(&[2], &[1i32, -1])?)?;
    /// let y = g.one_hot(idx, 3, DType::F32)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct OneHot {
        /// The size of the new last axis.
        pub depth: usize,
        /// The dtype of the result.
        pub to: DType,
    }
}

impl OpSpec for OneHot {
    const DOC: OpDoc = OpDoc {
        name: "one_hot",
        text: "For each index, a row of `depth` elements of dtype `to` in a new last axis: 1 at \
               the index, 0 elsewhere. Negative indices count from the end. A run with an \
               out-of-range index fails.",
        operands: &["idx"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("its operand is an index");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [idx] = exactly(operands)?;
        expect_dtype("idx", idx, INDEX_DTYPES)?;
        let mut dims = idx.shape.to_vec();
        dims.push(Dim::Known(self.depth));
        Ok(vec![Type::new(self.to, dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let mut y = vec![0; results[0].numel()];
        for (row, index) in operands[0].to_i64s().into_iter().enumerate() {
            y[row * self.depth + resolve_index(index, self.depth)?] = 1;
        }
        Ok(vec![Tensor::from_i64s(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<OpCase> {
        let hot = |name: &str, idx: &'static [usize], depth: usize, of: DType| {
            OpCase::new(name, move |c| {
                let to = c.dtype;
                let idx = c.input_of("idx", Type::new(of, idx), InputFill::Index(depth))?;
                let y = c.graph.one_hot(idx, depth, to)?;
                c.output(y)
            })
        };
        let fault = |name: &str, index: f64, message: &'static str| {
            OpCase::new(name, move |c| {
                let to = c.dtype;
                let ty = Type::new(DType::I32, [3]);
                let idx = c.input_of("idx", ty, InputFill::Values(vec![0.0, index, 0.0]))?;
                let y = c.graph.one_hot(idx, 4, to)?;
                c.expect_fault(message);
                c.output(y)
            })
        };
        vec![
            hot("rows_17x33", &[17], 33, DType::I32),
            hot("by_i64", &[17], 5, DType::I64),
            hot("one_index", &[], 7, DType::I32),
            hot("depth_1", &[5], 1, DType::I32),
            hot("rank_3", &[2, 3, 5], 9, DType::I32),
            hot("rank_5", &[2, 1, 2, 1, 3], 3, DType::I32),
            hot("no_indices", &[0], 3, DType::I32),
            hot("no_indices_of_nothing", &[3, 0], 0, DType::I32),
            OpCase::new("pinned", |c| {
                let to = c.dtype;
                let ty = Type::new(DType::I32, [3]);
                let idx = c.input_of("idx", ty, InputFill::Values(vec![2.0, -3.0, -1.0]))?;
                let y = c.graph.one_hot(idx, 3, to)?;
                c.output_expect(y, &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0])
            }),
            OpCase::new("of_a_view", |c| {
                let to = c.dtype;
                let idx = c.input_of("idx", Type::new(DType::I32, [3, 5]), InputFill::Index(6))?;
                let idx = c.graph.transpose(idx, &[1, 0])?;
                let y = c.graph.one_hot(idx, 6, to)?;
                c.output(y)
            }),
            fault("at_the_end", 4.0, "index 4 is out of range for axis of 4"),
            fault("below", -5.0, "index -5 is out of range for axis of 4"),
            OpCase::new("of_nothing", |c| {
                let to = c.dtype;
                let ty = Type::new(DType::I32, [1]);
                let idx = c.input_of("idx", ty, InputFill::Values(vec![0.0]))?;
                let y = c.graph.one_hot(idx, 0, to)?;
                c.expect_fault("index 0 is out of range for axis of 0");
                c.output(y)
            }),
            OpCase::new("symbolic", |c| {
                let (s, to) = (c.sym("s", 5, 9), c.dtype);
                let idx = c.input_of("idx", Type::new(DType::I32, [s]), InputFill::Index(7))?;
                let y = c.graph.one_hot(idx, 7, to)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![reject("float_indices", "operand idx is f32", |g| {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            g.one_hot(x, 4, DType::F32)
        })]
    }
}

impl Graph {
    /// For each index (`I32` or `I64`, any shape), a row of `depth` elements of dtype `to`: 1 at
    /// the index, 0 elsewhere.
    ///
    /// # Errors
    /// [`OpError`] when the dtype of `idx` is not an index dtype. A run fails if an index is
    /// outside `-depth..depth`.
    pub fn one_hot(&mut self, idx: Value, depth: usize, to: DType) -> Result<Value, OpError> {
        self.add(OneHot { depth, to }, &[idx])
    }
}
