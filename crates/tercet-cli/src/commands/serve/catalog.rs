//! Models that `tercet serve` loads on demand: a folder of models, and a file that lists them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use tercet_models::{Adapter, ModelFiles, ScaledAdapter};
use tercet_serve::{
    DraftSource, ModelConfig, ModelRegistry, ResidencyLimits, ServeOptions, SpeculativeOptions,
};

use super::super::open::open_files;
use super::super::sampling_args::text_of;
use super::super::texts::PoolingName;
use super::super::{ComputePrecision, KvCacheDType};
use super::size;
use crate::error::CliError;
use crate::output;

/// Models that are loaded on demand.
#[derive(clap::Args)]
pub(crate) struct OnDemandArgs {
    /// Folder whose GGUF files and model folders are served; a request loads its model
    #[arg(long, value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// TOML file that lists models with their options; a request loads its model
    #[arg(long, value_name = "FILE")]
    models: Option<PathBuf>,
    /// Maximum memory of all models, such as 24GiB: before another model is loaded, those that were used
    /// the longest ago are unloaded [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_model_memory: Option<u64>,
    /// Seconds without requests after which a model of --models-dir or --models is unloaded [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    unload_after: Option<u64>,
    /// Folder of adapters that requests may load while the server runs
    #[arg(long, value_name = "DIR")]
    adapters_dir: Option<PathBuf>,
}

/// The file of `--models`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelList {
    /// As `--max-model-memory`.
    memory: Option<String>,
    /// As `--unload-after`, in seconds.
    unload_after: Option<u64>,
    #[serde(default)]
    pub models: BTreeMap<String, ListedModelFile>,
}

/// A model of the file. Paths are relative to the folder of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedModelFile {
    path: PathBuf,
    pub context: Option<usize>,
    parallel: Option<usize>,
    dtype: Option<String>,
    cache_dtype: Option<String>,
    pooling: Option<String>,
    chat_template_file: Option<PathBuf>,
    /// `ngram`, or the path of a smaller model.
    draft: Option<String>,
    draft_tokens: Option<usize>,
    #[serde(default)]
    pub adapters: BTreeMap<String, PathBuf>,
}

/// Tokens that a draft proposes by default, as those of `--draft-tokens`.
const DRAFT_TOKENS: usize = 4;

/// Options of models that are loaded on demand, unless the file says otherwise.
pub(super) struct OnDemandDefaults<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) options: &'a ServeOptions,
}

impl OnDemandArgs {
    /// Whether any flag serves models.
    pub(super) fn serves_models(&self) -> bool {
        self.models_dir.is_some() || self.models.is_some()
    }

    /// The folder of adapters.
    pub(super) fn adapter_folder(&self) -> Result<Option<PathBuf>, CliError> {
        let Some(folder) = &self.adapters_dir else {
            return Ok(None);
        };
        let whole = std::fs::canonicalize(folder);
        whole.map(Some).map_err(|source| CliError::File {
            path: folder.clone(),
            source,
        })
    }

    /// Reads the file of the models, and the limits of both.
    pub(super) fn read(&self) -> Result<ModelCatalog, CliError> {
        let list = match &self.models {
            None => None,
            Some(path) => Some((path.clone(), read_list(path)?)),
        };
        let of_file = list.as_ref().map(|(_, list)| list);
        let memory = of_file.and_then(|list| list.memory.as_deref());
        let memory = memory.map(size).transpose();
        let memory = memory.map_err(|e| self.refused(&format!("memory: {e}")))?;
        let idle = self.unload_after.or(of_file.and_then(|l| l.unload_after));
        Ok(ModelCatalog {
            limits: ResidencyLimits {
                memory_bytes: self.max_model_memory.or(memory),
                idle: idle.map(Duration::from_secs),
            },
            folder: self.models_dir.clone(),
            list,
        })
    }

    fn refused(&self, reason: &str) -> CliError {
        let path = self.models.as_deref().unwrap_or(Path::new("-"));
        refused(path, reason)
    }
}

fn refused(path: &Path, reason: &str) -> CliError {
    let path = output::escape_line(&path.display().to_string());
    CliError::Usage(format!("{path}: {reason}"))
}

fn read_list(path: &Path) -> Result<ModelList, CliError> {
    let text = text_of("-", Some(path))?;
    let list: ModelList =
        toml::from_str(&text).map_err(|e| refused(path, e.to_string().trim_end()))?;
    match list.models.is_empty() {
        false => Ok(list),
        true => Err(refused(
            path,
            "no model; add a table such as [models.NAME] with the key path",
        )),
    }
}

/// Models that are loaded on demand, with their limits.
pub(super) struct ModelCatalog {
    pub(super) limits: ResidencyLimits,
    folder: Option<PathBuf>,
    list: Option<(PathBuf, ModelList)>,
}

impl ModelCatalog {
    /// Adds the models to the registry.
    pub(super) fn add(
        &self,
        models: &mut ModelRegistry,
        defaults: &OnDemandDefaults<'_>,
    ) -> Result<(), CliError> {
        if let Some((path, list)) = &self.list {
            for (name, model) in &list.models {
                let base = path.parent().unwrap_or(Path::new(""));
                let model = model.resolved(base, defaults);
                let model = model.map_err(|e| refused(path, &format!("models.{name}: {e}")))?;
                model.add(models, name)?;
            }
        }
        if let Some(folder) = &self.folder {
            let mut count = 0;
            for path in model_paths(folder)? {
                let model = ResolvedModel {
                    path,
                    config: defaults.config.clone(),
                    options: defaults.options.clone(),
                    adapters: Vec::new(),
                };
                let own = name(&model.path);
                // A model of the file goes before one of the folder.
                if models.names().any(|known| known == own) {
                    continue;
                }
                count += 1;
                if let Err(e) = model.add(models, &own) {
                    // One file that is no model does not stop the server.
                    output::print_note(format_args!("note: {}", tercet::one_line(&e)));
                }
            }
            if count == 0 && self.list.is_none() {
                return Err(refused(folder, "no GGUF file and no model folder in it"));
            }
        }
        Ok(())
    }
}

