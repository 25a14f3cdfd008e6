//! A model of the registry, which is loaded or can be loaded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tercet_models::{Adapter, ModelError, ModelFiles, ScaledAdapter};

use super::kind::ServedKind;
use crate::encoder::EncoderModel;
use crate::error::ServeError;
use crate::graph::GraphModel;
use crate::language::{ModelConfig, ServedLanguageModel};
use crate::model_facts::ModelFacts;
use crate::options::ServeOptions;
use crate::pool::PoolStatus;
use crate::reranker::RerankerModel;
#[cfg(feature = "audio")]
use crate::transcriber::TranscriberModel;

/// Opens the files of a model and gives its options; called at each load.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use std::sync::Arc;
/// use tercet::{DType, Device};
/// use tercet_models::{MatmulPrecision, ModelFiles};
/// use tercet_serve::{ModelConfig, ModelOpener};
/// let config = ModelConfig {
///     device: Device::cpu(),
///     dtype: DType::F32,
///     cache: None,
///     matmul_precision: MatmulPrecision::Full,
///     context: Some(128),
///     adapters: Vec::new(),
///     draft: None,
/// };
/// let opener: ModelOpener = Arc::new(move || Ok((ModelFiles::open(path)?, config.clone())));
/// assert!(opener().is_ok());
/// ```
pub type ModelOpener =
    Arc<dyn Fn() -> Result<(ModelFiles, ModelConfig), tercet_models::Error> + Send + Sync>;

/// A loaded model. Copies share it; it is unloaded when the last one is dropped.
#[derive(Clone)]
pub(super) enum ServedModel {
    Language(Arc<ServedLanguageModel>),
    Encoder(Arc<EncoderModel>),
    Reranker(Arc<RerankerModel>),
    #[cfg(feature = "audio")]
    Speech(Arc<TranscriberModel>),
    Graph(Arc<GraphModel>),
}

impl ServedModel {
    pub(super) fn load(
        name: &str,
        kind: ServedKind,
        files: ModelFiles,
        placement: ModelConfig,
        options: &ServeOptions,
    ) -> Result<ServedModel, ServeError> {
        Ok(match kind {
            ServedKind::Language | ServedKind::ImageText => ServedModel::Language(Arc::new(
                ServedLanguageModel::load(name, files, placement, options)?,
            )),
            ServedKind::Encoder => ServedModel::Encoder(Arc::new(EncoderModel::load(
                name, &files, &placement, options,
            )?)),
            ServedKind::Reranker => ServedModel::Reranker(Arc::new(RerankerModel::load(
                name, &files, &placement, options,
            )?)),
            #[cfg(feature = "audio")]
            ServedKind::Speech => ServedModel::Speech(Arc::new(TranscriberModel::load(
                name, &files, &placement, options,
            )?)),
            ServedKind::Graph => {
                let reason = "a graph has no model files; add it as a graph".to_string();
                return Err(ServeError::Model {
                    name: name.to_string(),
                    source: ModelError::Unsupported(reason).into(),
                });
            }
        })
    }

    pub(super) fn status(&self) -> PoolStatus {
        match self {
            ServedModel::Language(language) => language.load_now(),
            ServedModel::Encoder(encoder) => encoder.load_now(),
            ServedModel::Reranker(reranker) => reranker.load_now(),
            #[cfg(feature = "audio")]
            ServedModel::Speech(transcriber) => transcriber.load_now(),
            ServedModel::Graph(graph) => graph.load_now(),
        }
    }

    /// Whether no request has a copy.
    fn is_idle(&self) -> bool {
        let copies = match self {
            ServedModel::Language(model) => Arc::strong_count(model),
            ServedModel::Encoder(model) => Arc::strong_count(model),
            ServedModel::Reranker(model) => Arc::strong_count(model),
            #[cfg(feature = "audio")]
            ServedModel::Speech(model) => Arc::strong_count(model),
            ServedModel::Graph(model) => Arc::strong_count(model),
        };
        copies == 1
    }
}

/// An adapter that was added while the server ran: its name and its file or folder.
pub(super) type AddedAdapter = (String, std::path::PathBuf);

/// A model of the registry.
pub(super) struct ModelEntry {
    pub(super) name: String,
    pub(super) kind: ServedKind,
    /// Facts about the files; `None` for graphs.
    pub(super) facts: Option<ModelFacts>,
    /// `None` for a model that stays loaded.
    pub(super) source: Option<ModelLoadSource>,
    state: Mutex<EntryState>,
}

/// How a model is loaded.
pub(super) struct ModelLoadSource {
    pub(super) opener: ModelOpener,
    pub(super) options: ServeOptions,
}

struct EntryState {
    loaded: Option<LoadedModel>,
    /// Whether the model is to be unloaded: new requests wait until it is loaded again.
    is_closing: bool,
    /// What the last request that chose a time wants; `None` is the limit of the server.
    keep_alive: Option<KeepAlive>,
    /// Names of the adapters of the source.
    adapters: Vec<String>,
    added: Vec<AddedAdapter>,
}

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepAlive {
    For(Duration),
    Forever,
}

struct LoadedModel {
    model: ServedModel,
    bytes: u64,
    last_used: Instant,
}

