//! Layer norm and RMS norm.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    expect_axis, expect_dtype, expect_rank_at_least, expect_same_dtype, with_optional,
};

attrs! {
    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` over all axes from `axis` on, with the
    /// biased variance `mean((x - mean)^2)` (Ba, Kiros, Hinton 2016).
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let gamma = g.param("gamma", Type::new(DType::F32, [64]))?;
    /// let beta = g.param("beta", Type::new(DType::F32, [64]))?;
    /// let y = g.layer_norm(x, gamma, Some(beta), 1, 1e-5)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct LayerNorm {
        /// The first of the axes that are normalized together.
        pub axis: usize,
        /// Constant added to the variance.
        pub eps: FloatAttr,
    }
}

attrs! {
    /// `x / sqrt(mean(x^2) + eps) * gamma + beta` over the last axis (Zhang, Sennrich 2019).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2], &[3f32, 3.0])?)?;
    /// let gamma = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let y = g.rms_norm(x, gamma, None, 0.0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct RmsNorm {
        /// Constant added to the mean of squares.
        pub eps: FloatAttr,
    }
}

/// Checks that `eps` is finite and not negative.
pub(crate) fn expect_eps(eps: FloatAttr) -> Result<(), TypeError> {
    if eps.0.is_finite() && eps.0 >= 0.0 {
        return Ok(());
    }
    let reason = format!("{eps:?} is invalid; expected a finite number >= 0");
    Err(TypeError::Attr {
        name: "eps",
        reason,
    })
}

/// Checks that a gamma, beta or bias has the dtype of `x` and the shape `[dims]`.
pub(crate) fn expect_weight(
    operand: &'static str,
    ty: &Type,
    x: &Type,
    dims: &[Dim],
) -> Result<(), TypeError> {
    expect_same_dtype(operand, ty, x)?;
    if ty.shape[..] == *dims {
        return Ok(());
    }
    let expected = format!(
        "{}, the normalised axes of {x}",
        x.with_shape(dims.to_vec())
    );
    Err(TypeError::Rank {
        operand,
        found: ty.clone(),
        expected,
    })
}

/// Checks that the weights that are present have the dtype of `x` and the shape `[dims]`.
pub(crate) fn expect_weights(
    x: &Type,
    dims: &[Dim],
    weights: &[(&'static str, Option<&Type>)],
) -> Result<(), TypeError> {
    let there = weights
        .iter()
        .filter_map(|(name, ty)| Some((*name, (*ty)?)));
    there
        .into_iter()
        .try_for_each(|(name, ty)| expect_weight(name, ty, x, dims))
}

/// The documentation and metadata common to all norms.
pub(crate) const fn doc(
    name: &'static str,
    text: &'static str,
    operands: &'static [&'static str],
) -> OpDoc {
    OpDoc {
        name,
        text,
        operands,
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Composite,
    }
}

/// Layer norm of one group; `beta` is empty for none.
pub(crate) fn layer_norm_line(x: &[f64], gamma: &[f64], beta: &[f64], eps: f64, y: &mut [f64]) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    let deviation = (variance + eps).sqrt();
    for (i, (y, v)) in y.iter_mut().zip(x).enumerate() {
        *y = (v - mean) / deviation * gamma[i] + beta.get(i).unwrap_or(&0.0);
    }
}

/// RMS norm of one line; `beta` is empty for none.
pub(crate) fn rms_norm_line(x: &[f64], gamma: &[f64], beta: &[f64], eps: f64, y: &mut [f64]) {
    let mean_square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let rms = (mean_square + eps).sqrt();
    for (i, (y, v)) in y.iter_mut().zip(x).enumerate() {
        *y = v / rms * gamma[i] + beta.get(i).unwrap_or(&0.0);
    }
}

/// The norm of one group: x, gamma, beta (may be empty), eps, y.
pub(crate) type NormRowFn = fn(&[f64], &[f64], &[f64], f64, &mut [f64]);

/// Applies `line` to each group of `gamma.len()` elements of `x`.
pub(crate) fn normalise(
    line: NormRowFn,
    x: &[f64],
    gamma: &[f64],
    beta: &[f64],
    eps: f64,
) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    if gamma.is_empty() {
        return y;
    }
    for (x, y) in x
        .chunks_exact(gamma.len())
        .zip(y.chunks_exact_mut(gamma.len()))
    {
        line(x, gamma, beta, eps, y);
    }
    y
}

fn eval_norm(
    line: NormRowFn,
    eps: FloatAttr,
    operands: &[&Tensor],
    results: &[TensorType],
) -> Result<Vec<Tensor>, EvalError> {
    let gamma = operands[1].to_f64s();
    let beta = operands.get(2).map_or(vec![], |b| b.to_f64s());
    let y = normalise(line, &operands[0].to_f64s(), &gamma, &beta, eps.0);
    Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
}

impl OpSpec for LayerNorm {
    const DOC: OpDoc = doc(
        "layer_norm",
        "`(x - mean) / sqrt(variance + eps) * gamma + beta` over the axes from `axis` on.",
        &["x", "gamma", "beta?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::norm::layer_norm);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, gamma], [beta]) = with_optional(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_axis(self.axis, x.rank())?;
        expect_eps(self.eps)?;
        let dims = &x.shape[self.axis..];
        expect_weights(x, dims, &[("gamma", Some(gamma)), ("beta", beta)])?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval_norm(layer_norm_line, self.eps, operands, results)
    }
}

impl OpSpec for RmsNorm {
    const DOC: OpDoc = doc(
        "rms_norm",
        "`x / sqrt(mean(x^2) + eps) * gamma + beta` over the last axis.",
        &["x", "gamma", "beta?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::norm::rms_norm);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, gamma], [beta]) = with_optional(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank_at_least("x", x, 1)?;
        expect_eps(self.eps)?;
        let dims = &x.shape[x.rank() - 1..];
        expect_weights(x, dims, &[("gamma", Some(gamma)), ("beta", beta)])?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval_norm(rms_norm_line, self.eps, operands, results)
    }
}

impl Graph {
    /// Layer norm over the axes of `x` from `axis` on; `gamma` and `beta` have the shape of those
    /// axes and the dtype of `x`. The result has the shape of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float, `axis` is out of range, `eps` is negative or not
    /// finite, or `gamma` or `beta` have another type.
    pub fn layer_norm(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Option<Value>,
        axis: usize,
        eps: f64,
    ) -> Result<Value, OpError> {
        let eps = FloatAttr(eps);
        let operands: Vec<Value> = [x, gamma].into_iter().chain(beta).collect();
        self.add(LayerNorm { axis, eps }, &operands)
    }

    /// RMS norm over the last axis of `x`, of size `n`; `gamma` and `beta` are `[n]` and have the
    /// dtype of `x`. The result has the shape of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or has no axis, `eps` is negative or not finite, or
    /// `gamma` or `beta` have another type.
    pub fn rms_norm(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Option<Value>,
        eps: f64,
    ) -> Result<Value, OpError> {
        let operands: Vec<Value> = [x, gamma].into_iter().chain(beta).collect();
        self.add(
            RmsNorm {
                eps: FloatAttr(eps),
            },
            &operands,
        )
    }
}
