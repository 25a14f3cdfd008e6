//! The location of a model: a path, or a name in a store of another tool.
//!
//! A path that exists always wins. Other names are looked up in the local cache of the Hugging Face
//! hub (`ORG/NAME`) and in Ollama's store (`NAME:TAG`, `ollama:NAME`). Nothing is downloaded.

mod hub;
mod ollama;

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

pub use self::ollama::{OllamaModel, OllamaParams};
use tercet_files::FileError;

use crate::error::ModelPathError;

/// The files of a model on disk.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelPlace {
    /// A Hugging Face folder.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
}

/// The ends of names that are those of files.
const FILE_ENDS: [&str; 4] = [".gguf", ".safetensors", ".json", ".onnx"];

impl OllamaModel {
    /// The model of Ollama's store that [`ModelFiles::open`](crate::ModelFiles::open) finds with this
    /// name, `NAME:TAG` or `ollama:NAME`. `None` if the name is that of a path or of another model.
    ///
    /// # Errors
    /// [`Error::Path`](crate::Error::Path) if the model is missing, if its manifest is invalid, or
    /// if a file is missing.
    pub fn find(name: impl AsRef<Path>) -> Result<Option<OllamaModel>, crate::Error> {
        Ok(ModelStores::from_env().ollama_model(name.as_ref())?)
    }
}

/// The folders of other tools' models.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct ModelStores {
    /// The cache of the Hugging Face hub, which has a folder `models--ORG--NAME` per model.
    pub hub: Option<PathBuf>,
    /// Ollama's store, which has the folders `manifests` and `blobs`.
    pub ollama: Option<PathBuf>,
}

impl ModelStores {
    /// The folders that the tools' environment variables select.
    pub(crate) fn from_env() -> Self {
        Self::from_vars(&|name| std::env::var_os(name).filter(|v| !v.is_empty()))
    }

    /// The folders that these variables select.
    pub fn from_vars(var: &dyn Fn(&str) -> Option<std::ffi::OsString>) -> Self {
        let home = var("HOME")
            .or_else(|| var("USERPROFILE"))
            .map(PathBuf::from);
        let path = |name: &str| {
            let path = PathBuf::from(var(name)?);
            // The tools expand `~` themselves.
            match (path.strip_prefix("~"), &home) {
                (Ok(rest), Some(home)) => Some(home.join(rest)),
                _ => Some(path),
            }
        };
        let cache = || path("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
        let hub = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(path("HF_HOME")?.join("hub")))
            .or_else(|| Some(cache()?.join("huggingface").join("hub")));
        let ollama =
            path("OLLAMA_MODELS").or_else(|| Some(home.as_ref()?.join(".ollama").join("models")));
        Self { hub, ollama }
    }

    /// Locates the model at a path, or with a name.
    ///
    /// # Errors
    /// [`ModelPathError`].
    pub fn locate(&self, path: &Path) -> Result<ModelPlace, ModelPathError> {
        if path.exists() {
            return place(path);
        }
        let Some(name) = path.to_str() else {
            return Ok(ModelPlace::Gguf(path.to_path_buf()));
        };
        if let Some(model) = name.strip_prefix("ollama:") {
            return self.in_ollama(name, model);
        }
        let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
        let is_file = FILE_ENDS.iter().any(|end| name.ends_with(end));
        let parts: Vec<&str> = name.split('/').collect();
        let [org, model, inside @ ..] = &parts[..] else {
            if plain && !is_file && self.has_manifest(name) {
                return self.in_ollama(name, name);
            }
            if let Some(snapshot) = self.hub.as_deref().filter(|_| plain && !is_file)
                && let Some(found) = hub::snapshot(snapshot, None, name)?
            {
                return place(&found);
            }
            return Ok(ModelPlace::Gguf(path.to_path_buf()));
        };
        if !plain || (is_file && inside.is_empty()) || !hub::is_name(org) || !hub::is_name(model) {
            return Ok(ModelPlace::Gguf(path.to_path_buf()));
        }
        let repo = format!("{org}/{model}");
        let Some(cache) = &self.hub else {
            return match is_file {
                true => Ok(ModelPlace::Gguf(path.to_path_buf())),
                false => Err(ModelPathError::NoStore {
                    name: repo,
                    variable: "HF_HOME",
                }),
            };
        };
        match hub::snapshot(cache, Some(org), model)? {
            Some(snapshot) => {
                let found = inside.iter().fold(snapshot, |path, part| path.join(part));
                match found.exists() {
                    true => place(&found),
                    false => Err(ModelPathError::IncompleteInHub {
                        path: found,
                        name: repo,
                        reason: "no such file in the snapshot".to_string(),
                    }),
                }
            }
            None if is_file || !inside.is_empty() => Ok(ModelPlace::Gguf(path.to_path_buf())),
            None => Err(ModelPathError::NotInHub {
                name: repo,
                cache: cache.clone(),
            }),
        }
    }

