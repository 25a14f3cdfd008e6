//! Hugging Face model folders: `config.json`, weights in one file or in shards, `tokenizer.json`.
//!
//! [`HfFolder::open`] reads the configuration and maps the weights. All content is validated:
//! shards in `model.safetensors.index.json` must be plain file names inside the folder. Each tensor
//! must be in exactly the shard that the index names. Python pickles (`pytorch_model.bin`) are not
//! supported, because they can run code.

mod classes;
mod sentence;
mod seq2seq;
mod speech;
mod vision;
mod vision_language;
mod vocabulary;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::config::bounds::TensorBounds;
use crate::config::decoder::{is_wrapper, reject_unknown_modules};
use crate::config::{ConfigError, ConfigFields, DecoderSpec};
use tercet_files::FileError;
pub(crate) use tercet_files::json::{MAX_JSON_BYTES, read_json, read_optional_json};
pub use tercet_files::{FolderError, HfWeights};
use tercet_text::tokenizer::{Tokenizer, TokenizerError};

pub(crate) use vision_language::{AROUND, IMAGE, WHOLE};

pub use classes::ClassHead;
pub use sentence::{SentenceFolder, SentencePrompts};

/// The reason why a model folder is rejected.
///
/// ```
/// use tercet_networks::{HfError, HfFolder};
/// let error = HfFolder::open("no/such/folder").unwrap_err();
/// assert!(matches!(error, HfError::File(_)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum HfError {
    /// A file of the folder cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The path is not a folder.
    #[error("{path}: not a folder; expected the folder that has config.json", path = path.display())]
    NotAFolder { path: PathBuf },
    /// A file is not valid JSON of the expected form.
    #[error("{path}: not valid JSON", path = path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// The configuration is invalid or unsupported.
    #[error("{path}: not a supported configuration", path = path.display())]
    Config { path: PathBuf, source: ConfigError },
    /// The weights are missing or invalid.
    #[error(transparent)]
    Folder(FolderError),
    /// The tokenizer is invalid or unsupported.
    #[error("{path}: the tokenizer cannot be built", path = path.display())]
    Tokenizer {
        path: PathBuf,
        source: TokenizerError,
    },
    /// `modules.json` has unexpected content.
    #[error("{path}: {reason}", path = path.display())]
    BadModules { path: PathBuf, reason: String },
    /// `modules.json` has a module of an unsupported type.
    #[error(
        "{path}: the module `{kind}` is not supported; supported: Transformer, Pooling, Dense \
         and Normalize",
        path = path.display()
    )]
    UnknownModule { path: PathBuf, kind: String },
    /// The folder or file of a module in `modules.json` is missing.
    #[error("{path}: the file of module `{module}` in modules.json is missing; download it", path = path.display())]
    MissingModule { path: PathBuf, module: String },
    /// The class names do not match the classifier.
    #[error("{path}: {reason}", path = path.display())]
    Labels { path: PathBuf, reason: String },
    /// The folder has no prompt of this name.
    #[error("unknown prompt `{name}`; the folder has {known}")]
    NoPrompt { name: String, known: String },
}

impl From<FolderError> for HfError {
    fn from(error: FolderError) -> HfError {
        match error {
            FolderError::File(error) => HfError::File(error),
            FolderError::Json { path, source } => HfError::Json { path, source },
            error => HfError::Folder(error),
        }
    }
}

/// An open Hugging Face model folder.
///
/// ```
/// use tercet_networks::HfFolder;
///
/// let dir = std::env::temp_dir().join(format!("tercet-hf-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&dir)?;
/// std::fs::write(dir.join("config.json"), r#"{"model_type": "llama"}"#)?;
/// let header = br#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
/// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[7]].concat();
/// std::fs::write(dir.join("model.safetensors"), file)?;
///
/// let folder = HfFolder::open(&dir)?;
/// assert_eq!(folder.model_type(), Some("llama"));
/// let (file, x) = folder.weights().tensor("x")?;
/// assert_eq!(file.data(x), [7]);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HfFolder {
    /// The folder of `config.json`.
    dir: PathBuf,
    /// The folder of `modules.json`, if there is one: the parent of `dir` if the transformer has a
    /// separate folder.
    root: PathBuf,
    config: Map<String, Value>,
    weights: HfWeights,
}