/// The GGUF files and model folders of a folder, by name.
fn model_paths(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let failed = |source| CliError::File {
        path: folder.to_path_buf(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_gguf = path.extension().is_some_and(|end| end == "gguf");
        // Further parts of a split file belong to the first one.
        let stem = path.file_stem().map(|stem| stem.to_string_lossy());
        let is_part = stem.is_some_and(|stem| is_later_part(&stem));
        if (is_gguf && path.is_file() && !is_part) || path.join("config.json").is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Whether a name ends with `-0000N-of-0000M` for N above 1.
pub fn is_later_part(stem: &str) -> bool {
    let Some((rest, count)) = stem.rsplit_once("-of-") else {
        return false;
    };
    let number = rest.rsplit_once('-').map(|(_, number)| number);
    let is_count = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    is_count(count) && number.is_some_and(|number| is_count(number) && number != "00001")
}

/// A model with all of its options.
struct ResolvedModel {
    path: PathBuf,
    config: ModelConfig,
    options: ServeOptions,
    adapters: Vec<(String, PathBuf)>,
}

impl ListedModelFile {
    fn resolved(
        &self,
        base: &Path,
        defaults: &OnDemandDefaults<'_>,
    ) -> Result<ResolvedModel, String> {
        let mut config = defaults.config.clone();
        let mut options = defaults.options.clone();
        if let Some(dtype) = &self.dtype {
            let dtype = ComputePrecision::from_str(dtype, false)
                .map_err(|_| format!("dtype: `{dtype}` is not auto, f32, f16 or bf16"))?;
            config.dtype = dtype.dtype();
            config.matmul_precision = dtype.matmul_precision();
        }
        if let Some(dtype) = &self.cache_dtype {
            let dtype = KvCacheDType::from_str(dtype, false)
                .map_err(|_| format!("cache_dtype: `{dtype}` is not f32, f16, bf16 or q8_0"))?;
            config.cache = Some(dtype.format());
        }
        config.context = self.context.or(config.context);
        if let Some(pooling) = &self.pooling {
            let mode = PoolingName::from_str(pooling, false);
            let mode = mode.map_err(|_| format!("pooling: unknown mode `{pooling}`"))?;
            options.pooling = Some(mode.mode());
        }
        if let Some(template) = &self.chat_template_file {
            let text = text_of("-", Some(&base.join(template)));
            options.chat_template = Some(text.map_err(|e| tercet::one_line(&e))?);
        }
        config.draft = self.draft(base)?;
        options.slots = self.parallel.unwrap_or(defaults.options.slots);
        if options.slots == 0 {
            return Err("parallel: expected 1 or more".to_string());
        }
        let adapters = self.adapters.iter();
        let adapters = adapters.map(|(name, path)| (name.clone(), base.join(path)));
        Ok(ResolvedModel {
            path: base.join(&self.path),
            config,
            options,
            adapters: adapters.collect(),
        })
    }

    fn draft(&self, base: &Path) -> Result<Option<SpeculativeOptions>, String> {
        let by = match self.draft.as_deref() {
            None => return Ok(None),
            Some("ngram") => DraftSource::Ngrams,
            Some(path) => {
                let files = open_files(&base.join(path), "cannot load the draft");
                DraftSource::Model(Arc::new(files.map_err(|e| tercet::one_line(&e))?))
            }
        };
        let tokens = self.draft_tokens.unwrap_or(DRAFT_TOKENS);
        match (1..=tercet_models::MAX_DRAFT_TOKENS).contains(&tokens) {
            true => Ok(Some(SpeculativeOptions { by, tokens })),
            false => Err(format!(
                "draft_tokens: expected 1 to {}",
                tercet_models::MAX_DRAFT_TOKENS
            )),
        }
    }
}

impl ResolvedModel {
    fn add(self, models: &mut ModelRegistry, name: &str) -> Result<(), CliError> {
        // Reports ignored keys once, and files of other commands.
        let path = self.path.display();
        drop(open_files(
            &self.path,
            &format!("cannot load the model {path}"),
        )?);
        let ResolvedModel {
            path,
            config,
            options,
            adapters,
        } = self;
        let opener = move || {
            let files = ModelFiles::open(&path)?;
            let mut config = config.clone();
            if !adapters.is_empty() {
                let spec = files.decoder_spec()?;
                for (name, path) in &adapters {
                    let adapter = ScaledAdapter::new(Adapter::open(path, &spec)?);
                    config.adapters.push((name.clone(), adapter));
                }
            }
            Ok((files, config))
        };
        Ok(models.add_on_demand(name, Arc::new(opener), &options)?)
    }
}

/// Name of a served model: its file name without the extension, its folder name, or the last part
/// of a name in a store.
pub(super) fn name(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let stem = if whole.is_file() {
        whole.file_stem()
    } else {
        whole.file_name()
    };
    stem.map_or_else(|| "model".to_string(), |s| s.to_string_lossy().into_owned())
}
