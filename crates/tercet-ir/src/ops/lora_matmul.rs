//! A matmul with a low-rank adapter (LoRA).

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, expect_same_dtype,
};

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
