//! The model of a request, by its name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::entry::{KeepAlive, ModelEntry, ServedModel};
use super::kind::ServedKind;
use super::{ModelRegistry, is_adapter_name};
use crate::encoder::EncoderModel;
use crate::error::ApiError;
use crate::graph::GraphModel;
use crate::language::ServedLanguageModel;
use crate::reranker::RerankerModel;
#[cfg(feature = "audio")]
use crate::transcriber::TranscriberModel;

/// The language model of a request. It stays loaded as long as the request has it.
pub(crate) struct SelectedLanguage {
    /// `MODEL` or `MODEL:ADAPTER`.
    pub(crate) name: String,
    pub(crate) model: Arc<ServedLanguageModel>,
    /// Index of the adapter.
    pub(crate) adapter: Option<usize>,
}

impl ModelRegistry {
    /// Finds a language model by `MODEL` or `MODEL:ADAPTER`, and loads it if need be. If only one model
    /// is served, any other name selects it too, or its adapter of that name.
    ///
    /// # Errors
    /// 404 for an unknown model or adapter; 400 without a name, if several models are served; the errors
    /// of loading.
    pub(crate) async fn language(&self, name: Option<&str>) -> Result<SelectedLanguage, ApiError> {
        let asked = self.asked(name)?;
        let (entry, adapter) = self.language_entry(asked)?;
        let ServedModel::Language(model) = self.residency.lease(entry).await? else {
            return Err(self.no_language(asked));
        };
        let adapter = match adapter {
            None => None,
            Some(adapter) => {
                let at = model.adapters().iter().position(|own| *own == adapter);
                // The adapter may have been removed meanwhile.
                let at = at.ok_or_else(|| self.no_language(asked))?;
                Some((at, adapter))
            }
        };
        Ok(SelectedLanguage {
            name: match &adapter {
                Some((_, adapter)) => format!("{}:{adapter}", entry.name),
                None => entry.name.clone(),
            },
            model,
            adapter: adapter.map(|(at, _)| at),
        })
    }

    /// The model and the adapter of a name.
    fn language_entry(&self, asked: &str) -> Result<(&Arc<ModelEntry>, Option<String>), ApiError> {
        let languages = || {
            let entries = self.residency.entries.iter();
            entries.filter(|entry| entry.kind.is_language())
        };
        for entry in languages() {
            let adapter = match asked.strip_prefix(&entry.name) {
                Some("") => return Ok((entry, None)),
                Some(rest) => rest.strip_prefix(':'),
                None => None,
            };
            if let Some(adapter) = adapter {
                return match entry.adapters().iter().any(|own| own == adapter) {
                    true => Ok((entry, Some(adapter.to_string()))),
                    // The model without its adapter would be another one.
                    false => Err(self.no_language(asked)),
                };
            }
        }
        let (Some(entry), 1) = (languages().next(), self.residency.entries.len()) else {
            return Err(self.no_language(asked));
        };
        let named = asked.rsplit_once(':').map_or(asked, |(_, adapter)| adapter);
        let adapter = entry.adapters().into_iter().find(|own| own == named);
        Ok((entry, adapter))
    }

    fn no_language(&self, name: &str) -> ApiError {
        let known = self.listed_models().into_iter();
        let known = known.filter(|model| model.kind.is_language());
        ApiError::no_model(name, &known.map(|model| model.name).collect::<Vec<_>>())
    }

    /// The language model of a name, if it is loaded.
    pub(crate) fn loaded_language(&self, name: &str) -> Option<Arc<ServedLanguageModel>> {
        let (entry, _) = self.language_entry(name).ok()?;
        match entry.peek()? {
            ServedModel::Language(model) => Some(model),
            _ => None,
        }
    }

    /// Sets how long the model of a request stays loaded after its last request. Returns whether the model can be
    /// unloaded.
    pub(crate) fn set_keep_alive(&self, name: &str, keep_alive: KeepAlive) -> bool {
        let base = match self.entry(name) {
            Some(_) => name,
            None => name.rsplit_once(':').map_or(name, |(base, _)| base),
        };
        match self.entry(base) {
            Some(entry) if entry.source.is_some() => {
                entry.set_keep_alive(keep_alive);
                true
            }
            _ => false,
        }
    }

