//! The llama family: pre-norm decoder layers with RoPE, grouped queries, RMS norm and SwiGLU
//! (Touvron et al., "LLaMA: Open and efficient foundation language models", 2023).
//!
//! One graph serves prefill and decode: `s` tokens are appended to a cache of fixed capacity that
//! lives in the executable as state. Its inputs, all I32:
//!
//! | input | shape | holds |
//! |---|---|---|
//! | `tokens` | `[s]` | the new tokens |
//! | `positions` | `[s]` | their positions, consecutive |
//! | `start` | `[4]` | `[0, first position, 0, 0]`: where the cache is written |
//! | `kv_len` | `[]` | positions filled after this run |
//! | `rows` | `[r]` | which of the `s` positions give logits |
//!
//! Outputs: `logits` F32 `[r, vocab]`, and `next` I32 `[r]` when sampling.

use tercet::ops::{AttentionOptions, Layout, RopeStyle, SampleOptions};
use tercet::{CompileOptions, DType, Device, Dim, Shape, Tensor, TensorType, Type, Value};

use super::{Builder, Generator, Model, ModelError, Weights};
use crate::config::{LlamaConfig, RopeLayout};

/// How the next token is chosen from the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the greatest logit; otherwise logits are divided by it.
    pub temperature: f64,
    /// Only the k greatest logits; 0 for all.
    pub top_k: usize,
    /// Only the smallest set of tokens that has this probability; 1 for all.
    pub top_p: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Sampling {
    /// The greatest logit, the lowest token among equals.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        seed: 0,
    };
}

/// Choices of a llama graph.
#[derive(Clone, Debug)]
pub struct LlamaOptions {
    /// Capacity of the cache in tokens.
    pub context: usize,
    /// The most tokens of one run; longer prompts are fed in parts.
    pub chunk: usize,
    /// The most rows of logits of one run.
    pub logit_rows: usize,
    /// The float dtype of the arithmetic and of the cache.
    pub dtype: DType,
    /// Adds the output `next`.
    pub sampling: Option<Sampling>,
}

impl LlamaOptions {
    /// The context that the model was trained for, parts of 512 tokens, one row of logits, F32,
    /// greedy.
    pub fn new(config: &LlamaConfig) -> LlamaOptions {
        LlamaOptions {
            context: config.context,
            chunk: 512.min(config.context),
            logit_rows: 1,
            dtype: DType::F32,
            sampling: Some(Sampling::GREEDY),
        }
    }
}

/// The parts of a model whose tensors have a name in each kind of file.
#[derive(Clone, Copy)]
enum Part {
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

    fn name(self, weights: &Weights, layer: usize, suffix: &str) -> String {
        let (hf, gguf) = self.names();
        let base = match weights {
            Weights::Hf(_) | Weights::MadeUp(_) => hf,
            Weights::Gguf(_) => gguf,
        };
        format!("{}.{suffix}", base.replace("{}", &layer.to_string()))
    }
}

/// A llama-family model: its graph, parameters and configuration.
#[derive(Debug)]
pub struct Llama {
    /// Graph and parameters.
    pub model: Model,
    /// The configuration it was built from.
    pub config: LlamaConfig,
    /// The options it was built with.
    pub options: LlamaOptions,
}

/// Values that every layer reads.
struct Shared {
    start: Value,
    kv_len: Value,
    cos: Value,
    sin: Value,
    len: Dim,
}

impl Llama {
    /// Builds the graph over the weights of a file.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format, or an option is not
    /// possible.
    pub fn build(
        config: &LlamaConfig,
        weights: &Weights,
        options: LlamaOptions,
    ) -> Result<Llama, ModelError> {
        if options.context == 0 || options.chunk == 0 || options.logit_rows == 0 {
            return Err(ModelError::Unsupported(
                "context, chunk and logit rows must be at least 1".into(),
            ));
        }
        if options.context > MOST_CONTEXT {
            let context = options.context;
            return Err(ModelError::Unsupported(format!(
                "a context of {context} tokens; at most {MOST_CONTEXT} are possible"
            )));
        }
        let mut b = Builder::new(weights, options.dtype);
        let len = Dim::sym("s");
        let tokens = b
            .graph
            .input("tokens", Type::new(DType::I32, [len.clone()]))?;
        let positions = b
            .graph
            .input("positions", Type::new(DType::I32, [len.clone()]))?;
        let start = b.graph.input("start", Type::new(DType::I32, [4]))?;
        let kv_len = b
            .graph
            .input("kv_len", Type::new(DType::I32, Shape::default()))?;
        let rows = b
            .graph
            .input("rows", Type::new(DType::I32, [Dim::sym("r")]))?;

        let (cos, sin) = rope_tables(&mut b, config, options.context, positions)?;
        let shared = Shared {
            start,
            kv_len,
            cos,
            sin,
            len,
        };
        let embedding = Part::Embedding.name(weights, 0, "weight");
        let mut x = b.embedding(tokens, &embedding, [config.vocab, config.hidden])?;
        for layer in 0..config.layers {
            x = attention(&mut b, config, &options, &shared, layer, x)?;
            x = feed_forward(&mut b, config, layer, x)?;
        }
        let x = b.graph.gather(x, rows, 0)?;
        let x = norm(&mut b, config, Part::FinalNorm, 0, x)?;
        let output = match config.tied_embeddings {
            true => embedding,
            false => Part::Output.name(weights, 0, "weight"),
        };
        let logits = b.linear(x, &output, None, [config.vocab, config.hidden])?;
        b.graph.output("logits", logits)?;
        if let Some(s) = options.sampling {
            let options = SampleOptions {
                top_k: s.top_k,
                top_p: s.top_p,
                temperature: s.temperature,
            };
            let next = b.graph.sample(logits, options, s.seed)?;
            b.graph.output("next", next)?;
        }
        let model = b.finish().with_precision(options.dtype)?;
        Ok(Llama {
            model,
            config: config.clone(),
            options,
        })
    }

