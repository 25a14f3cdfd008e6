//! Norms of channels-first tensors `[N, C, ..]`: group norm, layer norm over the channels of each
//! position, and batch norm with fixed statistics.

use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec};
use crate::ops::norm::{doc, expect_eps, expect_weights};
use crate::ops::util::{exactly, expect_dtype, expect_rank, expect_rank_at_least, with_optional};

attrs! {
    /// Group norm `(x - mean) / sqrt(variance + eps) * gamma + beta` (Wu, He 2018). Mean and biased
    /// variance are computed over all positions of a group of channels of one batch entry. `gamma`
    /// and `beta` are per channel.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 32, 8, 8]))?;
    /// let gamma = g.param("gamma", Type::new(DType::F32, [32]))?;
    /// let beta = g.param("beta", Type::new(DType::F32, [32]))?;
    /// let y = g.group_norm(x, gamma, Some(beta), 4, 1e-5)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// assert!(g.group_norm(x, gamma, Some(beta), 5, 1e-5).is_err());
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct GroupNorm {
        /// Number of groups; it divides the number of channels.
        pub groups: usize,
        /// Constant added to the variance.
        pub eps: FloatAttr,
    }
}

attrs! {
    /// Layer norm `(x - mean) / sqrt(variance + eps) * gamma + beta` over the channels of each
    /// position of images `[N, C, H, W]`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 32, 8, 8]))?;
    /// let gamma = g.param("gamma", Type::new(DType::F32, [32]))?;
    /// let y = g.layer_norm_2d(x, gamma, None, 1e-6)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct LayerNorm2d {
        /// Constant added to the variance.
        pub eps: FloatAttr,
    }
}

attrs! {
    /// Batch norm in inference, `(x - mean) / sqrt(variance + eps) * gamma + beta`, with
    /// per-channel mean and variance as operands (Ioffe, Szegedy 2015).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[1, 2], &[5f32, 7.0])?)?;
    /// let ones = g.constant(Tensor::from_slice(&[2], &[1f32, 1.0])?)?;
    /// let mean = g.constant(Tensor::from_slice(&[2], &[3f32, 6.0])?)?;
    /// let beta = g.constant(Tensor::from_slice(&[2], &[0f32, 10.0])?)?;
    /// let y = g.batch_norm_inference(x, [ones, beta, mean, ones], 0.0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [2.0, 11.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct BatchNormInference {
        /// Constant added to the variance.
        pub eps: FloatAttr,
    }
}

/// Batch size, number of channels, and number of positions of a channel.
fn sizes(x: &Tensor) -> (usize, usize, usize) {
    let shape = x.shape();
    (shape[0], shape[1], shape[2..].iter().product())
}

/// Normalizes each group of elements and applies the channel weights. `group` maps element `(n, c,
/// position)` to its group number, from 0 on.
fn normalised(
    operands: &[&Tensor],
    groups: usize,
    eps: FloatAttr,
    group: impl Fn(usize, usize, usize) -> usize,
    ty: &TensorType,
) -> Result<Vec<Tensor>, EvalError> {
    let x = operands[0].to_f64s();
    let gamma = operands[1].to_f64s();
    let beta = operands.get(2).map_or(vec![], |b| b.to_f64s());
    let (_, channels, places) = sizes(operands[0]);
    let at = |i: usize| {
        let (place, c) = (i % places, i / places % channels);
        (c, group(i / places / channels, c, place))
    };
    let (mut sums, mut counts) = (vec![0.0; groups], vec![0.0; groups]);
    for (i, v) in x.iter().enumerate() {
        sums[at(i).1] += v;
        counts[at(i).1] += 1.0;
    }
    let means: Vec<f64> = sums.iter().zip(&counts).map(|(s, n)| s / n).collect();
    let mut squares = vec![0.0; groups];
    for (i, v) in x.iter().enumerate() {
        let g = at(i).1;
        squares[g] += (v - means[g]) * (v - means[g]);
    }
    let y = x.iter().enumerate().map(|(i, v)| {
        let (c, g) = at(i);
        let deviation = (squares[g] / counts[g] + eps.0).sqrt();
        (v - means[g]) / deviation * gamma[c] + beta.get(c).unwrap_or(&0.0)
    });
    let y: Vec<f64> = y.collect();
    Ok(vec![Tensor::from_f64s(ty.clone(), &y)?])
}

