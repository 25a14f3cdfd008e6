//! The parts of an encoder, over how weights are had ([`Builder`]).

use tercet::ops::{AttentionOptions, Layout, RopeStyle};
use tercet::{DType, Dim, OpError, Tensor, Value};

use super::super::decoder::layer::activate;
use super::super::tuned::Site;
use super::super::{Builder, ModelError};
use super::seen::Shared;
use crate::adapter::rows::Rows;
use crate::config::decoder::{FeedForward, NormKind};
use crate::config::encoder::{
    EncoderNames, EncoderNorms, EncoderPart, EncoderSpec, Positions, TokenTypes,
};

/// Texts in a graph, all `[rows, len]`: ids and the segments of tokens I32, and which of them are no padding. The tokens of
/// a text come first, padding after them.
pub(crate) struct Texts {
    pub(crate) ids: Value,
    pub(crate) type_ids: Option<Value>,
    /// Where padding is not seen.
    pub(crate) mask: Option<Value>,
}

/// What every part reads.
pub(super) struct Model<'a> {
    pub(super) spec: &'a EncoderSpec,
    pub(super) names: EncoderNames<'a>,
}

/// The hidden states `[rows, len, hidden]`. With `checkpoints` gradients keep only what enters the norm before a layer:
/// the layer's own products, made twice of one value, would be made one.
pub(crate) fn encode(
    b: &mut Builder<'_>,
    spec: &EncoderSpec,
    texts: &Texts,
    checkpoints: bool,
) -> Result<Value, ModelError> {
    let names = EncoderNames::of(spec, b.weights);
    let of = Model { spec, names };
    let keep = keeping(checkpoints);
    let x = of.embeddings(b, texts)?;
    let mut x = keep(b, x)?;
    if spec.embedding_norm {
        x = of.norm(b, EncoderPart::EmbeddingNorm, 0, x)?;
    }
    let mut x = b.drop(x)?;
    if spec.embedding != spec.hidden {
        x = of.linear(b, EncoderPart::EmbeddingProjection, 0, x)?;
    }
    let shared = of.shared(b, texts)?;
    of.layers(b, &shared, x, checkpoints)
}

/// Keeps a value for gradients, or leaves that to them.
fn keeping(checkpoints: bool) -> impl Fn(&mut Builder<'_>, Value) -> Result<Value, OpError> {
    move |b, x| match checkpoints {
        true => b.graph.checkpoint(x),
        false => Ok(x),
    }
}

/// The numbers from 0 on, I32 `[len]`, of at most `context`.
pub(super) fn counted(b: &mut Builder<'_>, context: usize, len: &Dim) -> Result<Value, ModelError> {
    let all: Vec<i32> = (0..context as i32).collect();
    let all = Tensor::from_slice(&[context], &all);
    let all = all.expect("invariant: so many numbers make a vector of so many");
    let all = b.graph.constant(all)?;
    let zeros = zeros(b, 1)?;
    Ok(b.graph.dynamic_slice(all, zeros, [len.clone()])?)
}

/// I32 `[n]`.
fn zeros(b: &mut Builder<'_>, n: usize) -> Result<Value, ModelError> {
    let zeros = Tensor::from_slice(&[n], &vec![0i32; n]);
    let zeros = zeros.expect("invariant: so many numbers make a vector of so many");
    Ok(b.graph.constant(zeros)?)
}

impl Model<'_> {
    /// All layers, and the norm after them where they have none at their end.
    fn layers(
        &self,
        b: &mut Builder<'_>,
        shared: &Shared,
        mut x: Value,
        checkpoints: bool,
    ) -> Result<Value, ModelError> {
        let spec = self.spec;
        let keep = keeping(checkpoints);
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

    /// The norm of `x` with the gain of this part.
    pub(super) fn norm(
        &self,
        b: &mut Builder<'_>,
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

    /// A projection that no adapter changes.
    pub(super) fn linear(
        &self,
        b: &mut Builder<'_>,
        part: EncoderPart,
        layer: usize,
        x: Value,
    ) -> Result<Value, ModelError> {
        let weight = self.names.tensor(part, layer, "weight");
        let bias = part.has_bias(self.spec);
        let bias = bias.then(|| self.names.tensor(part, layer, "bias"));
        b.linear(x, &weight, bias.as_deref(), part.shape(self.spec))
    }

    /// One that adapters may change.
    fn project(
        &self,
        b: &mut Builder<'_>,
        part: EncoderPart,
        layer: usize,
        x: Value,
    ) -> Result<Value, ModelError> {
        let y = self.linear(b, part, layer, x)?;
        let site = Site {
            module: &self.names.module(part, layer),
            shape: part.shape(self.spec),
            rows: Rows::Plain,
            layer: true,
        };
        b.adapted(x, y, &site)
    }

    /// All layers over the patches of pictures, `[rows, len, hidden]`, which see each other.
    pub(super) fn patch_layers(&self, b: &mut Builder<'_>, x: Value) -> Result<Value, ModelError> {
        let shape = &b.graph.ty(x).shape;
        let shared = Shared::of_patches(shape[0].clone(), shape[1].clone());
        self.layers(b, &shared, x, false)
    }

    /// `y` times the vector of this part, where the layers have one.
    fn scaled(
        &self,
        b: &mut Builder<'_>,
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

    /// The sum of the embeddings, before its norm.
    fn embeddings(&self, b: &mut Builder<'_>, texts: &Texts) -> Result<Value, ModelError> {
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
            Positions::Rotary | Positions::Distances => return Ok(x),
            Positions::Learned { .. } => {
                let len = b.graph.ty(texts.ids).shape[1].clone();
                let table = b.dense(&name, &shape)?;
                let zeros = zeros(b, 2)?;
                b.graph
                    .dynamic_slice(table, zeros, [len, shape[1].into()])?
            }
            Positions::AfterPadding { .. } => {
                let places = self.places(b, texts.ids)?;
                let table = b.dense(&name, &shape)?;
                b.graph.gather(table, places, 0)?
            }
        };
        Ok(b.graph.plus(x, positions)?)
    }

    /// The rows of the position table for tokens: counted from the padding token's id plus 1 on over all that are no
    /// padding tokens, which have the row of their id.
    fn places(&self, b: &mut Builder<'_>, ids: Value) -> Result<Value, ModelError> {
        let g = &mut b.graph;
        let pad = g.scalar(DType::I32, f64::from(self.spec.pad))?;
        let is_pad = g.equal(ids, pad)?;
        let (zero, one) = (g.scalar(DType::I32, 0.0)?, g.scalar(DType::I32, 1.0)?);
        let counts = g.where_(is_pad, zero, one)?;
        let so_far = g.cum_sum(counts, 1)?;
        let places = g.mul(so_far, counts)?;
        Ok(g.plus(places, pad)?)
    }

    /// A layer's attention of `h`, before the sum.
    fn attention(
        &self,
        b: &mut Builder<'_>,
        shared: &Shared,
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
                let turned = b
                    .graph
                    .rope(*x, cos, sin, RopeStyle::NeoX, size, Layout::Bshd);
                *x = turned?;
            }
        }
        let seen = shared.seen(layer);
        let mut options = AttentionOptions::new(heads, heads, Layout::Bshd).mask(seen.mask);
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

    /// A layer's feed-forward network of `h`, before the sum.
    fn feed_forward(&self, b: &mut Builder<'_>, at: usize, h: Value) -> Result<Value, ModelError> {
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
