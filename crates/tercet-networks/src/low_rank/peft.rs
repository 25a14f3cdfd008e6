//! LoRA adapters in the format of PEFT: a folder with `adapter_config.json` and
//! `adapter_model.safetensors`. The tensors of an adapter are
//! `base_model.model.<module>.lora_A.weight [rank, inputs]` and `.lora_B.weight [outputs, rank]`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use tercet::{DType, Tensor};

use super::peft_config::{PeftConfig, to_json};
use super::{Adapter, AdapterError, LowRank, SIDES};
use tercet_files::clip;
use tercet_files::mmap::read_small;
use tercet_files::safetensors::{SafeDtype, SafeTensors};
use tercet_files::weight::safetensors_tensor;
use tercet_files::writing::write_safetensors;
use tercet_files::writing::{SaveError, SavedTensorEntry, SavedTensorStorage, replace_bytes};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
const MAX_JSON_BYTES: u64 = 16 << 20;
const PREFIX: &str = "base_model.model.";

/// Role of a tensor in the file.
enum PeftTensor {
    /// `lora_A` or `lora_B` of a module.
    Side(String, bool),
    /// A fully trained tensor.
    FullModule(String),
}

impl Adapter {
    /// Reads a PEFT adapter folder.
    ///
    /// # Errors
    /// [`AdapterError`] if a file is missing or damaged, or if the configuration uses features
    /// beyond low-rank matrices. The same error is returned for a tensor that is unknown, unpaired,
    /// or has an unexpected shape or rank.
    pub fn from_peft(dir: impl AsRef<Path>) -> Result<Adapter, AdapterError> {
        let dir = dir.as_ref();
        let path = dir.join(CONFIG);
        let bytes = read_small(&path, MAX_JSON_BYTES)?;
        let json: Map<String, Value> =
            serde_json::from_slice(&bytes).map_err(|source| AdapterError::Json {
                path: path.clone(),
                source,
            })?;
        let config =
            PeftConfig::from_json(&json).map_err(|source| AdapterError::Config { path, source })?;
        let path = dir.join(TENSORS);
        let file = SafeTensors::open(&path)
            .map_err(|source| AdapterError::SafeTensors { path, source })?;

        let mut sides: BTreeMap<String, [Option<Tensor>; 2]> = BTreeMap::new();
        let mut saved = BTreeMap::new();
        for info in file.tensors() {
            let tensor = safetensors_tensor(&file, info)?;
            match named(info.name(), &config)? {
                PeftTensor::Side(module, is_b) => {
                    sides.entry(module).or_default()[usize::from(is_b)] = Some(tensor);
                }
                PeftTensor::FullModule(name) => {
                    saved.insert(name, tensor);
                }
            }
        }
        let mut modules = BTreeMap::new();
        for (module, pair) in sides {
            let low = paired(&module, pair, SIDES, config.alpha_of(&module))?;
            let expected = config.rank_of(&module);
            if low.rank() != expected {
                let (tensor, found) = (format!("{}.lora_A", clip(&module)), low.rank());
                return Err(AdapterError::Rank {
                    tensor,
                    found,
                    expected,
                });
            }
            modules.insert(module, low);
        }
        if modules.is_empty() {
            return Err(AdapterError::Empty);
        }
        let adapter = Adapter::new(modules).with_saved(saved);
        Ok(match config.base {
            Some(base) => adapter.with_base(base),
            None => adapter,
        })
    }

    /// Writes a PEFT adapter folder; creates the folder if it does not exist.
    ///
    /// # Errors
    /// [`AdapterError::Empty`], [`AdapterError::Save`].
    pub fn write_peft(&self, dir: impl AsRef<Path>) -> Result<(), AdapterError> {
        let dir = dir.as_ref();
        if self.modules().is_empty() {
            return Err(AdapterError::Empty);
        }
        std::fs::create_dir_all(dir).map_err(SaveError::io(dir))?;
        // In a model with a task head the encoder is a submodule.
        let task = match self
            .saved()
            .keys()
            .any(|name| name.starts_with("classifier."))
        {
            true => "bert.",
            false => "",
        };
        let mut entries = Vec::new();
        for (module, low) in self.modules() {
            for (side, tensor) in [("lora_A", low.a()), ("lora_B", low.b())] {
                let name = format!("{PREFIX}{task}{module}.{side}.weight");
                entries.push(entry(name, tensor)?);
            }
        }
        for (name, tensor) in self.saved() {
            entries.push(entry(format!("{PREFIX}{name}"), tensor)?);
        }
        write_safetensors(&dir.join(TENSORS), entries)?;
        let path = dir.join(CONFIG);
        let json = serde_json::to_vec_pretty(&to_json(self, task));
        let json = json.map_err(|source| AdapterError::Json {
            path: path.clone(),
            source,
        })?;
        Ok(replace_bytes(&path, &json)?)
    }
}

/// Pairs the matrices of a module; `sides` are their names in the file.
pub(super) fn paired(
    module: &str,
    pair: [Option<Tensor>; 2],
    sides: [&str; 2],
    alpha: f64,
) -> Result<LowRank, AdapterError> {
    match pair {
        [Some(a), Some(b)] => LowRank::from_named_sides(module, sides, a, b, alpha),
        [a, _] => {
            let [there, missing] = match a {
                Some(_) => sides,
                None => [sides[1], sides[0]],
            };
            Err(AdapterError::Incomplete {
                tensor: format!("{}.{there}", clip(module)),
                missing: format!("{}.{missing}", clip(module)),
            })
        }
    }
}

fn named(name: &str, config: &PeftConfig) -> Result<PeftTensor, AdapterError> {
    let stray = |reason| {
        let tensor = clip(name);
        Err(AdapterError::Stray { tensor, reason })
    };
    let Some(path) = name.strip_prefix(PREFIX) else {
        return stray("not under `base_model.model.`");
    };
    let mut tasks = crate::config::encoder::task_prefixes();
    let path = tasks
        .find_map(|task| path.strip_prefix(task))
        .unwrap_or(path);
    for (side, is_b) in [(".lora_A", false), (".lora_B", true)] {
        let Some((module, rest)) = path.split_once(side) else {
            continue;
        };
        return match rest {
            ".weight" | ".default.weight" => Ok(PeftTensor::Side(module.to_string(), is_b)),
            _ => stray("not the weight of a low-rank matrix"),
        };
    }
    if path.contains("lora_") {
        return stray("not a low-rank matrix of a linear projection");
    }
    let path = path.replace(".modules_to_save.default", "");
    let module = path.rsplit_once('.').map_or("", |(module, _)| module);
    match config
        .whole
        .iter()
        .any(|whole| super::matches_module(module, whole))
    {
        true => Ok(PeftTensor::FullModule(path)),
        false => stray("neither a low-rank matrix nor part of a module in `modules_to_save`"),
    }
}

fn entry(name: String, tensor: &Tensor) -> Result<SavedTensorEntry<'_>, AdapterError> {
    let dtype = match tensor.dtype() {
        DType::F32 => SafeDtype::F32,
        DType::F16 => SafeDtype::F16,
        DType::BF16 => SafeDtype::BF16,
        found => {
            let tensor = clip(&name);
            return Err(AdapterError::DType { tensor, found });
        }
    };
    let storage = SavedTensorStorage::Safe(dtype);
    Ok(SavedTensorEntry::new(
        name,
        storage,
        tensor.shape(),
        tensor.bytes(),
    ))
}
