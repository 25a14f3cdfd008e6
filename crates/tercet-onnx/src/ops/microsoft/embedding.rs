//! Embedding operators fused by ONNX Runtime's optimizer.

use tercet_ir::ops::ReduceFn;
use tercet_ir::{DType, Tensor};

use super::super::{OpsetEntry, attention::positions, op};
use super::DOMAIN;
use crate::call::{ImportNode, NodeOutputs};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] =
    &[op("EmbedLayerNormalization", 1, embed_layer_norm).in_domain(DOMAIN)];

/// The normalized sum of word, position and segment embeddings; the number of unmasked tokens per
/// row; the sum.
fn embed_layer_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (ids, words, places) = (k.x(0)?, k.x(2)?, k.x(3)?);
    let (segments, table) = (k.opt(1)?, k.opt(4)?);
    let (gamma, beta, mask, at) = (k.x(5)?, k.x(6)?, k.opt(7)?, k.opt(8)?);
    let eps = k.attrs.float("epsilon", 1e-12)?;
    let kind = k.attrs.int("mask_index_type", 0)?;
    let dims = k.dims(ids);
    let [batch, length] = dims.as_slice() else {
        return Err(NodeErrorKind::operand(0, "must be `[batch, sequence]`"));
    };
    let at = match at {
        Some(at) => at,
        None => positions(k, length)?,
    };
    let word = k.g().gather(words, ids, 0)?;
    let place = k.g().gather(places, at, 0)?;
    let mut sum = k.g().plus(word, place)?;
    match (segments, table) {
        (Some(ids), Some(table)) => {
            let segment = k.g().gather(table, ids, 0)?;
            sum = k.g().plus(sum, segment)?;
        }
        (None, None) => {}
        _ => {
            let text = "segments need both their ids and their embeddings";
            return Err(NodeErrorKind::unsupported(text));
        }
    }
    let y = k.g().layer_norm(sum, gamma, Some(beta), 2, eps)?;
    let kept = match (mask, k.is_requested(1)) {
        (_, false) => ImportedValue::Absent,
        (Some(_), true) if kind != 0 => {
            return Err(NodeErrorKind::attribute(
                "mask_index_type",
                "only 0 is supported",
            ));
        }
        (Some(mask), true) => {
            let one_ = k.c.scalar(DType::I32, 1.0)?;
            let mask = crate::emulated_dtypes::cast_to(k.g(), mask, DType::I32)?;
            let kept = k.g().min(mask, one_)?;
            k.g().reduce(ReduceFn::Sum, kept, &[1], false)?.into()
        }
        (None, true) => {
            let zero =
                k.c.place(&ImportedValue::known(Tensor::from_slice(&[1], &[0i32])?), 7)?;
            k.g().expand(zero, [batch.clone()])?.into()
        }
    };
    Ok(vec![y.into(), kept, sum.into()])
}