impl OpSpec for GroupNorm {
    const DOC: OpDoc = doc(
        "group_norm",
        "`(x - mean) / sqrt(variance + eps) * gamma + beta` of `x [N, C, ..]` over each of `groups` \
         groups of channels and all positions; `gamma` and `beta` are per channel.",
        &["x", "gamma", "beta?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, gamma], [beta]) = with_optional(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank_at_least("x", x, 2)?;
        expect_eps(self.eps)?;
        let channels = &x.shape[1];
        let even = channels
            .known()
            .is_some_and(|c| self.groups > 0 && c % self.groups == 0);
        if !even {
            let reason = format!(
                "{} groups of {channels} channels; the number of channels is known, and a multiple",
                self.groups
            );
            return Err(TypeError::Attr {
                name: "groups",
                reason,
            });
        }
        let weights = [("gamma", Some(gamma)), ("beta", beta)];
        expect_weights(x, &x.shape[1..2], &weights)?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (batch, channels, _) = sizes(operands[0]);
        let each = channels / self.groups;
        let group = |n: usize, c: usize, _: usize| n * self.groups + c / each.max(1);
        let groups = batch * self.groups;
        normalised(operands, groups, self.eps, group, &results[0])
    }
}

impl OpSpec for LayerNorm2d {
    const DOC: OpDoc = doc(
        "layer_norm_2d",
        "`(x - mean) / sqrt(variance + eps) * gamma + beta` over the channels of each position of \
         `x [N, C, H, W]`.",
        &["x", "gamma", "beta?"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, gamma], [beta]) = with_optional(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank("x", x, 4)?;
        expect_eps(self.eps)?;
        let weights = [("gamma", Some(gamma)), ("beta", beta)];
        expect_weights(x, &x.shape[1..2], &weights)?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (batch, _, places) = sizes(operands[0]);
        let group = |n: usize, _: usize, place: usize| n * places + place;
        normalised(operands, batch * places, self.eps, group, &results[0])
    }
}

impl OpSpec for BatchNormInference {
    const DOC: OpDoc = doc(
        "batch_norm_inference",
        "`(x - mean) / sqrt(variance + eps) * gamma + beta` of `x [N, C, ..]`; the other operands are \
         per channel.",
        &["x", "gamma", "beta", "mean", "variance"],
    );

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, gamma, beta, mean, variance] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank_at_least("x", x, 2)?;
        expect_eps(self.eps)?;
        let weights = [
            ("gamma", Some(gamma)),
            ("beta", Some(beta)),
            ("mean", Some(mean)),
            ("variance", Some(variance)),
        ];
        expect_weights(x, &x.shape[1..2], &weights)?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [x, gamma, beta, mean, variance] = [0, 1, 2, 3, 4].map(|i| operands[i].to_f64s());
        let (_, channels, places) = sizes(operands[0]);
        let y = x.iter().enumerate().map(|(i, v)| {
            let c = i / places % channels;
            (v - mean[c]) / (variance[c] + self.eps.0).sqrt() * gamma[c] + beta[c]
        });
        let y: Vec<f64> = y.collect();
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Group norm of `x [N, C, ..]`, a float; `gamma` and `beta` are `[C]` of its dtype. The result
    /// has the shape of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `groups` does not divide the number of channels, `eps` is negative or not
    /// finite, or a weight has another type.
    pub fn group_norm(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Option<Value>,
        groups: usize,
        eps: f64,
    ) -> Result<Value, OpError> {
        let eps = FloatAttr(eps);
        let operands: Vec<Value> = [x, gamma].into_iter().chain(beta).collect();
        self.add(GroupNorm { groups, eps }, &operands)
    }

    /// Layer norm over the channels of each position of `x [N, C, H, W]`, a float; `gamma` and
    /// `beta` are `[C]` of its dtype. The result has the shape of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` has another rank, `eps` is negative or not finite, or a weight has
    /// another type.
    pub fn layer_norm_2d(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Option<Value>,
        eps: f64,
    ) -> Result<Value, OpError> {
        let eps = FloatAttr(eps);
        let operands: Vec<Value> = [x, gamma].into_iter().chain(beta).collect();
        self.add(LayerNorm2d { eps }, &operands)
    }

    /// Batch norm of `x [N, C, ..]`, a float, with fixed statistics: `weights` are gamma, beta,
    /// mean and variance, each `[C]` of its dtype. The result has the shape of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` has fewer than two axes, `eps` is negative or not finite, or a weight
    /// has another type.
    pub fn batch_norm_inference(
        &mut self,
        x: Value,
        weights: [Value; 4],
        eps: f64,
    ) -> Result<Value, OpError> {
        let [gamma, beta, mean, variance] = weights;
        let eps = FloatAttr(eps);
        self.add(
            BatchNormInference { eps },
            &[x, gamma, beta, mean, variance],
        )
    }
}
