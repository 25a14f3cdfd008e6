//! Sums of rows by index (scatter-add).

use super::{ScatterReduce, scatter};
use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, counted, exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least,
    reject, resolve_index,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// For each row, the sum of the updates with its index, in order; 0 for rows without updates.
    /// The operator is the adjoint of `Gather` along axis 0. Negative indices count from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let updates = g.constant(Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[3], &[1i32, 0, 1])?)?;
    /// let y = g.scatter_add(updates, idx, 3)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [2.0, 5.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ScatterAdd {
        /// The number of rows of the result.
        pub rows: Dim,
    }
}

impl OpSpec for ScatterAdd {
    const DOC: OpDoc = OpDoc {
        name: "scatter_add",
        text: "For each of `rows` rows, the sum of the updates with its index, in order; 0 for \
               rows without updates. Negative indices count from the end. A run with an \
               out-of-range index fails.",
        operands: &["updates", "idx"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::scatter::add);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [updates, idx] = exactly(operands)?;
        expect_dtype("updates", updates, DType::NUMBERS)?;
        expect_dtype("idx", idx, INDEX_DTYPES)?;
        expect_rank_at_least("updates", updates, 1)?;
        expect_rank("idx", idx, 1)?;
        expect_equal(
            "numbers of updates and indices",
            &updates.shape[0],
            &idx.shape[0],
        )?;
        let mut dims = updates.shape.to_vec();
        dims[0] = self.rows.clone();
        Ok(vec![updates.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (updates, shape) = (operands[0], &results[0].shape);
        let rows: Result<Vec<usize>, EvalError> = (operands[1].to_i64s().into_iter())
            .map(|i| resolve_index(i, shape[0]))
            .collect();
        let zeros = Tensor::zeros(results[0].clone())?;
        let inner = shape[1..].iter().product();
        let y = scatter(&zeros, updates, inner, &rows?, ScatterReduce::Add)?;
        Ok(vec![y])
    }

    fn cases() -> Vec<OpCase> {
        let summed = |name: &str, updates: &'static [usize], rows: usize, of: DType| {
            OpCase::new(name, move |c| {
                let x = c.input("updates", updates, InputFill::Normal)?;
                let ty = Type::new(of, [updates[0]]);
                let idx = c.input_of("idx", ty, InputFill::Index(rows))?;
                let y = c.graph.scatter_add(x, idx, rows)?;
                c.output(y)
            })
        };
        let fault = |name: &str, index: f64, message: &'static str| {
            OpCase::new(name, move |c| {
                let x = c.input("updates", [3, 2], InputFill::Normal)?;
                let idx = Type::new(DType::I32, [3]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![0.0, index, 9.0]))?;
                let y = c.graph.scatter_add(x, idx, 4usize)?;
                c.expect_fault(message);
                c.output(y)
            })
        };
        let symbolic = |name: &str, len: usize, below: usize| {
            OpCase::new(name, move |c| {
                let (s, rows) = (c.sym("s", 5, 9), c.sym("rows", 4, 6));
                let x = c.input("updates", [s.clone(), len.into()], InputFill::Normal)?;
                let idx = c.input_of("idx", Type::new(DType::I32, [s]), InputFill::Index(below))?;
                let like = c.input("like", [rows.clone()], InputFill::Normal)?;
                let y = c.graph.scatter_add(x, idx, rows)?;
                c.output(like)?;
                c.output(y)
            })
        };
        vec![
            summed("rows_33x7", &[33, 7], 5, DType::I32),
            summed("more_rows_than_updates", &[5, 7], 33, DType::I32),
            summed("rows_of_words", &[12, 2, 4], 5, DType::I32),
            summed("by_i64", &[9, 3], 4, DType::I64),
            summed("rank_1", &[40], 7, DType::I32),
            summed("rank_4", &[7, 2, 1, 3], 3, DType::I32),
            summed("rank_6", &[7, 2, 1, 3, 1, 2], 3, DType::I32),
            summed("one_row", &[9, 5], 1, DType::I32),
            summed("no_updates", &[0, 3], 4, DType::I32),
            summed("nothing_to_nothing", &[0, 3], 0, DType::I32),
            summed("empty_rows", &[5, 0], 4, DType::I32),
            summed("many_1300x3", &[1300, 3], 17, DType::I32),
            summed("wide_41_to_more_rows", &[6, 41], 23, DType::I32),
            summed("wide_64_to_fewer_rows", &[29, 64], 4, DType::I64),
            summed("wide_of_no_updates", &[0, 40], 4, DType::I32),
            OpCase::new("pinned", |c| {
                let x = c.input("updates", [4, 2], counted(&[4, 2]))?;
                let ty = Type::new(DType::I32, [4]);
                let idx = c.input_of("idx", ty, InputFill::Values(vec![2.0, 0.0, -1.0, 0.0]))?;
                let y = c.graph.scatter_add(x, idx, 3usize)?;
                c.output_expect(y, &[8.0, 10.0, 0.0, 0.0, 4.0, 6.0])
            }),
            OpCase::new("of_views", |c| {
                let x = c.input("updates", [3, 5, 7], InputFill::Normal)?;
                let x = c.graph.transpose(x, &[2, 0, 1])?;
                let idx = c.input_of("idx", Type::new(DType::I32, [7]), InputFill::Index(3))?;
                let idx = c.graph.reverse(idx, 0)?;
                let y = c.graph.scatter_add(x, idx, 3usize)?;
                c.output(y)
            }),
            fault(
                "index_at_the_end",
                4.0,
                "index 4 is out of range for axis of 4",
            ),
            fault(
                "index_below",
                -5.0,
                "index -5 is out of range for axis of 4",
            ),
            symbolic("symbolic", 3, 1),
            symbolic("symbolic_wide", 35, 4),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, updates: Type, idx: Type) -> Result<Value, OpError> {
            let x = g.input("x", updates)?;
            let idx = g.input("idx", idx)?;
            g.scatter_add(x, idx, 4usize)
        }
        vec![
            reject("float_indices", "operand idx is f32", |g| {
                build(g, Type::new(DType::F32, [3, 2]), Type::new(DType::F32, [3]))
            }),
            reject("truth_values", "operand updates is bool", |g| {
                build(
                    g,
                    Type::new(DType::Bool, [3, 2]),
                    Type::new(DType::I32, [3]),
                )
            }),
            reject("scalar", "rank 1 or more", |g| {
                build(
                    g,
                    Type::new(DType::F32, [0usize; 0]),
                    Type::new(DType::I32, [3]),
                )
            }),
            reject("matrix_of_indices", "rank 1", |g| {
                build(
                    g,
                    Type::new(DType::F32, [3, 2]),
                    Type::new(DType::I32, [3, 2]),
                )
            }),
            reject(
                "numbers",
                "numbers of updates and indices: 3 and 4 differ",
                |g| build(g, Type::new(DType::F32, [3, 2]), Type::new(DType::I32, [4])),
            ),
        ]
    }
}

impl Graph {
    /// For each of `rows` rows, the sum of the rows of `updates`, numbers of any dtype, with this
    /// index (`I32` or `I64`), in order.
    ///
    /// # Errors
    /// [`OpError`] when there is not one index for each update, or the dtypes do not match. A run
    /// fails if an index is outside `-rows..rows`.
    pub fn scatter_add(
        &mut self,
        updates: Value,
        idx: Value,
        rows: impl Into<Dim>,
    ) -> Result<Value, OpError> {
        let rows = rows.into();
        self.add(ScatterAdd { rows }, &[updates, idx])
    }
}