impl HfFolder {
    /// Opens the folder at `dir`: reads `config.json` and maps the weights.
    ///
    /// # Errors
    /// [`HfError`]: a file is missing or invalid.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, HfError> {
        let dir = dir.as_ref().to_path_buf();
        if dir.exists() && !dir.is_dir() {
            return Err(HfError::NotAFolder { path: dir });
        }
        let root = dir;
        let dir = match root.join("config.json").exists() {
            true => root.clone(),
            false => sentence::transformer_dir(&root)?.unwrap_or_else(|| root.clone()),
        };
        let config = read_json(&dir.join("config.json"))?;
        let weights = HfWeights::open(&dir)?;
        // The reader of the configuration reports an unsupported quantization.
        let quantized = config.get("quantization_config").and_then(Value::as_object);
        let weights = match quantized {
            Some(config) => weights.with_quantization(config),
            None => weights,
        };
        Ok(Self {
            dir,
            root,
            config,
            weights,
        })
    }

    /// The path of the folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The content of `config.json`.
    #[must_use]
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The `model_type` in `config.json`.
    #[must_use]
    pub fn model_type(&self) -> Option<&str> {
        self.config.get("model_type").and_then(Value::as_str)
    }

    /// The weights.
    #[must_use]
    pub fn weights(&self) -> &HfWeights {
        &self.weights
    }

    /// The specification of a decoder; for a vision-language model, of its text decoder.
    /// End-of-sequence tokens of `generation_config.json` are added to those of `config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`], or [`HfError::Json`] for `generation_config.json`.
    pub fn decoder_spec(&self) -> Result<DecoderSpec, HfError> {
        let refused = |source| HfError::Config {
            path: self.dir.join("config.json"),
            source,
        };
        if vision_language::is(self) {
            return Ok(self.vision_language_spec()?.decoder);
        }
        let mut config = DecoderSpec::from_json(&self.config).map_err(refused)?;
        let bounds = TensorBounds::from_folder(&self.weights);
        config.check_bounds(&bounds).map_err(refused)?;
        config.settle_names(&|name| self.weights.find(name).is_some());
        let names = self.weights.read_names();
        reject_unknown_modules(&config, names.iter().map(String::as_str)).map_err(refused)?;
        self.add_ends(&mut config)?;
        Ok(config)
    }

    /// Adds the end-of-sequence tokens of `generation_config.json`.
    fn add_ends(&self, config: &mut DecoderSpec) -> Result<(), HfError> {
        let path = self.dir.join("generation_config.json");
        if let Some(generation) = read_optional_json(&path)? {
            let eos = ConfigFields::new(&generation, "")
                .tokens("eos_token_id")
                .map_err(|source| HfError::Config { path, source })?;
            for id in eos {
                if !config.eos.contains(&id) {
                    config.eos.push(id);
                }
            }
        }
        Ok(())
    }

    /// The tokenizer of `tokenizer.json`, or if it does not exist, of `tokenizer.model`, of `vocab.json` with
    /// `merges.txt`, or of `vocab.txt`.
    ///
    /// The post-processor of `tokenizer.json` and `add_bos_token` of `tokenizer_config.json` decide
    /// whether a text starts with the BOS token. The token is `bos_token_id` of `config.json`.
    /// `added_tokens_decoder` of `tokenizer_config.json` replaces the rules of added tokens.
    ///
    /// # Errors
    /// [`HfError::Tokenizer`], or [`HfError::Json`] for the other files.
    pub fn tokenizer(&self) -> Result<Tokenizer, HfError> {
        let json = self.dir.join("tokenizer.json");
        let pieces = self.dir.join("tokenizer.model");
        let only_pieces = !json.exists() && pieces.exists();
        let only_vocab = match json.exists() || only_pieces {
            true => None,
            false => vocabulary::file_in(&self.dir),
        };
        let path = match (only_pieces, only_vocab) {
            (true, _) => pieces,
            (_, Some(file)) => self.dir.join(file),
            _ => json,
        };
        let refused = |source| HfError::Tokenizer {
            path: path.clone(),
            source,
        };
        let mut tokenizer = match only_vocab {
            Some(file) => vocabulary::tokenizer(&self.dir, file, self.model_type())?,
            None => Tokenizer::from_file(&path).map_err(refused)?,
        };
        let config_error = |name: &str| {
            let path = self.dir.join(name);
            move |source| HfError::Config { path, source }
        };

        let fields = ConfigFields::new(&self.config, "");
        let mut bos = fields
            .opt_token("bos_token_id")
            .map_err(config_error("config.json"))?;
        if bos.is_none() && self.model_type().is_some_and(is_wrapper) {
            let spec = self.decoder_spec()?;
            bos = spec.bos;
        }
        // Without a `tokenizer_config.json`, transformers adds no BOS token either.
        let tokenizer_config = read_optional_json(&self.dir.join("tokenizer_config.json"))?;
        let Some(tokenizer_config) = &tokenizer_config else {
            return Ok(tokenizer);
        };
        if only_vocab.is_none()
            && let Some(added) = tokenizer_config
                .get("added_tokens_decoder")
                .and_then(Value::as_object)
        {
            tokenizer = tokenizer.with_added_tokens(added).map_err(refused)?;
        }
        let wanted = ConfigFields::new(tokenizer_config, "")
            .opt_bool("add_bos_token")
            .map_err(config_error("tokenizer_config.json"))?;
        if wanted == Some(true)
            && let Some(bos) = bos
            && tokenizer.encode("", true).map_err(refused)?.is_empty()
        {
            tokenizer = tokenizer.with_bos(bos).map_err(refused)?;
        }
        Ok(tokenizer)
    }
}
