//! Components of encoder layers, independent of the weight mode ([`ModelBuilder`]).

use tercet::ops::{AttentionLayout, AttentionOptions, RopeStyle};
use tercet::{DType, Dim, OpError, Tensor, Value};

use super::super::decoder::layer::activate;
use super::super::trainable::ProjectionSite;
use super::super::{ModelBuilder, ModelError};
use super::attention_masks::EncoderForwardContext;
use crate::config::decoder::rows::ProjectionRowOrder;
use crate::config::decoder::{FeedForward, NormKind};
use crate::config::encoder::{
    EncoderNames, EncoderNorms, EncoderPart, EncoderSpec, PositionEncoding, TokenTypes,
};

/// Input texts of an encoder graph, all `[rows, len]`: token ids and segment ids as I32, and the
/// padding mask. Padding follows the tokens of a text.
pub(crate) struct EncoderTexts {
    pub(crate) ids: Value,
    pub(crate) type_ids: Option<Value>,
    /// Padding mask; `None` if padding needs no mask.
    pub(crate) mask: Option<Value>,
}

/// Configuration and tensor names shared by all components.
pub(super) struct EncoderContext<'a> {
    pub(super) spec: &'a EncoderSpec,
    pub(super) names: EncoderNames<'a>,
}

/// Hidden states `[rows, len, hidden]`. `checkpoints` enables activation checkpointing: only the
/// input of the norm before each layer is saved for backward. The layer's input itself is not
/// suitable, because CSE would merge the recomputed matmuls with the original ones.
pub(crate) fn encode(
    b: &mut ModelBuilder<'_>,
    spec: &EncoderSpec,
    texts: &EncoderTexts,
    checkpoints: bool,
) -> Result<Value, ModelError> {
    let names = EncoderNames::new(spec, b.weights);
    let of = EncoderContext { spec, names };
    let keep = checkpointing(checkpoints);
    let x = of.embeddings(b, texts)?;
    let mut x = keep(b, x)?;
    if spec.embedding_norm {
        x = of.norm(b, EncoderPart::EmbeddingNorm, 0, x)?;
    }
    let mut x = b.drop(x)?;
    if spec.embedding != spec.hidden {
        x = of.linear(b, EncoderPart::EmbeddingProjection, 0, x)?;
    }
    let shared = of.forward_context(b, texts)?;
    of.layers(b, &shared, x, checkpoints)
}

/// Saves a value for backward if checkpointing is enabled, otherwise returns it unchanged.
fn checkpointing(
    checkpoints: bool,
) -> impl Fn(&mut ModelBuilder<'_>, Value) -> Result<Value, OpError> {
    move |b, x| match checkpoints {
        true => b.graph.checkpoint(x),
        false => Ok(x),
    }
}

/// The integers `0..len`, I32 `[len]`; `len` is at most `context`.
pub(super) fn counted(
    b: &mut ModelBuilder<'_>,
    context: usize,
    len: &Dim,
) -> Result<Value, ModelError> {
    let all: Vec<i32> = (0..context as i32).collect();
    let all = Tensor::from_slice(&[context], &all);
    let all = all.expect("invariant: the shape matches the number of elements");
    let all = b.graph.constant(all)?;
    let zeros = zeros(b, 1)?;
    Ok(b.graph.dynamic_slice(all, zeros, [len.clone()])?)
}

/// Zeros, I32 `[n]`.
fn zeros(b: &mut ModelBuilder<'_>, n: usize) -> Result<Value, ModelError> {
    let zeros = Tensor::from_slice(&[n], &vec![0i32; n]);
    let zeros = zeros.expect("invariant: the shape matches the number of elements");
    Ok(b.graph.constant(zeros)?)
}

