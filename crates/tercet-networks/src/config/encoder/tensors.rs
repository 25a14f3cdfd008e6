//! Detection of unknown tensors. A tensor that no builder would read may change the result, so it
//! is an error.

use std::collections::HashSet;

use super::super::ConfigError;
use super::super::decoder::reject_names;
use super::{EncoderNames, EncoderPart, EncoderSpec};
use crate::weights::Weights;
use tercet_files::folder_weights::HfWeights;

/// Suffixes of tensors whose content the configuration already determines.
const DERIVED: [&str; 3] = [
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "rotary_emb.inv_freq",
];

/// Rejects a folder with a tensor that a model of this specification does not have. Tensors of
/// heads (language modelling, question answering, classification) are allowed, because they do not
/// affect the encoder.
///
/// # Errors
/// [`ConfigError::UnknownTensors`] names the first few.
pub(crate) fn reject_unknown_modules(
    spec: &EncoderSpec,
    weights: &HfWeights,
) -> Result<(), ConfigError> {
    let names = EncoderNames::new(spec, &Weights::Hf(weights.clone()));
    let mut known = known_tensors(spec, &names);
    for suffix in ["weight", "bias"] {
        known.insert(format!("{}pooler.dense.{suffix}", names.prefix()));
    }
    let heads = spec.family.get().heads;
    let tensors = weights.tensors().map(|(_, info)| info.name());
    let tensors = tensors
        .filter(|name| !is_derived(name) && !heads.iter().any(|head| name.starts_with(head)));
    reject_names(tensors, &known)
}

/// Whether the configuration already determines a tensor's content.
pub(crate) fn is_derived(name: &str) -> bool {
    DERIVED.iter().any(|end| name.ends_with(end))
}

/// The tensor names of the layers and embeddings of this specification.
pub(crate) fn known_tensors(spec: &EncoderSpec, names: &EncoderNames<'_>) -> HashSet<String> {
    let mut known = HashSet::new();
    let mut add = |part: EncoderPart, layer: usize| {
        known.insert(names.tensor(part, layer, "weight"));
        if part.has_bias(spec) {
            known.insert(names.tensor(part, layer, "bias"));
        }
    };
    for part in EncoderPart::outside(spec) {
        add(part, 0);
    }
    for layer in 0..spec.layers.len() {
        for part in EncoderPart::for_layer(spec, layer) {
            add(part, layer);
        }
    }
    known
}
