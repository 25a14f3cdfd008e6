//! The parts of a decoder layer, over how weights are had ([`Builder`]) and how attention is done ([`Attend`]).

use tercet::ops::{AttentionMask, AttentionOptions, Layout, RopeStyle};
use tercet::{DType, Dim, Tensor, TensorType, Type, Value};

use super::super::tuned::Site;
use super::super::{Builder, ModelError, Weights};
use crate::adapter::rows::Rows;
use crate::config::{LlamaConfig, RopeLayout};

/// The parts of a model whose tensors have a name in each kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Embedding,
    AttentionNorm,
    Query,
    Key,
    Value,
    AttentionOutput,
    FfnNorm,
    Gate,
    Up,
    Down,
    FinalNorm,
    Output,
}

impl Part {
    /// The projections of a layer.
    pub(crate) const PROJECTIONS: [Part; 7] = [
        Part::Query,
        Part::Key,
        Part::Value,
        Part::AttentionOutput,
        Part::Gate,
        Part::Up,
        Part::Down,
    ];

    /// The names in a Hugging Face folder and in a GGUF file, without `.weight`; `{}` is the layer.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Part::Embedding => ("model.embed_tokens", "token_embd"),
            Part::AttentionNorm => ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
            Part::Query => ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
            Part::Key => ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
            Part::Value => ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
            Part::AttentionOutput => ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
            Part::FfnNorm => (
                "model.layers.{}.post_attention_layernorm",
                "blk.{}.ffn_norm",
            ),
            Part::Gate => ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
            Part::Up => ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
            Part::Down => ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
            Part::FinalNorm => ("model.norm", "output_norm"),
            Part::Output => ("lm_head", "output"),
        }
    }

    /// The name of a tensor in files of this kind.
    pub(crate) fn name(self, weights: &Weights, layer: usize, suffix: &str) -> String {
        let base = match weights {
            Weights::Hf(_) | Weights::MadeUp(_) => self.module(layer),
            Weights::Gguf(_) => self.gguf(layer),
        };
        format!("{base}.{suffix}")
    }

    /// The name in a Hugging Face folder, without `.weight`.
    pub(crate) fn module(self, layer: usize) -> String {
        self.names().0.replace("{}", &layer.to_string())
    }

    /// The name in a GGUF file, without `.weight`.
    pub(crate) fn gguf(self, layer: usize) -> String {
        self.names().1.replace("{}", &layer.to_string())
    }

    /// Outputs and inputs of a projection.
    pub(crate) fn shape(self, config: &LlamaConfig) -> [usize; 2] {
        let LlamaConfig {
            hidden, ffn, vocab, ..
        } = *config;
        let (q, kv) = (
            config.heads * config.head_dim,
            config.kv_heads * config.head_dim,
        );
        match self {
            Part::Query => [q, hidden],
            Part::Key | Part::Value => [kv, hidden],
            Part::AttentionOutput => [hidden, q],
            Part::Gate | Part::Up => [ffn, hidden],
            Part::Down => [hidden, ffn],
            Part::Embedding | Part::Output => [vocab, hidden],
            Part::AttentionNorm | Part::FfnNorm | Part::FinalNorm => [1, hidden],
        }
    }

    /// The order of a projection's rows.
    pub(crate) fn rows(self, config: &LlamaConfig) -> Rows {
        match self {
            Part::Query | Part::Key => Rows::of_heads(config),
            _ => Rows::Plain,
        }
    }

    fn has_bias(self, config: &LlamaConfig) -> bool {
        match self {
            Part::Query | Part::Key | Part::Value => config.qkv_bias,
            Part::AttentionOutput => config.output_bias,
            Part::Gate | Part::Up | Part::Down => config.mlp_bias,
            Part::Embedding
            | Part::AttentionNorm
            | Part::FfnNorm
            | Part::FinalNorm
            | Part::Output => false,
        }
    }
}