/// The use of a loaded model.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelUse {
    pub(super) bytes: u64,
    pub(super) is_idle: bool,
    pub(super) last_used: Instant,
}

impl ModelEntry {
    /// A model that stays loaded.
    pub(super) fn always_loaded(
        name: &str,
        kind: ServedKind,
        facts: Option<ModelFacts>,
        (model, bytes): (ServedModel, u64),
    ) -> ModelEntry {
        let adapters = match &model {
            ServedModel::Language(language) => language.adapters().to_vec(),
            _ => Vec::new(),
        };
        let entry = ModelEntry::new(name, kind, facts, None, adapters);
        entry.set_loaded(model, bytes);
        entry
    }

    pub(super) fn new(
        name: &str,
        kind: ServedKind,
        facts: Option<ModelFacts>,
        source: Option<ModelLoadSource>,
        adapters: Vec<String>,
    ) -> ModelEntry {
        ModelEntry {
            name: name.to_string(),
            kind,
            facts,
            source,
            state: Mutex::new(EntryState {
                loaded: None,
                is_closing: false,
                keep_alive: None,
                adapters,
                added: Vec::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, EntryState> {
        // No code that can panic runs while this lock is locked, so a poisoned state is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the model for a request; `None` if it is not loaded or about to be unloaded.
    pub(super) fn lease(&self) -> Option<ServedModel> {
        let mut state = self.state();
        if state.is_closing {
            return None;
        }
        let loaded = state.loaded.as_mut()?;
        loaded.last_used = Instant::now();
        Some(loaded.model.clone())
    }

    /// Like [`Self::lease`], without counting as a request.
    pub(super) fn peek(&self) -> Option<ServedModel> {
        let state = self.state();
        state.loaded.as_ref().map(|loaded| loaded.model.clone())
    }

    pub(super) fn keep_alive(&self) -> Option<KeepAlive> {
        self.state().keep_alive
    }

    pub(super) fn set_keep_alive(&self, keep_alive: KeepAlive) {
        self.state().keep_alive = Some(keep_alive);
    }

    /// The use of the model; `None` if it is not loaded. A model with requests counts as used now.
    pub(super) fn usage(&self) -> Option<ModelUse> {
        let mut state = self.state();
        let loaded = state.loaded.as_mut()?;
        let is_idle = loaded.model.is_idle();
        if !is_idle {
            loaded.last_used = Instant::now();
        }
        Some(ModelUse {
            bytes: loaded.bytes,
            is_idle,
            last_used: loaded.last_used,
        })
    }

    pub(super) fn status(&self) -> Option<PoolStatus> {
        let state = self.state();
        state.loaded.as_ref().map(|loaded| loaded.model.status())
    }

    /// Makes new requests wait, or not.
    pub(super) fn set_closing(&self, is_closing: bool) {
        self.state().is_closing = is_closing;
    }

    /// Takes the model out, if it has been idle for `age`. Dropping it frees its memory, which may take
    /// long.
    pub(super) fn take_idle(&self, age: Duration) -> Option<ServedModel> {
        let mut state = self.state();
        let found = state.loaded.as_mut()?;
        if !found.model.is_idle() {
            found.last_used = Instant::now();
            return None;
        }
        if found.last_used.elapsed() < age {
            return None;
        }
        state.is_closing = false;
        state.loaded.take().map(|loaded| loaded.model)
    }

    pub(super) fn set_loaded(&self, model: ServedModel, bytes: u64) {
        let mut state = self.state();
        state.is_closing = false;
        state.loaded = Some(LoadedModel {
            model,
            bytes,
            last_used: Instant::now(),
        });
    }

    /// Names of the adapters that requests can select.
    pub(super) fn adapters(&self) -> Vec<String> {
        let state = self.state();
        let added = state.added.iter().map(|(name, _)| name.clone());
        state.adapters.iter().cloned().chain(added).collect()
    }

    /// Whether an adapter was added while the server ran.
    pub(super) fn has_added(&self, adapter: &str) -> bool {
        let state = self.state();
        state.added.iter().any(|(name, _)| name == adapter)
    }

    /// The adapters that were added while the server ran.
    pub(super) fn added(&self) -> Vec<AddedAdapter> {
        self.state().added.clone()
    }

    pub(super) fn set_added(&self, added: Vec<AddedAdapter>) {
        self.state().added = added;
    }
}

impl ModelLoadSource {
    /// Opens the files, with the adapters of the source and the added ones.
    ///
    /// # Errors
    /// [`ServeError::Model`] if a file cannot be read.
    pub(super) fn open(
        &self,
        name: &str,
        added: &[AddedAdapter],
    ) -> Result<(ModelFiles, ModelConfig), ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let (files, mut placement) = (self.opener)().map_err(failed)?;
        if added.is_empty() {
            return Ok((files, placement));
        }
        let spec = files.decoder_spec().map_err(failed)?;
        for (own, path) in added {
            let adapter = Adapter::open(path, &spec).map_err(|e| failed(e.into()))?;
            let adapter = ScaledAdapter::new(adapter);
            placement.adapters.push((own.clone(), adapter));
        }
        Ok((files, placement))
    }
}
