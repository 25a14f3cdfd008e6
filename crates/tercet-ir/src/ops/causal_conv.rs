//! Causal depthwise convolution over the sequence axis.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{expect_dtype, expect_equal, expect_rank, expect_same_dtype, with_optional};

attrs! {
    /// The convolution before state-space scans (Gu and Dao, 2023). Each step of a channel depends
    /// on itself and the `K - 1` steps before it. Steps before the first row come from `state`, or
    /// are zeros.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[1, 3, 1], &[1f32, 2.0, 3.0])?)?;
    /// let w = g.constant(Tensor::from_slice(&[2, 1], &[10f32, 1.0])?)?;
    /// let bias = g.constant(Tensor::from_slice(&[1], &[0f32])?)?;
    /// let y = g.causal_conv([x, w, bias], None, false, false)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 12.0, 23.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct CausalConv {
        /// Applies SiLU to the result if true.
        pub silu: bool,
        /// Returns the last `K - 1` rows of state and `x` as a second result if true.
        pub carry: bool,
    }
}

impl OpSpec for CausalConv {
    const DOC: OpDoc = OpDoc {
        name: "causal_conv",
        text: "Causal depthwise convolution of `x [B,S,C]` with `w [K,C]` and `bias [C]`: `y[s] = \
               bias + sum over k of w[k] x[s + k - K + 1]`. The rows before `x` are `state \
               [B,K-1,C]` or zeros. Applies SiLU if `silu`; also returns the last `K - 1` rows if \
               `carry`.",
        operands: &["x", "w", "bias", "state?"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, w, bias], [state]) = with_optional::<3, 1>(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank("x", x, 3)?;
        let (batch, channels) = (&x.shape[0], &x.shape[2]);
        expect_rank("w", w, 2)?;
        let taps = w.shape[0].known().filter(|taps| *taps > 0);
        let (Some(taps), Some(_)) = (taps, channels.known()) else {
            let reason = "the numbers of rows (at least 1) and channels of w must be known";
            return Err(TypeError::Other(reason.to_string()));
        };
        let before = Dim::Known(taps - 1);
        let of_state = [batch, &before, channels];
        let named: [(&'static str, &Type, &[&Dim]); 2] = [
            ("w", w, &[&w.shape[0], channels]),
            ("bias", bias, &[channels]),
        ];
        let state = state.map(|ty| ("state", ty, &of_state[..]));
        for (name, ty, shape) in named.into_iter().chain(state) {
            expect_same_dtype(name, ty, x)?;
            expect_rank(name, ty, shape.len())?;
            for (axis, (own, want)) in ty.shape.iter().zip(shape).enumerate() {
                expect_equal(&format!("axis {axis} of {name}"), own, want)?;
            }
        }
        let state: Shape = of_state.into_iter().cloned().collect();
        let last = self.carry.then(|| x.with_shape(state));
        Ok([x.clone()].into_iter().chain(last).collect())
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [x, w, bias] = [0, 1, 2].map(|i| operands[i].to_f64s());
        let (&[batch, steps, channels], &[taps, _]) = (operands[0].shape(), operands[1].shape())
        else {
            unreachable!("invariant: inference checked the ranks")
        };
        let before = taps - 1;
        let state = operands.get(3).map(|state| state.to_f64s());
        // Reads row `row` from the state, or from `x` after it.
        let at = |row: usize, step: usize, channel: usize| match (step.checked_sub(before), &state)
        {
            (Some(step), _) => x[(row * steps + step) * channels + channel],
            (None, Some(state)) => state[(row * before + step) * channels + channel],
            (None, None) => 0.0,
        };
        let mut y = Vec::with_capacity(results[0].numel());
        let mut last = Vec::new();
        for row in 0..batch {
            for (step, channel) in (0..steps).flat_map(|s| (0..channels).map(move |c| (s, c))) {
                let products =
                    (0..taps).map(|k| w[k * channels + channel] * at(row, step + k, channel));
                let sum = bias[channel] + products.sum::<f64>();
                y.push(match self.silu {
                    true => sum / (1.0 + (-sum).exp()),
                    false => sum,
                });
            }
            let rows = (steps..steps + before).flat_map(|s| (0..channels).map(move |c| (s, c)));
            last.extend(rows.map(|(step, channel)| at(row, step, channel)));
        }
        let mut out = vec![Tensor::from_f64s(results[0].clone(), &y)?];
        if let Some(ty) = results.get(1) {
            out.push(Tensor::from_f64s(ty.clone(), &last)?);
        }
        Ok(out)
    }
}

impl Graph {
    /// The causal convolution of each channel of `x [B,S,C]` with `w [K,C]` and `bias [C]`, all of
    /// one float dtype, from `state [B,K-1,C]` or zeros. Applies SiLU if `silu`. The result has the
    /// type of `x`. The last `K - 1` rows of state and `x` are port 1 if `carry`.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or `C` or `K` (at least 1) is not known.
    pub fn causal_conv(
        &mut self,
        [x, w, bias]: [Value; 3],
        state: Option<Value>,
        silu: bool,
        carry: bool,
    ) -> Result<Value, OpError> {
        let mut inputs = vec![x, w, bias];
        inputs.extend(state);
        self.add(CausalConv { silu, carry }, &inputs)
    }
}
