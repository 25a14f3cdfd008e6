//! Tensors with the names and the order of GGUF files.

use std::borrow::Cow;

use tercet::{DType, Tensor};

use super::metadata::as_divisors;
use super::{SaveError, unsupported};
use tercet_files::gguf::GgmlType;
use tercet_files::weight::ModelWeight;
use tercet_files::writing::{SavedTensorEntry, SavedTensorStorage};
use tercet_networks::config::decoder::rows::to_f32;
use tercet_networks::config::decoder::{DecoderPart, EXPERT, tensor_name};
use tercet_networks::config::{DecoderSpec, RopeScaling};
use tercet_networks::hf::HfFolder;
use tercet_networks::{ModelError, Weights};

/// The tensors of one part.
struct GgufPartSource<'a> {
    weights: Weights,
    spec: &'a DecoderSpec,
    target_spec: &'a DecoderSpec,
}

/// All tensors of a folder's model. `spec` is the folder's specification, `written` that of the
/// file.
pub(super) fn entries<'a>(
    folder: &HfFolder,
    spec: &'a DecoderSpec,
    written: &'a DecoderSpec,
) -> Result<Vec<SavedTensorEntry<'a>>, SaveError> {
    let source = GgufPartSource {
        weights: Weights::Hf(folder.weights().clone()),
        spec,
        target_spec: written,
    };
    let ends = [DecoderPart::Embedding, DecoderPart::FinalNorm].map(|part| (part, 0));
    let output = (!spec.tied_embeddings).then_some((DecoderPart::Output, 0));
    let layers = (0..spec.layers.len()).flat_map(|layer| {
        let parts = DecoderPart::for_layer(spec, layer);
        parts.into_iter().map(move |part| (part, layer))
    });
    let mut entries = tables(spec);
    for (part, layer) in ends.into_iter().chain(output).chain(layers) {
        for suffix in ["weight", "bias"] {
            if suffix == "weight" || part.has_bias(spec) {
                entries.push(source.entry(part, layer, suffix)?);
            }
        }
    }
    Ok(entries)
}

/// Tables of divisors of rotary frequencies.
fn tables<'a>(spec: &DecoderSpec) -> Vec<SavedTensorEntry<'a>> {
    let Some(rope) = spec.ropes.first() else {
        return Vec::new();
    };
    let mut rope = rope.clone();
    as_divisors(&mut rope, spec.rope_dims);
    let tables = match rope.scaling {
        RopeScaling::Divisors(divisors) => vec![("rope_freqs.weight", divisors)],
        RopeScaling::LongRope { short, long, .. } => vec![
            ("rope_factors_long.weight", long),
            ("rope_factors_short.weight", short),
        ],
        RopeScaling::None
        | RopeScaling::Linear { .. }
        | RopeScaling::Llama3 { .. }
        | RopeScaling::Yarn { .. } => Vec::new(),
    };
    let entry = |(name, table): (&str, Vec<f32>)| SavedTensorEntry {
        name: name.to_string(),
        storage: SavedTensorStorage::Ggml(GgmlType::F32),
        shape: vec![table.len()],
        len_bytes: 4 * table.len(),
        bytes: Box::new(move || {
            let bytes = table.iter().flat_map(|x| x.to_le_bytes());
            Ok(Cow::Owned(bytes.collect()))
        }),
    };
    tables.into_iter().map(entry).collect()
}

/// Whether a part is a norm, whose gain some families store minus 1.
fn is_gain(part: DecoderPart) -> bool {
    matches!(
        part,
        DecoderPart::AttentionNorm
            | DecoderPart::AttentionPostNorm
            | DecoderPart::FfnNorm
            | DecoderPart::FfnPostNorm
            | DecoderPart::FinalNorm
            | DecoderPart::QueryNorm
            | DecoderPart::KeyNorm
    )
}

impl<'a> GgufPartSource<'a> {
    fn entry(
        &self,
        part: DecoderPart,
        layer: usize,
        suffix: &str,
    ) -> Result<SavedTensorEntry<'a>, SaveError> {
        let (spec, written) = (self.spec, self.target_spec);
        let base = part.module(spec, layer);
        let names: Vec<String> = match (base.contains(EXPERT), spec.experts) {
            (true, Some(experts)) => (0..experts.count)
                .map(|e| tensor_name(&base.replace(EXPERT, &e.to_string()), suffix))
                .collect(),
            _ => vec![tensor_name(&base, suffix)],
        };
        let first = dense(&self.weights, &names[0])?;
        // A matrix of one row is stored as a vector in GGUF.
        let is_vector = first.shape().len() == 1 || part == DecoderPart::SharedScore;
        let mut shape = match is_vector {
            true => vec![first.shape().iter().product()],
            false => first.shape().to_vec(),
        };
        let is_of_experts = base.contains(EXPERT);
        if is_of_experts {
            shape.insert(0, names.len());
        }
        let (ty, size) = match (is_vector, first.dtype()) {
            (true, _) | (_, DType::F32) => (GgmlType::F32, 4),
            (_, DType::F16) => (GgmlType::F16, 2),
            (_, DType::BF16) => (GgmlType::BF16, 2),
            (_, found) => {
                return Err(unsupported(format!(
                    "tensor `{}` is {found}; supported: F32, F16 and BF16",
                    names[0]
                )));
            }
        };
        let len_bytes = shape.iter().product::<usize>() * size;
        let adds_one = suffix == "weight" && spec.norm.one_plus && is_gain(part);
        let rows = part.rows(written);
        let weights = self.weights.clone();
        let bytes = move || -> Result<Cow<'a, [u8]>, SaveError> {
            let mut all = Vec::with_capacity(len_bytes);
            for name in &names {
                let tensor = rows.apply(&dense(&weights, name)?);
                let tensor = match is_vector {
                    true => to_f32(&tensor).map_err(|source| bad_bytes(name, source))?,
                    false => tensor,
                };
                match adds_one {
                    true => {
                        let gains = tensor.as_slice::<f32>();
                        let gains = gains.map_err(|source| bad_bytes(name, source))?;
                        all.extend(gains.iter().flat_map(|x| (x + 1.0).to_le_bytes()));
                    }
                    false => all.extend_from_slice(tensor.bytes()),
                }
            }
            Ok(Cow::Owned(all))
        };
        Ok(SavedTensorEntry {
            name: tensor_name(&part.gguf(written, layer), suffix),
            storage: SavedTensorStorage::Ggml(ty),
            shape,
            len_bytes,
            bytes: Box::new(bytes),
        })
    }
}

fn bad_bytes(name: &str, source: tercet::TensorError) -> SaveError {
    SaveError::Tensor {
        tensor: name.to_string(),
        source: Box::new(ModelError::WeightBytes {
            tensor: name.to_string(),
            source,
        }),
    }
}

/// Reads a tensor that is not packed.
fn dense(weights: &Weights, name: &str) -> Result<Tensor, SaveError> {
    let found = weights.get(name).map_err(|source| SaveError::Tensor {
        tensor: name.to_string(),
        source: Box::new(source),
    })?;
    match found {
        ModelWeight::Dense(tensor) => Ok(tensor),
        ModelWeight::Packed { .. } => Err(unsupported(format!(
            "tensor `{name}` is quantised already; use the unquantised folder"
        ))),
    }
}
