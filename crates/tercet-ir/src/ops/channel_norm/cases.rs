//! Test cases of norms over channels-first tensors.

use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::norm::{weight, weights};
use crate::ops::util::reject;
use crate::types::Type;

/// An operand of this shape, with per-channel weights.
fn leaves(
    c: &mut CaseGraph,
    shape: &[usize],
    with_beta: bool,
) -> Result<(Value, Value, Option<Value>), OpError> {
    let x = c.input("x", shape, InputFill::Normal)?;
    let (gamma, beta) = weights(c, &shape[1..2], with_beta)?;
    Ok((x, gamma, beta))
}

type ChannelNormFn = fn(&mut Graph, Value, Value, Option<Value>) -> Result<Value, OpError>;

/// Views, NaN, and F16 values whose squares overflow.
fn shared_cases(build: ChannelNormFn) -> Vec<OpCase> {
    vec![
        OpCase::new("of_a_view", move |c| {
            let x = c.input("x", [3, 5, 2, 4], InputFill::Normal)?;
            let x = c.graph.transpose(x, &[1, 3, 0, 2])?;
            let gamma = weight(c, "gamma", &[4])?;
            let y = build(&mut c.graph, x, gamma, None)?;
            c.output(y)
        }),
        OpCase::new("channels_last_in_memory", move |c| {
            let x = c.input("x", [2, 3, 5, 8], InputFill::Normal)?;
            let x = c.graph.transpose(x, &[0, 3, 1, 2])?;
            let gamma = weight(c, "gamma", &[8])?;
            let y = build(&mut c.graph, x, gamma, None)?;
            c.output(y)
        }),
        OpCase::new("large_values", move |c| {
            let x = c.input("x", [2, 4, 3, 3], InputFill::Uniform(-60000.0, 60000.0))?;
            let gamma = weight(c, "gamma", &[4])?;
            let y = build(&mut c.graph, x, gamma, None)?;
            c.output(y)
        }),
        OpCase::new("nan_stays_in_its_group", move |c| {
            let mut x: Vec<f64> = (0..16).map(f64::from).collect();
            x[5] = f64::NAN;
            let x = c.input("x", [1, 4, 2, 2], InputFill::Values(x))?;
            let gamma = weight(c, "gamma", &[4])?;
            let y = build(&mut c.graph, x, gamma, None)?;
            c.output(y)
        }),
    ]
}