/// The projections that adapters may change: those of the layers, then the output.
pub(crate) fn projections(config: &LlamaConfig) -> impl Iterator<Item = (Part, usize)> {
    let layers = 0..config.layers;
    let of_layers = layers.flat_map(|layer| Part::PROJECTIONS.map(|part| (part, layer)));
    of_layers.chain([(Part::Output, 0)])
}

/// How a layer attends.
pub(crate) enum Attend {
    /// New keys and values are appended to caches, which are states of this capacity and dtype; the rows of `x` are
    /// one sequence.
    Cached {
        start: Value,
        kv_len: Value,
        context: usize,
        dtype: DType,
    },
    /// Sequences attend to themselves; `x` has an axis for them.
    Whole(AttentionMask),
}

/// Values that every layer reads.
pub(crate) struct Shared {
    pub(crate) attend: Attend,
    pub(crate) cos: Value,
    pub(crate) sin: Value,
    pub(crate) batch: Dim,
    pub(crate) len: Dim,
}

impl Shared {
    /// The shape of rows of this width.
    fn rows(&self, width: usize) -> tercet::Shape {
        match self.attend {
            Attend::Cached { .. } => [self.len.clone(), width.into()].into(),
            Attend::Whole(_) => [self.batch.clone(), self.len.clone(), width.into()].into(),
        }
    }
}

/// Positions up to which F32, in which angles are computed, counts.
pub(crate) const MOST_CONTEXT: usize = 1 << 24;

/// The F32 cosines and sines of the positions at hand, with an axis of `rope_dims / 2` after those of `positions`.
///
/// Angles are computed as the reference implementation of the family does: frequencies and angles
/// in F32.
pub(crate) fn rope_tables(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    context: usize,
    positions: Value,
) -> Result<(Value, Value), ModelError> {
    let half = config.rope_dims / 2;
    let frequency = |i: usize| {
        let exponent = (2 * i) as f32 / config.rope_dims as f32;
        1.0 / (config.rope_theta as f32).powf(exponent)
    };
    // Once for all positions: powers took half of the time of long tables.
    let frequencies: Vec<f32> = (0..half).map(frequency).collect();
    let ty = TensorType::new(DType::F32, &[context, half]);
    let mut gather = |f: fn(f32) -> f32| -> Result<Value, ModelError> {
        let mut table = Tensor::zeros(ty.clone()).map_err(ModelError::RopeTables)?;
        let elements = table
            .as_slice_mut::<f32>()
            .expect("invariant: the table was made of F32");
        let angles = (0..context).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        elements
            .iter_mut()
            .zip(angles)
            .for_each(|(to, a)| *to = f(a));
        let table = b.graph.constant(table)?;
        Ok(b.graph.gather(table, positions, 0)?)
    };
    Ok((gather(f32::cos)?, gather(f32::sin)?))
}

/// The RMS norm of `x` with the gain of this part.
pub(crate) fn norm(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    part: Part,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let gain = b.vector(&part.name(b.weights, layer, "weight"), config.hidden)?;
    Ok(b.graph.rms_norm(x, gain, None, f64::from(config.rms_eps))?)
}

/// The logits of normed rows.
pub(crate) fn head(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    x: Value,
) -> Result<Value, ModelError> {
    let part = match config.tied_embeddings {
        true => Part::Embedding,
        false => Part::Output,
    };
    let shape = Part::Output.shape(config);
    let logits = b.linear(x, &part.name(b.weights, 0, "weight"), None, shape)?;
    let site = Site {
        module: &Part::Output.module(0),
        shape,
        rows: Rows::Plain,
        layer: false,
    };
    b.adapted(x, logits, &site)
}

fn project(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    part: Part,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let shape = part.shape(config);
    let bias = part.has_bias(config);
    let bias = bias.then(|| part.name(b.weights, layer, "bias"));
    let weight = part.name(b.weights, layer, "weight");
    let y = b.linear(x, &weight, bias.as_deref(), shape)?;
    let site = Site {
        module: &part.module(layer),
        shape,
        rows: part.rows(config),
        layer: true,
    };
    b.adapted(x, y, &site)
}

