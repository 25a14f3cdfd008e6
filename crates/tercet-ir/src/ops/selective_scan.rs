//! State-space scans: `SelectiveScan` with a decay for each state, `Mamba2` with one for each head.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, CaseGraph, Fill, Reject};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_same_dtype, reject,
};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type};

attrs! {
    /// The scan of Mamba (Gu and Dao, 2023). For each channel, from a state of zeros:
    /// `h = exp(delta a) h + delta b x`, `y = c h`.
    pub struct SelectiveScan {
        /// The states of a channel.
        pub n: usize,
    }
}

attrs! {
    /// The scan of Mamba-2 (Dao and Gu, 2024). For each head, from a state `[P, N]` of zeros:
    /// `S = exp(dt a) S + (dt x) outer b`, `y = S c`. Heads share `b` and `c` by groups of heads that
    /// follow each other.
    pub struct Mamba2 {}
}

/// The sizes of a scan over channels: of `SelectiveScan`, `P` is 1 and there is one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanSizes {
    /// Heads, or channels where each has a step of its own.
    pub heads: usize,
    /// Channels of a head.
    pub per_head: usize,
    /// Groups of heads that share `b` and `c`.
    pub groups: usize,
    /// States of a channel.
    pub states: usize,
}

impl ScanSizes {
    /// The sizes of a node of `SelectiveScan` or `Mamba2` with these operands.
    pub fn of(operands: &[&Type]) -> Option<ScanSizes> {
        let [x, _, a, b, _] = operands else {
            return None;
        };
        let size = |dim: &Dim| dim.known();
        Some(match &x.shape[..] {
            [_, _, heads] => ScanSizes {
                heads: size(heads)?,
                per_head: 1,
                groups: 1,
                states: size(a.shape.get(1)?)?,
            },
            [_, _, heads, per_head] => ScanSizes {
                heads: size(heads)?,
                per_head: size(per_head)?,
                groups: size(&b.shape[2])?,
                states: size(&b.shape[3])?,
            },
            _ => return None,
        })
    }

    /// Channels of all heads.
    pub fn channels(self) -> usize {
        self.heads * self.per_head
    }
}

fn expect_known(operands: &[&Type]) -> Result<ScanSizes, TypeError> {
    ScanSizes::of(operands).ok_or_else(|| {
        let reason = "all sizes but the batch and the sequence must be known";
        TypeError::Other(reason.to_string())
    })
}

