//! The gated delta rule: linear attention with a decaying, error-correcting state.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{expect_dtype, expect_equal, expect_rank, expect_same_dtype, with_optional};

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
