//! Copies of a model's files with some weights replaced.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tercet::{DType, Tensor};

use crate::open::ModelFiles;
use tercet_files::MappedFile;
use tercet_files::clip;
use tercet_files::gguf::{GgmlType, Gguf};
use tercet_files::safetensors::SafeDtype;
use tercet_files::writing::write_safetensors;
use tercet_files::writing::{GgufHeader, write_gguf};
use tercet_files::writing::{
    SaveError, SavedTensorEntry, SavedTensorStorage, replace_bytes, replace_file,
};
use tercet_networks::config::decoder::rows::to_f32;
use tercet_networks::hf::HfFolder;
use tercet_networks::{ModelError, Weights};

/// The storage of changed weights that the model has in packed (quantized) form.
///
/// ```
/// use tercet_models::SaveOptions;
/// use tercet_models::save::RepackFormat;
/// assert_eq!(SaveOptions::default().packed, RepackFormat::F16);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RepackFormat {
    /// F16.
    #[default]
    F16,
    /// Q8_0 if rows are whole blocks of 32, else F16.
    Q8_0,
}

/// Options for saving a model.
///
/// ```
/// use tercet::DType;
/// use tercet_models::SaveOptions;
/// use tercet_models::save::RepackFormat;
/// let options = SaveOptions { floats: Some(DType::BF16), packed: RepackFormat::Q8_0 };
/// assert_ne!(options, SaveOptions::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// The dtype of changed float weights: F32, F16 or BF16; `None` keeps the model's dtype.
    pub floats: Option<DType>,
    /// The storage of changed packed weights.
    pub packed: RepackFormat,
}

/// The result of saving a model.
///
/// ```no_run
/// use std::collections::BTreeMap;
/// use tercet_models::save::{SaveOptions, SaveReport, save_model};
/// let files = tercet_models::ModelFiles::open("model.gguf")?;
/// let weights = BTreeMap::new();
/// let report: SaveReport = save_model(&files, &weights, "copy.gguf", &SaveOptions::default())?;
/// assert!(report.changed.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveReport {
    /// Path of the written file or folder.
    pub path: PathBuf,
    /// The changed weights, each with its storage type in the written model.
    pub changed: Vec<(String, &'static str)>,
    /// The changed weights that were packed in the original model, each with its original storage
    /// type.
    pub unpacked: Vec<(String, &'static str)>,
}

/// A weight that replaces another, or a new one.
pub(crate) struct WeightReplacement<'a> {
    pub(crate) shape: Vec<usize>,
    /// The values in F32, row-major.
    pub(crate) values: Box<dyn Fn() -> Result<Cow<'a, [f32]>, ModelError> + 'a>,
}

/// Writes a copy of a model. `F32` weights replace the model's weights of the same name. A Hugging
/// Face folder becomes a folder with configuration and tokenizer; a GGUF file becomes a GGUF file.
/// Weights `classifier.*` of an encoder may be new.
///
/// # Errors
/// [`SaveError`]: the model lacks a weight or has it in another shape, the target is the model
/// itself, or the operating system reports an error.
pub fn save_model(
    files: &ModelFiles,
    weights: &BTreeMap<String, Tensor>,
    to: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<SaveReport, SaveError> {
    let mut replaced = BTreeMap::new();
    for (name, tensor) in weights {
        let shape = tensor.shape().to_vec();
        let values = move || -> Result<Cow<'_, [f32]>, ModelError> {
            let failed = |source| ModelError::WeightBytes {
                tensor: name.clone(),
                source,
            };
            let wide = to_f32(tensor).map_err(failed)?;
            Ok(Cow::Owned(wide.as_slice::<f32>().map_err(failed)?.to_vec()))
        };
        let values = Box::new(values);
        replaced.insert(name.clone(), WeightReplacement { shape, values });
    }
    rewrite(files, &replaced, to.as_ref(), options)
}

