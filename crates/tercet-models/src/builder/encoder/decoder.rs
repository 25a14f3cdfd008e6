//! Decoders as sentence encoders: the states of a causal model, pooled.

use tercet::ops::{AttentionMask, ReduceFn};
use tercet::{DType, Dim, Type, Value};

use super::super::decoder::layer::{Attend, Shared, embed, layer, norm, query_scales, rope_tables};
use super::super::{Builder, ModelError, Products, Weights};
use super::layer::counted;
use super::seen::near;
use super::{Encoder, EncoderOutput, embedding};
use crate::config::DecoderSpec;
use crate::config::decoder::{LayerSpec, Part};

impl Encoder {
    /// Builds the graph of a decoder that embeds. Its tokens see those before them, so padding after a text changes nothing;
    /// where they see both ways, padding is not seen.
    ///
    /// # Errors
    /// As [`Encoder::build`]; [`ModelError::Unsupported`] for classes.
    pub fn of_decoder(
        spec: &DecoderSpec,
        weights: &Weights,
        output: &EncoderOutput,
        dtype: DType,
    ) -> Result<Encoder, ModelError> {
        let mut b = Builder::new(weights, dtype);
        let shape = [Dim::sym("b"), Dim::sym("s")];
        let [batch, len] = shape.clone();
        let ids = b.graph.input("ids", Type::new(DType::I32, shape.clone()))?;
        let mask = b.graph.input("mask", Type::new(DType::Bool, shape))?;
        let attend = seen(&mut b, spec, mask, &len)?;
        let positions = counted(&mut b, spec.context, &len)?;
        let ropes = rope_tables(&mut b, spec, spec.context, positions)?;
        let query_scales = query_scales(&mut b, spec, spec.context, positions)?;
        let shared = Shared {
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
        let x = norm(&mut b, spec, Part::FinalNorm, 0, x)?;
        let width = match output {
            EncoderOutput::Hidden => {
                b.graph.output("hidden", x)?;
                spec.hidden
            }
            EncoderOutput::Embedding(modules) => {
                embedding(&mut b, modules, x, mask, spec.context)?;
                modules.width(spec.hidden)
            }
            EncoderOutput::Classes(_) | EncoderOutput::TokenClasses(_) => {
                let reason = "classes of a decoder; it embeds";
                return Err(ModelError::Unsupported(reason.into()));
            }
        };
        Ok(Encoder {
            model: b.finish().with_precision(dtype)?,
            context: spec.context,
            width,
            products: Products::Exact,
        })
    }
}

/// What the queries of each layer see.
fn seen(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    mask: Value,
    len: &Dim,
) -> Result<Attend, ModelError> {
    // Windows are masks of every pair of positions, the same for all texts, whose ends are counted.
    let kv_len = match spec.bidirectional {
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
        let own = match (*window, spec.bidirectional) {
            (Some(window), true) => AttentionMask::Keep(near(b, window, len)?),
            (Some(window), false) => AttentionMask::Window(window),
            (None, true) => AttentionMask::None,
            (None, false) => AttentionMask::Causal,
        };
        masks.push((*window, own));
    }
    Ok(Attend::Whole { masks, kv_len })
}
