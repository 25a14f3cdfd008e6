//! Detection of unknown tensors. A tensor that the builder would not read may change the result, so
//! it is an error.

use std::collections::{BTreeSet, HashSet};

use super::super::ConfigError;
use super::super::known_keys::note;
use super::part::{EXPERT, tensor};
use super::{DecoderPart, DecoderSpec};
use crate::weights::Weights;
use tercet_files::clip;
use tercet_files::gguf::Gguf;

/// Tables of rotary frequencies, which the metadata reader applies.
const OF_GGUF: [&str; 3] = [
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
];

/// The GGUF names of the dense layers after pooling, in order.
pub const DENSE_OF_GGUF: [&str; 2] = ["dense_2", "dense_3"];

/// Suffixes of folder tensors whose content the configuration already determines, in any family.
const DERIVED: [&str; 1] = ["rotary_emb.inv_freq"];

/// Maximum number of names in an error message.
const LISTED: usize = 5;

/// Rejects a GGUF file with a tensor that a model of this specification does not have.
pub(super) fn reject_unknown_tensors(spec: &DecoderSpec, gguf: &Gguf) -> Result<(), ConfigError> {
    let mut known = names(spec, &|part, layer| part.gguf(spec, layer));
    let factors: Vec<String> = known.iter().flat_map(|n| Weights::factors_of(n)).collect();
    known.extend(factors);
    known.extend(OF_GGUF.map(String::from));
    if spec.is_bidirectional() {
        // The dense layers that follow the pooling of an embedding model.
        known.extend(DENSE_OF_GGUF.map(|name| format!("{name}.weight")));
    }
    let own = spec.layers.len();
    let family = spec.family.get();
    let beside = |name: &str| {
        let block = name.strip_prefix("blk.").and_then(|n| n.split('.').next());
        let block = block.and_then(|n| n.parse::<usize>().ok());
        !family.beside.is_empty() && block.is_some_and(|block| block >= own)
    };
    let names = gguf.tensors().iter().map(|t| t.name());
    reject_names(names.filter(|name| !beside(name)), &known)
}

/// Rejects a folder with a tensor that a model of this specification does not have.
///
/// # Errors
/// [`ConfigError::UnknownTensors`] names the first few.
pub(crate) fn reject_unknown_modules<'a>(
    spec: &DecoderSpec,
    tensors: impl Iterator<Item = &'a str>,
) -> Result<(), ConfigError> {
    let known = known_modules(spec);
    let derived = || DERIVED.iter().chain(spec.family.get().derived);
    let tensors = tensors.filter(|name| !derived().any(|end| name.ends_with(end)));
    let beside = spec
        .family
        .get()
        .beside
        .iter()
        .chain(spec.storage.nested_prefix.beside());
    let tensors = tensors.filter(|name| !beside.clone().any(|begin| name.starts_with(begin)));
    let tensors: Vec<&str> = tensors.collect();
    let Some(prefix) = layers_prefix(spec) else {
        return reject_names(tensors.into_iter(), &known);
    };
    // Layers after the last predict several tokens; the model itself does not use them. They are known by the
    // projection of a token's embedding beside its hidden row.
    let predicts = tensors
        .iter()
        .filter(|name| name.ends_with(".eh_proj.weight"));
    let predicts = predicts.filter_map(|name| layer_of(name, &prefix));
    let predicts: BTreeSet<usize> = predicts.filter(|at| *at >= spec.layers.len()).collect();
    for layer in &predicts {
        note(format!("tensors {prefix}{layer}.*"));
    }
    let is_used = |name: &&str| layer_of(name, &prefix).is_none_or(|at| !predicts.contains(&at));
    reject_names(tensors.iter().copied().filter(is_used), &known)
}

/// The beginning of the names of all layers' tensors in a folder: `model.layers.`.
fn layers_prefix(spec: &DecoderSpec) -> Option<String> {
    let module = DecoderPart::AttentionNorm.module(spec, 0);
    let (prefix, _) = module.split_once(".0.")?;
    Some(format!("{prefix}."))
}

/// The number of the layer that has a tensor.
fn layer_of(tensor: &str, prefix: &str) -> Option<usize> {
    tensor.strip_prefix(prefix)?.split('.').next()?.parse().ok()
}

/// The tensor names of a folder with a model of this specification.
pub(crate) fn known_modules(spec: &DecoderSpec) -> HashSet<String> {
    let mut known = names(spec, &|part, layer| part.module(spec, layer));
    // Some tools save a copy of the tied embedding as the output projection.
    known.insert(format!("{}.weight", DecoderPart::Output.module(spec, 0)));
    known
}

fn names(spec: &DecoderSpec, name: &dyn Fn(DecoderPart, usize) -> String) -> HashSet<String> {
    let layers = 0..spec.layers.len();
    let layers = layers.flat_map(|layer| {
        let parts = DecoderPart::for_layer(spec, layer);
        parts.into_iter().map(move |part| (part, layer))
    });
    let ends = [
        DecoderPart::Embedding,
        DecoderPart::FinalNorm,
        DecoderPart::Output,
    ]
    .map(|part| (part, 0));
    let positions = spec
        .has_learned_positions()
        .then_some((DecoderPart::Positions, 0));
    let ends = ends.into_iter().chain(positions);
    let mut names = HashSet::new();
    for (part, layer) in layers.chain(ends) {
        let base = name(part, layer);
        if base.contains(EXPERT) {
            let experts = spec.experts.map_or(0, |experts| experts.count);
            let of = |e: usize| tensor(&base.replace(EXPERT, &e.to_string()), "weight");
            names.extend((0..experts).map(of));
            continue;
        }
        if part.has_bias(spec) {
            names.insert(tensor(&base, "bias"));
        }
        let quantized = spec.family.get().quantized.is_some() && part.is_of_experts();
        for suffix in ["blocks", "scales"].iter().filter(|_| quantized) {
            names.insert(tensor(&base, suffix));
        }
        names.insert(tensor(&base, "weight"));
    }
    names
}

pub(in crate::config) fn reject_names<'a>(
    tensors: impl Iterator<Item = &'a str>,
    known: &HashSet<String>,
) -> Result<(), ConfigError> {
    let tensors: Vec<&str> = tensors.collect();
    let mut unknown = tensors
        .iter()
        .copied()
        .filter(|name| !known.contains(*name));
    let common = common_prefix(unknown.clone());
    let listed: Vec<String> = (unknown.by_ref().take(LISTED))
        .map(|name| format!("`{}`", clip(name)))
        .collect();
    match listed.is_empty() {
        true => Ok(()),
        false => Err(ConfigError::UnknownTensors {
            tensors: listed.join(", "),
            more: unknown.count(),
            remedy: match common {
                Some(prefix) => format!(
                    "; all of them begin with `{prefix}`, which a tool put before the names: save \
                     the model itself, without what wraps it"
                ),
                None => String::new(),
            },
        }),
    }
}

/// The prefix that a tool puts before all names of a wrapped model, if all of these names have it.
fn common_prefix<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    const OF_TOOLS: [&str; 5] = [
        "base_model.model.",
        "_orig_mod.",
        "language_model.",
        "model.language_model.",
        "module.",
    ];
    let first = names.next()?;
    let prefix = OF_TOOLS.iter().find(|prefix| first.starts_with(**prefix))?;
    names.all(|name| name.starts_with(prefix)).then_some(prefix)
}
