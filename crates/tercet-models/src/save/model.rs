//! A model's files again, with some of its weights replaced.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tercet::{DType, Tensor};

use super::{Entry, SaveError, Storage, replace_bytes, replace_file};
use crate::adapter::rows::to_f32;
use crate::builder::{ModelError, Weights};
use crate::gguf::write::{Header, write_gguf};
use crate::gguf::{GgmlType, Gguf, clip};
use crate::hf::HfFolder;
use crate::mmap::MappedFile;
use crate::open::ModelFiles;
use crate::safetensors::SafeDtype;
use crate::safetensors::write::write_safetensors;

/// How weights that were packed in blocks are written when they have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PackedAs {
    /// In F16.
    #[default]
    F16,
    /// In Q8_0 where rows are whole blocks of 32, else in F16.
    Q8_0,
}

/// Choices of a model that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// The dtype of changed weights that were floats: F32, F16 or BF16; as the model has them where there is none.
    pub floats: Option<DType>,
    /// That of changed weights that were packed.
    pub packed: PackedAs,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The file or folder.
    pub path: PathBuf,
    /// The weights that are other than in the model, and how they are stored now.
    pub changed: Vec<(String, &'static str)>,
    /// Those of them that were packed otherwise before, with their storage then.
    pub unpacked: Vec<(String, &'static str)>,
}

/// A weight in place of another, or a new one.
pub(crate) struct Replacement<'a> {
    pub(crate) shape: Vec<usize>,
    /// Its values in F32, row-major.
    pub(crate) values: Box<dyn Fn() -> Result<Cow<'a, [f32]>, ModelError> + 'a>,
}

/// Writes a model with these weights, `F32`, by the names that its files have, in place of its own: a folder where the
/// model is a Hugging Face folder, with its configuration and tokenizer, a GGUF file where it is one. Weights
/// `classifier.*` of an encoder may be new.
///
/// # Errors
/// [`SaveError`]: a weight that the model has not or has in another shape, the model's own place, or what the operating
/// system says.
pub fn save_model(
    files: &ModelFiles,
    weights: &BTreeMap<String, Tensor>,
    to: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<Saved, SaveError> {
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
        replaced.insert(name.clone(), Replacement { shape, values });
    }
    rewrite(files, &replaced, to.as_ref(), options)
}

/// Says in the `config.json` of a folder what the classes of its classifier are called, in their order.
///
/// # Errors
/// [`SaveError::Header`] for a file that is no JSON object, [`SaveError::Io`].
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

/// The names of classes, both ways.
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
    replaced: &BTreeMap<String, Replacement<'_>>,
    to: &Path,
    options: &SaveOptions,
) -> Result<Saved, SaveError> {
    if let Some(dtype) = options.floats
        && !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    {
        let reason = format!("weights are not written as {dtype}; f32, f16 and bf16 are");
        return Err(SaveError::Unsupported(reason));
    }
    match files {
        ModelFiles::Hf(folder) => folder_again(folder, replaced, to, options),
        ModelFiles::Gguf(gguf) => gguf_again(gguf, replaced, to, options),
    }
}

/// How a changed weight is stored, from how it was.
fn stored_as(before: Storage, shape: &[usize], options: &SaveOptions) -> Storage {
    let float = |dtype: DType| match (before, dtype) {
        (Storage::Safe(_), DType::F16) => Storage::Safe(SafeDtype::F16),
        (Storage::Safe(_), DType::BF16) => Storage::Safe(SafeDtype::BF16),
        (Storage::Safe(_), _) => Storage::Safe(SafeDtype::F32),
        (Storage::Ggml(_), DType::F16) => Storage::Ggml(GgmlType::F16),
        (Storage::Ggml(_), DType::BF16) => Storage::Ggml(GgmlType::BF16),
        (Storage::Ggml(_), _) => Storage::Ggml(GgmlType::F32),
    };
    match before {
        Storage::Ggml(ty) if ty.block_len() > 1 => {
            let whole = shape.last().is_some_and(|row| row % 32 == 0);
            match options.packed {
                PackedAs::Q8_0 if whole => Storage::Ggml(GgmlType::Q8_0),
                PackedAs::Q8_0 | PackedAs::F16 => Storage::Ggml(GgmlType::F16),
            }
        }
        // Gains and biases of GGUF files are F32 whatever the matrices are.
        Storage::Ggml(GgmlType::F32) if shape.len() < 2 => before,
        Storage::Safe(_) | Storage::Ggml(_) => options.floats.map_or(before, float),
    }
}

