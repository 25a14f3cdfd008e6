//! Moonshine: F32 graphs for any [`MoonshineSpec`].
//!
//! There are two graphs, as for Whisper but without features: the encoder reads frames of raw
//! samples, once per audio chunk. The encoder's convolutions are matmuls of gathered rows, because
//! the chunk length is known only at run time.
//!
//! | graph | inputs | outputs |
//! |---|---|---|
//! | encoder | `frames [f, 127]`: a frame of samples every 64; `second [g, 7]` and `third [p, 3]` I32: input rows of the next two convolutions; `positions [p]` I32 | `hidden [1, p, width]`; for each layer `cross.0.k` and `cross.0.v [1, p, heads, head_dim]` |
//! | decoder | `tokens [s]`, `positions [s]`, `start [4]`, `kv_len []`, `rows [r]` (all I32); the encoder's keys and values of each layer | `logits [r, vocab]` |

use tercet::scalar::UnaryFn;
use tercet::{
    CompileOptions, DType, Device, Dim, Executable, Shape, Tensor, TensorError, Type, Value,
};

use super::super::cross_attention::{
    AttentionProjections, CrossAttentionCache, InterleavedRope, KeyValueSource, attend, cross,
    keys_and_values,
};
use super::super::decoder::layer::{activate, rope_table};
use super::super::{ModelBuilder, ModelError, ModelGraph, Weights};
use super::LOGIT_ROWS;
use super::layer::EPS;
use crate::config::speech::{RATE, RAW_FRAME, RAW_HOP, STEMS};
use crate::config::{MoonshineSpec, RopeSpec};

/// A speech recognition model on raw samples: graphs and parameters.
///
/// ```
/// use tercet_networks::MoonshineModel;
/// let inputs = MoonshineModel::inputs(&[0.0; 16_000])?;
/// assert_eq!(inputs.map(|(name, _)| name), ["frames", "second", "third", "positions"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MoonshineModel {
    /// Graph from frames of samples to cross-attention keys and values.
    pub encoder: ModelGraph,
    /// Graph from tokens to logits.
    pub decoder: ModelGraph,
    /// Configuration that the graphs were built from.
    pub spec: MoonshineSpec,
}

/// Minimum length of an audio chunk, in samples.
const MIN_SAMPLES: usize = RATE / 10;

/// Output rows of each of the three convolutions for this number of samples.
fn rows_of(samples: usize) -> [usize; 3] {
    let after = |rows: usize, [kernel, stride]: [usize; 2]| match rows.checked_sub(kernel) {
        Some(rest) => rest / stride + 1,
        None => 0,
    };
    let frames = after(samples, [RAW_FRAME, RAW_HOP]);
    let second = after(frames, STEMS[0]);
    [frames, second, after(second, STEMS[1])]
}

impl MoonshineModel {
    /// Maximum length of an audio chunk, in seconds.
    pub const MAX_SECONDS: usize = 30;

    /// Builds the graphs from the weights of a folder.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing or has an unexpected shape or format.
    pub fn build(spec: &MoonshineSpec, weights: &Weights) -> Result<MoonshineModel, ModelError> {
        Ok(MoonshineModel {
            encoder: encoder(spec, weights)?,
            decoder: decoder(spec, weights)?,
            spec: spec.clone(),
        })
    }

