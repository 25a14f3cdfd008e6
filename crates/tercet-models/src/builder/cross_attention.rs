//! What decoders that read what an encoder read have in common: attention over own, cached and given keys, and how keys and values
//! get from the one to the other on a device.

use tercet::ops::{AttentionOptions, Layout, RopeStyle};
use tercet::{DType, Dim, Executable, Type, Value, Wanted};

use super::decoder::attention::append;
use super::{Builder, ModelError};

/// The projections of an attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projections {
    /// What those of queries, keys, values and results are called, and whether they have a bias.
    pub(super) names: [(&'static str, bool); 4],
    /// Heads.
    pub(super) heads: usize,
    /// Elements of a head.
    pub(super) head_dim: usize,
    /// The width of what is read and written.
    pub(super) width: usize,
    /// The factor of the scores; `head_dim^-0.5` where there is none.
    pub(super) scale: Option<f64>,
    /// What turns queries and own keys.
    pub(super) turn: Option<Turn>,
}

/// A rotary embedding of neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Of the positions at hand, `[len, dims / 2]`.
    pub(super) cos: Value,
    /// The same.
    pub(super) sin: Value,
    /// Leading elements of a head that are turned.
    pub(super) dims: usize,
}

/// Where keys and values come from.
pub(super) enum Keys {
    /// The rows themselves.
    Own,
    /// The rows, appended to those before.
    Cached(Cache),
    /// Elsewhere, `[1, positions, heads, head_dim]`.
    Given([Value; 2]),
}

/// Keys and values of a layer of a decoder.
pub(super) struct Cache {
    pub(super) layer: usize,
    /// How many fit.
    pub(super) context: usize,
    pub(super) start: Value,
    pub(super) kv_len: Value,
    /// Terms of the scores, which hide what comes after a query; queries see what is before them where there are none.
    pub(super) bias: Option<Value>,
}

/// Attention of `h`, `[.., len, width]`, projected by the tensors below `name`.
pub(super) fn attend(
    b: &mut Builder<'_>,
    (name, of): (&str, &Projections),
    h: Value,
    len: &Dim,
    keys: Keys,
) -> Result<Value, ModelError> {
    let Projections {
        names,
        heads,
        head_dim,
        width,
        scale,
        turn,
    } = *of;
    let inner = heads * head_dim;
    let mut shape = b.graph.ty(h).shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = inner.into();
    }
    let q = projected(b, name, names[0], h, [inner, width])?;
    let mut q = by_head(b, q, len, of)?;
    let turned = |b: &mut Builder<'_>, x: Value| match turn {
        Some(Turn { cos, sin, dims }) => {
            let style = RopeStyle::GptJ;
            Ok::<_, ModelError>(b.graph.rope(x, cos, sin, style, dims, Layout::Bshd)?)
        }
        None => Ok(x),
    };
    let mut options = AttentionOptions::new(heads, heads, Layout::Bshd);
    if let Some(scale) = scale {
        options = options.scale(scale);
    }
    let (k, v, options) = match keys {
        Keys::Own => {
            let [k, v] = keys_and_values(b, (name, of), h, len)?;
            q = turned(b, q)?;
            (turned(b, k)?, v, options)
        }
        Keys::Cached(Cache {
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
        Keys::Given([k, v]) => (k, v, options),
    };
    let y = b.graph.attention(q, k, v, options)?;
    let y = b.graph.reshape(y, shape)?;
    projected(b, name, names[3], y, [width, inner])
}

/// Keys and values of `h` by head, `[1, len, heads, head_dim]`.
pub(super) fn keys_and_values(
    b: &mut Builder<'_>,
    (name, of): (&str, &Projections),
    h: Value,
    len: &Dim,
) -> Result<[Value; 2], ModelError> {
    let shape = [of.heads * of.head_dim, of.width];
    let k = projected(b, name, of.names[1], h, shape)?;
    let v = projected(b, name, of.names[2], h, shape)?;
    Ok([by_head(b, k, len, of)?, by_head(b, v, len, of)?])
}

fn by_head(
    b: &mut Builder<'_>,
    x: Value,
    len: &Dim,
    of: &Projections,
) -> Result<Value, ModelError> {
    let (heads, size) = (of.heads.into(), of.head_dim.into());
    Ok(b.graph
        .reshape(x, [Dim::Known(1), len.clone(), heads, size])?)
}

fn projected(
    b: &mut Builder<'_>,
    name: &str,
    (part, biased): (&str, bool),
    x: Value,
    shape: [usize; 2],
) -> Result<Value, ModelError> {
    let weight = format!("{name}.{part}.weight");
    let bias = biased.then(|| format!("{name}.{part}.bias"));
    b.linear(x, &weight, bias.as_deref(), shape)
}

/// The names of keys and values of cross attention of a layer: outputs of an encoder, inputs of a decoder.
pub(crate) fn cross(layer: usize) -> [String; 2] {
    ["k", "v"].map(|what| format!("cross.{layer}.{what}"))
}

/// Runs an encoder, and binds keys and values of the decoder's cross attention on the device. `bind` binds one.
///
/// # Errors
/// [`ModelError::Run`] of the device.
pub(crate) fn hand_over(
    encoder: &mut dyn Executable,
    inputs: &[(&str, &tercet::Tensor)],
    layers: usize,
    bind: &mut dyn FnMut(&str, &tercet::DeviceTensor) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    encoder.submit(inputs, Wanted::Only(&[]))?;
    encoder.wait(&mut Vec::new())?;
    for name in (0..layers).flat_map(cross) {
        let part = encoder.output_on_device(&name)?;
        bind(&name, &part)?;
    }
    Ok(())
}