    /// The bounds of the graph's symbols.
    pub fn compile_options(&self) -> CompileOptions {
        CompileOptions::new()
            .bound("s", self.options.chunk.min(self.options.context))
            .bound("r", self.options.logit_rows)
    }

    /// Compiles the model for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn generator(&self, device: &Device) -> Result<Generator, ModelError> {
        let exe = self.model.compile(device, &self.compile_options())?;
        Ok(Generator::new(exe, &self.config, &self.options))
    }
}

/// Positions up to which F32, in which angles are computed, counts.
const MOST_CONTEXT: usize = 1 << 24;

/// The F32 cosines and sines of the positions at hand, `[s, rope_dims / 2]`.
///
/// Angles are computed as the reference implementation of the family does: frequencies and angles
/// in F32.
fn rope_tables(
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

fn norm(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    part: Part,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let gain = b.vector(&part.name(b.weights, layer, "weight"), config.hidden)?;
    Ok(b.graph.rms_norm(x, gain, None, f64::from(config.rms_eps))?)
}

fn project(
    b: &mut Builder<'_>,
    part: Part,
    layer: usize,
    x: Value,
    shape: [usize; 2],
    bias: bool,
) -> Result<Value, ModelError> {
    let bias = bias.then(|| part.name(b.weights, layer, "bias"));
    b.linear(
        x,
        &part.name(b.weights, layer, "weight"),
        bias.as_deref(),
        shape,
    )
}

fn attention(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    options: &LlamaOptions,
    shared: &Shared,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let LlamaConfig {
        hidden,
        heads,
        kv_heads,
        head_dim,
        ..
    } = *config;
    let h = norm(b, config, Part::AttentionNorm, layer, x)?;
    let heads_of = |b: &mut Builder<'_>, part, n: usize| -> Result<Value, ModelError> {
        let y = project(b, part, layer, h, [n * head_dim, hidden], config.qkv_bias)?;
        let shape = [1.into(), shared.len.clone(), n.into(), head_dim.into()];
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
    let k = append(
        b,
        options,
        shared,
        &format!("cache.{layer}.k"),
        k,
        [kv_heads, head_dim],
    )?;
    let v = append(
        b,
        options,
        shared,
        &format!("cache.{layer}.v"),
        v,
        [kv_heads, head_dim],
    )?;
    let q = cast(b, q, options.dtype)?;
    let attention = AttentionOptions::new(heads, kv_heads, Layout::Bshd)
        .causal()
        .kv_len(shared.kv_len);
    let y = b.graph.attention(q, k, v, attention)?;
    let y = cast(b, y, DType::F32)?;
    let y = b
        .graph
        .reshape(y, [shared.len.clone(), (heads * head_dim).into()])?;
    let shape = [hidden, heads * head_dim];
    let y = project(
        b,
        Part::AttentionOutput,
        layer,
        y,
        shape,
        config.output_bias,
    )?;
    Ok(b.graph.plus(x, y)?)
}

/// Writes the new keys or values into their cache and returns all of it.
fn append(
    b: &mut Builder<'_>,
    options: &LlamaOptions,
    shared: &Shared,
    name: &str,
    new: Value,
    [kv_heads, head_dim]: [usize; 2],
) -> Result<Value, ModelError> {
    let ty = Type::new(options.dtype, [1, options.context, kv_heads, head_dim]);
    let cache = b.graph.state(name, ty)?;
    let new = cast(b, new, options.dtype)?;
    let updated = b.graph.dynamic_update_slice(cache, new, shared.start)?;
    b.graph.assign(cache, updated)?;
    Ok(updated)
}

fn cast(b: &mut Builder<'_>, x: Value, to: DType) -> Result<Value, ModelError> {
    if b.graph.ty(x).dtype == to {
        return Ok(x);
    }
    Ok(b.graph.cast(x, to)?)
}

fn feed_forward(
    b: &mut Builder<'_>,
    config: &LlamaConfig,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let LlamaConfig {
        hidden,
        ffn,
        mlp_bias,
        ..
    } = *config;
    let h = norm(b, config, Part::FfnNorm, layer, x)?;
    let gate = project(b, Part::Gate, layer, h, [ffn, hidden], mlp_bias)?;
    let up = project(b, Part::Up, layer, h, [ffn, hidden], mlp_bias)?;
    let gate = b.graph.silu(gate)?;
    let h = b.graph.mul(gate, up)?;
    let y = project(b, Part::Down, layer, h, [hidden, ffn], mlp_bias)?;
    Ok(b.graph.plus(x, y)?)
}