    /// Encoder inputs for 16 kHz mono samples. Chunks shorter than 0.1 seconds are padded with
    /// silence. The compiled encoder accepts at most 30 seconds.
    ///
    /// # Errors
    /// [`TensorError`] if the tensors do not fit into memory.
    pub fn inputs(samples: &[f32]) -> Result<[(&'static str, Tensor); 4], TensorError> {
        let mut padded;
        let samples = match samples.len() < MIN_SAMPLES {
            true => {
                padded = samples.to_vec();
                padded.resize(MIN_SAMPLES, 0.0);
                &padded
            }
            false => samples,
        };
        let [frames, second, positions] = rows_of(samples.len());
        let of_frame = |at: usize| samples[at * RAW_HOP..][..RAW_FRAME].iter().copied();
        let all: Vec<f32> = (0..frames).flat_map(of_frame).collect();
        let which = |rows: usize, [kernel, stride]: [usize; 2]| {
            let of_row = move |row: usize| (0..kernel).map(move |at| (row * stride + at) as i32);
            let all: Vec<i32> = (0..rows).flat_map(of_row).collect();
            Tensor::from_slice(&[rows, kernel], &all)
        };
        let places: Vec<i32> = (0..positions as i32).collect();
        Ok([
            ("frames", Tensor::from_slice(&[frames, RAW_FRAME], &all)?),
            ("second", which(second, STEMS[0])?),
            ("third", which(positions, STEMS[1])?),
            ("positions", Tensor::from_slice(&[positions], &places)?),
        ])
    }

    /// Compiles the encoder and decoder for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile(&self, device: &Device) -> Result<[Box<dyn Executable>; 2], ModelError> {
        let [frames, second, positions] = rows_of(MoonshineModel::MAX_SECONDS * RATE);
        let of_encoder = CompileOptions::new()
            .bound("f", frames)
            .bound("g", second)
            .bound("p", positions);
        let of_decoder = CompileOptions::new()
            .bound("p", positions)
            .bound("s", self.spec.text_positions)
            .bound("r", LOGIT_ROWS);
        Ok([
            self.encoder.compile(device, &of_encoder)?,
            self.decoder.compile(device, &of_decoder)?,
        ])
    }
}

fn projections(spec: &MoonshineSpec, turn: Option<InterleavedRope>) -> AttentionProjections {
    AttentionProjections {
        names: [
            ("q_proj", spec.bias),
            ("k_proj", spec.bias),
            ("v_proj", spec.bias),
            ("o_proj", false),
        ],
        heads: spec.heads,
        head_dim: spec.width / spec.heads,
        width: spec.width,
        scale: None,
        rope: turn,
    }
}

/// RoPE cosines and sines of these positions; the table has `most` positions.
fn turn(
    b: &mut ModelBuilder<'_>,
    spec: &MoonshineSpec,
    max_positions: usize,
    positions: Value,
) -> Result<InterleavedRope, ModelError> {
    let dims = spec.rope_dims;
    let [cos, sin] = rope_table(
        b,
        &RopeSpec::new(spec.theta),
        [dims, max_positions],
        positions,
    )?;
    Ok(InterleavedRope { cos, sin, dims })
}

/// Layer norm with a gain and no bias.
fn norm(b: &mut ModelBuilder<'_>, name: &str, width: usize, x: Value) -> Result<Value, ModelError> {
    let gain = b.vector(&format!("{name}.weight"), width)?;
    let axis = b.graph.ty(x).rank() - 1;
    Ok(b.graph.layer_norm(x, gain, None, axis, EPS)?)
}

fn biased(
    b: &mut ModelBuilder<'_>,
    name: &str,
    x: Value,
    shape: [usize; 2],
) -> Result<Value, ModelError> {
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    b.linear(x, &weight, Some(&bias), shape)
}

