//! Norms of tensors with channels first, `[N, C, ..]`: of groups of channels, of each place over its
//! channels, and by statistics that are given.

mod cases;

use crate::attr::Real;
use crate::attrs;
use crate::case::{Case, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec};
use crate::ops::norm::{doc, expect_eps, expect_weights};
use crate::ops::util::{exactly, expect_dtype, expect_rank, expect_rank_at_least, with_optional};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `(x - mean) / sqrt(variance + eps) * gamma + beta`, where mean and biased variance are those of
    /// a group of channels of one batch, all places together; `gamma` and `beta` are of each channel
    /// (Wu, He 2018).
    pub struct GroupNorm {
        /// How many groups; it divides the number of channels.
        pub groups: usize,
        /// Added to the variance.
        pub eps: Real,
    }
}

attrs! {
    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` over the channels of each place of images
    /// `[N, C, H, W]`.
    pub struct LayerNorm2d {
        /// Added to the variance.
        pub eps: Real,
    }
}

attrs! {
    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` with mean and variance given for each
    /// channel (Ioffe, Szegedy 2015, as it is after training).
    pub struct BatchNormInference {
        /// Added to the variance.
        pub eps: Real,
    }
}

/// `[N, C, places]`.
fn sizes(x: &Tensor) -> (usize, usize, usize) {
    let shape = x.shape();
    (shape[0], shape[1], shape[2..].iter().product())
}

/// Each group of elements minus its mean, over its deviation, then by the channels' weights. `group`
/// numbers the groups of elements `(n, c, place)` from 0 on.
fn normalised(
    operands: &[&Tensor],
    groups: usize,
    eps: Real,
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
    const DOC: Doc = doc(
        "group_norm",
        "`(x - mean) / sqrt(variance + eps) * gamma + beta` of `x [N, C, ..]` over each of `groups` \
         groups of channels, all places together; `gamma` and `beta` are of each channel.",
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

    fn cases() -> Vec<Case> {
        cases::group()
    }

    fn rejects() -> Vec<Reject> {
        cases::refused_group()
    }
}

impl OpSpec for LayerNorm2d {
    const DOC: Doc = doc(
        "layer_norm_2d",
        "`(x - mean) / sqrt(variance + eps) * gamma + beta` over the channels of each place of \
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

    fn cases() -> Vec<Case> {
        cases::layer_2d()
    }

    fn rejects() -> Vec<Reject> {
        cases::refused_layer_2d()
    }
}

impl OpSpec for BatchNormInference {
    const DOC: Doc = doc(
        "batch_norm_inference",
        "`(x - mean) / sqrt(variance + eps) * gamma + beta` of `x [N, C, ..]`; all others are given for \
         each channel.",
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

    fn cases() -> Vec<Case> {
        cases::batch()
    }

    fn rejects() -> Vec<Reject> {
        cases::refused_batch()
    }
}

impl Graph {
    /// Group norm of `x [N, C, ..]`, a float; `gamma` and `beta` are `[C]` of its dtype. The shape
    /// stays.
    ///
    /// # Errors
    /// [`OpError`] when `groups` does not divide the channels, `eps` is negative or not finite, or a
    /// weight has another type.
    pub fn group_norm(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Option<Value>,
        groups: usize,
        eps: f64,
    ) -> Result<Value, OpError> {
        let eps = Real(eps);
        let operands: Vec<Value> = [x, gamma].into_iter().chain(beta).collect();
        self.add(GroupNorm { groups, eps }, &operands)
    }

    /// Layer norm over the channels of each place of `x [N, C, H, W]`, a float; `gamma` and `beta` are
    /// `[C]` of its dtype. The shape stays.
    ///
    /// # Errors
    /// [`OpError`] when `x` has another rank, `eps` is negative or not finite, or a weight has another
    /// type.
    pub fn layer_norm_2d(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Option<Value>,
        eps: f64,
    ) -> Result<Value, OpError> {
        let eps = Real(eps);
        let operands: Vec<Value> = [x, gamma].into_iter().chain(beta).collect();
        self.add(LayerNorm2d { eps }, &operands)
    }

    /// Batch norm of `x [N, C, ..]`, a float, with statistics that are given: `weights` are gamma,
    /// beta, mean and variance, each `[C]` of its dtype. The shape stays.
    ///
    /// # Errors
    /// [`OpError`] when `x` has fewer than two axes, `eps` is negative or not finite, or a weight has
    /// another type.
    pub fn batch_norm_inference(
        &mut self,
        x: Value,
        weights: [Value; 4],
        eps: f64,
    ) -> Result<Value, OpError> {
        let [gamma, beta, mean, variance] = weights;
        let eps = Real(eps);
        self.add(
            BatchNormInference { eps },
            &[x, gamma, beta, mean, variance],
        )
    }
}