pub(super) fn group() -> Vec<OpCase> {
    let shaped = |name: &str, shape: &'static [usize], groups: usize, with_beta: bool| {
        OpCase::new(name, move |c| {
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
        OpCase::new("pinned", |c| {
            let x = vec![1.0, 3.0, -1.0, -3.0, 7.0, 7.0, 9.0, 9.0];
            let x = c.input("x", [1, 4, 2], InputFill::Values(x))?;
            let gamma = c.input("gamma", [4], InputFill::Values(vec![1.0, 2.0, 3.0, 4.0]))?;
            let beta = c.input("beta", [4], InputFill::Values(vec![0.0, 1.0, 0.5, 1.0]))?;
            let y = c.graph.group_norm(x, gamma, Some(beta), 2, 4.0)?;
            c.output(y)?;
            // The means are 0 and 8, the variances 5 and 1.
            let exact = c.graph.group_norm(x, gamma, Some(beta), 2, 0.0)?;
            c.output(exact)?;
            let pairs = c.graph.group_norm(x, gamma, None, 4, 0.0)?;
            let nan = f64::NAN; // constant channels without eps: 0 / 0
            c.output_expect(pairs, &[-1.0, 1.0, 2.0, -2.0, nan, nan, nan, nan])
        }),
        OpCase::new("symbolic_places", |c| {
            let s = c.sym("s", 5, 8);
            let x = c.input("x", [2.into(), 6.into(), s.clone(), s], InputFill::Normal)?;
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

pub(super) fn rejected_group() -> Vec<RejectCase> {
    fn add_norm(g: &mut Graph, channels: usize, groups: usize) -> Result<Value, OpError> {
        let x = g.input("x", Type::new(DType::F32, [2, 6, 3]))?;
        let gamma = g.input("gamma", Type::new(DType::F32, [channels]))?;
        g.group_norm(x, gamma, None, groups, 1e-5)
    }
    vec![
        reject("uneven", "4 groups of 6 channels", |g| add_norm(g, 6, 4)),
        reject("no_groups", "0 groups of 6 channels", |g| add_norm(g, 6, 0)),
        reject("gamma", "operand gamma has type f32[3]", |g| {
            add_norm(g, 3, 2)
        }),
        reject("symbolic_channels", "2 groups of c channels", |g| {
            let x = g.input("x", Type::new(DType::F32, [2.into(), Dim::sym("c")]))?;
            let gamma = g.input("gamma", Type::new(DType::F32, [Dim::sym("c")]))?;
            g.group_norm(x, gamma, None, 2, 1e-5)
        }),
    ]
}

pub(super) fn layer_2d() -> Vec<OpCase> {
    let shaped = |name: &str, shape: &'static [usize], with_beta: bool| {
        OpCase::new(name, move |c| {
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
        OpCase::new("pinned", |c| {
            let x = InputFill::Values(vec![1.0, -2.0, 3.0, 2.0]);
            let x = c.input("x", [1, 2, 1, 2], x)?;
            let gamma = c.input("gamma", [2], InputFill::Values(vec![2.0, 4.0]))?;
            let beta = c.input("beta", [2], InputFill::Values(vec![0.5, 1.0]))?;
            let y = c.graph.layer_norm_2d(x, gamma, Some(beta), 0.0)?;
            c.output_expect(y, &[-1.5, -1.5, 5.0, 5.0])
        }),
        OpCase::new("symbolic", |c| {
            let s = c.sym("s", 5, 8);
            let x = c.input("x", [s.clone(), 6.into(), 3.into(), s], InputFill::Normal)?;
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

pub(super) fn rejected_layer_2d() -> Vec<RejectCase> {
    fn add_norm(g: &mut Graph, shape: &[usize], eps: f64) -> Result<Value, OpError> {
        let x = g.input("x", Type::new(DType::F32, shape))?;
        let gamma = g.input("gamma", Type::new(DType::F32, [3]))?;
        g.layer_norm_2d(x, gamma, None, eps)
    }
    vec![
        reject("rank", "rank 4", |g| add_norm(g, &[2, 3, 4], 1e-6)),
        reject("gamma", "operand gamma has type f32[3]", |g| {
            add_norm(g, &[2, 4, 3, 3], 1e-6)
        }),
        reject("eps", "attribute `eps`", |g| {
            add_norm(g, &[2, 3, 4, 4], -1.0)
        }),
    ]
}

pub(super) fn batch() -> Vec<OpCase> {
    fn build(g: &mut Graph, x: Value, weights: [Value; 4]) -> Result<Value, OpError> {
        g.batch_norm_inference(x, weights, 1e-5)
    }
    fn weights(c: &mut CaseGraph, channels: usize) -> Result<[Value; 4], OpError> {
        let ty = Type::new(c.dtype, [channels]);
        Ok([
            weight(c, "gamma", &[channels])?,
            weight(c, "beta", &[channels])?,
            c.param_of("mean", ty, InputFill::Normal)?,
            weight(c, "variance", &[channels])?,
        ])
    }
    let shaped = |name: &str, shape: &'static [usize]| {
        OpCase::new(name, move |c| {
            let x = c.input("x", shape, InputFill::Normal)?;
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
        OpCase::new("pinned", |c| {
            let x = c.input("x", [1, 2, 2], InputFill::Values(vec![1.0, 3.0, 5.0, 7.0]))?;
            let of = |c: &mut CaseGraph, name: &str, v: [f64; 2]| {
                c.input(name, [2], InputFill::Values(v.to_vec()))
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
        OpCase::new("of_a_view", |c| {
            let x = c.input("x", [3, 5, 7], InputFill::Normal)?;
            let x = c.graph.transpose(x, &[1, 2, 0])?;
            let weights = weights(c, 7)?;
            let y = build(&mut c.graph, x, weights)?;
            c.output(y)
        }),
        OpCase::new("symbolic", |c| {
            let s = c.sym("s", 5, 8);
            let x = c.input("x", [s.clone(), 6.into(), s], InputFill::Normal)?;
            let weights = weights(c, 6)?;
            let y = build(&mut c.graph, x, weights)?;
            c.output(y)
        }),
    ]
}

pub(super) fn rejected_batch() -> Vec<RejectCase> {
    fn add_norm(g: &mut Graph, shape: &[usize], mean: Type) -> Result<Value, OpError> {
        let x = g.input("x", Type::new(DType::F32, shape))?;
        let gamma = g.input("gamma", Type::new(DType::F32, [3]))?;
        let mean = g.input("mean", mean)?;
        g.batch_norm_inference(x, [gamma, gamma, mean, gamma], 1e-5)
    }
    vec![
        reject("vector", "rank 2 or more", |g| {
            add_norm(g, &[3], Type::new(DType::F32, [3]))
        }),
        reject("mean", "operand mean has type f32[2]", |g| {
            add_norm(g, &[2, 3, 4], Type::new(DType::F32, [2]))
        }),
        reject("other_mean", "operand mean is f16", |g| {
            add_norm(g, &[2, 3, 4], Type::new(DType::F16, [3]))
        }),
    ]
}
