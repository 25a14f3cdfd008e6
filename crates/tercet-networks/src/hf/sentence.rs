//! Folders of sentence encoders: the modules after the transformer, prompts, and maximum text
//! length.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::{HfError, HfFolder, HfWeights, read_json, read_optional_json};
use crate::config::bounds::TensorBounds;
use crate::config::encoder::reject_unknown_modules;
use crate::config::outputs::{DenseModule, PoolingMode, SentenceModule, SentenceModules};
use crate::config::{ConfigError, ConfigFields, EncoderSpec, FfnActivation};
use crate::weights::Weights;
use tercet_files::clip;
use tercet_files::mmap::read_small;

/// The prompts of a folder.
///
/// ```
/// use tercet_networks::SentencePrompts;
/// let mut prompts = SentencePrompts::default();
/// prompts.named.insert("query".to_string(), "query: ".to_string());
/// assert_eq!(prompts.get("query")?, "query: ");
/// assert!(prompts.get("document").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentencePrompts {
    /// The prompts by name.
    pub named: BTreeMap<String, String>,
    /// The name of the default prompt, which is prepended to texts.
    pub default: Option<String>,
}

impl SentencePrompts {
    /// The text of a prompt.
    ///
    /// # Errors
    /// [`HfError::NoPrompt`].
    pub fn get(&self, name: &str) -> Result<&str, HfError> {
        let missing = || {
            let names: Vec<_> = self
                .named
                .keys()
                .map(|k| format!("`{}`", clip(k)))
                .collect();
            HfError::NoPrompt {
                name: clip(name),
                known: match names.is_empty() {
                    true => "none".to_string(),
                    false => names.join(", "),
                },
            }
        };
        self.named.get(name).map(String::as_str).ok_or_else(missing)
    }
}

/// The settings of a sentence encoder's folder, in addition to `config.json`.
///
/// ```
/// use tercet_networks::{PoolingMode, SentenceFolder, SentenceModules, SentencePrompts};
/// let folder = SentenceFolder {
///     modules: SentenceModules::normalized(PoolingMode::Mean), stated: true,
///     prompts: SentencePrompts::default(), longest_text: Some(256), lower_case: true,
/// };
/// assert_eq!(folder.modules.width(384), 384);
/// ```
#[derive(Clone, Debug)]
pub struct SentenceFolder {
    /// Pooling and the modules after it.
    pub modules: SentenceModules,
    /// Whether the folder specifies the modules. The default is mean pooling with normalization.
    pub stated: bool,
    /// The prompts.
    pub prompts: SentencePrompts,
    /// Maximum text length in tokens ([`HfFolder::longest_text`]).
    pub longest_text: Option<usize>,
    /// Whether texts are converted to lower case first.
    pub lower_case: bool,
}

/// An entry of `modules.json`.
struct SentenceModuleEntry {
    kind: String,
    path: String,
}

/// The transformer's folder according to `modules.json`, if that file exists.
pub(super) fn transformer_dir(root: &Path) -> Result<Option<PathBuf>, HfError> {
    let modules = modules(root)?;
    let own = modules.and_then(|all| all.into_iter().find(|m| m.kind == "Transformer"));
    own.map(|module| module_dir(root, &module)).transpose()
}