/// The entry of a replaced weight.
fn changed<'a>(
    name: &str,
    before: Storage,
    with: &'a Replacement<'_>,
    options: &SaveOptions,
    saved: &mut Saved,
) -> Result<Entry<'a>, SaveError> {
    let storage = stored_as(before, &with.shape, options);
    let count: usize = with.shape.iter().product();
    let len_bytes = match storage {
        Storage::Ggml(ty) => count / ty.block_len() as usize * ty.block_bytes() as usize,
        Storage::Safe(dtype) => count * dtype.bits() as usize / 8,
    };
    if storage.encode(&[]).is_none() {
        let name = clip(name);
        let reason = format!(
            "tensor `{name}` is {}, which is not written",
            storage.name()
        );
        return Err(SaveError::Unsupported(reason));
    }
    saved.changed.push((name.to_string(), storage.name()));
    if matches!(before, Storage::Ggml(ty) if ty.block_len() > 1) && storage != before {
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
                "its values are beyond the range of what they are written as; choose another dtype"
                    .to_string(),
            ))
        };
        storage.encode(&values).map(Cow::Owned).ok_or_else(refused)
    };
    Ok(Entry {
        name: name.to_string(),
        storage,
        shape: with.shape.clone(),
        len_bytes,
        bytes: Box::new(bytes),
    })
}

fn expect_shape(name: &str, with: &Replacement<'_>, own: &[usize]) -> Result<(), SaveError> {
    match with.shape == own {
        true => Ok(()),
        false => Err(SaveError::NotOfModel {
            tensor: clip(name),
            found: with.shape.clone(),
            expected: format!("as {own:?}"),
        }),
    }
}

fn expect_used(
    replaced: &BTreeMap<String, Replacement<'_>>,
    has: impl Fn(&str) -> bool,
) -> Result<(), SaveError> {
    match replaced.iter().find(|(name, _)| !has(name)) {
        None => Ok(()),
        Some((name, with)) => Err(SaveError::NotOfModel {
            tensor: clip(name),
            found: with.shape.clone(),
            expected: "not".to_string(),
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
    replaced: &BTreeMap<String, Replacement<'_>>,
    to: &Path,
    options: &SaveOptions,
) -> Result<Saved, SaveError> {
    let path = to.to_path_buf();
    let mut own = gguf.files().iter().filter_map(MappedFile::path);
    if own.any(|own| same_place(own, to)) {
        return Err(SaveError::OverModel { path });
    }
    expect_used(replaced, |name| gguf.has_tensor(name))?;
    let mut saved = Saved {
        path,
        changed: Vec::new(),
        unpacked: Vec::new(),
    };
    // The factor of a weight is in its values already.
    let factors: Vec<String> = replaced
        .keys()
        .flat_map(|n| Weights::factors_of(n))
        .collect();
    let mut entries = Vec::new();
    for info in gguf.tensors() {
        let (name, storage) = (info.name(), Storage::Ggml(info.ggml_type()));
        if factors.iter().any(|factor| factor == name) {
            continue;
        }
        entries.push(match replaced.get(name) {
            Some(with) => {
                expect_shape(name, with, &info.shape())?;
                changed(name, storage, with, options, &mut saved)?
            }
            None => Entry::of(name, storage, &info.shape(), gguf.data(info)),
        });
    }
    // What most of the file was stored as may not hold any more.
    let header = Header::of(gguf, &["general.file_type"]);
    write_gguf(to, &header, &entries)?;
    Ok(saved)
}

/// The files of a folder besides weights and `config.json`, which is written anew.
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
    replaced: &BTreeMap<String, Replacement<'_>>,
    to: &Path,
    options: &SaveOptions,
) -> Result<Saved, SaveError> {
    let path = to.to_path_buf();
    std::fs::create_dir_all(to).map_err(SaveError::io(to))?;
    if same_place(folder.dir(), to) {
        return Err(SaveError::OverModel { path });
    }
    let weights = folder.weights();
    let new = |name: &str| name.starts_with("classifier.") && weights.find(name).is_none();
    expect_used(replaced, |name| weights.find(name).is_some() || new(name))?;
    let with_head = replaced.keys().any(|name| new(name));
    // Checkpoints with a head have the encoder's tensors under a prefix.
    let bare = weights.find("embeddings.word_embeddings.weight").is_some();
    let renamed = |name: &str| match with_head && bare {
        true => format!("bert.{name}"),
        false => name.to_string(),
    };
    let mut saved = Saved {
        path,
        changed: Vec::new(),
        unpacked: Vec::new(),
    };
    let mut entries = Vec::new();
    for (file, info) in weights.tensors() {
        let (name, storage) = (info.name(), Storage::Safe(info.dtype()));
        let mut entry = match replaced.get(name) {
            Some(with) => {
                expect_shape(name, with, info.shape())?;
                changed(name, storage, with, options, &mut saved)?
            }
            None => Entry::of(name, storage, info.shape(), file.data(info)),
        };
        entry.name = renamed(name);
        entries.push(entry);
    }
    for (name, with) in replaced.iter().filter(|(name, _)| new(name)) {
        let storage = Storage::Safe(SafeDtype::F32);
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

/// `config.json` with the dtype and the head that the weights now have.
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
