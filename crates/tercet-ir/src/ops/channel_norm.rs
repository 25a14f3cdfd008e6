//! Norms of tensors with channels first, `[N, C, ..]`: of groups of channels, of each place over its
//! channels, and by statistics that are given.

use crate::accuracy::Accuracy;
use crate::attr::Real;
use crate::attrs;
use crate::case::{Case, CaseGraph, Fill, Reject};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::norm::{expect_eps, expect_weight, weight};
use crate::ops::util::{
    exactly, expect_dtype, expect_rank, expect_rank_at_least, reject, with_optional,
};
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

/// Refuses weights that are not of each channel.
fn expect_channels(x: &Type, weights: &[(&'static str, &Type)]) -> Result<(), TypeError> {
    weights
        .iter()
        .try_for_each(|(name, ty)| expect_weight(name, ty, x, &x.shape[1..2]))
}

const fn doc(name: &'static str, text: &'static str, operands: &'static [&'static str]) -> Doc {
    Doc {
        name,
        text,
        operands,
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Composite,
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
        expect_channels(x, &[("gamma", gamma)])?;
        if let Some(beta) = beta {
            expect_channels(x, &[("beta", beta)])?;
        }
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
        let shaped = |name: &str, shape: &'static [usize], groups: usize, with_beta: bool| {
            Case::new(name, move |c| {
                let (x, gamma, beta) = leaves(c, shape, with_beta)?;
                let y = c.graph.group_norm(x, gamma, beta, groups, 1e-5)?;
                c.output(y)
            })
        };
        let mut cases = vec![
            shaped("of_8_channels", &[2, 8, 5, 3], 4, true),
            shaped("one_group", &[3, 6, 7], 1, true),
            shaped("a_group_each", &[2, 5, 9], 5, true),
            shaped("without_beta", &[2, 6, 4, 4], 3, false),
            shaped("without_places", &[3, 12], 4, true),
            shaped("volumes", &[1, 4, 2, 3, 5], 2, true),
            shaped("rank_6", &[2, 4, 1, 2, 1, 3], 2, true),
            shaped("whole_words", &[2, 8, 4, 4], 2, true),
            shaped("long_groups", &[1, 4, 40, 30], 2, true),
            shaped("one_element", &[2, 3, 1], 3, true),
            shaped("no_batches", &[0, 4, 3], 2, true),
            shaped("no_places", &[2, 4, 0], 2, true),
            Case::new("pinned", |c| {
                let x = vec![1.0, 3.0, -1.0, -3.0, 7.0, 7.0, 9.0, 9.0];
                let x = c.input("x", [1, 4, 2], Fill::Values(x))?;
                let gamma = c.input("gamma", [4], Fill::Values(vec![1.0, 2.0, 3.0, 4.0]))?;
                let beta = c.input("beta", [4], Fill::Values(vec![0.0, 1.0, 0.5, 1.0]))?;
                let y = c.graph.group_norm(x, gamma, Some(beta), 2, 4.0)?;
                c.output(y)?;
                // Means 0 and 8, variances 5 and 1.
                let exact = c.graph.group_norm(x, gamma, Some(beta), 2, 0.0)?;
                c.output(exact)?;
                let pairs = c.graph.group_norm(x, gamma, None, 4, 0.0)?;
                let nan = f64::NAN; // constant channels without eps: 0 / 0
                c.output_expect(pairs, &[-1.0, 1.0, 2.0, -2.0, nan, nan, nan, nan])
            }),
            Case::new("symbolic_places", |c| {
                let s = c.sym("s", 5, 8);
                let x = c.input("x", [2.into(), 6.into(), s.clone(), s], Fill::Normal)?;
                let (gamma, beta) = (weight(c, "gamma", &[6])?, weight(c, "beta", &[6])?);
                let y = c.graph.group_norm(x, gamma, Some(beta), 3, 1e-5)?;
                c.output(y)
            }),
        ];
        cases.extend(shared_cases(|g, x, gamma, beta| {
            g.group_norm(x, gamma, beta, 2, 1e-5)
        }));
        cases
    }

    fn rejects() -> Vec<Reject> {
        fn of(g: &mut Graph, channels: usize, groups: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [2, 6, 3]))?;
            let gamma = g.input("gamma", Type::new(DType::F32, [channels]))?;
            g.group_norm(x, gamma, None, groups, 1e-5)
        }
        vec![
            reject("uneven", "4 groups of 6 channels", |g| of(g, 6, 4)),
            reject("no_groups", "0 groups of 6 channels", |g| of(g, 6, 0)),
            reject("gamma", "operand gamma has type f32[3]", |g| of(g, 3, 2)),
            reject("symbolic_channels", "2 groups of c channels", |g| {
                let x = g.input("x", Type::new(DType::F32, [2.into(), Dim::sym("c")]))?;
                let gamma = g.input("gamma", Type::new(DType::F32, [Dim::sym("c")]))?;
                g.group_norm(x, gamma, None, 2, 1e-5)
            }),
        ]
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
        expect_channels(x, &[("gamma", gamma)])?;
        if let Some(beta) = beta {
            expect_channels(x, &[("beta", beta)])?;
        }
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
        let shaped = |name: &str, shape: &'static [usize], with_beta: bool| {
            Case::new(name, move |c| {
                let (x, gamma, beta) = leaves(c, shape, with_beta)?;
                let y = c.graph.layer_norm_2d(x, gamma, beta, 1e-6)?;
                c.output(y)
            })
        };
        let mut cases = vec![
            shaped("odd_2x7x5x3", &[2, 7, 5, 3], true),
            shaped("without_beta", &[2, 6, 4, 4], false),
            shaped("many_channels", &[1, 130, 3, 5], true),
            shaped("few_places_of_many_channels", &[1, 300, 1, 2], true),
            shaped("many_places", &[2, 4, 20, 30], true),
            shaped("one_channel", &[2, 1, 3, 3], true),
            shaped("no_batches", &[0, 4, 3, 2], true),
            shaped("no_places", &[2, 4, 0, 3], true),
            shaped("no_channels", &[2, 0, 3, 3], true),
            Case::new("pinned", |c| {
                let x = Fill::Values(vec![1.0, -2.0, 3.0, 2.0]);
                let x = c.input("x", [1, 2, 1, 2], x)?;
                let gamma = c.input("gamma", [2], Fill::Values(vec![2.0, 4.0]))?;
                let beta = c.input("beta", [2], Fill::Values(vec![0.5, 1.0]))?;
                let y = c.graph.layer_norm_2d(x, gamma, Some(beta), 0.0)?;
                c.output_expect(y, &[-1.5, -1.5, 5.0, 5.0])
            }),
            Case::new("symbolic", |c| {
                let s = c.sym("s", 5, 8);
                let x = c.input("x", [s.clone(), 6.into(), 3.into(), s], Fill::Normal)?;
                let gamma = weight(c, "gamma", &[6])?;
                let y = c.graph.layer_norm_2d(x, gamma, None, 1e-6)?;
                c.output(y)
            }),
        ];
        cases.extend(shared_cases(|g, x, gamma, beta| {
            g.layer_norm_2d(x, gamma, beta, 1e-6)
        }));
        cases
    }

    fn rejects() -> Vec<Reject> {
        fn of(g: &mut Graph, shape: &[usize], eps: f64) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, shape))?;
            let gamma = g.input("gamma", Type::new(DType::F32, [3]))?;
            g.layer_norm_2d(x, gamma, None, eps)
        }
        vec![
            reject("rank", "rank 4", |g| of(g, &[2, 3, 4], 1e-6)),
            reject("gamma", "operand gamma has type f32[3]", |g| {
                of(g, &[2, 4, 3, 3], 1e-6)
            }),
            reject("eps", "attribute `eps`", |g| of(g, &[2, 3, 4, 4], -1.0)),
        ]
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
            ("gamma", gamma),
            ("beta", beta),
            ("mean", mean),
            ("variance", variance),
        ];
        expect_channels(x, &weights)?;
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
        fn build(g: &mut Graph, x: Value, weights: [Value; 4]) -> Result<Value, OpError> {
            g.batch_norm_inference(x, weights, 1e-5)
        }
        fn weights(c: &mut CaseGraph, channels: usize) -> Result<[Value; 4], OpError> {
            let ty = Type::new(c.dtype, [channels]);
            Ok([
                weight(c, "gamma", &[channels])?,
                weight(c, "beta", &[channels])?,
                c.param_of("mean", ty, Fill::Normal)?,
                weight(c, "variance", &[channels])?,
            ])
        }
        let shaped = |name: &str, shape: &'static [usize]| {
            Case::new(name, move |c| {
                let x = c.input("x", shape, Fill::Normal)?;
                let weights = weights(c, shape[1])?;
                let y = build(&mut c.graph, x, weights)?;
                c.output(y)
            })
        };
        vec![
            shaped("odd_2x7x5x3", &[2, 7, 5, 3]),
            shaped("whole_words", &[2, 8, 4, 4]),
            shaped("without_places", &[5, 9]),
            shaped("rank_3", &[2, 5, 33]),
            shaped("volumes", &[1, 4, 2, 3, 5]),
            shaped("rank_6", &[2, 4, 1, 2, 1, 3]),
            shaped("no_batches", &[0, 4, 3]),
            shaped("no_places", &[2, 4, 0]),
            shaped("no_channels", &[2, 0, 4]),
            Case::new("pinned", |c| {
                let x = c.input("x", [1, 2, 2], Fill::Values(vec![1.0, 3.0, 5.0, 7.0]))?;
                let of = |c: &mut CaseGraph, name: &str, v: [f64; 2]| {
                    c.input(name, [2], Fill::Values(v.to_vec()))
                };
                let gamma = of(c, "gamma", [2.0, 4.0])?;
                let beta = of(c, "beta", [0.5, 1.0])?;
                let mean = of(c, "mean", [1.0, 9.0])?;
                let variance = of(c, "variance", [3.0, 15.0])?;
                let y = c
                    .graph
                    .batch_norm_inference(x, [gamma, beta, mean, variance], 1.0)?;
                c.output_expect(y, &[0.5, 2.5, -3.0, -1.0])
            }),
            Case::new("of_a_view", |c| {
                let x = c.input("x", [3, 5, 7], Fill::Normal)?;
                let x = c.graph.transpose(x, &[1, 2, 0])?;
                let weights = weights(c, 7)?;
                let y = build(&mut c.graph, x, weights)?;
                c.output(y)
            }),
            Case::new("symbolic", |c| {
                let s = c.sym("s", 5, 8);
                let x = c.input("x", [s.clone(), 6.into(), s], Fill::Normal)?;
                let weights = weights(c, 6)?;
                let y = build(&mut c.graph, x, weights)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<Reject> {
        fn of(g: &mut Graph, shape: &[usize], mean: Type) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, shape))?;
            let gamma = g.input("gamma", Type::new(DType::F32, [3]))?;
            let mean = g.input("mean", mean)?;
            g.batch_norm_inference(x, [gamma, gamma, mean, gamma], 1e-5)
        }
        vec![
            reject("vector", "rank 2 or more", |g| {
                of(g, &[3], Type::new(DType::F32, [3]))
            }),
            reject("mean", "operand mean has type f32[2]", |g| {
                of(g, &[2, 3, 4], Type::new(DType::F32, [2]))
            }),
            reject("other_mean", "operand mean is f16", |g| {
                of(g, &[2, 3, 4], Type::new(DType::F16, [3]))
            }),
        ]
    }
}