    /// Whether Ollama's store has a model of this name.
    fn has_manifest(&self, model: &str) -> bool {
        let store = self.ollama.as_deref();
        let manifest = store.and_then(|store| ollama::manifest_path(store, model));
        manifest.is_some_and(|path| path.is_file())
    }

    /// The model of Ollama's store with this name; `None` for other names and for paths.
    ///
    /// # Errors
    /// [`ModelPathError`].
    pub fn ollama_model(&self, path: &Path) -> Result<Option<OllamaModel>, ModelPathError> {
        let Some(name) = path.to_str().filter(|_| !path.exists()) else {
            return Ok(None);
        };
        if let Some(model) = name.strip_prefix("ollama:") {
            return self.read_ollama(name, model).map(Some);
        }
        // Other names are found as by `locate`, which prefers them in the same order.
        let is_file = FILE_ENDS.iter().any(|end| name.ends_with(end));
        let is_plain = path.components().all(|c| matches!(c, Component::Normal(_)));
        match is_plain && !is_file && !name.contains('/') && self.has_manifest(name) {
            true => self.read_ollama(name, name).map(Some),
            false => Ok(None),
        }
    }

    fn in_ollama(&self, name: &str, model: &str) -> Result<ModelPlace, ModelPathError> {
        let found = self.read_ollama(name, model)?;
        match found.adapters.first() {
            // The file alone would be another model.
            Some(adapter) => Err(ModelPathError::BadManifest {
                path: found.manifest,
                reason: format!(
                    "the model has the adapter {}, which this command does not apply; open the file of the \
                     weights {} and give the adapter as --lora",
                    adapter.display(),
                    found.weights.display()
                ),
            }),
            None => Ok(ModelPlace::Gguf(found.weights)),
        }
    }

    fn read_ollama(&self, name: &str, model: &str) -> Result<OllamaModel, ModelPathError> {
        let store = self
            .ollama
            .as_deref()
            .ok_or_else(|| ModelPathError::NoStore {
                name: name.to_string(),
                variable: "OLLAMA_MODELS",
            })?;
        ollama::read(store, name, model)
    }
}

/// The model at an existing path.
fn place(path: &Path) -> Result<ModelPlace, ModelPathError> {
    if !path.is_dir() {
        let of_folder = path
            .extension()
            .is_some_and(|e| e == "safetensors" || e == "json");
        return Ok(match path.parent() {
            Some(dir) if of_folder && path.is_file() => ModelPlace::Folder(dir.to_path_buf()),
            _ => ModelPlace::Gguf(path.to_path_buf()),
        });
    }
    let whole = || Ok(ModelPlace::Folder(path.to_path_buf()));
    let has = |name: &str| path.join(name).exists();
    // The reader of folders finds weights in the folder of a module.
    let is_folder = [
        "model.safetensors",
        "model.safetensors.index.json",
        "modules.json",
    ];
    if is_folder.into_iter().any(has) {
        return whole();
    }
    let mut models = gguf_models(path)?;
    match (models.pop(), models.len()) {
        (None, _) => whole(),
        (Some(only), 0) => Ok(ModelPlace::Gguf(path.join(only))),
        (Some(last), count) => {
            models.push(last);
            let named = models.iter().take(20).map(|name| format!("`{name}`"));
            let mut names = named.collect::<Vec<_>>().join(", ");
            if models.len() > 20 {
                names += ", ...";
            }
            Err(ModelPathError::SeveralGguf {
                path: path.to_path_buf(),
                count: count + 1,
                names,
            })
        }
    }
}

/// The names of the GGUF models in a folder, sorted; of a split model, the first part that is
/// there. Image projectors (`mmproj`) belong to another model.
fn gguf_models(dir: &Path) -> Result<Vec<String>, ModelPathError> {
    let failed = |source| FileError::from_io(dir, source);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str() else { continue };
        let lower = name.to_lowercase();
        if lower.ends_with(".gguf") && !lower.starts_with("mmproj") && dir.join(name).is_file() {
            names.push(name.to_string());
        }
    }
    names.sort();
    let mut seen = BTreeSet::new();
    names.retain(|name| match split_stem(name) {
        Some((stem, count)) => seen.insert((stem.to_owned(), count.to_owned())),
        None => true,
    });
    Ok(names)
}

/// The name and the part count of a split file `NAME-00001-of-00002.gguf`.
fn split_stem(name: &str) -> Option<(&str, &str)> {
    let (head, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = head.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(number) && is_number(count)).then_some((stem, count))
}