/// A layer's attention, with the sum after it.
pub(crate) fn attention(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    shared: &Shared,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let LlamaConfig {
        heads,
        kv_heads,
        head_dim,
        ..
    } = *config;
    let h = norm(b, config, Part::AttentionNorm, layer, x)?;
    let batch = match shared.attend {
        Attend::Cached { .. } => Dim::Known(1),
        Attend::Whole(_) => shared.batch.clone(),
    };
    let heads_of = |b: &mut Builder<'_>, part, n: usize| -> Result<Value, ModelError> {
        let y = project(b, config, part, layer, h)?;
        let shape = [batch.clone(), shared.len.clone(), n.into(), head_dim.into()];
        Ok(b.graph.reshape(y, shape)?)
    };
    let q = heads_of(b, Part::Query, heads)?;
    let k = heads_of(b, Part::Key, kv_heads)?;
    let v = heads_of(b, Part::Value, kv_heads)?;
    let style = match config.rope_layout {
        RopeLayout::Halves => RopeStyle::NeoX,
        RopeLayout::Pairs => RopeStyle::GptJ,
    };
    let rope = |b: &mut Builder<'_>, x| {
        b.graph.rope(
            x,
            shared.cos,
            shared.sin,
            style,
            config.rope_dims,
            Layout::Bshd,
        )
    };
    let q = rope(b, q)?;
    let k = rope(b, k)?;
    let y = attended(b, config, shared, layer, [q, k, v])?;
    let y = b.graph.reshape(y, shared.rows(heads * head_dim))?;
    let y = project(b, config, Part::AttentionOutput, layer, y)?;
    let y = b.drop(y)?;
    Ok(b.graph.plus(x, y)?)
}

/// The result of attention, F32 `[batch, len, heads, head_dim]`.
fn attended(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    shared: &Shared,
    layer: usize,
    [q, k, v]: [Value; 3],
) -> Result<Value, ModelError> {
    let options = AttentionOptions::new(config.heads, config.kv_heads, Layout::Bshd);
    match shared.attend {
        Attend::Whole(mask) => Ok(b.graph.attention(q, k, v, options.mask(mask))?),
        Attend::Cached {
            start,
            kv_len,
            context,
            dtype,
        } => {
            let ty = Type::new(dtype, [1, context, config.kv_heads, config.head_dim]);
            let k = append(b, &format!("cache.{layer}.k"), k, &ty, start)?;
            let v = append(b, &format!("cache.{layer}.v"), v, &ty, start)?;
            let q = cast(b, q, dtype)?;
            let options = options.causal().kv_len(kv_len);
            let y = b.graph.attention(q, k, v, options)?;
            cast(b, y, DType::F32)
        }
    }
}

/// Writes the new keys or values into their cache and returns all of it.
fn append(
    b: &mut Builder<'_>,
    name: &str,
    new: Value,
    ty: &Type,
    start: Value,
) -> Result<Value, ModelError> {
    let cache = b.graph.state(name, ty.clone())?;
    let new = cast(b, new, ty.dtype)?;
    let updated = b.graph.dynamic_update_slice(cache, new, start)?;
    b.graph.assign(cache, updated)?;
    Ok(updated)
}

fn cast(b: &mut Builder<'_>, x: Value, to: DType) -> Result<Value, ModelError> {
    if b.graph.ty(x).dtype == to {
        return Ok(x);
    }
    Ok(b.graph.cast(x, to)?)
}

/// A layer's gated feed-forward network, with the sum after it.
pub(crate) fn feed_forward(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let h = norm(b, config, Part::FfnNorm, layer, x)?;
    let gate = project(b, config, Part::Gate, layer, h)?;
    let up = project(b, config, Part::Up, layer, h)?;
    let gate = b.graph.silu(gate)?;
    let h = b.graph.mul(gate, up)?;
    let y = project(b, config, Part::Down, layer, h)?;
    let y = b.drop(y)?;
    Ok(b.graph.plus(x, y)?)
}
