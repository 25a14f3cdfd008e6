//! Encoder-decoder (seq2seq) text models: F32 graphs for any [`Seq2SeqSpec`].
//!
//! The encoder graph runs once per input text, the decoder graph once per generated token. The
//! encoder outputs the cross-attention keys and values; they stay on the device and are bound to
//! inputs of the decoder. The decoder has the same token inputs as [`Decoder`](crate::Decoder), so
//! [`Generator`] runs it.
//!
//! | graph | inputs | outputs |
//! |---|---|---|
//! | encoder | `ids` I32 `[1, c]` | `hidden [1, c, hidden]`; for each decoder layer `cross.0.k` and `cross.0.v [1, c, heads, head_dim]` |
//! | decoder | `tokens [s]`, `positions [s]`, `start [4]`, `kv_len []`, `rows [r]` (all I32); the encoder's keys and values of each layer | `logits [r, vocab]`; `next` if the graph samples |

use tercet::ops::SampleOptions;
use tercet::{CompileOptions, DType, Device, Dim, Executable, Shape, Tensor, Type, Value};

use super::cross_attention::{
    AttentionProjections, CrossAttentionCache, KeyValueSource, attend, cross, hand_over,
    keys_and_values,
};
use super::decoder::layer::activate;
use super::decoder::{DecoderSizes, Sampling};
use super::encoder::{EncoderTexts, causal_bias, encode};
use super::generator::Generator;
use super::{ModelBuilder, ModelError, ModelGraph, Weights};
use crate::config::{FeedForward, Seq2SeqSpec};

/// Options for building and compiling an encoder-decoder model.
///
/// ```
/// # let json = r#"{
/// #     "model_type": "t5", "is_encoder_decoder": true, "d_model": 64, "d_kv": 16, "d_ff": 128,
/// #     "num_heads": 4, "num_layers": 2, "vocab_size": 300, "feed_forward_proj": "gated-gelu",
/// #     "decoder_start_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false
/// # }"#;
/// # let spec = tercet_networks::Seq2SeqSpec::from_json(&serde_json::from_str(json)?)?;
/// use tercet_networks::{Sampling, Seq2SeqOptions};
/// let options = Seq2SeqOptions { context: 128, ..Seq2SeqOptions::new(&spec) };
/// assert_eq!(options.sampling, Some(Sampling::GREEDY));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Seq2SeqOptions {
    /// Maximum number of tokens of the input text, and of the generated text.
    pub context: usize,
    /// Sampling compiled into the decoder graph; `None` outputs only logits.
    pub sampling: Option<Sampling>,
}

impl Seq2SeqOptions {
    /// Greedy decoding with the context length of training.
    pub fn new(spec: &Seq2SeqSpec) -> Seq2SeqOptions {
        Seq2SeqOptions {
            context: spec.encoder.context,
            sampling: Some(Sampling::GREEDY),
        }
    }
}

/// An encoder-decoder text model: graphs and parameters.
///
/// ```no_run
/// use tercet::Device;
/// use tercet_models::{ModelFiles, Seq2SeqOptions};
/// let model = ModelFiles::open("flan-t5-small")?.seq2seq(Seq2SeqOptions::new)?;
/// let (mut source, mut generator) = model.compile(&Device::cpu())?;
/// source.read(&[100, 1], &mut generator)?;
/// let step = generator.forward(&[source.start()])?;
/// assert_eq!(step.logits.len(), model.spec.encoder.vocab);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Seq2Seq {
    /// Graph from a text to hidden states and cross-attention keys and values.
    pub encoder: ModelGraph,
    /// Graph from tokens to logits.
    pub decoder: ModelGraph,
    /// Configuration of the model.
    pub spec: Seq2SeqSpec,
    /// Options that the graphs were built with.
    pub options: Seq2SeqOptions,
}

/// Maximum context: the relative position bias is computed for every pair of positions.
const MAX_CONTEXT: usize = 1 << 15;

