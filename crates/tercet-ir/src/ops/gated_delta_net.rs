//! The gated delta rule: linear attention with a decaying, error-correcting state.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    expect_dtype, expect_equal, expect_rank, expect_same_dtype, reject, with_optional,
};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type};

attrs! {
    /// Gated delta networks (Yang et al., 2024). For each head and token, from a state `[N, P]`
    /// that is an operand or zeros: `S *= exp(g)`, `d = beta (v - S^T k)`, `S += k outer d`, `o =
    /// S^T q / sqrt(N)`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let q = g.input("q", Type::new(DType::F32, [1, 9, 4, 16]))?;
    /// let v = g.input("v", Type::new(DType::F32, [1, 9, 4, 8]))?;
    /// let gate = g.input("gate", Type::new(DType::F32, [1, 9, 4]))?;
    /// let beta = g.input("beta", Type::new(DType::F32, [1, 9, 4]))?;
    /// let y = g.gated_delta_net([q, q, v, gate, beta], None, true)?;
    /// assert_eq!(g.ty(y), g.ty(v));
    /// assert_eq!(g.ty(y.port(1)).to_string(), "f32[1, 4, 16, 8]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct GatedDeltaNet {
        /// Returns the final state as a second result if true.
        pub carry: bool,
    }
}

