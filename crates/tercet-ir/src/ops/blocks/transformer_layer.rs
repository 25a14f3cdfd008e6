//! A post-norm transformer encoder layer.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use super::{
    AttentionBlock, AttentionBlockOptions, ComposedOp, ComposedOperands, OpComposer,
    TransformerWeights, dense, eval, expect_count, expect_line, expect_matrix, first, infer,
};
use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::attention::MaskKind;
use crate::ops::residual_norm::ResidualLayerNorm;
use crate::ops::rope::RopeStyle;
use crate::ops::util::{expect_dtype, expect_rank};
use crate::scalar::UnaryFn;

attrs! {
    /// An encoder layer (Vaswani and others 2017, BERT): `h = norm(x + attention(x))`, then `norm(h
    /// + f(h w_up + b_up) w_down + b_down)`, with layer norms over the last axis of `x [B, S, E]`.
    ///
    /// Attention is an [`AttentionBlock`]; residual sums are those of [`ResidualLayerNorm`]. Every
    /// intermediate result is rounded to the dtype of `x`.
    ///
    /// ```
    /// use tercet_ir::ops::{AttentionBlockOptions, LinearWeights, TransformerWeights};
    /// use tercet_ir::{DType, Graph, Type};
    /// # let mut g = Graph::new();
    /// # let x = g.input("x", Type::new(DType::F32, [1, 5, 64]))?;
    /// # let mut param = |name: &str, shape: &[usize]| g.param(name, Type::new(DType::F32, shape));
    /// # let (up, down) = (param("up", &[64, 256])?, param("down", &[256, 64])?);
    /// # let (qkv, out) = (param("qkv", &[64, 192])?, param("out", &[64, 64])?);
    /// # let norm = [param("gamma", &[64])?, param("beta", &[64])?];
    /// let weights = TransformerWeights {
    ///     qkv: LinearWeights::without_bias(qkv),
    ///     out: LinearWeights::without_bias(out),
    ///     attention_norm: norm,
    ///     up: LinearWeights::without_bias(up),
    ///     down: LinearWeights::without_bias(down),
    ///     last_norm: norm,
    /// };
    /// let y = g.transformer_layer(x, &weights, AttentionBlockOptions::new(4, 4), None, 1e-5)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct TransformerLayer {
        /// Number of query heads; a multiple of `kv_heads`.
        pub q_heads: usize,
        /// Number of key and value heads.
        pub kv_heads: usize,
        /// Which tokens a token attends to. `keep` and `bias` need an additional operand.
        pub mask: MaskKind,
        /// Factor of the scores; `1 / sqrt(head dim)` if absent.
        pub scale: Option<FloatAttr>,
        /// Caps the scores as `softcap * tanh(s / softcap)` if present.
        pub softcap: Option<FloatAttr>,
        /// Which elements of a head are rotated as a pair, with two additional operands; no
        /// rotation if absent.
        pub rope: Option<RopeStyle>,
        /// The activation `f`, which must preserve the dtype; `None` for the identity.
        pub activation: Option<UnaryFn>,
        /// Constant added to the variances.
        pub eps: FloatAttr,
        /// True for an additional operand, the bias of queries, keys and values.
        pub qkv_bias: bool,
        /// True for an additional operand, the bias of the attention result.
        pub out_bias: bool,
        /// True for two additional operands, the biases of the two feed-forward matmuls.
        pub ffn_bias: bool,
    }
}

/// The operands of a layer by name. Optional operands of attention come last.
struct TransformerLayerOperands<'a, P> {
    x: &'a P,
    attention: [&'a P; 2],
    attention_norm: [&'a P; 2],
    up: &'a P,
    down: &'a P,
    last_norm: [&'a P; 2],
    ffn_bias: Option<[&'a P; 2]>,
    rest: &'a [P],
}

/// Number of operands that are always present.
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

    fn parts<'a, P>(&self, operands: &'a [P]) -> TransformerLayerOperands<'a, P> {
        let mut each = ComposedOperands::new(operands);
        TransformerLayerOperands {
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

    /// The norm of a residual sum.
    fn norm<C: OpComposer>(
        &self,
        c: &mut C,
        [x, residual]: [&C::Part; 2],
        [gamma, beta]: [&C::Part; 2],
    ) -> Result<C::Part, C::Error> {
        let operands = [x, residual, gamma, beta].map(C::Part::clone);
        first(c, ResidualLayerNorm { eps: self.eps }, &operands)
    }
}

impl ComposedOp for TransformerLayer {
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

    fn compose<C: OpComposer>(&self, c: &mut C, operands: &[C::Part]) -> Result<C::Part, C::Error> {
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
    const DOC: OpDoc = OpDoc {
        name: "transformer_layer",
        text: "An encoder layer over rows `x [B, S, E]`: `norm(h + f(h w_up + b_up) w_down + \
               b_down)` with `h = norm(x + attention_block(x))`.",
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
}

impl Graph {
    /// An encoder layer over rows `x [B, S, E]`, floats; the result has the type of `x`. See
    /// [`TransformerLayer`] for the definition.
    ///
    /// # Errors
    /// As [`Graph::attention_block`]. [`OpError`] also when another weight does not match, only one
    /// feed-forward matmul has a bias, `activation` changes the dtype, or `eps` is negative or not
    /// finite.
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
            scale: options.scale.map(FloatAttr),
            softcap: options.softcap.map(FloatAttr),
            rope: options.rope.map(|r| r.style),
            activation,
            eps: FloatAttr(eps),
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