/// Encoder graph of one audio chunk, with the decoder's cross-attention keys and values as outputs.
fn encoder(spec: &MoonshineSpec, weights: &Weights) -> Result<ModelGraph, ModelError> {
    let mut b = ModelBuilder::new(weights, DType::F32);
    let width = spec.width;
    let (frames, len) = (Dim::sym("f"), Dim::sym("p"));
    let ty = Type::new(DType::F32, [frames, RAW_FRAME.into()]);
    let x = b.graph.input("frames", ty)?;
    let x = first(&mut b, spec, x)?;
    let x = gathered(
        &mut b,
        ("second", "conv2", "g"),
        x,
        [2 * width, width],
        STEMS[0],
    )?;
    let x = gathered(
        &mut b,
        ("third", "conv3", "p"),
        x,
        [width, 2 * width],
        STEMS[1],
    )?;
    let positions = Type::new(DType::I32, [len.clone()]);
    let positions = b.graph.input("positions", positions)?;
    let [.., most] = rows_of(MoonshineModel::MAX_SECONDS * RATE);
    let turn = turn(&mut b, spec, most, positions)?;
    let of = projections(spec, Some(turn));
    let mut x = x;
    for at in 0..spec.encoder_layers {
        let layer = format!("model.encoder.layers.{at}");
        let h = norm(&mut b, &format!("{layer}.input_layernorm"), width, x)?;
        let name = format!("{layer}.self_attn");
        let y = attend(&mut b, (&name, &of), h, &len, KeyValueSource::SelfAttention)?;
        x = b.graph.plus(x, y)?;
        let name = format!("{layer}.post_attention_layernorm");
        let h = norm(&mut b, &name, width, x)?;
        let h = biased(&mut b, &format!("{layer}.mlp.fc1"), h, [spec.ffn, width])?;
        let h = activate(&mut b, spec.encoder_activation, h)?;
        let y = biased(&mut b, &format!("{layer}.mlp.fc2"), h, [width, spec.ffn])?;
        x = b.graph.plus(x, y)?;
    }
    let x = norm(&mut b, "model.encoder.layer_norm", width, x)?;
    let hidden = b.graph.unsqueeze(x, 0)?;
    b.graph.output("hidden", hidden)?;
    let of = projections(spec, None);
    for at in 0..spec.decoder_layers {
        let name = format!("model.decoder.layers.{at}.encoder_attn");
        let parts = keys_and_values(&mut b, (&name, &of), x, &len)?;
        for (name, part) in cross(at).iter().zip(parts) {
            b.graph.output(name, part)?;
        }
    }
    Ok(b.finish())
}

/// First convolution as a matmul over frames, followed by tanh and a group norm over all rows and
/// channels.
fn first(
    b: &mut ModelBuilder<'_>,
    spec: &MoonshineSpec,
    frames: Value,
) -> Result<Value, ModelError> {
    let width = spec.width;
    let name = "model.encoder.conv1.weight";
    let w = b.dense(name, &[width, 1, RAW_FRAME])?;
    let w = b.graph.reshape(w, [width, RAW_FRAME])?;
    let w = b.graph.transpose(w, &[1, 0])?;
    let x = b.graph.matmul(frames, w)?;
    let x = b.graph.unary(UnaryFn::Tanh, x)?;
    let mean = b.graph.reduce_mean(x, &[0, 1], true)?;
    let x = b.graph.sub(x, mean)?;
    let squares = b.graph.mul(x, x)?;
    let variance = b.graph.reduce_mean(squares, &[0, 1], true)?;
    let eps = b.graph.scalar(DType::F32, EPS)?;
    let variance = b.graph.plus(variance, eps)?;
    let scale = b.graph.unary(UnaryFn::Rsqrt, variance)?;
    let x = b.graph.mul(x, scale)?;
    let gain = b.vector("model.encoder.groupnorm.weight", width)?;
    let bias = b.vector("model.encoder.groupnorm.bias", width)?;
    let x = b.graph.mul(x, gain)?;
    Ok(b.graph.plus(x, bias)?)
}