/// Writes the class names of a classifier, in class order, to the `config.json` of a folder.
///
/// # Errors
/// [`SaveError::Header`] for a file that is not a JSON object, [`SaveError::Io`].
pub fn name_classes<T: AsRef<str>>(dir: impl AsRef<Path>, names: &[T]) -> Result<(), SaveError> {
    let path = dir.as_ref().join("config.json");
    let failed = |reason: String| SaveError::Header {
        path: path.clone(),
        reason,
    };
    let bytes = std::fs::read(&path).map_err(SaveError::io(&path))?;
    let config: Result<serde_json::Map<String, Json>, _> = serde_json::from_slice(&bytes);
    let mut config = config.map_err(|e| failed(e.to_string()))?;
    insert_classes(
        &mut config,
        names.iter().map(|name| name.as_ref().to_string()),
    );
    let bytes = serde_json::to_vec_pretty(&config).map_err(|e| failed(e.to_string()))?;
    replace_bytes(&path, &bytes)
}

/// Adds the class names as `id2label` and `label2id`.
fn insert_classes(config: &mut serde_json::Map<String, Json>, names: impl Iterator<Item = String>) {
    let (mut labels, mut ids) = (serde_json::Map::new(), serde_json::Map::new());
    for (i, name) in names.enumerate() {
        ids.insert(name.clone(), Json::from(i));
        labels.insert(i.to_string(), Json::from(name));
    }
    config.insert("id2label".to_string(), Json::Object(labels));
    config.insert("label2id".to_string(), Json::Object(ids));
}

/// Writes a model with some weights replaced.
pub(crate) fn rewrite(
    files: &ModelFiles,
    replaced: &BTreeMap<String, WeightReplacement<'_>>,
    to: &Path,
    options: &SaveOptions,
) -> Result<SaveReport, SaveError> {
    if let Some(dtype) = options.floats
        && !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    {
        let reason = format!(
            "writing weights as {dtype} is not supported; supported: f32, f16 \
             and bf16"
        );
        return Err(SaveError::Unsupported(reason));
    }
    match files {
        ModelFiles::Hf(folder) => folder_again(folder, replaced, to, options),
        ModelFiles::Gguf(gguf) => gguf_again(gguf, replaced, to, options),
    }
}

/// The storage type of a changed weight, derived from its previous type.
fn stored_as(
    before: SavedTensorStorage,
    shape: &[usize],
    options: &SaveOptions,
) -> SavedTensorStorage {
    let float = |dtype: DType| match (before, dtype) {
        (SavedTensorStorage::Safe(_), DType::F16) => SavedTensorStorage::Safe(SafeDtype::F16),
        (SavedTensorStorage::Safe(_), DType::BF16) => SavedTensorStorage::Safe(SafeDtype::BF16),
        (SavedTensorStorage::Safe(_), _) => SavedTensorStorage::Safe(SafeDtype::F32),
        (SavedTensorStorage::Ggml(_), DType::F16) => SavedTensorStorage::Ggml(GgmlType::F16),
        (SavedTensorStorage::Ggml(_), DType::BF16) => SavedTensorStorage::Ggml(GgmlType::BF16),
        (SavedTensorStorage::Ggml(_), _) => SavedTensorStorage::Ggml(GgmlType::F32),
    };
    match before {
        SavedTensorStorage::Ggml(ty) if ty.block_len() > 1 => {
            let whole = shape.last().is_some_and(|row| row % 32 == 0);
            match options.packed {
                RepackFormat::Q8_0 if whole => SavedTensorStorage::Ggml(GgmlType::Q8_0),
                RepackFormat::Q8_0 | RepackFormat::F16 => SavedTensorStorage::Ggml(GgmlType::F16),
            }
        }
        // Gains and biases of GGUF files are F32 for any type of the matrices.
        SavedTensorStorage::Ggml(GgmlType::F32) if shape.len() < 2 => before,
        SavedTensorStorage::Safe(_) | SavedTensorStorage::Ggml(_) => {
            options.floats.map_or(before, float)
        }
    }
}