impl HfFolder {
    /// The specification of a text encoder.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn encoder_spec(&self) -> Result<EncoderSpec, HfError> {
        let refused = |source| HfError::Config {
            path: self.dir.join("config.json"),
            source,
        };
        EncoderSpec::from_weights(&self.config, &self.weights).map_err(refused)
    }

    /// The sentence encoder's maximum sequence length (`max_seq_length` of
    /// `sentence_bert_config.json`), if specified.
    ///
    /// # Errors
    /// [`HfError::Json`], [`HfError::Config`].
    pub fn max_seq_length(&self) -> Result<Option<usize>, HfError> {
        self.limits().map(|(most, _)| most)
    }

    /// The encoder's maximum text length in tokens, if specified: `max_seq_length`, else
    /// `model_max_length` of `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`HfError::Json`], [`HfError::Config`].
    pub fn longest_text(&self) -> Result<Option<usize>, HfError> {
        if let Some(most) = self.max_seq_length()? {
            return Ok(Some(most));
        }
        let json = read_optional_json(&self.dir.join("tokenizer_config.json"))?;
        let most = json.and_then(|json| json.get("model_max_length")?.as_u64());
        // transformers writes a huge number for an unlimited length.
        let most = most.filter(|most| (1..1 << 31).contains(most));
        Ok(most.and_then(|most| usize::try_from(most).ok()))
    }

    /// Reads the maximum text length, and whether texts are converted to lower case.
    fn limits(&self) -> Result<(Option<usize>, bool), HfError> {
        let path = self.dir.join("sentence_bert_config.json");
        let Some(json) = read_optional_json(&path)? else {
            return Ok((None, false));
        };
        let fields = ConfigFields::new(&json, "");
        let read = || {
            Ok((
                fields.opt_size("max_seq_length")?,
                fields.opt_bool("do_lower_case")?.unwrap_or(false),
            ))
        };
        read().map_err(|source| HfError::Config { path, source })
    }

    /// The modules, prompts and limits of a sentence encoder. A folder without `modules.json` uses
    /// the pooling of `1_Pooling/config.json`, else the mean, and normalizes.
    ///
    /// # Errors
    /// [`HfError::UnknownModule`], [`HfError::MissingModule`], [`HfError::BadModules`], and errors
    /// of the modules' files.
    pub fn sentence(&self) -> Result<SentenceFolder, HfError> {
        let (_, lower_case) = self.limits()?;
        let (mut modules, stated) = self.modules()?;
        let (prompts, dims) = self.prompts()?;
        if let Some(dims) = dims {
            modules.then.push(SentenceModule::Truncate(dims));
        }
        Ok(SentenceFolder {
            modules,
            stated,
            prompts,
            longest_text: self.longest_text()?,
            lower_case,
        })
    }

    /// Whether `modules.json` exists, which marks a sentence encoder.
    pub fn has_modules(&self) -> bool {
        self.root.join("modules.json").is_file()
    }

    fn modules(&self) -> Result<(SentenceModules, bool), HfError> {
        let path = self.root.join("modules.json");
        let mut made = SentenceModules::normalized(PoolingMode::Mean);
        let Some(all) = modules(&self.root)? else {
            let pooling = self.root.join("1_Pooling").join("config.json");
            let stated = pooling.exists();
            if stated {
                (made.modes, made.include_prompt) = pooling_of(&pooling)?;
            }
            return Ok((made, stated));
        };
        let bad = |reason: &str| HfError::BadModules {
            path: path.clone(),
            reason: reason.to_string(),
        };
        made.then.clear();
        let mut kinds = all.iter().map(|module| module.kind.as_str());
        if [kinds.next(), kinds.next()] != [Some("Transformer"), Some("Pooling")] {
            // Report the name of an unknown module type.
            if let Some(other) = all.iter().find(|m| !KINDS.contains(&m.kind.as_str())) {
                let kind = clip(&other.kind);
                return Err(HfError::UnknownModule { path, kind });
            }
            return Err(bad(
                "the first module must be Transformer, the second Pooling",
            ));
        }
        for (at, module) in all.iter().enumerate() {
            let dir = module_dir(&self.root, module)?;
            let config = dir.join("config.json");
            let needs_config = matches!(module.kind.as_str(), "Pooling" | "Dense");
            if needs_config && !config.is_file() {
                return Err(HfError::MissingModule {
                    path: config,
                    module: clip(&module.kind),
                });
            }
            match (module.kind.as_str(), at) {
                ("Transformer", 0) => {}
                ("Pooling", 1) => (made.modes, made.include_prompt) = pooling_of(&config)?,
                ("Dense", _) => {
                    let name = format!("modules.{at}.linear");
                    let dense = dense(&dir, &config, name)?;
                    made.then.push(SentenceModule::Dense(dense));
                }
                ("Normalize", _) => made.then.push(SentenceModule::Normalize),
                ("Transformer" | "Pooling", _) => {
                    return Err(bad("Transformer or Pooling occurs more than once"));
                }
                (other, _) => {
                    let kind = clip(other);
                    return Err(HfError::UnknownModule { path, kind });
                }
            }
        }
        Ok((made, true))
    }

    /// The prompts, and the number of elements to which vectors are truncated.
    fn prompts(&self) -> Result<(SentencePrompts, Option<usize>), HfError> {
        let path = self.root.join("config_sentence_transformers.json");
        let Some(json) = read_optional_json(&path)? else {
            return Ok((SentencePrompts::default(), None));
        };
        let fields = ConfigFields::new(&json, "");
        let refused = |source| HfError::Config {
            path: path.clone(),
            source,
        };
        let mut prompts = SentencePrompts::default();
        let named = fields.opt_object("prompts").map_err(refused)?;
        for (name, text) in named.into_iter().flatten() {
            let Some(text) = text.as_str() else {
                return Err(refused(ConfigError::WrongType {
                    field: format!("prompts.{}", clip(name)),
                    expected: "a string",
                    found: clip(&text.to_string()),
                }));
            };
            prompts.named.insert(name.clone(), text.to_string());
        }
        let default = fields.opt_str("default_prompt_name").map_err(refused)?;
        if let Some(default) = default {
            prompts.get(default)?;
            prompts.default = Some(default.to_string());
        }
        let dims = fields.opt_size("truncate_dim").map_err(refused)?;
        // The version of the tools, and the comparison of vectors, which is the caller's.
        for name in json.keys() {
            let known = ["__version__", "model_type", "similarity_fn_name"];
            let read = ["prompts", "default_prompt_name", "truncate_dim"];
            if !known.contains(&name.as_str()) && !read.contains(&name.as_str()) {
                fields.note(name);
            }
        }
        Ok((prompts, dims))
    }
}