impl EncoderContext<'_> {
    /// All layers; pre-norm models also get the final norm.
    fn layers(
        &self,
        b: &mut ModelBuilder<'_>,
        shared: &EncoderForwardContext,
        mut x: Value,
        checkpoints: bool,
    ) -> Result<Value, ModelError> {
        let spec = self.spec;
        let keep = checkpointing(checkpoints);
        for at in 0..spec.layers.len() {
            match spec.placement {
                EncoderNorms::AfterSums => {
                    let y = self.attention(b, shared, at, x)?;
                    let sum = b.graph.plus(y, x)?;
                    let h = self.norm(b, EncoderPart::AttentionNorm, at, sum)?;
                    let y = self.feed_forward(b, at, h)?;
                    let sum = b.graph.plus(y, h)?;
                    let sum = keep(b, sum)?;
                    x = self.norm(b, EncoderPart::FfnNorm, at, sum)?;
                }
                EncoderNorms::Before => {
                    x = keep(b, x)?;
                    let h = match spec.layers[at].attention_norm {
                        true => self.norm(b, EncoderPart::AttentionNorm, at, x)?,
                        false => x,
                    };
                    let y = self.attention(b, shared, at, h)?;
                    x = b.graph.plus(x, y)?;
                    let h = self.norm(b, EncoderPart::FfnNorm, at, x)?;
                    let y = self.feed_forward(b, at, h)?;
                    x = b.graph.plus(x, y)?;
                }
            }
        }
        match spec.placement {
            EncoderNorms::AfterSums => Ok(x),
            EncoderNorms::Before => self.norm(b, EncoderPart::FinalNorm, 0, x),
        }
    }

    /// Norm of `x` with the gain of the model part `part`.
    pub(super) fn norm(
        &self,
        b: &mut ModelBuilder<'_>,
        part: EncoderPart,
        layer: usize,
        x: Value,
    ) -> Result<Value, ModelError> {
        let [_, len] = part.shape(self.spec);
        let gain = b.vector(&self.names.tensor(part, layer, "weight"), len)?;
        let bias = match part.has_bias(self.spec) {
            true => Some(b.vector(&self.names.tensor(part, layer, "bias"), len)?),
            false => None,
        };
        let eps = f64::from(self.spec.norm.eps);
        match self.spec.norm.kind {
            NormKind::Rms => Ok(b.graph.rms_norm(x, gain, bias, eps)?),
            NormKind::Layer => {
                let axis = b.graph.ty(x).rank() - 1;
                Ok(b.graph.layer_norm(x, gain, bias, axis, eps)?)
            }
        }
    }

    /// Projection that adapters do not apply to.
    pub(super) fn linear(
        &self,
        b: &mut ModelBuilder<'_>,
        part: EncoderPart,
        layer: usize,
        x: Value,
    ) -> Result<Value, ModelError> {
        let weight = self.names.tensor(part, layer, "weight");
        let bias = part.has_bias(self.spec);
        let bias = bias.then(|| self.names.tensor(part, layer, "bias"));
        b.linear(x, &weight, bias.as_deref(), part.shape(self.spec))
    }

    /// Projection with the contributions of adapters.
    fn project(
        &self,
        b: &mut ModelBuilder<'_>,
        part: EncoderPart,
        layer: usize,
        x: Value,
    ) -> Result<Value, ModelError> {
        let y = self.linear(b, part, layer, x)?;
        let site = ProjectionSite {
            module: &self.names.module(part, layer),
            shape: part.shape(self.spec),
            rows: ProjectionRowOrder::Plain,
            layer: true,
        };
        b.adapted(x, y, &site)
    }

    /// All layers over image patches, `[rows, len, hidden]`, with full bidirectional attention.
    pub(super) fn patch_layers(
        &self,
        b: &mut ModelBuilder<'_>,
        x: Value,
    ) -> Result<Value, ModelError> {
        let shape = &b.graph.ty(x).shape;
        let shared = EncoderForwardContext::for_patches(shape[0].clone(), shape[1].clone());
        self.layers(b, &shared, x, false)
    }

    /// `y` times the layer scale vector of the model part `part`, if the layers have one.
    fn scaled(
        &self,
        b: &mut ModelBuilder<'_>,
        part: EncoderPart,
        at: usize,
        y: Value,
    ) -> Result<Value, ModelError> {
        if !self.spec.layer_scale {
            return Ok(y);
        }
        let scale = b.vector(&self.names.tensor(part, at, ""), self.spec.hidden)?;
        Ok(b.graph.mul(y, scale)?)
    }

    /// Sum of the token, type and position embeddings, before the norm.
    fn embeddings(
        &self,
        b: &mut ModelBuilder<'_>,
        texts: &EncoderTexts,
    ) -> Result<Value, ModelError> {
        let spec = self.spec;
        let table = |part: EncoderPart| (self.names.tensor(part, 0, "weight"), part.shape(spec));
        let (name, shape) = table(EncoderPart::Words);
        let mut x = b.embedding(texts.ids, &name, shape)?;
        let (name, shape) = table(EncoderPart::Types);
        match (spec.token_types, texts.type_ids) {
            (TokenTypes::None, _) => {}
            (TokenTypes::BySegment { .. }, Some(type_ids)) => {
                let types = b.embedding(type_ids, &name, shape)?;
                x = b.graph.plus(x, types)?;
            }
            (TokenTypes::First { .. }, _) | (TokenTypes::BySegment { .. }, None) => {
                let types = b.dense(&name, &shape)?;
                let first = b.graph.narrow(types, 0, 0, 1)?;
                let first = b.graph.squeeze(first, 0)?;
                x = b.graph.plus(x, first)?;
            }
        }
        let (name, shape) = table(EncoderPart::PositionTable);
        let positions = match spec.positions {
            PositionEncoding::Rotary | PositionEncoding::Distances => return Ok(x),
            PositionEncoding::Learned { .. } => {
                let len = b.graph.ty(texts.ids).shape[1].clone();
                let table = b.dense(&name, &shape)?;
                let zeros = zeros(b, 2)?;
                b.graph
                    .dynamic_slice(table, zeros, [len, shape[1].into()])?
            }
            PositionEncoding::AfterPadding { .. } => {
                let places = self.places(b, texts.ids)?;
                let table = b.dense(&name, &shape)?;
                b.graph.gather(table, places, 0)?
            }
        };
        Ok(b.graph.plus(x, positions)?)
    }

    /// Row of the position table for each token, as in RoBERTa: tokens count from the padding id
    /// plus 1, and padding uses the row of the padding id.
    fn places(&self, b: &mut ModelBuilder<'_>, ids: Value) -> Result<Value, ModelError> {
        let g = &mut b.graph;
        let pad = g.scalar(DType::I32, f64::from(self.spec.pad))?;
        let is_pad = g.equal(ids, pad)?;
        let (zero, one) = (g.scalar(DType::I32, 0.0)?, g.scalar(DType::I32, 1.0)?);
        let counts = g.where_(is_pad, zero, one)?;
        let so_far = g.cum_sum(counts, 1)?;
        let places = g.mul(so_far, counts)?;
        Ok(g.plus(places, pad)?)
    }

    /// Attention output of a layer for `h`, before the residual sum.
    fn attention(
        &self,
        b: &mut ModelBuilder<'_>,
        shared: &EncoderForwardContext,
        at: usize,
        h: Value,
    ) -> Result<Value, ModelError> {
        let spec = self.spec;
        let (heads, size) = (spec.heads, spec.head_dim);
        let (rows, len) = (&shared.rows, &shared.len);
        let parts = match spec.fused_qkv {
            true => {
                let all = self.project(b, EncoderPart::Qkv, at, h)?;
                let width = spec.q_width();
                [0, 1, 2].map(|i| b.graph.narrow(all, 2, i * width, width))
            }
            false => {
                let mut of = |part| self.project(b, part, at, h);
                let all = [
                    of(EncoderPart::Query)?,
                    of(EncoderPart::Key)?,
                    of(EncoderPart::Value)?,
                ];
                all.map(Ok)
            }
        };
        let mut split = Vec::new();
        for part in parts {
            let shape = [rows.clone(), len.clone(), heads.into(), size.into()];
            split.push(b.graph.reshape(part?, shape)?);
        }
        let layer = &spec.layers[at];
        if let Some(rope) = layer.rope {
            let [cos, sin] = shared.ropes[rope];
            for x in &mut split[..2] {
                let turned =
                    b.graph
                        .rope(*x, cos, sin, RopeStyle::NeoX, size, AttentionLayout::Bshd);
                *x = turned?;
            }
        }
        let seen = shared.attention_masks(layer);
        let mut options =
            AttentionOptions::new(heads, heads, AttentionLayout::Bshd).mask(seen.mask);
        options.kv_len = seen.kv_len;
        if let Some(scale) = spec.attention_scale {
            options = options.scale(scale);
        }
        let y = b.graph.attention(split[0], split[1], split[2], options)?;
        let width = spec.q_width().into();
        let y = b.graph.reshape(y, [rows.clone(), len.clone(), width])?;
        let y = self.project(b, EncoderPart::AttentionOutput, at, y)?;
        let y = self.scaled(b, EncoderPart::AttentionScale, at, y)?;
        b.drop(y)
    }

    /// Feed-forward output of a layer for `h`, before the residual sum.
    fn feed_forward(
        &self,
        b: &mut ModelBuilder<'_>,
        at: usize,
        h: Value,
    ) -> Result<Value, ModelError> {
        let spec = self.spec;
        let h = match spec.feed_forward {
            FeedForward::Plain(activation) => {
                let up = self.project(b, EncoderPart::Up, at, h)?;
                activate(b, activation, up)?
            }
            FeedForward::Gated(activation) => {
                let (gate, up) = match spec.fused_gate_up {
                    true => {
                        let both = self.project(b, EncoderPart::GateUp, at, h)?;
                        let gate = b.graph.narrow(both, 2, 0, spec.ffn)?;
                        (gate, b.graph.narrow(both, 2, spec.ffn, spec.ffn)?)
                    }
                    false => (
                        self.project(b, EncoderPart::Gate, at, h)?,
                        self.project(b, EncoderPart::Up, at, h)?,
                    ),
                };
                let gate = activate(b, activation, gate)?;
                b.graph.mul(gate, up)?
            }
        };
        let y = self.project(b, EncoderPart::Down, at, h)?;
        let y = self.scaled(b, EncoderPart::FfnScale, at, y)?;
        b.drop(y)
    }
}