impl Seq2Seq {
    /// Builds both graphs from the weights of a folder.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing, has an unexpected shape or format, or if the context
    /// is zero or too large.
    pub fn build(
        spec: &Seq2SeqSpec,
        weights: &Weights,
        options: Seq2SeqOptions,
    ) -> Result<Seq2Seq, ModelError> {
        let context = options.context;
        if !(1..=MAX_CONTEXT).contains(&context) {
            return Err(ModelError::Unsupported(format!(
                "context length {context} is out of range; expected 1 to {MAX_CONTEXT} tokens"
            )));
        }
        let mut spec = spec.clone();
        spec.encoder.context = context;
        Ok(Seq2Seq {
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
    pub fn compile(&self, device: &Device) -> Result<(SourceEncoder, Generator), ModelError> {
        let Seq2SeqOptions { context, sampling } = self.options;
        let chunk = context.min(CHUNK);
        let of_encoder = CompileOptions::new().bound("c", context);
        let of_decoder = CompileOptions::new()
            .bound("c", context)
            .bound("s", chunk)
            .bound("r", 1);
        let reader = SourceEncoder {
            exe: self.encoder.compile(device, &of_encoder)?,
            layers: self.spec.decoder_layers,
            start: self.spec.start,
            context,
            vocab: self.spec.encoder.vocab,
        };
        let exe = self.decoder.compile(device, &of_decoder)?;
        let sizes = DecoderSizes {
            has_states: false,
            context,
            chunk,
            vocab: self.spec.encoder.vocab,
            logit_rows: 1,
            dtype: DType::F32,
            has_visible_input: false,
            windows: Vec::new(),
        };
        let generator = Generator::from_executable(exe, None, &self.decoder, sizes, sampling)?;
        Ok((reader, generator))
    }
}

/// Maximum tokens per decoder run. Usually each run processes one token.
const CHUNK: usize = 32;

/// A compiled encoder; it provides a [`Generator`] with the input text for cross-attention.
///
/// ```no_run
/// use tercet::Device;
/// use tercet_models::{ModelFiles, Seq2SeqOptions, SourceEncoder};
/// let model = ModelFiles::open("flan-t5-small")?.seq2seq(Seq2SeqOptions::new)?;
/// let (mut source, mut generator): (SourceEncoder, _) = model.compile(&Device::cpu())?;
/// source.read(&[100, 1], &mut generator)?;
/// assert_eq!(source.start(), model.spec.start);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SourceEncoder {
    exe: Box<dyn Executable>,
    layers: usize,
    start: u32,
    context: usize,
    vocab: usize,
}

impl SourceEncoder {
    /// Encodes an input text and resets the generator, which then generates from this text. Append
    /// [`Self::start`] to the generator first.
    ///
    /// # Errors
    /// [`ModelError::NoTokens`], [`ModelError::Context`], [`ModelError::Token`];
    /// [`ModelError::Run`] of the device.
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
        let ids = ids.expect("invariant: the shape matches the number of elements");
        generator.reset();
        let inputs = [("ids", &ids)];
        hand_over(&mut *self.exe, &inputs, self.layers, &mut |name, part| {
            generator.bind(name, part)
        })
    }

    /// Id of the decoder start token.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// Hidden states of the last encoded text, F32 `[1, tokens, hidden]`.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device, or if no text was encoded yet.
    pub fn hidden(&mut self) -> Result<Tensor, ModelError> {
        Ok(self.exe.read_output_rows("hidden", 0..1)?)
    }
}

fn projections(spec: &Seq2SeqSpec) -> AttentionProjections {
    let of = &spec.encoder;
    AttentionProjections {
        names: ["q", "k", "v", "o"].map(|name| (name, false)),
        heads: of.heads,
        head_dim: of.head_dim,
        width: of.hidden,
        scale: of.attention_scale,
        rope: None,
    }
}

/// Encoder graph with the decoder's cross-attention keys and values as outputs.
fn encoder(spec: &Seq2SeqSpec, weights: &Weights) -> Result<ModelGraph, ModelError> {
    let mut b = ModelBuilder::new(weights, DType::F32);
    let len = Dim::sym("c");
    let shape = [Dim::Known(1), len.clone()];
    let ids = b.graph.input("ids", Type::new(DType::I32, shape))?;
    let texts = EncoderTexts {
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

/// Norm of `x` with the weights of this name.
fn norm(
    b: &mut ModelBuilder<'_>,
    spec: &Seq2SeqSpec,
    name: &str,
    x: Value,
) -> Result<Value, ModelError> {
    let gain = b.vector(&format!("{name}.weight"), spec.encoder.hidden)?;
    let eps = f64::from(spec.encoder.norm.eps);
    Ok(b.graph.rms_norm(x, gain, None, eps)?)
}

/// Feed-forward block with its norm and residual connection.
fn feed_forward(
    b: &mut ModelBuilder<'_>,
    spec: &Seq2SeqSpec,
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

/// Decoder graph with a KV cache of the whole context.
fn decoder(
    spec: &Seq2SeqSpec,
    weights: &Weights,
    options: &Seq2SeqOptions,
) -> Result<ModelGraph, ModelError> {
    let mut b = ModelBuilder::new(weights, DType::F32);
    let of = projections(spec);
    let AttentionProjections {
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
    let bias = match spec.encoder.relative_position_bias {
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
        let keys = KeyValueSource::Cached(CrossAttentionCache {
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
        let keys = KeyValueSource::CrossAttention([given(&k)?, given(&v)?]);
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
    let output = if spec.untied_output {
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
