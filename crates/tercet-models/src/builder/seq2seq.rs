//! Encoder-decoders of texts: the graphs of any [`TextToTextSpec`], in F32.
//!
//! Two graphs: the encoder runs once for each text that is read, the decoder once for each token that is written. Keys and
//! values of cross attention are outputs of the encoder, which stay on the device and are bound to inputs of the
//! decoder. That has the inputs of [`Decoder`](crate::Decoder), so a [`Generator`] writes with it.
//!
//! | graph | inputs | outputs |
//! |---|---|---|
//! | encoder | `ids` I32 `[1, c]` | `hidden [1, c, hidden]`, for each layer of the decoder `cross.0.k` and `cross.0.v [1, c, heads, head_dim]` |
//! | decoder | `tokens [s]`, `positions [s]`, `start [4]`, `kv_len []`, `rows [r]` (all I32), and what the encoder gives for each layer | `logits [r, vocab]`, `next` where it samples |

use tercet::ops::SampleOptions;
use tercet::{CompileOptions, DType, Device, Dim, Executable, Shape, Tensor, Type, Value};

use super::cross::{Cache, Keys, Projections, attend, cross, hand_over, keys_and_values};
use super::decoder::layer::activate;
use super::decoder::{Sampling, Sizes};
use super::encoder::{Texts, causal_bias, encode};
use super::generator::Generator;
use super::{Builder, Model, ModelError, Weights};
use crate::config::{FeedForward, TextToTextSpec};

/// Choices for building and compiling.
#[derive(Clone, Debug, PartialEq)]
pub struct TextToTextOptions {
    /// Tokens of the longest text that is read, and of the longest that is written.
    pub context: usize,
    /// How the graph chooses tokens; it does not where there is none.
    pub sampling: Option<Sampling>,
}

impl TextToTextOptions {
    /// As long as the model was trained for, the likeliest token.
    pub fn new(spec: &TextToTextSpec) -> TextToTextOptions {
        TextToTextOptions {
            context: spec.encoder.context,
            sampling: Some(Sampling::GREEDY),
        }
    }
}

/// An encoder-decoder of texts: graphs and parameters.
#[derive(Clone, Debug)]
pub struct TextToText {
    /// A text to hidden states, and keys and values of cross attention.
    pub encoder: Model,
    /// Tokens to logits.
    pub decoder: Model,
    /// The configuration they were built from.
    pub spec: TextToTextSpec,
    /// The options they were built with.
    pub options: TextToTextOptions,
}

/// Longer contexts are refused: terms of the scores are computed for every pair of positions.
const MOST_CONTEXT: usize = 1 << 15;

impl TextToText {
    /// Builds the graphs over the weights of a folder.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format, or the context is none.
    pub fn build(
        spec: &TextToTextSpec,
        weights: &Weights,
        options: TextToTextOptions,
    ) -> Result<TextToText, ModelError> {
        let context = options.context;
        if !(1..=MOST_CONTEXT).contains(&context) {
            return Err(ModelError::Unsupported(format!(
                "a context of {context} tokens; 1 to {MOST_CONTEXT} are possible"
            )));
        }
        let mut spec = spec.clone();
        spec.encoder.context = context;
        Ok(TextToText {
            encoder: encoder(&spec, weights)?,
            decoder: decoder(&spec, weights, &options)?,
            spec,
            options,
        })
    }

    /// Compiles both graphs for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile(&self, device: &Device) -> Result<(SourceReader, Generator), ModelError> {
        let TextToTextOptions { context, sampling } = self.options;
        let chunk = context.min(CHUNK);
        let of_encoder = CompileOptions::new().bound("c", context);
        let of_decoder = CompileOptions::new()
            .bound("c", context)
            .bound("s", chunk)
            .bound("r", 1);
        let reader = SourceReader {
            exe: self.encoder.compile(device, &of_encoder)?,
            layers: self.spec.decoder_layers,
            start: self.spec.start,
            context,
            vocab: self.spec.encoder.vocab,
        };
        let exe = self.decoder.compile(device, &of_decoder)?;
        let sizes = Sizes {
            has_states: false,
            context,
            chunk,
            vocab: self.spec.encoder.vocab,
            logit_rows: 1,
            dtype: DType::F32,
            counts_seen: false,
            windows: Vec::new(),
        };
        let generator = Generator::of(exe, None, &self.decoder, sizes, sampling);
        Ok((reader, generator))
    }
}

