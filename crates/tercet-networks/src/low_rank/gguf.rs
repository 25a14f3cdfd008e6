//! LoRA adapters in the format of llama.cpp: a GGUF file with `general.type` `adapter`. The tensors
//! of an adapter file are `blk.0.attn_q.weight.lora_a [rank, inputs]` and `.lora_b [outputs,
//! rank]`. The rows of Q and K are permuted as in the model's GGUF file.

use std::collections::BTreeMap;
use std::path::Path;

use tercet::{DType, Tensor};

use super::peft::paired;
use super::{Adapter, AdapterError};
use crate::config::ConfigError;
use crate::config::decoder::rows::ProjectionRowOrder;
use crate::config::decoder::{DecoderPart, DecoderSpec, projections};
use tercet_files::clip;
use tercet_files::gguf::{GgmlType, Gguf, GgufError, GgufValue};
use tercet_files::weight::{ModelWeight, WeightError, gguf_weight};
use tercet_files::writing::{GgufHeader, write_gguf};
use tercet_files::writing::{SavedTensorEntry, SavedTensorStorage};

/// Name suffixes of the two matrices in GGUF files.
const SIDES: [&str; 2] = ["lora_a", "lora_b"];
const ALPHA: &str = "adapter.lora.alpha";

/// Row order of a projection in GGUF files, independent of the file that the configuration is from.
fn rows_of(part: DecoderPart, config: &DecoderSpec) -> ProjectionRowOrder {
    let config = DecoderSpec {
        rope_layout: config.family.get().rope_in_gguf,
        ..config.clone()
    };
    part.rows(&config)
}

impl Adapter {
    /// Reads a GGUF adapter for a model of this configuration.
    ///
    /// # Errors
    /// [`AdapterError`] if the file is missing, damaged or not a low-rank adapter of the
    /// architecture. The same error is returned for a tensor that is unpaired, has an unexpected
    /// shape, or does not belong to the model.
    pub fn from_gguf(
        path: impl AsRef<Path>,
        config: &DecoderSpec,
    ) -> Result<Adapter, AdapterError> {
        let path = path.as_ref();
        let unsound = |source| AdapterError::Gguf {
            path: path.to_path_buf(),
            source,
        };
        let gguf = Gguf::open(path).map_err(unsound)?;
        let alpha = checked_alpha(&gguf, path, config)?;
        let known: BTreeMap<String, (DecoderPart, usize)> = projections(config)
            .map(|(part, layer)| {
                (
                    format!("{}.weight", part.gguf(config, layer)),
                    (part, layer),
                )
            })
            .collect();
        let mut sides: BTreeMap<&str, [Option<Tensor>; 2]> = BTreeMap::new();
        for info in gguf.tensors() {
            let name = info.name();
            let side = [".lora_a", ".lora_b"].into_iter().enumerate();
            let found = side
                .filter_map(|(i, side)| Some((name.strip_suffix(side)?, i)))
                .next();
            let Some((base, side)) = found else {
                let reason = "neither a `lora_a` nor a `lora_b`";
                let tensor = clip(name);
                return Err(AdapterError::Stray { tensor, reason });
            };
            let ModelWeight::Dense(tensor) = gguf_weight(&gguf, info)? else {
                return Err(WeightError::UnsupportedType {
                    tensor: clip(name),
                    offset: info.range().start,
                    found: info.ggml_type().name(),
                }
                .into());
            };
            sides.entry(base).or_default()[side] = Some(tensor);
        }
        let mut modules = BTreeMap::new();
        for (base, [a, b]) in sides {
            let Some(&(part, layer)) = known.get(base) else {
                return Err(AdapterError::UnknownTarget {
                    module: clip(base),
                    hint: String::new(),
                });
            };
            let b = b.map(|b| rows_of(part, config).undo(&b));
            // Without `alpha` the scale is 1, so `alpha` is set to the rank.
            let rank = a
                .as_ref()
                .map_or(1, |a| a.shape().first().copied().unwrap_or(1));
            let alpha = if alpha == 0.0 { rank as f64 } else { alpha };
            let low = paired(base, [a, b], SIDES, alpha)?;
            low.expect_shape_of(base, SIDES, part.shape(config))?;
            modules.insert(part.module(config, layer), low);
        }
        match modules.is_empty() {
            true => Err(AdapterError::Empty),
            false => Ok(Adapter::new(modules)),
        }
    }