impl EncoderSpec {
    /// The specification of the text encoder with this configuration (`config.json`) and these
    /// weights.
    ///
    /// # Errors
    /// [`ConfigError`] with the field, or with the tensor that no part of the model reads.
    pub fn from_weights(
        config: &Map<String, Value>,
        weights: &HfWeights,
    ) -> Result<EncoderSpec, ConfigError> {
        let mut spec = EncoderSpec::from_json(config)?;
        spec.settle_names(weights.tensors().map(|(_, info)| info.name()));
        spec.check_bounds(&TensorBounds::from_folder(weights))?;
        reject_unknown_modules(&spec, weights)?;
        Ok(spec)
    }
}

/// The supported module types.
const KINDS: [&str; 4] = ["Transformer", "Pooling", "Dense", "Normalize"];

/// The modules in order, if `modules.json` exists.
fn modules(root: &Path) -> Result<Option<Vec<SentenceModuleEntry>>, HfError> {
    let path = root.join("modules.json");
    if !path.exists() {
        return Ok(None);
    }
    let bytes = read_small(&path, super::MAX_JSON_BYTES)?;
    let all: Vec<Map<String, Value>> =
        serde_json::from_slice(&bytes).map_err(|source| HfError::Json {
            path: path.clone(),
            source,
        })?;
    let of = |module: Map<String, Value>| {
        let text = |key: &str| module.get(key).and_then(Value::as_str);
        let (Some(kind), Some(at)) = (text("type"), text("path")) else {
            return Err(HfError::BadModules {
                path: path.clone(),
                reason: "a module has no `type` or no `path`".to_string(),
            });
        };
        // The class name counts; the package name differs between versions.
        let own = kind.starts_with("sentence_transformers.");
        let kind = kind.rsplit('.').next().filter(|_| own).unwrap_or(kind);
        Ok(SentenceModuleEntry {
            kind: kind.to_string(),
            path: at.to_string(),
        })
    };
    all.into_iter().map(of).collect::<Result<_, _>>().map(Some)
}

/// The folder of a module, which must be inside `root`.
fn module_dir(root: &Path, module: &SentenceModuleEntry) -> Result<PathBuf, HfError> {
    let mut parts = Path::new(&module.path).components();
    let plain = parts.all(|part| matches!(part, Component::Normal(_)))
        && !module.path.contains(['\\', ':', '\0']);
    match plain {
        true => Ok(root.join(&module.path)),
        false => Err(HfError::BadModules {
            path: root.join("modules.json"),
            reason: format!("the path `{}` leads out of the folder", clip(&module.path)),
        }),
    }
}