/// Tokens that the decoder takes at once: it is given one after another as a rule.
const CHUNK: usize = 32;

/// A compiled encoder, which gives a [`Generator`] the text that it writes about.
pub struct SourceReader {
    exe: Box<dyn Executable>,
    layers: usize,
    start: u32,
    context: usize,
    vocab: usize,
}

impl SourceReader {
    /// Reads a text: the generator forgets what it wrote, and what it writes from now on is about this one. It is to be fed
    /// [`Self::start`] first.
    ///
    /// # Errors
    /// [`ModelError::NoTokens`], [`ModelError::Context`], [`ModelError::Token`]; [`ModelError::Run`] of the device.
    pub fn read(&mut self, source: &[u32], generator: &mut Generator) -> Result<(), ModelError> {
        let (tokens, context, vocab) = (source.len(), self.context, self.vocab);
        if tokens == 0 {
            return Err(ModelError::NoTokens);
        }
        if tokens > context {
            return Err(ModelError::Context { tokens, context });
        }
        if let Some(&token) = source.iter().find(|id| **id as usize >= vocab) {
            return Err(ModelError::Token { token, vocab });
        }
        let ids: Vec<i32> = source.iter().map(|id| *id as i32).collect();
        let ids = Tensor::from_slice(&[1, tokens], &ids);
        let ids = ids.expect("invariant: so many numbers make a row of so many");
        generator.reset();
        let inputs = [("ids", &ids)];
        hand_over(&mut *self.exe, &inputs, self.layers, &mut |name, part| {
            generator.bind(name, part)
        })
    }

    /// The token that texts begin with.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The hidden states of the text that was read last, F32 `[1, tokens, hidden]`.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device, or when nothing was read yet.
    pub fn hidden(&mut self) -> Result<Tensor, ModelError> {
        Ok(self.exe.read_output_rows("hidden", 0..1)?)
    }
}

fn projections(spec: &TextToTextSpec) -> Projections {
    let of = &spec.encoder;
    Projections {
        names: ["q", "k", "v", "o"].map(|name| (name, false)),
        heads: of.heads,
        head_dim: of.head_dim,
        width: of.hidden,
        scale: of.attention_scale,
        turn: None,
    }
}

/// The encoder of a text, and the keys and values of the decoder's cross attention.
fn encoder(spec: &TextToTextSpec, weights: &Weights) -> Result<Model, ModelError> {
    let mut b = Builder::new(weights, DType::F32);
    let len = Dim::sym("c");
    let shape = [Dim::Known(1), len.clone()];
    let ids = b.graph.input("ids", Type::new(DType::I32, shape))?;
    let texts = Texts {
        ids,
        type_ids: None,
        mask: None,
    };
    let x = encode(&mut b, &spec.encoder, &texts, false)?;
    b.graph.output("hidden", x)?;
    let of = projections(spec);
    for at in 0..spec.decoder_layers {
        let name = format!("decoder.block.{at}.layer.1.EncDecAttention");
        let parts = keys_and_values(&mut b, (&name, &of), x, &len)?;
        for (name, part) in cross(at).iter().zip(parts) {
            b.graph.output(name, part)?;
        }
    }
    Ok(b.finish())
}

/// The norm of this name.
fn norm(
    b: &mut Builder<'_>,
    spec: &TextToTextSpec,
    name: &str,
    x: Value,
) -> Result<Value, ModelError> {
    let gain = b.vector(&format!("{name}.weight"), spec.encoder.hidden)?;
    let eps = f64::from(spec.encoder.norm.eps);
    Ok(b.graph.rms_norm(x, gain, None, eps)?)
}