/// An operand of this shape, with weights of its channels.
fn leaves(
    c: &mut CaseGraph,
    shape: &[usize],
    with_beta: bool,
) -> Result<(Value, Value, Option<Value>), OpError> {
    let x = c.input("x", shape, Fill::Normal)?;
    let gamma = weight(c, "gamma", &shape[1..2])?;
    let beta = match with_beta {
        true => Some(weight(c, "beta", &shape[1..2])?),
        false => None,
    };
    Ok((x, gamma, beta))
}

type Build = fn(&mut Graph, Value, Value, Option<Value>) -> Result<Value, OpError>;

/// Views, NaN, and halves whose squares leave their range.
fn shared_cases(build: Build) -> Vec<Case> {
    vec![
        Case::new("of_a_view", move |c| {
            let x = c.input("x", [3, 5, 2, 4], Fill::Normal)?;
            let x = c.graph.transpose(x, &[1, 3, 0, 2])?;
            let gamma = weight(c, "gamma", &[4])?;
            let y = build(&mut c.graph, x, gamma, None)?;
            c.output(y)
        }),
        Case::new("channels_last_in_memory", move |c| {
            let x = c.input("x", [2, 3, 5, 8], Fill::Normal)?;
            let x = c.graph.transpose(x, &[0, 3, 1, 2])?;
            let gamma = weight(c, "gamma", &[8])?;
            let y = build(&mut c.graph, x, gamma, None)?;
            c.output(y)
        }),
        Case::new("large_values", move |c| {
            let x = c.input("x", [2, 4, 3, 3], Fill::Uniform(-60000.0, 60000.0))?;
            let gamma = weight(c, "gamma", &[4])?;
            let y = build(&mut c.graph, x, gamma, None)?;
            c.output(y)
        }),
        Case::new("nan_stays_in_its_group", move |c| {
            let mut x: Vec<f64> = (0..16).map(f64::from).collect();
            x[5] = f64::NAN;
            let x = c.input("x", [1, 4, 2, 2], Fill::Values(x))?;
            let gamma = weight(c, "gamma", &[4])?;
            let y = build(&mut c.graph, x, gamma, None)?;
            c.output(y)
        }),
    ]
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