    /// Writes a GGUF adapter for a decoder of this configuration.
    ///
    /// # Errors
    /// [`AdapterError::UnknownTarget`] and [`AdapterError::Shape`] if the adapter is for another
    /// model. [`AdapterError::Unsupported`] for different alphas or fully trained tensors, which
    /// the format cannot represent. [`AdapterError::Save`].
    pub fn write_gguf(
        &self,
        path: impl AsRef<Path>,
        config: &DecoderSpec,
    ) -> Result<(), AdapterError> {
        if let Some(tensor) = self.saved().keys().next() {
            let reason = "fully trained, which GGUF adapters do not support";
            let tensor = clip(tensor);
            return Err(AdapterError::Stray { tensor, reason });
        }
        let first = self.modules().values().next().ok_or(AdapterError::Empty)?;
        let alpha = first.alpha();
        let parts: BTreeMap<String, (DecoderPart, usize)> = projections(config)
            .map(|(part, layer)| (part.module(config, layer), (part, layer)))
            .collect();
        let mut tensors = Vec::new();
        for (module, low) in self.modules() {
            let Some(&(part, layer)) = parts.get(module) else {
                return Err(super::unknown_target(self, module));
            };
            low.expect_shape(module, part.shape(config))?;
            if low.alpha() != alpha {
                return Err(AdapterError::Unsupported(format!(
                    "the adapter has alpha {alpha}, but `{}` has alpha {}; a GGUF adapter has a single alpha",
                    clip(module),
                    low.alpha()
                )));
            }
            let base = part.gguf(config, layer);
            tensors.push((format!("{base}.weight.lora_a"), low.a().clone()));
            let b = rows_of(part, config).apply(low.b());
            tensors.push((format!("{base}.weight.lora_b"), b));
        }
        let mut header = GgufHeader::new();
        header.push("general.type", GgufValue::String("adapter"));
        header.push(
            "general.architecture",
            GgufValue::String(config.family.get().architecture),
        );
        header.push("adapter.type", GgufValue::String("lora"));
        header.push(ALPHA, GgufValue::F32(alpha as f32));
        let entries: Result<Vec<SavedTensorEntry<'_>>, AdapterError> = tensors
            .iter()
            .map(|(name, tensor)| entry(name, tensor))
            .collect();
        Ok(write_gguf(path.as_ref(), &header, &entries?)?)
    }
}

/// Checks that the file is a low-rank adapter and returns its alpha.
fn checked_alpha(gguf: &Gguf, path: &Path, config: &DecoderSpec) -> Result<f64, AdapterError> {
    let meta = gguf.metadata();
    let unsound = |source: GgufError| AdapterError::Gguf {
        path: path.to_path_buf(),
        source,
    };
    let refused = |field: &str, found: &str, supported: &str| AdapterError::Config {
        path: path.to_path_buf(),
        source: ConfigError::Unsupported {
            field: field.to_string(),
            found: clip(found),
            supported: supported.to_string(),
        },
    };
    for (key, supported) in [
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", config.family.get().architecture),
    ] {
        let found = meta.get_str(key).map_err(unsound)?;
        if found != supported {
            return Err(refused(key, found, supported));
        }
    }
    let invocation = "adapter.alora.invocation_tokens";
    if let Some(found) = meta.get(invocation) {
        return Err(refused(
            invocation,
            &found.to_string(),
            "an adapter without an activation prompt",
        ));
    }
    let alpha = f64::from(meta.get_f32(ALPHA).map_err(unsound)?);
    match alpha.is_finite() {
        true => Ok(alpha),
        false => Err(AdapterError::Number {
            what: ALPHA.to_string(),
            found: alpha,
        }),
    }
}

fn entry<'a>(name: &str, tensor: &'a Tensor) -> Result<SavedTensorEntry<'a>, AdapterError> {
    let (ty, bytes) = match tensor.dtype() {
        DType::F32 => (GgmlType::F32, tensor.bytes()),
        DType::F16 => (GgmlType::F16, tensor.bytes()),
        DType::BF16 => (GgmlType::BF16, tensor.bytes()),
        found => {
            let tensor = clip(name);
            return Err(AdapterError::DType { tensor, found });
        }
    };
    Ok(SavedTensorEntry::new(
        name,
        SavedTensorStorage::Ggml(ty),
        tensor.shape(),
        bytes,
    ))
}
