//! An encoder layer whose norms stand after its sums.

use super::{
    AttentionBlock, AttentionBlockOptions, Block, Compose, Operands, TransformerWeights, dense,
    eval, expect_count, expect_line, expect_matrix, first, infer,
};
use crate::accuracy::Accuracy;
use crate::attr::Real;
use crate::attrs;
use crate::case::{Case, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::attention::MaskKind;
use crate::ops::residual_norm::ResidualLayerNorm;
use crate::ops::rope::RopeStyle;
use crate::ops::util::{expect_dtype, expect_rank};
use crate::scalar::UnaryFn;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

mod cases;

attrs! {
    /// An encoder layer (Vaswani and others 2017, BERT): `h = norm(x + attention(x))`, then
    /// `norm(h + f(h w_up + b_up) w_down + b_down)`, layer norms over the last axis of `x [B, S, E]`.
    ///
    /// Attention is an [`AttentionBlock`]; sums are those of
    /// [`ResidualLayerNorm`]. Every result inside is rounded to the dtype of `x`.
    pub struct TransformerLayer {
        /// Heads of the queries; a multiple of `kv_heads`.
        pub q_heads: usize,
        /// Heads of keys and values.
        pub kv_heads: usize,
        /// Which tokens a token sees. `keep` and `bias` take one more operand.
        pub mask: MaskKind,
        /// Factor of the scores; `1 / sqrt(head dim)` where absent.
        pub scale: Option<Real>,
        /// Bounds the scores by `softcap * tanh(s / softcap)` where present.
        pub softcap: Option<Real>,
        /// Which elements of a head are rotated together, by two more operands; none where absent.
        pub rope: Option<RopeStyle>,
        /// The function `f`, of a dtype to itself; none for the identity.
        pub activation: Option<UnaryFn>,
        /// Added to the variances.
        pub eps: Real,
        /// True for one more operand that is added to queries, keys and values.
        pub qkv_bias: bool,
        /// True for one more operand that is added to the result of attention.
        pub out_bias: bool,
        /// True for two more operands that are added to the two products after attention.
        pub ffn_bias: bool,
    }
}

/// The operands of a layer by name; those of attention after its weights are behind.
struct Parts<'a, P> {
    x: &'a P,
    attention: [&'a P; 2],
    attention_norm: [&'a P; 2],
    up: &'a P,
    down: &'a P,
    last_norm: [&'a P; 2],
    ffn_bias: Option<[&'a P; 2]>,
    rest: &'a [P],
}

/// Operands that are always there.
const REQUIRED: usize = 9;

impl TransformerLayer {
    fn block(&self) -> AttentionBlock {
        AttentionBlock {
            q_heads: self.q_heads,
            kv_heads: self.kv_heads,
            mask: self.mask,
            scale: self.scale,
            softcap: self.softcap,
            rope: self.rope,
            qkv_bias: self.qkv_bias,
            out_bias: self.out_bias,
        }
    }

    fn parts<'a, P>(&self, operands: &'a [P]) -> Parts<'a, P> {
        let mut each = Operands::of(operands);
        Parts {
            x: each.take(),
            attention: [each.take(), each.take()],
            attention_norm: [each.take(), each.take()],
            up: each.take(),
            down: each.take(),
            last_norm: [each.take(), each.take()],
            ffn_bias: self.ffn_bias.then(|| [each.take(), each.take()]),
            rest: each.0.as_slice(),
        }
    }

    /// The norm of a sum.
    fn norm<C: Compose>(
        &self,
        c: &mut C,
        [x, residual]: [&C::Part; 2],
        [gamma, beta]: [&C::Part; 2],
    ) -> Result<C::Part, C::Error> {
        let operands = [x, residual, gamma, beta].map(C::Part::clone);
        first(c, ResidualLayerNorm { eps: self.eps }, &operands)
    }
}

impl Block for TransformerLayer {
    fn check(&self, operands: &[Type]) -> Result<(), TypeError> {
        let more = self.block().more_operands() + 2 * usize::from(self.ffn_bias);
        expect_count(REQUIRED + more, operands)?;
        let parts = self.parts(operands);
        let x = parts.x;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank("x", x, 3)?;
        let width = ("the last axis of x", &x.shape[2]);
        let norms = [parts.attention_norm, parts.last_norm].concat();
        let names = ["gamma_1", "beta_1", "gamma_2", "beta_2"];
        for (name, line) in names.into_iter().zip(norms) {
            expect_line(name, line, x, width)?;
        }
        expect_matrix("w_up", parts.up, x, width)?;
        let inner = ("the columns of w_up", &parts.up.shape[1]);
        expect_matrix("w_down", parts.down, x, inner)?;
        if let Some([up, down]) = parts.ffn_bias {
            expect_line("b_up", up, x, inner)?;
            expect_line("b_down", down, x, width)?;
        }
        Ok(())
    }

    fn compose<C: Compose>(&self, c: &mut C, operands: &[C::Part]) -> Result<C::Part, C::Error> {
        let parts = self.parts(operands);
        let [w_qkv, w_out] = parts.attention;
        let block: Vec<C::Part> = [parts.x, w_qkv, w_out]
            .into_iter()
            .chain(parts.rest)
            .cloned()
            .collect();
        let attended = first(c, self.block(), &block)?;
        let h = self.norm(c, [&attended, parts.x], parts.attention_norm)?;
        let [b_up, b_down] = match parts.ffn_bias {
            Some(both) => both.map(Some),
            None => [None; 2],
        };
        let inner = dense(c, self.activation, [&h, parts.up], b_up)?;
        let y = dense(c, None, [&inner, parts.down], b_down)?;
        self.norm(c, [&y, &h], parts.last_norm)
    }
}

impl OpSpec for TransformerLayer {
    const DOC: Doc = Doc {
        name: "transformer_layer",
        text: "`norm(h + f(h w_up + b_up) w_down + b_down)` with `h = norm(x + attention_block(x))`, an encoder layer of rows `x [B, S, E]`.",
        operands: &[
            "x", "w_qkv", "w_out", "gamma_1", "beta_1", "w_up", "w_down", "gamma_2", "beta_2",
            "b_up?", "b_down?", "b_qkv?", "b_out?", "cos?", "sin?", "mask?",
        ],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        infer(self, operands)
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        _: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval(self, ctx, operands)
    }

    fn cases() -> Vec<Case> {
        cases::cases()
    }

    fn rejects() -> Vec<Reject> {
        cases::rejects()
    }
}

impl Graph {
    /// An encoder layer over rows `x [B, S, E]`, floats; the result has the type of `x`. See
    /// [`TransformerLayer`] for the meaning.
    ///
    /// # Errors
    /// As [`Graph::attention_block`], and when another weight does not fit, one of the products after
    /// attention has a bias and the other has none, `activation` gives another dtype, or `eps` is negative or
    /// not finite.
    pub fn transformer_layer(
        &mut self,
        x: Value,
        weights: &TransformerWeights,
        options: AttentionBlockOptions,
        activation: Option<UnaryFn>,
        eps: f64,
    ) -> Result<Value, OpError> {
        let TransformerWeights {
            qkv,
            out,
            attention_norm: [gamma_1, beta_1],
            up,
            down,
            last_norm: [gamma_2, beta_2],
        } = *weights;
        let (mask, operand) = options.mask.split();
        let op = TransformerLayer {
            q_heads: options.q_heads,
            kv_heads: options.kv_heads,
            mask,
            scale: options.scale.map(Real),
            softcap: options.softcap.map(Real),
            rope: options.rope.map(|r| r.style),
            activation,
            eps: Real(eps),
            qkv_bias: qkv.bias.is_some(),
            out_bias: out.bias.is_some(),
            ffn_bias: up.bias.is_some(),
        };
        let tables = options.rope.into_iter().flat_map(|r| [r.cos, r.sin]);
        let mut operands = vec![x, qkv.weight, out.weight, gamma_1, beta_1];
        operands.extend([up.weight, down.weight, gamma_2, beta_2]);
        operands.extend(up.bias.into_iter().chain(down.bias));
        operands.extend(qkv.bias.into_iter().chain(out.bias));
        operands.extend(tables.chain(operand));
        self.add(op, &operands)
    }
}