/// The entry of a replaced weight.
fn changed<'a>(
    name: &str,
    before: SavedTensorStorage,
    with: &'a WeightReplacement<'_>,
    options: &SaveOptions,
    saved: &mut SaveReport,
) -> Result<SavedTensorEntry<'a>, SaveError> {
    let storage = stored_as(before, &with.shape, options);
    let count: usize = with.shape.iter().product();
    let len_bytes = match storage {
        SavedTensorStorage::Ggml(ty) => count / ty.block_len() as usize * ty.block_bytes() as usize,
        SavedTensorStorage::Safe(dtype) => count * dtype.bits() as usize / 8,
    };
    if storage.encode(&[]).is_none() {
        let name = clip(name);
        let reason = format!(
            "tensor `{name}` is {}, which cannot be written",
            storage.name()
        );
        return Err(SaveError::Unsupported(reason));
    }
    saved.changed.push((name.to_string(), storage.name()));
    if matches!(before, SavedTensorStorage::Ggml(ty) if ty.block_len() > 1) && storage != before {
        saved.unpacked.push((name.to_string(), before.name()));
    }
    let tensor = name.to_string();
    let bytes = move || {
        let failed = |source: ModelError| SaveError::Tensor {
            tensor: tensor.clone(),
            source: Box::new(source),
        };
        let values = (with.values)().map_err(failed)?;
        let refused = || {
            failed(ModelError::Unsupported(
                "its values exceed the range of the target type; choose another dtype".to_string(),
            ))
        };
        storage.encode(&values).map(Cow::Owned).ok_or_else(refused)
    };
    Ok(SavedTensorEntry {
        name: name.to_string(),
        storage,
        shape: with.shape.clone(),
        len_bytes,
        bytes: Box::new(bytes),
    })
}

fn expect_shape(name: &str, with: &WeightReplacement<'_>, own: &[usize]) -> Result<(), SaveError> {
    match with.shape == own {
        true => Ok(()),
        false => Err(SaveError::NotOfModel {
            tensor: clip(name),
            found: with.shape.clone(),
            expected: format!("shape {own:?}"),
        }),
    }
}

fn expect_used(
    replaced: &BTreeMap<String, WeightReplacement<'_>>,
    has: impl Fn(&str) -> bool,
) -> Result<(), SaveError> {
    match replaced.iter().find(|(name, _)| !has(name)) {
        None => Ok(()),
        Some((name, with)) => Err(SaveError::NotOfModel {
            tensor: clip(name),
            found: with.shape.clone(),
            expected: "no tensor of this name".to_string(),
        }),
    }
}

pub(super) fn same_place(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

fn gguf_again(
    gguf: &Gguf,
    replaced: &BTreeMap<String, WeightReplacement<'_>>,
    to: &Path,
    options: &SaveOptions,
) -> Result<SaveReport, SaveError> {
    let path = to.to_path_buf();
    let mut own = gguf.files().iter().filter_map(MappedFile::path);
    if own.any(|own| same_place(own, to)) {
        return Err(SaveError::OverModel { path });
    }
    expect_used(replaced, |name| gguf.has_tensor(name))?;
    let mut saved = SaveReport {
        path,
        changed: Vec::new(),
        unpacked: Vec::new(),
    };
    // The values of a replaced weight already include its factor.
    let factors: Vec<String> = replaced
        .keys()
        .flat_map(|n| Weights::factors_of(n))
        .collect();
    let mut entries = Vec::new();
    for info in gguf.tensors() {
        let (name, storage) = (info.name(), SavedTensorStorage::Ggml(info.ggml_type()));
        if factors.iter().any(|factor| factor == name) {
            continue;
        }
        entries.push(match replaced.get(name) {
            Some(with) => {
                expect_shape(name, with, &info.shape())?;
                changed(name, storage, with, options, &mut saved)?
            }
            None => SavedTensorEntry::new(name, storage, &info.shape(), gguf.data(info)),
        });
    }
    // The most common type of the file may be different after the change.
    let header = GgufHeader::from_gguf(gguf, &["general.file_type"]);
    write_gguf(to, &header, &entries)?;
    Ok(saved)
}

/// The files of a folder that are copied unchanged. Weights and `config.json` are written
/// separately.
const COPIED: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "3_Dense/config.json",
    "3_Dense/model.safetensors",
];

