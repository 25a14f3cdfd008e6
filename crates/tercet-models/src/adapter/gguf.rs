//! Adapters as llama.cpp keeps them: a GGUF file of `general.type` `adapter`, whose tensors are
//! `blk.0.attn_q.weight.lora_a [rank, inputs]` and `.lora_b [outputs, rank]`. Rows of Q and K are permuted as those of the
//! model's GGUF file are.

use std::collections::BTreeMap;
use std::path::Path;

use tercet::{DType, Tensor};

use super::peft::paired;
use super::rows::Rows;
use super::{Adapter, AdapterError};
use crate::config::ConfigError;
use crate::config::decoder::{DecoderSpec, Part, projections};
use crate::gguf::write::{Header, write_gguf};
use crate::gguf::{GgmlType, Gguf, GgufError, Value, clip};
use crate::save::{Entry, Storage};
use crate::weight::{Weight, WeightError, gguf_weight};

/// What the format calls the two matrices.
const SIDES: [&str; 2] = ["lora_a", "lora_b"];
const ALPHA: &str = "adapter.lora.alpha";

/// The order of a part's rows in GGUF files, whatever file the configuration is of.
fn rows_of(part: Part, config: &DecoderSpec) -> Rows {
    let config = DecoderSpec {
        rope_layout: config.family.get().rope_in_gguf,
        ..config.clone()
    };
    part.rows(&config)
}

impl Adapter {
    /// Reads the GGUF file of an adapter for a model of this configuration.
    ///
    /// # Errors
    /// [`AdapterError`]: the file is missing or damaged, is no low-rank adapter of the architecture, or has a tensor that
    /// is none of such a model's, is alone, or of another shape.
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
        let known: BTreeMap<String, (Part, usize)> = projections(config)
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
            let Weight::Dense(tensor) = gguf_weight(&gguf, info)? else {
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
            // Without an alpha the factor is 1.
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

    /// Writes the GGUF file of an adapter for a decoder of this specification.
    ///
    /// # Errors
    /// [`AdapterError::UnknownTarget`] and [`AdapterError::Shape`] where it is for another model,
    /// [`AdapterError::Unsupported`] for what the format does not have: different alphas, tensors trained whole;
    /// [`AdapterError::Save`].
    pub fn write_gguf(
        &self,
        path: impl AsRef<Path>,
        config: &DecoderSpec,
    ) -> Result<(), AdapterError> {
        if let Some(tensor) = self.saved().keys().next() {
            let reason = "trained whole, which GGUF adapters cannot hold";
            let tensor = clip(tensor);
            return Err(AdapterError::Stray { tensor, reason });
        }
        let first = self.modules().values().next().ok_or(AdapterError::Empty)?;
        let alpha = first.alpha();
        let parts: BTreeMap<String, (Part, usize)> = projections(config)
            .map(|(part, layer)| (part.module(config, layer), (part, layer)))
            .collect();
        let mut tensors = Vec::new();
        for (module, low) in self.modules() {
            let Some(&(part, layer)) = parts.get(module) else {
                return Err(crate::builder::unknown_target(self, module));
            };
            low.expect_shape(module, part.shape(config))?;
            if low.alpha() != alpha {
                return Err(AdapterError::Unsupported(format!(
                    "the adapter has an alpha of {alpha} and, for `{}`, of {}; GGUF adapters have one",
                    clip(module),
                    low.alpha()
                )));
            }
            let base = part.gguf(config, layer);
            tensors.push((format!("{base}.weight.lora_a"), low.a().clone()));
            let b = rows_of(part, config).apply(low.b());
            tensors.push((format!("{base}.weight.lora_b"), b));
        }
        let mut header = Header::new();
        header.push("general.type", Value::String("adapter"));
        header.push(
            "general.architecture",
            Value::String(config.family.get().architecture),
        );
        header.push("adapter.type", Value::String("lora"));
        header.push(ALPHA, Value::F32(alpha as f32));
        let entries: Result<Vec<Entry<'_>>, AdapterError> = tensors
            .iter()
            .map(|(name, tensor)| entry(name, tensor))
            .collect();
        Ok(write_gguf(path.as_ref(), &header, &entries?)?)
    }
}

/// The alpha of a file that is a low-rank adapter.
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
            "an adapter that is always on",
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

fn entry<'a>(name: &str, tensor: &'a Tensor) -> Result<Entry<'a>, AdapterError> {
    let (ty, bytes) = match tensor.dtype() {
        DType::F32 => (GgmlType::F32, tensor.bytes()),
        DType::F16 => (GgmlType::F16, tensor.bytes()),
        DType::BF16 => (GgmlType::BF16, tensor.bytes()),
        found => {
            let tensor = clip(name);
            return Err(AdapterError::DType { tensor, found });
        }
    };
    Ok(Entry::of(name, Storage::Ggml(ty), tensor.shape(), bytes))
}