impl OpSpec for GatedDeltaNet {
    const DOC: OpDoc = OpDoc {
        name: "gated_delta_net",
        text: "The gated delta rule over `q` and `k [B,S,H,N]`, `v [B,S,H,P]`, `g` and `beta \
               [B,S,H]`. For each head and token: `S *= exp(g)`, `d = beta (v - S^T k)`, `S += k \
               outer d`, `o = S^T q / sqrt(N)`, from `state [B,H,N,P]` or zeros. Also returns the \
               final state if `carry`.",
        operands: &["q", "k", "v", "g", "beta", "state?"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::recurrent::gated_delta_net);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([q, k, v, g, beta], [state]) = with_optional::<5, 1>(operands)?;
        expect_dtype("q", q, DType::FLOATS)?;
        expect_rank("q", q, 4)?;
        expect_rank("v", v, 4)?;
        let [batch, steps, heads, n] = [0, 1, 2, 3].map(|i| &q.shape[i]);
        let p = &v.shape[3];
        let of_state = [batch, heads, n, p];
        let named: [(&'static str, &Type, &[&Dim]); 4] = [
            ("k", k, &[batch, steps, heads, n]),
            ("v", v, &[batch, steps, heads, p]),
            ("g", g, &[batch, steps, heads]),
            ("beta", beta, &[batch, steps, heads]),
        ];
        let state = state.map(|ty| ("state", ty, &of_state[..]));
        for (name, ty, shape) in named.into_iter().chain(state) {
            expect_same_dtype(name, ty, q)?;
            expect_rank(name, ty, shape.len())?;
            for (axis, (own, want)) in ty.shape.iter().zip(shape).enumerate() {
                expect_equal(&format!("axis {axis} of {name}"), own, want)?;
            }
        }
        if [heads, n, p].iter().any(|dim| dim.known().is_none()) {
            let reason = "all sizes except batch and sequence must be known";
            return Err(TypeError::Other(reason.to_string()));
        }
        let o = v.clone();
        let state: Shape = of_state.into_iter().cloned().collect();
        Ok(match self.carry {
            true => vec![o, q.with_shape(state)],
            false => vec![o],
        })
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [q, k, v, g, beta] = [0, 1, 2, 3, 4].map(|i| operands[i].to_f64s());
        let &[batch, steps, heads, n] = operands[0].shape() else {
            unreachable!("invariant: inference checked the rank")
        };
        let p = operands[2].shape()[3];
        let mut all = match operands.get(5) {
            Some(state) => state.to_f64s(),
            None => vec![0.0; batch * heads * n * p],
        };
        let mut o = vec![0.0; results[0].numel()];
        for row in 0..batch {
            for at in (row * steps..(row + 1) * steps).flat_map(|s| (0..heads).map(move |h| (s, h)))
            {
                let (step, head) = at;
                let token = step * heads + head;
                let state = &mut all[(row * heads + head) * n * p..][..n * p];
                let (q, k) = (&q[token * n..][..n], &k[token * n..][..n]);
                let decay = g[token].exp();
                state.iter_mut().for_each(|s| *s *= decay);
                for col in 0..p {
                    let dot = |x: &[f64], state: &[f64]| -> f64 {
                        x.iter()
                            .enumerate()
                            .map(|(i, x)| x * state[i * p + col])
                            .sum()
                    };
                    let d = beta[token] * (v[token * p + col] - dot(k, state));
                    for (i, k) in k.iter().enumerate() {
                        state[i * p + col] += k * d;
                    }
                    o[token * p + col] = dot(q, state) / (n as f64).sqrt();
                }
            }
        }
        let mut out = vec![Tensor::from_f64s(results[0].clone(), &o)?];
        if let Some(ty) = results.get(1) {
            out.push(Tensor::from_f64s(ty.clone(), &all)?);
        }
        Ok(out)
    }

    fn cases() -> Vec<OpCase> {
        // Long: this function is a table of test cases, one per row.
        fn operands(
            c: &mut CaseGraph,
            [batch, steps]: [Dim; 2],
            [heads, n, p]: [usize; 3],
            with_state: bool,
            carry: bool,
        ) -> Result<Value, OpError> {
            let of = |sizes: &[usize]| -> Shape {
                let own = sizes.iter().map(|&n| Dim::Known(n));
                [batch.clone(), steps.clone()]
                    .into_iter()
                    .chain(own)
                    .collect()
            };
            // Keys of approximately unit length, as the rule requires.
            let unit = 1.7 / (n.max(1) as f64).sqrt();
            let q = c.input("q", of(&[heads, n]), InputFill::Normal)?;
            let k = c.input("k", of(&[heads, n]), InputFill::Uniform(-unit, unit))?;
            let v = c.input("v", of(&[heads, p]), InputFill::Normal)?;
            let g = c.input("g", of(&[heads]), InputFill::Uniform(-0.5, 0.0))?;
            let beta = c.input("beta", of(&[heads]), InputFill::Uniform(0.0, 1.0))?;
            let state = match with_state {
                true => {
                    let shape = [batch, heads.into(), n.into(), p.into()];
                    Some(c.input("state", shape, InputFill::Normal)?)
                }
                false => None,
            };
            c.graph.gated_delta_net([q, k, v, g, beta], state, carry)
        }
        let shaped = |name: &str, sizes: [usize; 5], with_state: bool, carry: bool| {
            OpCase::new(name, move |c| {
                let [batch, steps, heads, n, p] = sizes;
                let o = operands(
                    c,
                    [batch.into(), steps.into()],
                    [heads, n, p],
                    with_state,
                    carry,
                )?;
                c.output(o)?;
                match carry {
                    true => c.output(o.port(1)),
                    false => Ok(()),
                }
            })
        };
        const FEW: &[DType] = &[DType::F32, DType::F16];
        vec![
            shaped("odd", [2, 7, 3, 5, 3], false, false),
            shaped("from_a_state", [2, 7, 3, 5, 3], true, false),
            shaped("carry", [2, 6, 2, 8, 9], false, true),
            shaped("from_a_state_and_carry", [1, 9, 3, 16, 18], true, true),
            shaped("head_of_128", [1, 17, 2, 128, 40], true, true).only(FEW),
            shaped("head_of_65", [1, 11, 1, 65, 7], false, true),
            shaped("head_of_300", [1, 5, 1, 300, 11], true, true).only(FEW),
            shaped("head_of_1000", [1, 5, 1, 1000, 3], true, true).only(&[DType::F32]),
            shaped("one_element", [2, 5, 2, 1, 1], true, true),
            shaped("one_step", [2, 1, 2, 8, 6], true, true),
            shaped("a_step_over", [2, 33, 2, 20, 34], true, true),
            shaped("long", [1, 700, 1, 8, 4], false, true).only(&[DType::F32]),
            // Sequence lengths that are multiples of the chunk and matrix sizes, and others.
            shaped("chunks", [1, 128, 2, 16, 16], false, false),
            shaped("chunks_and_a_part", [2, 150, 2, 48, 32], true, true),
            shaped("chunks_of_128_states", [1, 201, 1, 128, 64], false, true)
                .only(&[DType::F16, DType::BF16]),
            shaped("no_steps", [2, 0, 2, 4, 3], true, true),
            shaped("no_columns", [2, 3, 2, 4, 0], false, true),
            shaped("no_batch", [0, 3, 2, 4, 2], false, true),
            OpCase::new("written", |c| {
                let q = c.input("q", [1, 2, 1, 1], InputFill::Values(vec![2., 1.]))?;
                let k = c.input("k", [1, 2, 1, 1], InputFill::Values(vec![1., 2.]))?;
                let v = c.input("v", [1, 2, 1, 1], InputFill::Values(vec![3., 8.]))?;
                let g = c.input("g", [1, 2, 1], InputFill::Values(vec![0., 0.]))?;
                let beta = c.input("beta", [1, 2, 1], InputFill::Values(vec![1., 0.5]))?;
                let o = c.graph.gated_delta_net([q, k, v, g, beta], None, true)?;
                // d = 3, S = 3, o = 6; d = 0.5 (8 - 6) = 1, S = 5, o = 5.
                c.output_expect(o, &[6., 5.])?;
                c.output_expect(o.port(1), &[5.])
            }),
            OpCase::new("forgets_all", |c| {
                let q = c.input("q", [1, 3, 1, 1], InputFill::Values(vec![2., 1., 1.]))?;
                let k = c.input("k", [1, 3, 1, 1], InputFill::Values(vec![1., 2., 1.]))?;
                let v = c.input("v", [1, 3, 1, 1], InputFill::Values(vec![3., 8., 5.]))?;
                let gates = vec![0., f64::NEG_INFINITY, 0.];
                let g = c.input("g", [1, 3, 1], InputFill::Values(gates))?;
                let beta = c.input("beta", [1, 3, 1], InputFill::Values(vec![1., 0.5, 1.]))?;
                let o = c.graph.gated_delta_net([q, k, v, g, beta], None, true)?;
                // S = 3, o = 6; S = 0, d = 4, S = 8, o = 8; d = 5 - 8, S = 5, o = 5.
                c.output_expect(o, &[6., 8., 5.])?;
                c.output_expect(o.port(1), &[5.])
            }),
            OpCase::new("forgets_all_in_chunks", |c| {
                let of = |size: usize| [1, 130, 1, size];
                let q = c.input("q", of(16), InputFill::Normal)?;
                let k = c.input("k", of(16), InputFill::Uniform(-0.4, 0.4))?;
                let v = c.input("v", of(16), InputFill::Normal)?;
                let gates = (0..130).map(|t| match t % 50 {
                    20 => f64::NEG_INFINITY,
                    _ => -0.1,
                });
                let g = c.input("g", [1, 130, 1], InputFill::Values(gates.collect()))?;
                let beta = c.input("beta", [1, 130, 1], InputFill::Uniform(0.0, 1.0))?;
                let o = c.graph.gated_delta_net([q, k, v, g, beta], None, false)?;
                c.output(o)
            }),
            OpCase::new("symbolic_in_two_runs", |c| {
                let (batch, steps) = (c.sym("b", 2, 3), c.sym("s", 5, 9));
                let o = operands(c, [batch, steps], [2, 6, 5], true, true)?;
                c.runs = 2;
                c.output(o)?;
                c.output(o.port(1))
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(
            g: &mut Graph,
            v: [usize; 4],
            state: Option<[usize; 4]>,
        ) -> Result<Value, OpError> {
            let q = g.input("q", Type::new(DType::F32, [2, 4, 3, 8]))?;
            let v = g.input("v", Type::new(DType::F32, v))?;
            let gate = g.input("g", Type::new(DType::F32, [2, 4, 3]))?;
            let state = match state {
                Some(shape) => Some(g.input("state", Type::new(DType::F32, shape))?),
                None => None,
            };
            g.gated_delta_net([q, q, v, gate, gate], state, true)
        }
        vec![
            reject("steps", "axis 1 of v: 5 and 4 differ", |g| {
                build(g, [2, 5, 3, 8], None)
            }),
            reject("state", "axis 3 of state: 7 and 6 differ", |g| {
                build(g, [2, 4, 3, 6], Some([2, 3, 8, 7]))
            }),
            reject("rank", "operand v has type", |g| {
                let q = g.input("q", Type::new(DType::F32, [2, 4, 3, 8]))?;
                let v = g.input("v", Type::new(DType::F32, [2, 4, 3]))?;
                g.gated_delta_net([q, q, v, v, v], None, false)
            }),
        ]
    }
}

impl Graph {
    /// The gated delta rule of `q`, `k [B,S,H,N]`, `v [B,S,H,P]`, `g`, `beta [B,S,H]` from `state
    /// [B,H,N,P]` or zeros, all of one float dtype. The result is `[B,S,H,P]`, and the final state
    /// (port 1) if `carry`.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or a size other than `B` and `S` is not
    /// known.
    pub fn gated_delta_net(
        &mut self,
        [q, k, v, g, beta]: [Value; 5],
        state: Option<Value>,
        carry: bool,
    ) -> Result<Value, OpError> {
        let mut inputs = vec![q, k, v, g, beta];
        inputs.extend(state);
        self.add(GatedDeltaNet { carry }, &inputs)
    }
}
