//! Multi-head latent attention (MLA): keys and values of all heads are projections of one narrow
//! row.
//!
//! The cache stores the full heads, as for other models. The result is exact, but the cache is
//! larger than the latent row would be.

use tercet::{Dim, Value};

use super::super::{ModelBuilder, ModelError};
use super::attention::apply_rope;
use super::layer::{AttentionMode, ForwardContext, project};
use crate::config::decoder::{DecoderPart, DecoderSpec, LatentAttention};

/// Queries, keys and values of a layer, `[batch, len, heads, elements]`, after RoPE.
pub(super) fn heads(
    b: &mut ModelBuilder<'_>,
    (spec, latent): (&DecoderSpec, &LatentAttention),
    shared: &ForwardContext,
    at: usize,
    h: Value,
) -> Result<[Value; 3], ModelError> {
    let batch = match shared.attend {
        AttentionMode::Cached { .. } | AttentionMode::Slots { .. } => Dim::Known(1),
        AttentionMode::FullSequences { .. } => shared.batch.clone(),
    };
    let of = |heads: usize, size: usize| {
        let len = shared.len.clone();
        [batch.clone(), len, heads.into(), size.into()]
    };
    let (all, turning) = (spec.head_dim, spec.rope_dims);
    let plain = all - turning;
    let layer = spec.layers[at];
    let row = match latent.query_rank {
        Some(_) => {
            let row = project(b, spec, DecoderPart::QueryRow, at, h)?;
            normed(b, (spec, latent), DecoderPart::QueryRowNorm, at, row)?
        }
        None => h,
    };
    let q = project(b, spec, DecoderPart::Query, at, row)?;
    let q = b.graph.reshape(q, of(spec.heads, all))?;
    let q_plain = b.graph.narrow(q, 3, 0, plain)?;
    let q_turned = b.graph.narrow(q, 3, plain, turning)?;
    let q_turned = apply_rope(b, spec, shared, (layer, turning), q_turned)?;
    let q = b.graph.concat(&[q_plain, q_turned], 3)?;

    let row = project(b, spec, DecoderPart::KvRow, at, h)?;
    let axis = b.graph.ty(row).shape.len() - 1;
    let k_turned = b.graph.narrow(row, axis, latent.rank, turning)?;
    let k_turned = b.graph.reshape(k_turned, of(1, turning))?;
    let k_turned = apply_rope(b, spec, shared, (layer, turning), k_turned)?;
    let k_turned = b.graph.expand(k_turned, of(spec.heads, turning))?;
    let row = b.graph.narrow(row, axis, 0, latent.rank)?;
    let row = normed(b, (spec, latent), DecoderPart::KvRowNorm, at, row)?;
    let [k_plain, v] = match latent.split {
        true => {
            let k = keys(b, (spec, latent), at, row)?;
            let v = values(b, (spec, latent), at, row)?;
            let k = b.graph.reshape(k, of(spec.heads, plain))?;
            [k, b.graph.reshape(v, of(spec.heads, latent.value_dim))?]
        }
        false => {
            let kv = project(b, spec, DecoderPart::Kv, at, row)?;
            let kv = b
                .graph
                .reshape(kv, of(spec.heads, plain + latent.value_dim))?;
            let k = b.graph.narrow(kv, 3, 0, plain)?;
            [k, b.graph.narrow(kv, 3, plain, latent.value_dim)?]
        }
    };
    let k = b.graph.concat(&[k_plain, k_turned], 3)?;
    Ok([q, k, v])
}

/// The unrotated part of the keys. GGUF files store the projection from the latent row to this part
/// as one transposed matrix per head. A packed matrix is dequantized here, because it is a small
/// part of the model.
fn keys(
    b: &mut ModelBuilder<'_>,
    (spec, latent): (&DecoderSpec, &LatentAttention),
    at: usize,
    row: Value,
) -> Result<Value, ModelError> {
    let (heads, plain) = (spec.heads, spec.head_dim - spec.rope_dims);
    let name = DecoderPart::KvKeys.name(spec, b.weights, at, "weight");
    let w = b.dense(&name, &[heads, latent.rank, plain])?;
    let w = b.graph.transpose(w, &[1, 0, 2])?;
    let w = b.graph.reshape(w, [latent.rank, heads * plain])?;
    Ok(b.graph.matmul(row, w)?)
}

/// Values per head, projected from the latent row.
fn values(
    b: &mut ModelBuilder<'_>,
    (spec, latent): (&DecoderSpec, &LatentAttention),
    at: usize,
    row: Value,
) -> Result<Value, ModelError> {
    let name = DecoderPart::KvValues.name(spec, b.weights, at, "weight");
    b.by_head(row, &name, [spec.heads, latent.value_dim, latent.rank])
}

/// RMS norm of a row, without a bias.
fn normed(
    b: &mut ModelBuilder<'_>,
    (spec, latent): (&DecoderSpec, &LatentAttention),
    part: DecoderPart,
    layer: usize,
    x: Value,
) -> Result<Value, ModelError> {
    let [_, len] = part.shape(spec);
    let gain = b.vector(&part.name(spec, b.weights, layer, "weight"), len)?;
    Ok(b.graph.rms_norm(x, gain, None, f64::from(latent.eps))?)
}
