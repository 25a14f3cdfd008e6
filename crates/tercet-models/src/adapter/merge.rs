//! Merging of adapters into the weights of a model.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use tercet::Tensor;

use crate::error::Error;
use crate::family::ModelFamily;
use crate::open::ModelFiles;
use crate::save::{SaveOptions, SaveReport, WeightReplacement, rewrite};
use tercet_files::clip;
use tercet_networks::config::decoder::rows::{ProjectionRowOrder, to_f32};
use tercet_networks::config::decoder::{DecoderPart, OUTPUT_MODULE, projections};
use tercet_networks::config::encoder::{EncoderNames, EncoderPart};
use tercet_networks::low_rank::{AdapterError, LowRank, unknown_target};
use tercet_networks::{ModelError, ScaledAdapter, Weights};

/// A projection that adapters can apply to.
struct AdaptedProjection {
    module: String,
    tensor: String,
    shape: [usize; 2],
    rows: ProjectionRowOrder,
}

/// Adapter matrices of one weight with their scales, in the model's row order.
type WeightDeltas<'a> = Vec<(&'a LowRank, f64)>;

/// Merges adapters into a model's weights, `W + scale B A`, and writes the result. A Hugging Face
/// folder yields a folder with configuration and tokenizer, a GGUF file yields a GGUF file. Sums
/// are computed in F64 and rounded once to the storage format of [`SaveOptions`].
///
/// # Errors
/// [`Error::Adapter`] for an adapter of another model, or for an adapter on an output projection
/// that is tied to the embedding. [`Error::Save`] if the model cannot be written; errors of the
/// model's configuration.
pub fn merge(
    files: &ModelFiles,
    adapters: &[ScaledAdapter],
    to: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<SaveReport, Error> {
    let weights = files.weights();
    let projections = projections_of(files, &weights)?;
    let mut changes: BTreeMap<&str, (&AdaptedProjection, WeightDeltas<'_>)> = BTreeMap::new();
    let mut replaced = BTreeMap::new();
    for applied in adapters {
        let adapter = &*applied.adapter;
        for (module, low) in adapter.modules() {
            if module == OUTPUT_MODULE
                && !projections.iter().any(|p| p.module == *module)
                && files.family()? == ModelFamily::Decoder
            {
                let reason = "the adapter changes `lm_head`, which is the embedding in this model; \
                              merged, it would change both";
                return Err(AdapterError::Unsupported(reason.to_string()).into());
            }
            let own = projections.iter().find(|p| p.module == *module);
            let own = own.ok_or_else(|| unknown_target(adapter, module))?;
            low.expect_shape(module, own.shape)?;
            let factor = low.scale() * applied.scale;
            if !factor.is_finite() {
                let (what, found) = ("the scale of an adapter".to_string(), factor);
                return Err(AdapterError::Number { what, found }.into());
            }
            let entry = changes.entry(&own.tensor).or_insert((own, Vec::new()));
            entry.1.push((low, factor));
        }
        for (name, tensor) in adapter.saved() {
            let name = whole_name(files, &weights, name);
            let shape = tensor.shape().to_vec();
            let values = move || {
                Ok(Cow::Owned(
                    tensor.to_f64s().iter().map(|x| *x as f32).collect(),
                ))
            };
            let values = Box::new(values);
            replaced.insert(name, WeightReplacement { shape, values });
        }
    }
    for (tensor, (own, changes)) in changes {
        if replaced.contains_key(tensor) {
            let tensor = clip(tensor);
            let reason = "fully trained in one adapter and low-rank in another";
            return Err(AdapterError::Stray { tensor, reason }.into());
        }
        let weights = &weights;
        let values = move || merged(weights, own, &changes).map(Cow::Owned);
        let (shape, values) = (own.shape.to_vec(), Box::new(values));
        replaced.insert(tensor.to_string(), WeightReplacement { shape, values });
    }
    Ok(rewrite(files, &replaced, to.as_ref(), options)?)
}

/// Name that a fully trained tensor of an adapter has in the model's files.
fn whole_name(files: &ModelFiles, weights: &Weights, name: &str) -> String {
    let prefixed = format!("bert.{name}");
    match files {
        ModelFiles::Hf(_) if !weights.has(name) && weights.has(&prefixed) => prefixed,
        ModelFiles::Hf(_) | ModelFiles::Gguf(_) => name.to_string(),
    }
}

fn projections_of(files: &ModelFiles, weights: &Weights) -> Result<Vec<AdaptedProjection>, Error> {
    match files.family()? {
        ModelFamily::Decoder => {
            let config = &files.decoder_spec()?;
            if matches!(files, ModelFiles::Hf(_)) && config.family.has_transposed_matrices() {
                let reason = "the folder's matrices lie turned, as [inputs, outputs]; adapters are \
                              applied to such a model, but not merged into it";
                return Err(AdapterError::Unsupported(reason.to_string()).into());
            }
            let tied = config.tied_embeddings;
            let of_model =
                projections(config).filter(|(part, _)| !(tied && *part == DecoderPart::Output));
            Ok(of_model
                .map(|(part, layer)| AdaptedProjection {
                    module: part.module(config, layer),
                    tensor: part.name(config, weights, layer, "weight"),
                    shape: part.shape(config),
                    rows: part.rows(config),
                })
                .collect())
        }
        ModelFamily::Vision
        | ModelFamily::VisionLanguage
        | ModelFamily::TextToText
        | ModelFamily::Speech => {
            let reason = "adapters of vision, speech and encoder-decoder models are not supported";
            Err(AdapterError::Unsupported(reason.to_string()).into())
        }
        ModelFamily::Encoder => {
            let spec = files.encoder_spec()?;
            let names = EncoderNames::new(&spec, weights);
            let layers = 0..spec.layers.len();
            let of_layers = layers.flat_map(|layer| {
                let parts = EncoderPart::projections(&spec);
                parts.into_iter().map(move |part| (part, layer))
            });
            Ok(of_layers
                .map(|(part, layer)| AdaptedProjection {
                    tensor: names.tensor(part, layer, "weight"),
                    module: names.module(part, layer),
                    shape: part.shape(&spec),
                    rows: ProjectionRowOrder::Plain,
                })
                .collect())
        }
    }
}

/// `W` plus the sum of `factor B A` over the adapters, row-major.
fn merged(
    weights: &Weights,
    own: &AdaptedProjection,
    changes: &WeightDeltas<'_>,
) -> Result<Vec<f32>, ModelError> {
    let [_, cols] = own.shape;
    let failed = |source| ModelError::WeightBytes {
        tensor: own.tensor.clone(),
        source,
    };
    let floats = |tensor: &Tensor| -> Result<Vec<f32>, ModelError> {
        let wide = to_f32(tensor).map_err(failed)?;
        Ok(wide.as_slice::<f32>().map_err(failed)?.to_vec())
    };
    let mut merged = floats(&weights.dense_f32(&own.tensor, &own.shape)?)?;
    let mut parts = Vec::new();
    for (low, factor) in changes {
        let (a, b) = (floats(low.a())?, floats(&own.rows.apply(low.b()))?);
        parts.push((a, b, low.rank(), *factor));
    }
    let mut sums = vec![0f64; cols];
    for (row, to) in merged.chunks_exact_mut(cols).enumerate() {
        sums.fill(0.0);
        for (a, b, rank, factor) in &parts {
            for (r, of_a) in a.chunks_exact(cols).enumerate() {
                let weight = factor * f64::from(b[row * rank + r]);
                if weight != 0.0 {
                    let terms = sums.iter_mut().zip(of_a);
                    terms.for_each(|(sum, a)| *sum += weight * f64::from(*a));
                }
            }
        }
        let terms = to.iter_mut().zip(&sums);
        terms.for_each(|(w, sum)| *w = (f64::from(*w) + sum) as f32);
    }
    Ok(merged)
}