/// Convolution over gathered rows, followed by GELU. The input `input` contains the row indices of
/// each output row.
fn gathered(
    b: &mut ModelBuilder<'_>,
    (input, conv, rows): (&str, &str, &str),
    x: Value,
    [outputs, inputs]: [usize; 2],
    [kernel, _]: [usize; 2],
) -> Result<Value, ModelError> {
    let rows = Dim::sym(rows);
    let ty = Type::new(DType::I32, [rows.clone(), kernel.into()]);
    let which = b.graph.input(input, ty)?;
    let x = b.graph.gather(x, which, 0)?;
    let x = b.graph.reshape(x, [rows, (kernel * inputs).into()])?;
    let name = format!("model.encoder.{conv}");
    let w = b.dense(&format!("{name}.weight"), &[outputs, inputs, kernel])?;
    let w = b.graph.transpose(w, &[2, 1, 0])?;
    let w = b.graph.reshape(w, [kernel * inputs, outputs])?;
    let y = b.graph.matmul(x, w)?;
    let bias = b.vector(&format!("{name}.bias"), outputs)?;
    let y = b.graph.plus(y, bias)?;
    Ok(b.graph.unary(UnaryFn::Gelu, y)?)
}

/// Decoder graph with a KV cache of all positions.
fn decoder(spec: &MoonshineSpec, weights: &Weights) -> Result<ModelGraph, ModelError> {
    let mut b = ModelBuilder::new(weights, DType::F32);
    let (width, context) = (spec.width, spec.text_positions);
    let (len, rows) = (Dim::sym("s"), Dim::sym("r"));
    let ids = |of: Dim| Type::new(DType::I32, [of]);
    let tokens = b.graph.input("tokens", ids(len.clone()))?;
    let positions = b.graph.input("positions", ids(len.clone()))?;
    let start = b.graph.input("start", ids(Dim::Known(4)))?;
    let kv_len = Type::new(DType::I32, Shape::default());
    let kv_len = b.graph.input("kv_len", kv_len)?;
    let rows = b.graph.input("rows", ids(rows))?;
    let table = "model.decoder.embed_tokens.weight";
    let mut x = b.embedding(tokens, table, [spec.vocab, width])?;
    let turn = turn(&mut b, spec, context, positions)?;
    let (own, other) = (projections(spec, Some(turn)), projections(spec, None));
    let size = width / spec.heads;
    let cross_ty = [Dim::Known(1), Dim::sym("p"), spec.heads.into(), size.into()];
    for at in 0..spec.decoder_layers {
        let layer = format!("model.decoder.layers.{at}");
        let h = norm(&mut b, &format!("{layer}.input_layernorm"), width, x)?;
        let keys = KeyValueSource::Cached(CrossAttentionCache {
            layer: at,
            context,
            start,
            kv_len,
            bias: None,
        });
        let name = format!("{layer}.self_attn");
        let y = attend(&mut b, (&name, &own), h, &len, keys)?;
        x = b.graph.plus(x, y)?;
        let name = format!("{layer}.post_attention_layernorm");
        let h = norm(&mut b, &name, width, x)?;
        let mut given =
            |name: &String| b.graph.input(name, Type::new(DType::F32, cross_ty.clone()));
        let [k, v] = cross(at);
        let keys = KeyValueSource::CrossAttention([given(&k)?, given(&v)?]);
        let name = format!("{layer}.encoder_attn");
        let y = attend(&mut b, (&name, &other), h, &len, keys)?;
        x = b.graph.plus(x, y)?;
        let h = norm(&mut b, &format!("{layer}.final_layernorm"), width, x)?;
        let both = biased(
            &mut b,
            &format!("{layer}.mlp.fc1"),
            h,
            [2 * spec.ffn, width],
        )?;
        let up = b.graph.narrow(both, 1, 0, spec.ffn)?;
        let gate = b.graph.narrow(both, 1, spec.ffn, spec.ffn)?;
        let gate = activate(&mut b, spec.decoder_activation, gate)?;
        let h = b.graph.mul(gate, up)?;
        let y = biased(&mut b, &format!("{layer}.mlp.fc2"), h, [width, spec.ffn])?;
        x = b.graph.plus(x, y)?;
    }
    let x = b.graph.gather(x, rows, 0)?;
    let x = norm(&mut b, "model.decoder.norm", width, x)?;
    let logits = b.linear(x, table, None, [spec.vocab, width])?;
    b.graph.output("logits", logits)?;
    Ok(b.finish())
}