    /// The name of a request. It is optional if only one model is served.
    fn asked<'a>(&self, name: Option<&'a str>) -> Result<&'a str, ApiError> {
        match name {
            Some(name) => Ok(name),
            None if self.residency.entries.len() == 1 => Ok(""),
            None => Err(ApiError::bad_request("field `model` is missing")),
        }
    }

    /// The encoder of a request, with its name.
    ///
    /// # Errors
    /// 404 for an unknown encoder; 400 without a name, if several models are served; the errors of
    /// loading.
    pub(crate) async fn encoder(
        &self,
        name: Option<&str>,
    ) -> Result<(&str, Arc<EncoderModel>), ApiError> {
        let entry = self.find(name, ServedKind::Encoder)?;
        match self.residency.lease(entry).await? {
            ServedModel::Encoder(encoder) => Ok((&entry.name, encoder)),
            _ => Err(ApiError::no_model(&entry.name, &[])),
        }
    }

    /// The name of the encoder of a request.
    ///
    /// # Errors
    /// 404 for an unknown encoder; 400 without a name, if several models are served.
    pub(crate) fn encoder_name(&self, name: Option<&str>) -> Result<&str, ApiError> {
        Ok(&self.find(name, ServedKind::Encoder)?.name)
    }

    /// # Errors
    /// Returns an error if no reranker has this name. A sentence encoder with this name gives a
    /// more specific error.
    pub(crate) async fn reranker(
        &self,
        name: Option<&str>,
    ) -> Result<(&str, Arc<RerankerModel>), ApiError> {
        if let Ok(own) = self.encoder_name(name) {
            return Err(ApiError::bad_request(format!(
                "`{own}` is a sentence encoder for /v1/embeddings and cannot score pairs; serve a reranker"
            )));
        }
        let entry = self.find(name, ServedKind::Reranker)?;
        match self.residency.lease(entry).await? {
            ServedModel::Reranker(reranker) => Ok((&entry.name, reranker)),
            _ => Err(ApiError::no_model(&entry.name, &[])),
        }
    }

    #[cfg(feature = "audio")]
    pub(crate) async fn transcriber(
        &self,
        name: Option<&str>,
    ) -> Result<(&str, Arc<TranscriberModel>), ApiError> {
        let entry = self.find(name, ServedKind::Speech)?;
        match self.residency.lease(entry).await? {
            ServedModel::Speech(transcriber) => Ok((&entry.name, transcriber)),
            _ => Err(ApiError::no_model(&entry.name, &[])),
        }
    }

    /// Finds a graph by its name, which is part of the path.
    pub(crate) fn graph(&self, name: &str) -> Result<Arc<GraphModel>, ApiError> {
        let found = self.entry(name).and_then(|entry| entry.lease());
        match found {
            Some(ServedModel::Graph(graph)) => Ok(graph),
            _ => Err(self.no_model_of(name, ServedKind::Graph)),
        }
    }

    /// Finds a model of a kind by its name. If only one model is served, every name is its name.
    fn find(&self, name: Option<&str>, kind: ServedKind) -> Result<&Arc<ModelEntry>, ApiError> {
        let asked = self.asked(name)?;
        let entries = &self.residency.entries;
        let is_only = entries.len() == 1;
        let mut found = entries.iter().filter(|entry| entry.kind == kind);
        found
            .find(|entry| is_only || entry.name == asked)
            .ok_or_else(|| self.no_model_of(asked, kind))
    }

    fn no_model_of(&self, name: &str, kind: ServedKind) -> ApiError {
        let entries = self.residency.entries.iter();
        let known = entries.filter(|entry| entry.kind == kind);
        let known: Vec<String> = known.map(|entry| entry.name.clone()).collect();
        ApiError::no_model(name, &known)
    }

    /// A model that is loaded on demand.
    ///
    /// # Errors
    /// 404 for an unknown model; 400 for one that stays loaded.
    fn on_demand(&self, name: &str) -> Result<&Arc<ModelEntry>, ApiError> {
        let Some(entry) = self.entry(name) else {
            let known: Vec<String> = self.names().map(str::to_string).collect();
            return Err(ApiError::no_model(name, &known));
        };
        match &entry.source {
            Some(_) => Ok(entry),
            None => Err(ApiError::bad_request(format!(
                "`{name}` stays loaded; serve it with --models-dir or --models to load and unload it"
            ))),
        }
    }

    /// Loads a model, if it is not loaded.
    ///
    /// # Errors
    /// The errors of [`Self::unload`], and those of loading.
    pub(crate) async fn load(&self, name: &str) -> Result<(), ApiError> {
        let entry = self.on_demand(name)?;
        self.residency.lease(entry).await.map(drop)
    }

    /// Unloads a model when its requests have ended.
    ///
    /// # Errors
    /// 404 for an unknown model; 400 for one that stays loaded; 504 if its requests do not end in time.
    pub(crate) async fn unload(&self, name: &str) -> Result<(), ApiError> {
        let entry = self.on_demand(name)?;
        let deadline = entry.source.as_ref().map(|source| source.options.deadline);
        let deadline = deadline.unwrap_or_default();
        self.residency.unload_now(entry, deadline).await
    }

    /// The model of a request about adapters: by its name, or the only language model.
    fn adapted(&self, model: Option<&str>) -> Result<&Arc<ModelEntry>, ApiError> {
        let name = match model {
            Some(name) => name,
            None => {
                let entries = self.residency.entries.iter();
                let mut all = entries.filter(|entry| entry.kind.is_language());
                match (all.next(), all.next()) {
                    (Some(only), None) => &only.name,
                    _ => {
                        let message =
                            "field `base_model_name` is missing; name the adapter's model";
                        return Err(ApiError::bad_request(message));
                    }
                }
            }
        };
        let entry = self.on_demand(name)?;
        match entry.kind {
            ServedKind::Language => Ok(entry),
            _ => Err(self.no_language(name)),
        }
    }

    /// Adds an adapter to a model, or replaces one that was added before. The model's running requests
    /// end first.
    ///
    /// # Errors
    /// - 400 if no request could select the name, or it is that of an adapter of the start.
    /// - The errors of [`Self::unload`], and those of loading.
    pub(crate) async fn add_adapter(
        &self,
        model: Option<&str>,
        adapter: &str,
        path: &Path,
    ) -> Result<(), ApiError> {
        let entry = self.adapted(model)?;
        if !is_adapter_name(adapter) {
            let message = "field `lora_name` must not be empty or contain a colon";
            return Err(ApiError::bad_request(message));
        }
        let is_fixed = entry.adapters().iter().any(|own| own == adapter);
        if is_fixed && !entry.has_added(adapter) {
            return Err(ApiError::bad_request(format!(
                "`{adapter}` is an adapter of the server's start; choose another `lora_name`"
            )));
        }
        let (name, path): (String, PathBuf) = (adapter.to_string(), path.to_path_buf());
        let change = move |mut added: Vec<(String, PathBuf)>| {
            added.retain(|(own, _)| *own != name);
            added.push((name, path));
            Ok(added)
        };
        self.residency.change_adapters(entry, change).await
    }

    /// Removes an adapter that was added while the server ran. The model's running requests end first.
    ///
    /// # Errors
    /// 404 for an unknown adapter; the errors of [`Self::unload`], and those of loading.
    pub(crate) async fn remove_adapter(
        &self,
        model: Option<&str>,
        adapter: &str,
    ) -> Result<(), ApiError> {
        let entry = self.adapted(model)?;
        let (name, known) = (adapter.to_string(), entry.added());
        let known: Vec<String> = known.into_iter().map(|(own, _)| own).collect();
        let change = move |mut added: Vec<(String, PathBuf)>| {
            let before = added.len();
            added.retain(|(own, _)| *own != name);
            match added.len() < before {
                true => Ok(added),
                false => Err(ApiError::no_model(&name, &known)),
            }
        };
        self.residency.change_adapters(entry, change).await
    }
}
