//! Whisper: F32 graphs for any [`SpeechSpec`](crate::SpeechSpec).
//!
//! There are three graphs: features run once per part of the audio, the encoder once per window,
//! the decoder once per token. The encoder outputs the cross-attention keys and values; they stay
//! on the device and are bound to inputs of the decoder.
//!
//! | graph | inputs | outputs |
//! |---|---|---|
//! | features | `samples [160 n + 240]` for `n` frames | `log_mel [n, mels]`, base-10 logarithm |
//! | encoder | `features [1, mels, frames]` | `hidden [1, positions, width]`; for each layer `cross.0.k` and `cross.0.v [1, positions, heads, head_dim]` |
//! | decoder | `tokens [s]`, `positions [s]`, `start [4]`, `kv_len []`, `rows [r]` (all I32, as for [`Decoder`](crate::Decoder)); the encoder's keys and values of each layer | `logits [r, vocab]` |

mod layer;
mod mel;
pub(crate) mod moonshine;

use tercet::ops::Window;
use tercet::scalar::{BinaryFn, UnaryFn};
use tercet::{CompileOptions, DType, Device, Dim, Executable, Shape, Type, Value};

use super::cross_attention::{CrossAttentionCache, KeyValueSource, attend, cross, keys_and_values};
use super::decoder::layer::activate;
use super::{ModelBuilder, ModelError, ModelGraph, Weights};
use crate::config::speech::{FRAME, HOP};
use crate::config::{FfnActivation, SpeechSpec};
use layer::{feed_forward, layer_norm, plus, projections};
pub use moonshine::MoonshineModel;

/// Maximum rows of logits per run.
pub(crate) const LOGIT_ROWS: usize = 2;

/// A speech recognition model: graphs and parameters.
///
/// ```no_run
/// use tercet_models::{ModelFiles, SpeechModel};
/// let model: SpeechModel = ModelFiles::open("whisper-tiny")?.speech()?;
/// assert_eq!(model.spec.frames(), 3000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SpeechModel {
    /// Graph from samples to log-mel features.
    pub features: ModelGraph,
    /// Graph from features to cross-attention keys and values.
    pub encoder: ModelGraph,
    /// Graph from tokens to logits.
    pub decoder: ModelGraph,
    /// Configuration that the graphs were built from.
    pub spec: SpeechSpec,
}

impl SpeechModel {
    /// Feature frames per run of the graph of features.
    pub const FRAMES_PER_RUN: usize = 1000;

    /// Builds the graphs from the weights of a folder.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing or has an unexpected shape or format.
    pub fn build(spec: &SpeechSpec, weights: &Weights) -> Result<SpeechModel, ModelError> {
        Ok(SpeechModel {
            features: features(spec, weights)?,
            encoder: encoder(spec, weights)?,
            decoder: decoder(spec, weights)?,
            spec: spec.clone(),
        })
    }

    /// Compiles the feature, encoder and decoder graphs for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile(&self, device: &Device) -> Result<[Box<dyn Executable>; 3], ModelError> {
        let options = CompileOptions::new()
            .bound("s", self.spec.text_positions)
            .bound("r", LOGIT_ROWS);
        let fixed = CompileOptions::new();
        Ok([
            self.features.compile(device, &fixed)?,
            self.encoder.compile(device, &fixed)?,
            self.decoder.compile(device, &options)?,
        ])
    }
}

/// Graph for the log-mel features of [`SpeechModel::FRAMES_PER_RUN`] frames.
fn features(spec: &SpeechSpec, weights: &Weights) -> Result<ModelGraph, ModelError> {
    let mut b = ModelBuilder::new(weights, DType::F32);
    let g = &mut b.graph;
    let samples = g.input(
        "samples",
        Type::new(
            DType::F32,
            [HOP * (SpeechModel::FRAMES_PER_RUN - 1) + FRAME],
        ),
    )?;
    let window = g.constant(mel::hann())?;
    let spectrum = g.stft(samples, window, FRAME, HOP)?;
    let squares = g.mul(spectrum, spectrum)?;
    let power = g.reduce_sum(squares, &[2], false)?;
    let filters = g.constant(mel::filters(spec.mels)?)?;
    let mel = g.matmul(power, filters)?;
    let least = g.scalar(DType::F32, 1e-10)?;
    let mel = g.binary(BinaryFn::Max, mel, least)?;
    let log = g.unary(UnaryFn::Log2, mel)?;
    let base = g.scalar(DType::F32, std::f64::consts::LOG10_2)?;
    let log = g.mul(log, base)?;
    g.output("log_mel", log)?;
    Ok(b.finish())
}