fn folder_again(
    folder: &HfFolder,
    replaced: &BTreeMap<String, WeightReplacement<'_>>,
    to: &Path,
    options: &SaveOptions,
) -> Result<SaveReport, SaveError> {
    let path = to.to_path_buf();
    std::fs::create_dir_all(to).map_err(SaveError::io(to))?;
    if same_place(folder.dir(), to) {
        return Err(SaveError::OverModel { path });
    }
    let weights = folder.weights();
    let new = |name: &str| name.starts_with("classifier.") && weights.find(name).is_none();
    expect_used(replaced, |name| weights.find(name).is_some() || new(name))?;
    let with_head = replaced.keys().any(|name| new(name));
    // Checkpoints with a head have a prefix before the encoder's tensor names.
    let bare = weights.find("embeddings.word_embeddings.weight").is_some();
    let renamed = |name: &str| match with_head && bare {
        true => format!("bert.{name}"),
        false => name.to_string(),
    };
    let mut saved = SaveReport {
        path,
        changed: Vec::new(),
        unpacked: Vec::new(),
    };
    let mut entries = Vec::new();
    for (file, info) in weights.tensors() {
        let (name, storage) = (info.name(), SavedTensorStorage::Safe(info.dtype()));
        let mut entry = match replaced.get(name) {
            Some(with) => {
                expect_shape(name, with, info.shape())?;
                changed(name, storage, with, options, &mut saved)?
            }
            None => SavedTensorEntry::new(name, storage, info.shape(), file.data(info)),
        };
        entry.name = renamed(name);
        entries.push(entry);
    }
    for (name, with) in replaced.iter().filter(|(name, _)| new(name)) {
        let storage = SavedTensorStorage::Safe(SafeDtype::F32);
        entries.push(changed(name, storage, with, options, &mut saved)?);
    }
    write_safetensors(&to.join("model.safetensors"), entries)?;
    let classes = replaced.get("classifier.weight").map(|with| with.shape[0]);
    write_config(folder, to, options, classes)?;
    for name in COPIED {
        let from = folder.dir().join(name);
        if from.is_file() {
            let at = to.join(name);
            if let Some(dir) = at.parent() {
                std::fs::create_dir_all(dir).map_err(SaveError::io(dir))?;
            }
            replace_file(&at, |mut out| {
                let mut file = std::fs::File::open(&from).map_err(SaveError::io(&from))?;
                let copied = std::io::copy(&mut file, &mut out);
                copied.map(drop).map_err(SaveError::io(&at))
            })?;
        }
    }
    Ok(saved)
}

/// Writes `config.json` with the dtype and the head of the new weights.
fn write_config(
    folder: &HfFolder,
    to: &Path,
    options: &SaveOptions,
    classes: Option<usize>,
) -> Result<(), SaveError> {
    let mut config = folder.config().clone();
    let spelled = match options.floats {
        None => None,
        Some(DType::F16) => Some("float16"),
        Some(DType::BF16) => Some("bfloat16"),
        Some(_) => Some("float32"),
    };
    if let Some(spelled) = spelled {
        for key in ["dtype", "torch_dtype"] {
            if config.contains_key(key) {
                config.insert(key.to_string(), Json::from(spelled));
            }
        }
    }
    if let Some(classes) = classes
        && config
            .get("id2label")
            .and_then(Json::as_object)
            .is_none_or(|l| l.len() != classes)
    {
        insert_classes(&mut config, (0..classes).map(|i| format!("LABEL_{i}")));
        let head = "BertForSequenceClassification";
        config.insert("architectures".to_string(), Json::from(vec![head]));
    }
    let path = to.join("config.json");
    let bytes = serde_json::to_vec_pretty(&config).map_err(|e| SaveError::Header {
        path: path.clone(),
        reason: e.to_string(),
    })?;
    replace_bytes(&path, &bytes)
}