/// The pooling modes and the older fields that enable them, in the order of concatenation.
const MODES: [(&str, &str, PoolingMode); 6] = [
    ("cls", "pooling_mode_cls_token", PoolingMode::Cls),
    ("max", "pooling_mode_max_tokens", PoolingMode::Max),
    ("mean", "pooling_mode_mean_tokens", PoolingMode::Mean),
    (
        "mean_sqrt_len_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        PoolingMode::MeanSqrtLen,
    ),
    (
        "weightedmean",
        "pooling_mode_weightedmean_tokens",
        PoolingMode::WeightedMean,
    ),
    (
        "lasttoken",
        "pooling_mode_lasttoken",
        PoolingMode::LastToken,
    ),
];

/// Reads the pooling modes, and whether prompt tokens are included.
fn pooling_of(path: &Path) -> Result<(Vec<PoolingMode>, bool), HfError> {
    let json = read_json(path)?;
    let fields = ConfigFields::new(&json, "");
    let read = || -> Result<(Vec<PoolingMode>, bool), ConfigError> {
        for size in ["word_embedding_dimension", "embedding_dimension"] {
            fields.opt_size(size)?;
        }
        let mut modes = Vec::new();
        for (_, field, mode) in MODES {
            if fields.opt_bool(field)?.unwrap_or(false) {
                modes.push(mode);
            }
        }
        let names = MODES.map(|(name, ..)| name).join(", ");
        fields.only("pooling_mode", &names, |v| {
            let one = |v: &Value| {
                let name = v.as_str()?;
                MODES
                    .iter()
                    .find_map(|(own, _, mode)| (*own == name).then_some(*mode))
            };
            let found: Option<Vec<PoolingMode>> = match v {
                Value::Array(all) => all.iter().map(one).collect(),
                other => one(other).map(|mode| vec![mode]),
            };
            modes = found.unwrap_or_default();
            !modes.is_empty()
        })?;
        if modes.is_empty() {
            modes.push(PoolingMode::Mean);
        }
        let include = fields.opt_bool("include_prompt")?.unwrap_or(true);
        fields.finish(&[])?;
        Ok((modes, include))
    };
    read().map_err(|source| HfError::Config {
        path: path.to_path_buf(),
        source,
    })
}

/// Reads a dense layer, which has a separate folder.
fn dense(dir: &Path, path: &Path, name: String) -> Result<DenseModule, HfError> {
    let json = read_json(path)?;
    let fields = ConfigFields::new(&json, "");
    let read = || -> Result<([usize; 2], bool, Option<FfnActivation>), ConfigError> {
        let shape = [fields.size("out_features")?, fields.size("in_features")?];
        let bias = fields.opt_bool("bias")?.unwrap_or(true);
        let mut activation = Some(FfnActivation::Tanh);
        fields.only(
            "activation_function",
            "torch's Identity, Tanh, GELU, ReLU or SiLU",
            |v| {
                let known = match v.as_str() {
                    Some("torch.nn.modules.linear.Identity") => None,
                    Some("torch.nn.modules.activation.Tanh") => Some(FfnActivation::Tanh),
                    Some("torch.nn.modules.activation.GELU") => Some(FfnActivation::Gelu),
                    Some("torch.nn.modules.activation.ReLU") => Some(FfnActivation::Relu),
                    Some("torch.nn.modules.activation.SiLU") => Some(FfnActivation::Silu),
                    Some(_) | None => return false,
                };
                activation = known;
                true
            },
        )?;
        for field in ["module_input_name", "module_output_name"] {
            fields.only(field, "\"sentence_embedding\"", |v| {
                v.as_str() == Some("sentence_embedding")
            })?;
        }
        fields.only("use_residual", "false", |v| v.as_bool() == Some(false))?;
        fields.finish(&[])?;
        Ok((shape, bias, activation))
    };
    let ([outputs, inputs], bias, activation) = read().map_err(|source| HfError::Config {
        path: path.to_path_buf(),
        source,
    })?;
    let weights = Weights::Hf(HfWeights::open(dir)?);
    let tensor = |suffix: &str, shape: &[usize]| {
        let name = format!("linear.{suffix}");
        let found = weights.dense_f32(&name, shape);
        found.map_err(|e| HfError::BadModules {
            path: dir.to_path_buf(),
            reason: e.to_string(),
        })
    };
    Ok(DenseModule {
        weight: tensor("weight", &[outputs, inputs])?,
        bias: match bias {
            true => Some(tensor("bias", &[outputs])?),
            false => None,
        },
        name,
        activation,
    })
}
