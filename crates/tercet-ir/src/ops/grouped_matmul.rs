//! Matmul of each row with the matrix that an index selects: a mixture of experts.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, exactly, expect_dtype, expect_equal, expect_rank, expect_same_dtype, reject,
    resolve_index,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `y[m, n] = sum_k x[m, k] w[expert[m], k, n]`. Negative indices count from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 1], &[1f32, 2.0])?)?;
    /// // The matrices of two experts.
    /// let w = g.constant(Tensor::from_slice(&[2, 1, 1], &[10f32, 100.0])?)?;
    /// let expert = g.constant(Tensor::from_slice(&[2], &[1i32, 0])?)?;
    /// let y = g.grouped_matmul(x, w, expert)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [100.0, 20.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct GroupedMatMul {}
}

impl OpSpec for GroupedMatMul {
    const DOC: OpDoc = OpDoc {
        name: "grouped_mat_mul",
        text: "Each row of `x [M, K]` times the matrix of `w [E, K, N]` that its index selects: \
               `sum_k x[m, k] w[expert[m], k, n]`. Negative indices count from the end. A run with \
               an out-of-range index fails.",
        operands: &["x", "w", "expert"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::grouped);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, w, expert] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_same_dtype("w", w, x)?;
        expect_dtype("expert", expert, INDEX_DTYPES)?;
        expect_rank("x", x, 2)?;
        expect_rank("w", w, 3)?;
        expect_rank("expert", expert, 1)?;
        expect_equal("numbers of rows and indices", &x.shape[0], &expert.shape[0])?;
        expect_equal("the inner dimensions", &x.shape[1], &w.shape[1])?;
        Ok(vec![x.with_shape([x.shape[0].clone(), w.shape[2].clone()])])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (operands[0].to_f64s(), operands[1].to_f64s());
        let [experts, k, n] = operands[1].shape()[..] else {
            unreachable!("invariant: w has three axes")
        };
        let mut y = vec![0.0; results[0].numel()];
        for (m, index) in operands[2].to_i64s().into_iter().enumerate() {
            let first = resolve_index(index, experts)? * k * n;
            for i in 0..k {
                for j in 0..n {
                    y[m * n + j] += x[m * k + i] * w[first + i * n + j];
                }
            }
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, m: usize, k: usize, n: usize, experts: usize, of: DType| {
            OpCase::new(name, move |c| {
                let x = c.input("x", [m, k], InputFill::Normal)?;
                let w = c.param_of("w", Type::new(c.dtype, [experts, k, n]), InputFill::Normal)?;
                let at = c.input_of("expert", Type::new(of, [m]), InputFill::Index(experts))?;
                let y = c.graph.grouped_matmul(x, w, at)?;
                c.output(y)
            })
        };
        let fault = |name: &str, index: f64, message: &'static str| {
            OpCase::new(name, move |c| {
                let x = c.input("x", [3, 4], InputFill::Normal)?;
                let w = c.input("w", [2, 4, 5], InputFill::Normal)?;
                let ty = Type::new(DType::I32, [3]);
                let at = c.input_of("expert", ty, InputFill::Values(vec![0.0, index, 9.0]))?;
                let y = c.graph.grouped_matmul(x, w, at)?;
                c.expect_fault(message);
                c.output(y)
            })
        };
        let i32 = DType::I32;
        vec![
            shaped("odd_17x19x23", 17, 19, 23, 5, i32),
            shaped("even_64x32x48", 64, 32, 48, 4, i32),
            shaped("several_tiles", 70, 33, 70, 3, i32),
            shaped("by_i64", 9, 8, 6, 3, DType::I64),
            shaped("one_row", 1, 40, 12, 8, i32),
            shaped("one_expert", 40, 16, 8, 1, i32),
            shaped("more_experts_than_rows", 5, 7, 9, 64, i32),
            shaped("many_rows_1200", 1200, 9, 5, 7, i32),
            shaped("one_column", 33, 12, 1, 4, i32),
            shaped("no_rows", 0, 4, 5, 2, i32),
            shaped("nothing_to_sum", 4, 0, 5, 2, i32),
            shaped("no_columns", 4, 3, 0, 2, i32),
            OpCase::new("pinned", |c| {
                let x = c.input("x", [3, 2], InputFill::Values(vec![1., 2., 3., 4., 5., 6.]))?;
                let w = vec![1.0, 0.0, 0.0, 1.0, 2.0, 1.0, 0.0, -1.0];
                let w = c.input("w", [2, 2, 2], InputFill::Values(w))?;
                let ty = Type::new(DType::I32, [3]);
                let at = c.input_of("expert", ty, InputFill::Values(vec![1.0, -2.0, -1.0]))?;
                let y = c.graph.grouped_matmul(x, w, at)?;
                c.output_expect(y, &[2.0, -1.0, 3.0, 4.0, 10.0, -1.0])
            }),
            OpCase::new("of_views", |c| {
                let x = c.input("x", [12, 21], InputFill::Normal)?;
                let x = c.graph.transpose(x, &[1, 0])?;
                let w = c.input("w", [3, 10, 12], InputFill::Normal)?;
                let w = c.graph.transpose(w, &[0, 2, 1])?;
                let at = c.input_of("expert", Type::new(DType::I32, [21]), InputFill::Index(3))?;
                let y = c.graph.grouped_matmul(x, w, at)?;
                c.output(y)
            }),
            fault(
                "index_at_the_end",
                2.0,
                "index 2 is out of range for axis of 2",
            ),
            fault(
                "index_below",
                -3.0,
                "index -3 is out of range for axis of 2",
            ),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 40);
                let x = c.input("x", [s.clone(), 8.into()], InputFill::Normal)?;
                let w = c.param_of("w", Type::new(c.dtype, [4, 8, 6]), InputFill::Normal)?;
                let at = c.input_of("expert", Type::new(DType::I32, [s]), InputFill::Index(4))?;
                let y = c.graph.grouped_matmul(x, w, at)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, w: Type, expert: Type) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [4, 3]))?;
            let w = g.input("w", w)?;
            let expert = g.input("expert", expert)?;
            g.grouped_matmul(x, w, expert)
        }
        vec![
            reject("float_indices", "operand expert is f32", |g| {
                build(
                    g,
                    Type::new(DType::F32, [2, 3, 5]),
                    Type::new(DType::F32, [4]),
                )
            }),
            reject("one_matrix", "rank 3", |g| {
                build(g, Type::new(DType::F32, [3, 5]), Type::new(DType::I32, [4]))
            }),
            reject("inner", "the inner dimensions: 3 and 2 differ", |g| {
                build(
                    g,
                    Type::new(DType::F32, [2, 2, 5]),
                    Type::new(DType::I32, [4]),
                )
            }),
            reject("rows", "numbers of rows and indices: 4 and 5 differ", |g| {
                build(
                    g,
                    Type::new(DType::F32, [2, 3, 5]),
                    Type::new(DType::I32, [5]),
                )
            }),
            reject("other_weights", "operand w is f16", |g| {
                build(
                    g,
                    Type::new(DType::F16, [2, 3, 5]),
                    Type::new(DType::I32, [4]),
                )
            }),
        ]
    }
}

impl Graph {
    /// Multiplies each row of floats `x [M, K]` by the matrix of `w [E, K, N]` that its index in
    /// `expert [M]` (`I32` or `I64`) selects: `[M, N]`.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match. A run fails if an index is outside `-E..E`.
    pub fn grouped_matmul(&mut self, x: Value, w: Value, expert: Value) -> Result<Value, OpError> {
        self.add(GroupedMatMul {}, &[x, w, expert])
    }
}