/// Encoder graph of one window, with the decoder's cross-attention keys and values as outputs.
fn encoder(spec: &SpeechSpec, weights: &Weights) -> Result<ModelGraph, ModelError> {
    let mut b = ModelBuilder::new(weights, DType::F32);
    let (width, positions) = (spec.width, spec.audio_positions);
    let ty = Type::new(DType::F32, [1, spec.mels, spec.frames()]);
    let features = b.graph.input("features", ty)?;
    let x = convolved(&mut b, "conv1", features, [width, spec.mels], 1)?;
    let x = convolved(&mut b, "conv2", x, [width, width], 2)?;
    let x = b.graph.transpose(x, &[0, 2, 1])?;
    let table = b.dense("model.encoder.embed_positions.weight", &[positions, width])?;
    let mut x = b.graph.plus(x, table)?;
    let of = projections(spec.encoder_heads, width);
    let len = Dim::Known(positions);
    for at in 0..spec.encoder_layers {
        let layer = format!("model.encoder.layers.{at}");
        let h = layer_norm(&mut b, &format!("{layer}.self_attn_layer_norm"), width, x)?;
        let name = format!("{layer}.self_attn");
        let y = attend(&mut b, (&name, &of), h, &len, KeyValueSource::SelfAttention)?;
        x = plus(&mut b, x, y)?;
        x = feed_forward(
            &mut b,
            (&layer, spec.encoder_ffn, width),
            spec.activation,
            x,
        )?;
    }
    let x = layer_norm(&mut b, "model.encoder.layer_norm", width, x)?;
    b.graph.output("hidden", x)?;
    let of = projections(spec.decoder_heads, width);
    for at in 0..spec.decoder_layers {
        let name = format!("model.decoder.layers.{at}.encoder_attn");
        let parts = keys_and_values(&mut b, (&name, &of), x, &len)?;
        for (name, part) in cross(at).iter().zip(parts) {
            b.graph.output(name, part)?;
        }
    }
    Ok(b.finish())
}

/// Convolution over three frames, followed by GELU.
fn convolved(
    b: &mut ModelBuilder<'_>,
    name: &str,
    x: Value,
    [outputs, inputs]: [usize; 2],
    stride: usize,
) -> Result<Value, ModelError> {
    let name = format!("model.encoder.{name}");
    let w = b.dense(&format!("{name}.weight"), &[outputs, inputs, 3])?;
    let bias = b.vector(&format!("{name}.bias"), outputs)?;
    let window = Window::new(1).with_stride(&[stride]).with_pads(&[1], &[1]);
    let y = b.graph.conv(x, w, Some(bias), window, 1)?;
    // Always GELU: the configured activation applies only to the feed-forward networks.
    activate(b, FfnActivation::Gelu, y)
}

/// Decoder graph with a KV cache of all positions.
fn decoder(spec: &SpeechSpec, weights: &Weights) -> Result<ModelGraph, ModelError> {
    let mut b = ModelBuilder::new(weights, DType::F32);
    let width = spec.width;
    let (len, rows) = (Dim::sym("s"), Dim::sym("r"));
    let ids = |of: Dim| Type::new(DType::I32, [of]);
    let tokens = b.graph.input("tokens", ids(len.clone()))?;
    let positions = b.graph.input("positions", ids(len.clone()))?;
    let start = b.graph.input("start", ids(Dim::Known(4)))?;
    let kv_len = Type::new(DType::I32, Shape::default());
    let kv_len = b.graph.input("kv_len", kv_len)?;
    let rows = b.graph.input("rows", ids(rows))?;
    let table = "model.decoder.embed_tokens.weight";
    let x = b.embedding(tokens, table, [spec.vocab, width])?;
    let name = "model.decoder.embed_positions.weight";
    let at = b.embedding(positions, name, [spec.text_positions, width])?;
    let mut x = b.graph.plus(x, at)?;
    let heads = spec.decoder_heads;
    let of = projections(heads, width);
    let cross_ty = [1, spec.audio_positions, heads, width / heads];
    for at in 0..spec.decoder_layers {
        let layer = format!("model.decoder.layers.{at}");
        let h = layer_norm(&mut b, &format!("{layer}.self_attn_layer_norm"), width, x)?;
        let keys = KeyValueSource::Cached(CrossAttentionCache {
            layer: at,
            context: spec.text_positions,
            start,
            kv_len,
            bias: None,
        });
        let name = format!("{layer}.self_attn");
        let y = attend(&mut b, (&name, &of), h, &len, keys)?;
        x = plus(&mut b, x, y)?;
        let h = layer_norm(
            &mut b,
            &format!("{layer}.encoder_attn_layer_norm"),
            width,
            x,
        )?;
        let mut given = |name: &String| b.graph.input(name, Type::new(DType::F32, cross_ty));
        let [k, v] = cross(at);
        let keys = KeyValueSource::CrossAttention([given(&k)?, given(&v)?]);
        let name = format!("{layer}.encoder_attn");
        let y = attend(&mut b, (&name, &of), h, &len, keys)?;
        x = plus(&mut b, x, y)?;
        x = feed_forward(
            &mut b,
            (&layer, spec.decoder_ffn, width),
            spec.activation,
            x,
        )?;
    }
    let x = b.graph.gather(x, rows, 0)?;
    let x = layer_norm(&mut b, "model.decoder.layer_norm", width, x)?;
    let logits = b.linear(x, table, None, [spec.vocab, width])?;
    b.graph.output("logits", logits)?;
    Ok(b.finish())
}
