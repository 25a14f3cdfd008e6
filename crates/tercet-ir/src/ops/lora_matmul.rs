//! A matmul with a low-rank adapter (LoRA).

use crate::accuracy::Accuracy;
use crate::attr::FloatAttr;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, expect_same_dtype,
    reject,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `x w + scale (x a) b` (Hu and others 2021): weights plus a trained low-rank adapter.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let w = g.param("w", Type::new(DType::F32, [64, 32]))?;
    /// let a = g.param("a", Type::new(DType::F32, [64, 4]))?;
    /// let b = g.param("b", Type::new(DType::F32, [4, 32]))?;
    /// let y = g.lora_matmul(x, [w, a, b], 2.0)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[5, 32]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct LoraMatMul {
        /// Scale of the adapter's contribution.
        pub scale: FloatAttr,
    }
}

impl OpSpec for LoraMatMul {
    const DOC: OpDoc = OpDoc {
        name: "lora_mat_mul",
        text: "Matmul with a low-rank adapter (LoRA): `x w + scale (x a) b` of `x [.., K]`, `w [K, \
               N]`, `a [K, R]` and `b [R, N]`.",
        operands: &["x", "w", "a", "b"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::lora);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, w, a, b] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank_at_least("x", x, 1)?;
        for (name, ty) in [("w", w), ("a", a), ("b", b)] {
            expect_same_dtype(name, ty, x)?;
            expect_rank(name, ty, 2)?;
        }
        if !self.scale.0.is_finite() {
            let reason = format!("{:?} is not a finite number", self.scale);
            return Err(TypeError::Attr {
                name: "scale",
                reason,
            });
        }
        let (lead, k) = x.shape.split_at(x.rank() - 1);
        expect_equal("the inner dimensions of x and w", &k[0], &w.shape[0])?;
        expect_equal("the inner dimensions of x and a", &k[0], &a.shape[0])?;
        expect_equal("the ranks of a and b", &a.shape[1], &b.shape[0])?;
        expect_equal("the columns of w and b", &w.shape[1], &b.shape[1])?;
        let mut dims = lead.to_vec();
        dims.push(w.shape[1].clone());
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [x, w, a, b] = [0, 1, 2, 3].map(|i| operands[i].to_f64s());
        let [k, n] = operands[1].shape()[..] else {
            unreachable!("invariant: w has two axes")
        };
        let rank = operands[3].shape()[0];
        let mut y = vec![0.0; results[0].numel()];
        if n > 0 {
            for (m, y) in y.chunks_exact_mut(n).enumerate() {
                let x = &x[m * k..][..k];
                let product = |matrix: &[f64], columns: usize, j: usize| -> f64 {
                    let terms = x.iter().enumerate();
                    terms.map(|(i, x)| x * matrix[i * columns + j]).sum()
                };
                let low: Vec<f64> = (0..rank).map(|r| product(&a, rank, r)).collect();
                for (j, y) in y.iter_mut().enumerate() {
                    let terms = low.iter().enumerate();
                    let correction: f64 = terms.map(|(r, v)| v * b[r * n + j]).sum();
                    *y = product(&w, n, j) + self.scale.0 * correction;
                }
            }
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, x: &'static [usize], n: usize, rank: usize, scale: f64| {
            OpCase::new(name, move |c| {
                let k = x[x.len() - 1];
                let dtype = c.dtype;
                let x = c.input("x", x, InputFill::Normal)?;
                let w = c.param_of("w", Type::new(dtype, [k, n]), InputFill::Normal)?;
                let a = c.param_of(
                    "a",
                    Type::new(dtype, [k, rank]),
                    InputFill::Uniform(-0.2, 0.2),
                )?;
                let b = c.param_of(
                    "b",
                    Type::new(dtype, [rank, n]),
                    InputFill::Uniform(-0.5, 0.5),
                )?;
                let y = c.graph.lora_matmul(x, [w, a, b], scale)?;
                c.output(y)
            })
        };
        vec![
            shaped("odd_17x19x23", &[17, 19], 23, 3, 2.0),
            shaped("even_64x32x48", &[64, 32], 48, 8, 0.5),
            shaped("one_vector", &[40], 12, 4, 1.0),
            shaped("one_row", &[1, 64], 32, 8, -1.0),
            shaped("batches", &[2, 3, 5, 16], 9, 2, 1.5),
            shaped("rank_1", &[7, 12], 10, 1, 1.0),
            shaped("scaled_by_zero", &[7, 12], 10, 2, 0.0),
            shaped("no_correction", &[7, 12], 10, 0, 1.0),
            shaped("no_rows", &[0, 12], 10, 2, 1.0),
            shaped("nothing_to_sum", &[4, 0], 10, 2, 1.0),
            shaped("no_columns", &[4, 3], 0, 2, 1.0),
            OpCase::new("pinned", |c| {
                let x = c.input("x", [1, 2], InputFill::Values(vec![1.0, 2.0]))?;
                let w = c.input("w", [2, 2], InputFill::Values(vec![1.0, 0.0, 0.0, 1.0]))?;
                let a = c.input("a", [2, 1], InputFill::Values(vec![3.0, -1.0]))?;
                let b = c.input("b", [1, 2], InputFill::Values(vec![2.0, 4.0]))?;
                let y = c.graph.lora_matmul(x, [w, a, b], 0.5)?;
                c.output_expect(y, &[2.0, 4.0])
            }),
            OpCase::new("symbolic_rows", |c| {
                let (s, dtype) = (c.sym("s", 5, 9), c.dtype);
                let x = c.input("x", [s, 16.into()], InputFill::Normal)?;
                let w = c.param_of("w", Type::new(dtype, [16, 8]), InputFill::Normal)?;
                let a = c.param_of(
                    "a",
                    Type::new(dtype, [16, 4]),
                    InputFill::Uniform(-0.2, 0.2),
                )?;
                let b = c.param_of("b", Type::new(dtype, [4, 8]), InputFill::Normal)?;
                let y = c.graph.lora_matmul(x, [w, a, b], 2.0)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(
            g: &mut Graph,
            a: [usize; 2],
            b: [usize; 2],
            scale: f64,
        ) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [4, 3]))?;
            let w = g.input("w", Type::new(DType::F32, [3, 5]))?;
            let a = g.input("a", Type::new(DType::F32, a))?;
            let b = g.input("b", Type::new(DType::F32, b))?;
            g.lora_matmul(x, [w, a, b], scale)
        }
        vec![
            reject(
                "inner",
                "inner dimensions of x and a: 3 and 4 differ",
                |g| build(g, [4, 2], [2, 5], 1.0),
            ),
            reject("ranks", "the ranks of a and b: 2 and 1 differ", |g| {
                build(g, [3, 2], [1, 5], 1.0)
            }),
            reject("columns", "the columns of w and b: 5 and 4 differ", |g| {
                build(g, [3, 2], [2, 4], 1.0)
            }),
            reject("scale", "is not a finite number", |g| {
                build(g, [3, 2], [2, 5], f64::NAN)
            }),
        ]
    }
}

impl Graph {
    /// The matmul with adapter `x w + scale (x a) b` of floats: `x [.., K]`, and `weights`, which
    /// are `w [K, N]`, `a [K, R]` and `b [R, N]`.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or `scale` is not finite.
    pub fn lora_matmul(
        &mut self,
        x: Value,
        weights: [Value; 3],
        scale: f64,
    ) -> Result<Value, OpError> {
        let [w, a, b] = weights;
        let scale = FloatAttr(scale);
        self.add(LoraMatMul { scale }, &[x, w, a, b])
    }
}
