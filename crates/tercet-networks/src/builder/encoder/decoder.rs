//! Decoder models as sentence encoders: pooled hidden states of a causal or bidirectional decoder.

use tercet::ops::{AttentionMask, ReduceFn};
use tercet::{DType, Dim, Type, Value};

use super::super::decoder::layer::{
    AttentionMode, ForwardContext, embed, layer, norm, query_scales, rope_tables,
};
use super::super::{MatmulPrecision, ModelBuilder, ModelError, Weights};
use super::attention_masks::near;
use super::layer::counted;
use super::{Encoder, EncoderOutput, embedding};
use crate::config::DecoderSpec;
use crate::config::bounds::MAX_ROTARY_CONTEXT;
use crate::config::decoder::{DecoderPart, LayerSpec};

impl Encoder {
    /// Builds the embedding graph of a decoder. Causal attention ignores the padding after a text;
    /// bidirectional attention masks it.
    ///
    /// # Errors
    /// Same errors as [`Encoder::build`]; [`ModelError::Unsupported`] for classification outputs.
    pub fn from_decoder(
        spec: &DecoderSpec,
        weights: &Weights,
        output: &EncoderOutput,
        dtype: DType,
    ) -> Result<Encoder, ModelError> {
        // The RoPE tables have a row for each position of the context, whose length is therefore
        // limited.
        let context = spec.context.min(MAX_ROTARY_CONTEXT);
        let mut b = ModelBuilder::new(weights, dtype);
        let shape = [Dim::sym("b"), Dim::sym("s")];
        let [batch, len] = shape.clone();
        let ids = b.graph.input("ids", Type::new(DType::I32, shape.clone()))?;
        let mask = b.graph.input("mask", Type::new(DType::Bool, shape))?;
        let attend = attention_masks(&mut b, spec, mask, &len)?;
        let positions = counted(&mut b, context, &len)?;
        let ropes = rope_tables(&mut b, spec, context, positions)?;
        let query_scales = query_scales(&mut b, spec, context, positions)?;
        let shared = ForwardContext {
            attend,
            ropes,
            query_scales,
            batch,
            len,
        };
        let mut x = embed(&mut b, spec, ids, positions)?;
        for at in 0..spec.layers.len() {
            x = layer(&mut b, spec, &shared, at, x)?;
        }
        let x = norm(&mut b, spec, DecoderPart::FinalNorm, 0, x)?;
        let width = match output {
            EncoderOutput::Hidden => {
                b.graph.output("hidden", x)?;
                spec.hidden
            }
            EncoderOutput::Embedding(modules) => {
                embedding(&mut b, modules, x, mask, context)?;
                modules.width(spec.hidden)
            }
            EncoderOutput::Classes(_) | EncoderOutput::TokenClasses(_) => {
                let reason = "decoders do not support classification; use the output Embedding";
                return Err(ModelError::Unsupported(reason.into()));
            }
        };
        Ok(Encoder {
            model: b.finish().with_precision(dtype)?,
            context,
            width,
            matmul_precision: MatmulPrecision::Full,
        })
    }
}

/// Attention mask of each window size.
fn attention_masks(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    mask: Value,
    len: &Dim,
) -> Result<AttentionMode, ModelError> {
    // A window mask is shared by all texts, so padding is excluded by the length of each text.
    let kv_len = match spec.is_bidirectional() {
        true => {
            let tokens = b.graph.cast(mask, DType::I32)?;
            Some(b.graph.reduce(ReduceFn::Sum, tokens, &[1], false)?)
        }
        false => None,
    };
    let mut masks: Vec<(Option<usize>, AttentionMask)> = Vec::new();
    for LayerSpec { window, .. } in &spec.layers {
        if masks.iter().any(|(known, _)| known == window) {
            continue;
        }
        let own = match (*window, spec.is_bidirectional()) {
            (Some(window), true) => AttentionMask::Keep(near(b, window, len)?),
            (Some(window), false) => AttentionMask::Window(window),
            (None, true) => AttentionMask::None,
            (None, false) => AttentionMask::Causal,
        };
        masks.push((*window, own));
    }
    Ok(AttentionMode::FullSequences { masks, kv_len })
}
