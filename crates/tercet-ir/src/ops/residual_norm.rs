//! Norms of a residual sum, with the sum as a second result.

use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec};
use crate::ops::norm::{
    NormRowFn, doc, expect_eps, expect_weights, layer_norm_line, normalise, rms_norm_line,
};
use crate::ops::util::{expect_dtype, expect_rank_at_least, expect_same_dtype, with_optional};

attrs! {
    /// The sum `x + residual + bias` and its layer norm over the last axis. The sum is rounded to
    /// its dtype first, so `normed` equals [`LayerNorm`](crate::ops::LayerNorm) of `sum`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let residual = g.input("residual", Type::new(DType::F32, [5, 64]))?;
    /// let gamma = g.param("gamma", Type::new(DType::F32, [64]))?;
    /// let beta = g.param("beta", Type::new(DType::F32, [64]))?;
    /// let (a, b) = g.residual_layer_norm(x, residual, gamma, beta, None, 1e-5)?;
    /// assert_eq!((g.ty(a), g.ty(b)), (g.ty(x), g.ty(x)));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct ResidualLayerNorm {
        /// Constant added to the variance.
        pub eps: FloatAttr,
    }
}

attrs! {
    /// The sum `x + residual + bias` and its RMS norm over the last axis. The sum is rounded to its
    /// dtype first, so `normed` equals [`RmsNorm`](crate::ops::RmsNorm) of `sum`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let residual = g.input("residual", Type::new(DType::F32, [5, 64]))?;
    /// let gamma = g.param("gamma", Type::new(DType::F32, [64]))?;
    /// let (a, b) = g.residual_rms_norm(x, residual, gamma, None, 1e-5)?;
    /// assert_eq!((g.ty(a), g.ty(b)), (g.ty(x), g.ty(x)));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct ResidualRmsNorm {
        /// Constant added to the mean of squares.
        pub eps: FloatAttr,
    }
}

/// Checks `x`, `residual` and the weights, and returns the types of both results.
fn infer_residual(
    eps: FloatAttr,
    x: &Type,
    residual: &Type,
    weights: &[(&'static str, Option<&Type>)],
) -> Result<Vec<Type>, TypeError> {
    expect_dtype("x", x, DType::FLOATS)?;
    expect_rank_at_least("x", x, 1)?;
    expect_eps(eps)?;
    expect_same_dtype("residual", residual, x)?;
    if residual.shape != x.shape {
        return Err(TypeError::Rank {
            operand: "residual",
            found: residual.clone(),
            expected: format!("{x}, the type of x"),
        });
    }
    expect_weights(x, &x.shape[x.rank() - 1..], weights)?;
    Ok(vec![x.clone(), x.clone()])
}

fn eval_residual(
    line: NormRowFn,
    eps: FloatAttr,
    [x, residual, gamma]: [&Tensor; 3],
    [beta, bias]: [Option<&Tensor>; 2],
    results: &[TensorType],
) -> Result<Vec<Tensor>, EvalError> {
    let gamma = gamma.to_f64s();
    let optional = |t: Option<&Tensor>| t.map_or(vec![], Tensor::to_f64s);
    let (beta, bias) = (optional(beta), optional(bias));
    let mut sum = x.to_f64s();
    for (i, (s, r)) in sum.iter_mut().zip(residual.to_f64s()).enumerate() {
        *s += r;
        if !bias.is_empty() {
            *s += bias[i % bias.len()];
        }
    }
    let sum = Tensor::from_f64s(results[1].clone(), &sum)?;
    let normed = normalise(line, &sum.to_f64s(), &gamma, &beta, eps.0);
    Ok(vec![Tensor::from_f64s(results[0].clone(), &normed)?, sum])
}

impl OpSpec for ResidualLayerNorm {
    const DOC: OpDoc = doc(
        "residual_layer_norm",
        "Two results: the layer norm of `sum` over the last axis, and `sum = x + residual + bias`.",
        &["x", "residual", "gamma", "beta", "bias?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, residual, gamma, beta], [bias]) = with_optional(operands)?;
        let weights = [("gamma", Some(gamma)), ("beta", Some(beta)), ("bias", bias)];
        infer_residual(self.eps, x, residual, &weights)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let required = [operands[0], operands[1], operands[2]];
        let optional = [Some(operands[3]), operands.get(4).copied()];
        eval_residual(layer_norm_line, self.eps, required, optional, results)
    }
}

impl OpSpec for ResidualRmsNorm {
    const DOC: OpDoc = doc(
        "residual_rms_norm",
        "Two results: the RMS norm of `sum` over the last axis, and `sum = x + residual + bias`.",
        &["x", "residual", "gamma", "bias?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, residual, gamma], [bias]) = with_optional(operands)?;
        let weights = [("gamma", Some(gamma)), ("bias", bias)];
        infer_residual(self.eps, x, residual, &weights)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let required = [operands[0], operands[1], operands[2]];
        let optional = [None, operands.get(3).copied()];
        eval_residual(rms_norm_line, self.eps, required, optional, results)
    }
}

impl Graph {
    /// `(layer_norm(sum), sum)` with `sum = x + residual + bias`. `x` and `residual` have one type;
    /// `gamma`, `beta` and `bias` are `[n]` for a last axis of `n`. Both results have the type of
    /// `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or has no axis, `eps` is negative or not finite, or
    /// another operand has another type.
    pub fn residual_layer_norm(
        &mut self,
        x: Value,
        residual: Value,
        gamma: Value,
        beta: Value,
        bias: Option<Value>,
        eps: f64,
    ) -> Result<(Value, Value), OpError> {
        let operands: Vec<Value> = [x, residual, gamma, beta].into_iter().chain(bias).collect();
        let normed = self.add(
            ResidualLayerNorm {
                eps: FloatAttr(eps),
            },
            &operands,
        )?;
        Ok((normed, normed.port(1)))
    }

    /// `(rms_norm(sum), sum)` with `sum = x + residual + bias`. `x` and `residual` have one type;
    /// `gamma` and `bias` are `[n]` for a last axis of `n`. Both results have the type of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or has no axis, `eps` is negative or not finite, or
    /// another operand has another type.
    pub fn residual_rms_norm(
        &mut self,
        x: Value,
        residual: Value,
        gamma: Value,
        bias: Option<Value>,
        eps: f64,
    ) -> Result<(Value, Value), OpError> {
        let operands: Vec<Value> = [x, residual, gamma].into_iter().chain(bias).collect();
        let normed = self.add(
            ResidualRmsNorm {
                eps: FloatAttr(eps),
            },
            &operands,
        )?;
        Ok((normed, normed.port(1)))
    }
}