/// The feed-forward network of the norm of `x`, and `x`.
fn feed_forward(
    b: &mut Builder<'_>,
    spec: &TextToTextSpec,
    name: &str,
    x: Value,
) -> Result<Value, ModelError> {
    let (hidden, ffn) = (spec.encoder.hidden, spec.encoder.ffn);
    let h = norm(b, spec, &format!("{name}.layer_norm"), x)?;
    let mut linear = |part: &str, x: Value, shape: [usize; 2]| {
        let weight = format!("{name}.DenseReluDense.{part}.weight");
        b.linear(x, &weight, None, shape)
    };
    let (gate, up, activation) = match spec.encoder.feed_forward {
        FeedForward::Gated(f) => {
            let gate = linear("wi_0", h, [ffn, hidden])?;
            (gate, Some(linear("wi_1", h, [ffn, hidden])?), f)
        }
        FeedForward::Plain(f) => (linear("wi", h, [ffn, hidden])?, None, f),
    };
    let mut h = activate(b, activation, gate)?;
    if let Some(up) = up {
        h = b.graph.mul(h, up)?;
    }
    let weight = format!("{name}.DenseReluDense.wo.weight");
    let y = b.linear(h, &weight, None, [hidden, ffn])?;
    Ok(b.graph.plus(x, y)?)
}

/// The decoder over a cache of the whole context.
fn decoder(
    spec: &TextToTextSpec,
    weights: &Weights,
    options: &TextToTextOptions,
) -> Result<Model, ModelError> {
    let mut b = Builder::new(weights, DType::F32);
    let of = projections(spec);
    let Projections {
        heads, head_dim, ..
    } = of;
    let (context, vocab, hidden) = (options.context, spec.encoder.vocab, spec.encoder.hidden);
    let (len, source) = (Dim::sym("s"), Dim::sym("c"));
    let ids = |of: Dim| Type::new(DType::I32, [of]);
    let tokens = b.graph.input("tokens", ids(len.clone()))?;
    let positions = b.graph.input("positions", ids(len.clone()))?;
    let start = b.graph.input("start", ids(Dim::Known(4)))?;
    let kv_len = Type::new(DType::I32, Shape::default());
    let kv_len = b.graph.input("kv_len", kv_len)?;
    let rows = b.graph.input("rows", ids(Dim::sym("r")))?;
    let table = "shared.weight";
    let mut x = b.embedding(tokens, table, [vocab, hidden])?;
    let bias = match spec.encoder.relative {
        Some(terms) => {
            let name = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
            let terms_of = b.dense(name, &[terms.buckets, heads])?;
            Some(causal_bias(&mut b, terms_of, (context, terms), positions)?)
        }
        None => None,
    };
    let cross_ty = [Dim::Known(1), source, heads.into(), head_dim.into()];
    for at in 0..spec.decoder_layers {
        let layer = format!("decoder.block.{at}.layer");
        let h = norm(&mut b, spec, &format!("{layer}.0.layer_norm"), x)?;
        let keys = Keys::Cached(Cache {
            layer: at,
            context,
            start,
            kv_len,
            bias,
        });
        let name = format!("{layer}.0.SelfAttention");
        let y = attend(&mut b, (&name, &of), h, &len, keys)?;
        x = b.graph.plus(x, y)?;
        let h = norm(&mut b, spec, &format!("{layer}.1.layer_norm"), x)?;
        let mut given =
            |name: &String| b.graph.input(name, Type::new(DType::F32, cross_ty.clone()));
        let [k, v] = cross(at);
        let keys = Keys::Given([given(&k)?, given(&v)?]);
        let name = format!("{layer}.1.EncDecAttention");
        let y = attend(&mut b, (&name, &of), h, &len, keys)?;
        x = b.graph.plus(x, y)?;
        x = feed_forward(&mut b, spec, &format!("{layer}.2"), x)?;
    }
    let x = b.graph.gather(x, rows, 0)?;
    let mut x = norm(&mut b, spec, "decoder.final_layer_norm", x)?;
    if spec.scaled_output {
        x = b.times(x, (hidden as f32).powf(-0.5))?;
    }
    let output = if spec.own_output {
        "lm_head.weight"
    } else {
        table
    };
    let logits = b.linear(x, output, None, [vocab, hidden])?;
    b.graph.output("logits", logits)?;
    if let Some(s) = options.sampling {
        let sample = SampleOptions {
            top_k: s.top_k,
            top_p: s.top_p,
            temperature: s.temperature,
        };
        let next = b.graph.sample(logits, sample, s.seed)?;
        b.graph.output("next", next)?;
    }
    Ok(b.finish())
}
