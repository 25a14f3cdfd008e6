//! Vision and text towers with their pooling and projection.

use tercet::ops::{AttentionLayout, AttentionOptions, ReduceFn};
use tercet::{DType, Dim, Type, Value};

use super::super::decoder::layer::activate;
use super::super::encoder::{EncoderTexts, encode, encode_images, token};
use super::super::{ModelBuilder, ModelError};
use super::VisionOutput;
use crate::config::{
    EncoderSpec, FeedForward, ImagePooling, TextTower, VisionBody, VisionFamily, VisionSpec,
};

/// Vectors of images: features, or the input of a classifier.
pub(super) fn vectors(
    b: &mut ModelBuilder<'_>,
    spec: &VisionSpec,
    pixels: Value,
    size: [usize; 2],
    output: VisionOutput,
) -> Result<Value, ModelError> {
    let VisionBody::Tower {
        spec: layers,
        pooling,
        projection,
    } = &spec.body
    else {
        unreachable!("invariant: stages have a separate builder");
    };
    let x = encode_images(b, layers, pixels, size)?;
    let vectors = match pooling {
        ImagePooling::ClassToken => {
            let first = b.graph.narrow(x, 1, 0, 1)?;
            b.graph.squeeze(first, 1)?
        }
        ImagePooling::Attention => attended(b, layers, x)?,
    };
    match (output, spec.family) {
        (VisionOutput::Features, _) => match projection {
            Some(width) => {
                let shape = [*width, layers.hidden];
                b.linear(vectors, "visual_projection.weight", None, shape)
            }
            None => Ok(vectors),
        },
        (VisionOutput::Classes(_), VisionFamily::Dinov2) => {
            let len = b.graph.ty(x).shape[1].known().unwrap_or(1);
            let patches = b.graph.narrow(x, 1, 1, len - 1)?;
            let mean = b.graph.reduce(ReduceFn::Mean, patches, &[1], false)?;
            Ok(b.graph.concat(&[vectors, mean], 1)?)
        }
        (VisionOutput::Classes(_), VisionFamily::Clip | VisionFamily::Siglip) => {
            let family = spec.family.model_type();
            Err(ModelError::Unsupported(format!(
                "a model of the family `{family}` has no classes; describe them for zero-shot classification"
            )))
        }
        (VisionOutput::Classes(_), _) => Ok(vectors),
    }
}

/// Attention pooling: a learned query attends to `x [rows, len, hidden]`, followed by a
/// feed-forward block. Result `[rows, hidden]`.
fn attended(b: &mut ModelBuilder<'_>, spec: &EncoderSpec, x: Value) -> Result<Value, ModelError> {
    const HEAD: &str = "vision_model.head";
    let (hidden, heads) = (spec.hidden, spec.heads);
    let shape = b.graph.ty(x).shape.clone();
    let (rows, len) = (shape[0].clone(), shape[1].clone());
    let probe = b.weights.rows_f32(&format!("{HEAD}.probe"), [1, hidden])?;
    let probe = b.param(&format!("{HEAD}.probe"), probe)?;
    let weight = b.dense(
        &format!("{HEAD}.attention.in_proj_weight"),
        &[3 * hidden, hidden],
    )?;
    let bias = b.vector(&format!("{HEAD}.attention.in_proj_bias"), 3 * hidden)?;
    let mut split = Vec::new();
    for (at, from) in [probe, x, x].into_iter().enumerate() {
        let w = b.graph.narrow(weight, 0, at * hidden, hidden)?;
        let w = b.graph.transpose(w, &[1, 0])?;
        let y = b.graph.matmul(from, w)?;
        let bias = b.graph.narrow(bias, 0, at * hidden, hidden)?;
        let y = b.graph.plus(y, bias)?;
        let y = match at {
            0 => {
                let one = b.graph.unsqueeze(y, 0)?;
                b.graph
                    .expand(one, [rows.clone(), Dim::Known(1), hidden.into()])?
            }
            _ => y,
        };
        let len = if at == 0 { Dim::Known(1) } else { len.clone() };
        let shape = [rows.clone(), len, heads.into(), spec.head_dim.into()];
        split.push(b.graph.reshape(y, shape)?);
    }
    let options = AttentionOptions::new(heads, heads, AttentionLayout::Bshd);
    let y = b.graph.attention(split[0], split[1], split[2], options)?;
    let y = b.graph.reshape(y, [rows, hidden.into()])?;
    let linear = |b: &mut ModelBuilder<'_>, x, name: &str, shape| {
        let (weight, bias) = (
            format!("{HEAD}.{name}.weight"),
            format!("{HEAD}.{name}.bias"),
        );
        b.linear(x, &weight, Some(&bias), shape)
    };
    let y = linear(b, y, "attention.out_proj", [hidden, hidden])?;
    let gain = b.vector(&format!("{HEAD}.layernorm.weight"), hidden)?;
    let bias = b.vector(&format!("{HEAD}.layernorm.bias"), hidden)?;
    let eps = f64::from(spec.norm.eps);
    let h = b.graph.layer_norm(y, gain, Some(bias), 1, eps)?;
    let h = linear(b, h, "mlp.fc1", [spec.ffn, hidden])?;
    let (FeedForward::Plain(f) | FeedForward::Gated(f)) = spec.feed_forward;
    let h = activate(b, f, h)?;
    let h = linear(b, h, "mlp.fc2", [hidden, spec.ffn])?;
    Ok(b.graph.plus(y, h)?)
}

/// Vectors of texts.
pub(super) fn text_vectors(
    b: &mut ModelBuilder<'_>,
    family: VisionFamily,
    text: &TextTower,
) -> Result<Value, ModelError> {
    let spec = &text.spec;
    let rows = Dim::sym("b");
    let shape = [rows.clone(), Dim::sym("s")];
    let ids = b.graph.input("ids", Type::new(DType::I32, shape))?;
    let ty = Type::new(DType::I32, [rows, Dim::Known(1)]);
    let place = b.graph.input("place", ty)?;
    let texts = EncoderTexts {
        ids,
        type_ids: None,
        mask: None,
    };
    let x = encode(b, spec, &texts, false)?;
    let x = token(b, x, place, spec.context)?;
    let shape = [text.width, spec.hidden];
    match family {
        VisionFamily::Siglip => b.linear(
            x,
            "text_model.head.weight",
            Some("text_model.head.bias"),
            shape,
        ),
        _ => b.linear(x, "text_projection.weight", None, shape),
    }
}
