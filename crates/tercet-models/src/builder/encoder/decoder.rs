//! Decoders as sentence encoders: the states of a causal model, pooled.

use tercet::ops::AttentionMask;
use tercet::{DType, Dim, Type};

use super::super::decoder::layer::{Attend, Shared, embed, layer, norm, rope_tables};
use super::super::{Builder, ModelError, Weights};
use super::layer::counted;
use super::{Encoder, SentenceModules, embedding};
use crate::config::DecoderSpec;
use crate::config::decoder::{LayerSpec, Part};

impl Encoder {
    /// Builds the graph of a decoder that embeds. Its tokens see those before them, so padding after a text changes nothing.
    ///
    /// # Errors
    /// As [`Encoder::build`].
    pub fn of_decoder(
        spec: &DecoderSpec,
        weights: &Weights,
        modules: &SentenceModules,
        dtype: DType,
    ) -> Result<Encoder, ModelError> {
        let mut b = Builder::new(weights, dtype);
        let shape = [Dim::sym("b"), Dim::sym("s")];
        let [batch, len] = shape.clone();
        let ids = b.graph.input("ids", Type::new(DType::I32, shape.clone()))?;
        let mask = b.graph.input("mask", Type::new(DType::Bool, shape))?;
        let mut masks: Vec<(Option<usize>, AttentionMask)> = Vec::new();
        for LayerSpec { window, .. } in &spec.layers {
            if !masks.iter().any(|(known, _)| known == window) {
                let own = window.map_or(AttentionMask::Causal, AttentionMask::Window);
                masks.push((*window, own));
            }
        }
        let positions = counted(&mut b, spec.context, &len)?;
        let ropes = rope_tables(&mut b, spec, spec.context, positions)?;
        let shared = Shared {
            attend: Attend::Whole(masks),
            ropes,
            batch,
            len,
        };
        let mut x = embed(&mut b, spec, ids, positions)?;
        for at in 0..spec.layers.len() {
            x = layer(&mut b, spec, &shared, at, x)?;
        }
        let x = norm(&mut b, spec, Part::FinalNorm, 0, x)?;
        embedding(&mut b, modules, x, mask, spec.context)?;
        Ok(Encoder {
            model: b.finish().with_precision(dtype)?,
            context: spec.context,
            width: modules.width(spec.hidden),
        })
    }
}