fn expect_floats(operands: &[&Type], names: [&'static str; 5]) -> Result<(), TypeError> {
    expect_dtype(names[0], operands[0], DType::FLOATS)?;
    let rest = operands.iter().zip(names).skip(1);
    rest.into_iter()
        .try_for_each(|(ty, name)| expect_same_dtype(name, ty, operands[0]))
}

fn expect_shape(name: &'static str, ty: &Type, shape: &[&Dim]) -> Result<(), TypeError> {
    expect_rank(name, ty, shape.len())?;
    let axes = ty.shape.iter().zip(shape).enumerate();
    axes.into_iter().try_for_each(|(axis, (own, want))| {
        expect_equal(&format!("axis {axis} of {name}"), own, want)
    })
}

/// `decay` gives that of a state for a step size, from the head and the state.
fn scan(
    operands: &[&Tensor],
    sizes: ScanSizes,
    result: &TensorType,
    decay: impl Fn(&[f64], usize, usize) -> f64,
) -> Result<Vec<Tensor>, EvalError> {
    let [x, dt, a, b, c] = [0, 1, 2, 3, 4].map(|i| operands[i].to_f64s());
    let (batch, steps) = (result.shape[0], result.shape[1]);
    let ScanSizes {
        heads,
        per_head,
        groups,
        states,
    } = sizes;
    let channels = sizes.channels();
    let mut y = vec![0.0; result.numel()];
    for row in 0..batch {
        let mut h = vec![0.0; channels * states];
        for at in row * steps..(row + 1) * steps {
            for channel in 0..channels {
                let head = channel / per_head;
                let group = head * groups / heads;
                let own = &mut h[channel * states..][..states];
                let (dt, x) = (dt[at * heads + head], x[at * channels + channel]);
                let (b, c) = (
                    &b[(at * groups + group) * states..][..states],
                    &c[(at * groups + group) * states..][..states],
                );
                for (n, h) in own.iter_mut().enumerate() {
                    *h = (dt * decay(&a, head, n)).exp() * *h + dt * b[n] * x;
                }
                y[at * channels + channel] = own.iter().zip(c).map(|(h, c)| h * c).sum();
            }
        }
    }
    Ok(vec![Tensor::from_f64s(result.clone(), &y)?])
}

impl OpSpec for SelectiveScan {
    const DOC: Doc = Doc {
        name: "selective_scan",
        text: "Of `x [B,S,H]`, `delta [B,S,H]`, `a [H,N]`, `b [B,S,N]` and `c [B,S,N]`, for each \
               channel: `h = exp(delta a) h + delta b x`, `y = c h`, from zeros.",
        operands: &["x", "delta", "a", "b", "c"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::recurrent::selective_scan);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, delta, a, b, c] = exactly(operands)?;
        expect_floats(operands, ["x", "delta", "a", "b", "c"])?;
        expect_rank("x", x, 3)?;
        let n = Dim::Known(self.n);
        let [batch, steps, heads] = [0, 1, 2].map(|i| &x.shape[i]);
        expect_shape("delta", delta, &[batch, steps, heads])?;
        expect_shape("a", a, &[heads, &n])?;
        expect_shape("b", b, &[batch, steps, &n])?;
        expect_shape("c", c, &[batch, steps, &n])?;
        expect_known(operands)?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let sizes = ScanSizes {
            heads: operands[0].shape()[2],
            per_head: 1,
            groups: 1,
            states: self.n,
        };
        let n = self.n;
        scan(operands, sizes, &results[0], |a, head, state| {
            a[head * n + state]
        })
    }

    fn cases() -> Vec<Case> {
        fn operands(
            c: &mut CaseGraph,
            [batch, steps]: [Dim; 2],
            heads: usize,
            n: usize,
        ) -> Result<Value, OpError> {
            let of = |size: usize| -> Shape { [batch.clone(), steps.clone(), size.into()].into() };
            let x = c.input("x", of(heads), Fill::Normal)?;
            let delta = c.input("delta", of(heads), Fill::Uniform(0.0, 0.5))?;
            let a = c.input("a", [heads, n], Fill::Uniform(-3.0, -0.1))?;
            let b = c.input("b", of(n), Fill::Normal)?;
            let c_ = c.input("c", of(n), Fill::Normal)?;
            c.graph.selective_scan(x, delta, a, b, c_)
        }
        let shaped = |name: &str, [batch, steps, heads, n]: [usize; 4]| {
            Case::new(name, move |c| {
                let y = operands(c, [batch.into(), steps.into()], heads, n)?;
                c.output(y)
            })
        };
        vec![
            shaped("odd_2x7x5", [2, 7, 5, 3]),
            shaped("states_of_16", [2, 40, 34, 16]),
            shaped("one_state", [3, 9, 4, 1]),
            shaped("one_channel", [1, 50, 1, 16]),
            shaped("many_channels", [1, 5, 131, 6]),
            shaped("states_of_65", [1, 19, 9, 65]),
            shaped("states_of_300", [1, 6, 5, 300]).only(&[DType::F32]),
            shaped("states_of_1000", [1, 6, 3, 1000]).only(&[DType::F32]),
            shaped("one_step", [2, 1, 6, 4]),
            shaped("a_step_over", [2, 33, 34, 8]),
            shaped("long", [1, 1030, 3, 4]).only(&[DType::F32]),
            shaped("no_batch", [0, 4, 3, 2]),
            shaped("no_steps", [2, 0, 3, 2]),
            shaped("no_channels", [2, 4, 0, 2]),
            shaped("no_states", [2, 4, 3, 0]),
            Case::new("written", |c| {
                let half = Fill::Values(vec![1.0, 1.0, 1.0]);
                let x = c.input("x", [1, 3, 1], Fill::Values(vec![1., 2., 3.]))?;
                let delta = c.input("delta", [1, 3, 1], half)?;
                let a = c.input("a", [1, 2], Fill::Values(vec![0., 0.]))?;
                let b = c.input("b", [1, 3, 2], Fill::Values(vec![1., 2., 1., 0., 1., 1.]))?;
                let d = c.input("c", [1, 3, 2], Fill::Values(vec![1., 1., 1., -1., 2., 1.]))?;
                let y = c.graph.selective_scan(x, delta, a, b, d)?;
                // h: (1, 2), (3, 2), (6, 5).
                c.output_expect(y, &[3., 1., 17.])
            }),
            Case::new("symbolic", |c| {
                let (batch, steps) = (c.sym("b", 2, 3), c.sym("s", 11, 20));
                let y = operands(c, [batch, steps], 6, 5)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<Reject> {
        fn of(g: &mut Graph, a: [usize; 2], c: [usize; 3]) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [2, 4, 3]))?;
            let a = g.input("a", Type::new(DType::F32, a))?;
            let b = g.input("b", Type::new(DType::F32, [2, 4, 5]))?;
            let c = g.input("c", Type::new(DType::F32, c))?;
            g.selective_scan(x, x, a, b, c)
        }
        vec![
            reject("channels", "axis 0 of a: 4 and 3 differ", |g| {
                of(g, [4, 5], [2, 4, 5])
            }),
            reject("states", "axis 2 of c: 6 and 5 differ", |g| {
                of(g, [3, 5], [2, 4, 6])
            }),
            reject("steps", "axis 1 of c: 3 and 4 differ", |g| {
                of(g, [3, 5], [2, 3, 5])
            }),
        ]
    }
}

impl OpSpec for Mamba2 {
    const DOC: Doc = Doc {
        name: "mamba2",
        text: "Of `x [B,S,H,P]`, `dt [B,S,H]`, `a [H]`, `b [B,S,G,N]` and `c [B,S,G,N]`, for each \
               head: `S = exp(dt a) S + (dt x) outer b`, `y = S c`, from zeros.",
        operands: &["x", "dt", "a", "b", "c"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::recurrent::mamba2);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, dt, a, b, c] = exactly(operands)?;
        expect_floats(operands, ["x", "dt", "a", "b", "c"])?;
        expect_rank("x", x, 4)?;
        expect_rank("b", b, 4)?;
        let [batch, steps, heads] = [0, 1, 2].map(|i| &x.shape[i]);
        let [groups, states] = [2, 3].map(|i| &b.shape[i]);
        expect_shape("dt", dt, &[batch, steps, heads])?;
        expect_shape("a", a, &[heads])?;
        expect_shape("b", b, &[batch, steps, groups, states])?;
        expect_shape("c", c, &[batch, steps, groups, states])?;
        let sizes = expect_known(operands)?;
        if sizes.groups == 0 || !sizes.heads.is_multiple_of(sizes.groups) {
            let reason = format!("{heads} heads are no whole number for each of {groups} groups");
            return Err(TypeError::Other(reason));
        }
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, b) = (operands[0].shape(), operands[3].shape());
        let sizes = ScanSizes {
            heads: x[2],
            per_head: x[3],
            groups: b[2],
            states: b[3],
        };
        scan(operands, sizes, &results[0], |a, head, _| a[head])
    }

    fn cases() -> Vec<Case> {
        fn operands(
            c: &mut CaseGraph,
            [batch, steps]: [Dim; 2],
            sizes: [usize; 4],
        ) -> Result<Value, OpError> {
            stepped(c, [batch, steps], sizes, 0.5)
        }
        /// Steps of up to `most`.
        fn stepped(
            c: &mut CaseGraph,
            [batch, steps]: [Dim; 2],
            [heads, per_head, groups, n]: [usize; 4],
            most: f64,
        ) -> Result<Value, OpError> {
            let of = |sizes: &[usize]| -> Shape {
                let own = sizes.iter().map(|&n| Dim::Known(n));
                [batch.clone(), steps.clone()]
                    .into_iter()
                    .chain(own)
                    .collect()
            };
            let x = c.input("x", of(&[heads, per_head]), Fill::Normal)?;
            let dt = c.input("dt", of(&[heads]), Fill::Uniform(0.0, most))?;
            let a = c.input("a", [heads], Fill::Uniform(-3.0, -0.1))?;
            let b = c.input("b", of(&[groups, n]), Fill::Normal)?;
            let c_ = c.input("c", of(&[groups, n]), Fill::Normal)?;
            c.graph.mamba2(x, dt, a, b, c_)
        }
        let shaped = |name: &str, batch: usize, steps: usize, sizes: [usize; 4]| {
            Case::new(name, move |c| {
                let y = operands(c, [batch.into(), steps.into()], sizes)?;
                c.output(y)
            })
        };
        vec![
            shaped("odd", 2, 7, [3, 5, 1, 3]),
            shaped("groups", 2, 9, [6, 4, 3, 16]),
            shaped("every_head_alone", 1, 12, [4, 7, 4, 10]),
            shaped("head_of_64_states_of_128", 1, 21, [2, 64, 1, 128])
                .only(&[DType::F32, DType::F16]),
            shaped("long", 1, 1030, [2, 3, 1, 4]).only(&[DType::F32]),
            // Sizes of chunks and matrices: a whole number of them, and not.
            shaped("chunks", 1, 128, [2, 16, 2, 16]),
            shaped("chunks_and_a_part", 2, 201, [4, 32, 2, 48]),
            shaped("chunks_of_128_states", 1, 150, [1, 64, 1, 128])
                .only(&[DType::F16, DType::BF16]),
            shaped("one_step", 2, 1, [2, 4, 1, 4]),
            shaped("a_step_over", 2, 33, [2, 40, 1, 20]),
            shaped("states_of_1000", 1, 6, [1, 3, 1, 1000]).only(&[DType::F32]),
            // Decays whose products over few steps are beyond F32, in some heads.
            Case::new("steep", |c| {
                let y = stepped(c, [2.into(), 41.into()], [5, 6, 1, 7], 8.0)?;
                c.output(y)
            }),
            Case::new("steep_in_chunks", |c| {
                let y = stepped(c, [1.into(), 141.into()], [3, 16, 1, 16], 60.0)?;
                c.output(y)
            }),
            shaped("no_steps", 2, 0, [2, 3, 1, 4]),
            shaped("no_channels", 2, 3, [2, 0, 1, 4]),
            shaped("no_heads", 2, 3, [0, 4, 1, 4]),
            shaped("no_states", 2, 3, [2, 4, 1, 0]),
            Case::new("symbolic", |c| {
                let (batch, steps) = (c.sym("b", 2, 3), c.sym("s", 11, 20));
                let y = operands(c, [batch, steps], [4, 3, 2, 5])?;
                c.output(y)
            }),
            Case::new("symbolic_in_chunks", |c| {
                let (batch, steps) = (c.sym("b", 1, 2), c.sym("s", 137, 200));
                let y = operands(c, [batch, steps], [2, 16, 1, 32])?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<Reject> {
        fn of(g: &mut Graph, dt: [usize; 3], groups: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [2, 4, 3, 8]))?;
            let dt = g.input("dt", Type::new(DType::F32, dt))?;
            let a = g.input("a", Type::new(DType::F32, [3]))?;
            let b = g.input("b", Type::new(DType::F32, [2, 4, groups, 5]))?;
            g.mamba2(x, dt, a, b, b)
        }
        vec![
            reject("heads", "axis 2 of dt: 4 and 3 differ", |g| {
                of(g, [2, 4, 4], 1)
            }),
            reject("groups", "3 heads are no whole number", |g| {
                of(g, [2, 4, 3], 2)
            }),
            reject("no_groups", "3 heads are no whole number", |g| {
                of(g, [2, 4, 3], 0)
            }),
        ]
    }
}

impl Graph {
    /// The selective scan of `x [B,S,H]` with steps `delta [B,S,H]`, `a [H,N]`, `b [B,S,N]` and
    /// `c [B,S,N]`, all of one float dtype; the type of `x` stays.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not agree, or `H` or `N` is not known.
    pub fn selective_scan(
        &mut self,
        x: Value,
        delta: Value,
        a: Value,
        b: Value,
        c: Value,
    ) -> Result<Value, OpError> {
        let n = self.get_type(a).and_then(|ty| ty.shape.get(1)?.known());
        let n = n.unwrap_or(0);
        self.add(SelectiveScan { n }, &[x, delta, a, b, c])
    }

    /// The scan of Mamba-2 of `x [B,S,H,P]` with steps `dt [B,S,H]`, `a [H]`, `b [B,S,G,N]` and
    /// `c [B,S,G,N]`, all of one float dtype; the type of `x` stays.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not agree, groups do not divide the heads, or a size but
    /// `B` and `S` is not known.
    pub fn mamba2(
        &mut self,
        x: Value,
        dt: Value,
        a: Value,
        b: Value,
        c: Value,
    ) -> Result<Value, OpError> {
        self.add(Mamba2 {}, &[x, dt, a, b, c])
    }
}
