//! Attention shared by encoder-decoder models: over the decoder's own rows, over cached keys and
//! values, and over the encoder's output (cross-attention). The keys and values of cross-attention
//! pass from encoder to decoder on the device.

use tercet::ops::{AttentionLayout, AttentionOptions, RopeStyle};
use tercet::{DType, Dim, Executable, OutputSelection, Type, Value};

use super::decoder::attention::append;
use super::{ModelBuilder, ModelError};

/// Names and sizes of the projections of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionProjections {
    /// Tensor name of the query, key, value and output projection, and whether each has a bias.
    pub(super) names: [(&'static str, bool); 4],
    /// Number of attention heads.
    pub(super) heads: usize,
    /// Elements per head.
    pub(super) head_dim: usize,
    /// Width of the attention's input and output.
    pub(super) width: usize,
    /// Factor of the attention scores; `None` means `head_dim^-0.5`.
    pub(super) scale: Option<f64>,
    /// Rotary embedding applied to queries and to self-attention keys.
    pub(super) rope: Option<InterleavedRope>,
}

/// Rotary embedding that rotates pairs of adjacent elements (GPT-J style).
#[derive(Clone, Copy, Debug)]
pub(super) struct InterleavedRope {
    /// Cosines for the positions of this run, `[len, dims / 2]`.
    pub(super) cos: Value,
    /// Sines for the positions of this run, `[len, dims / 2]`.
    pub(super) sin: Value,
    /// Number of leading elements of each head that are rotated.
    pub(super) dims: usize,
}

/// Source of the keys and values of an attention layer.
pub(super) enum KeyValueSource {
    /// Self-attention without a cache: keys and values come from the input rows.
    SelfAttention,
    /// Self-attention with a KV cache: the input rows are appended to it.
    Cached(CrossAttentionCache),
    /// Cross-attention: precomputed keys and values, `[1, positions, heads, head_dim]`.
    CrossAttention([Value; 2]),
}

/// KV cache of one decoder layer.
pub(super) struct CrossAttentionCache {
    pub(super) layer: usize,
    /// Capacity of the cache in positions.
    pub(super) context: usize,
    pub(super) start: Value,
    pub(super) kv_len: Value,
    /// Additive score bias that also masks later positions. `None` means plain causal attention.
    pub(super) bias: Option<Value>,
}

/// Attention output for `h`, `[.., len, width]`; the projection weights have the name prefix
/// `name`.
pub(super) fn attend(
    b: &mut ModelBuilder<'_>,
    (name, of): (&str, &AttentionProjections),
    h: Value,
    len: &Dim,
    keys: KeyValueSource,
) -> Result<Value, ModelError> {
    let AttentionProjections {
        names,
        heads,
        head_dim,
        width,
        scale,
        rope: turn,
    } = *of;
    let inner = heads * head_dim;
    let mut shape = b.graph.ty(h).shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = inner.into();
    }
    let q = projected(b, name, names[0], h, [inner, width])?;
    let mut q = by_head(b, q, len, of)?;
    let turned = |b: &mut ModelBuilder<'_>, x: Value| match turn {
        Some(InterleavedRope { cos, sin, dims }) => {
            let style = RopeStyle::GptJ;
            Ok::<_, ModelError>(
                b.graph
                    .rope(x, cos, sin, style, dims, AttentionLayout::Bshd)?,
            )
        }
        None => Ok(x),
    };
    let mut options = AttentionOptions::new(heads, heads, AttentionLayout::Bshd);
    if let Some(scale) = scale {
        options = options.scale(scale);
    }
    let (k, v, options) = match keys {
        KeyValueSource::SelfAttention => {
            let [k, v] = keys_and_values(b, (name, of), h, len)?;
            q = turned(b, q)?;
            (turned(b, k)?, v, options)
        }
        KeyValueSource::Cached(CrossAttentionCache {
            layer,
            context,
            start,
            kv_len,
            bias,
        }) => {
            let [k, v] = keys_and_values(b, (name, of), h, len)?;
            q = turned(b, q)?;
            let k = turned(b, k)?;
            let ty = Type::new(DType::F32, [1, context, heads, head_dim]);
            let k = append(b, &format!("cache.{layer}.k"), k, &ty, start)?;
            let v = append(b, &format!("cache.{layer}.v"), v, &ty, start)?;
            let options = match bias {
                Some(bias) => options.bias(bias),
                None => options.causal(),
            };
            (k, v, options.kv_len(kv_len))
        }
        KeyValueSource::CrossAttention([k, v]) => (k, v, options),
    };
    let y = b.graph.attention(q, k, v, options)?;
    let y = b.graph.reshape(y, shape)?;
    projected(b, name, names[3], y, [width, inner])
}

/// Keys and values of `h` per head, each `[1, len, heads, head_dim]`.
pub(super) fn keys_and_values(
    b: &mut ModelBuilder<'_>,
    (name, of): (&str, &AttentionProjections),
    h: Value,
    len: &Dim,
) -> Result<[Value; 2], ModelError> {
    let shape = [of.heads * of.head_dim, of.width];
    let k = projected(b, name, of.names[1], h, shape)?;
    let v = projected(b, name, of.names[2], h, shape)?;
    Ok([by_head(b, k, len, of)?, by_head(b, v, len, of)?])
}

fn by_head(
    b: &mut ModelBuilder<'_>,
    x: Value,
    len: &Dim,
    of: &AttentionProjections,
) -> Result<Value, ModelError> {
    let (heads, size) = (of.heads.into(), of.head_dim.into());
    Ok(b.graph
        .reshape(x, [Dim::Known(1), len.clone(), heads, size])?)
}

fn projected(
    b: &mut ModelBuilder<'_>,
    name: &str,
    (part, biased): (&str, bool),
    x: Value,
    shape: [usize; 2],
) -> Result<Value, ModelError> {
    let weight = format!("{name}.{part}.weight");
    let bias = biased.then(|| format!("{name}.{part}.bias"));
    b.linear(x, &weight, bias.as_deref(), shape)
}

/// Names of a layer's cross-attention keys and values: outputs of the encoder and inputs of the
/// decoder.
pub(crate) fn cross(layer: usize) -> [String; 2] {
    ["k", "v"].map(|what| format!("cross.{layer}.{what}"))
}

/// Runs an encoder and passes its cross-attention keys and values to the decoder on the device.
/// `bind` binds one tensor to the decoder.
///
/// # Errors
/// [`ModelError::Run`] of the device.
pub fn hand_over(
    encoder: &mut dyn Executable,
    inputs: &[(&str, &tercet::Tensor)],
    layers: usize,
    bind: &mut dyn FnMut(&str, &tercet::DeviceTensor) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    encoder.submit(inputs, OutputSelection::Only(&[]))?;
    encoder.wait(&mut Vec::new())?;
    for name in (0..layers).flat_map(cross) {
        let part = encoder.output_on_device(&name)?;
        bind(&name, &part)?;
    }
    Ok(())
}
