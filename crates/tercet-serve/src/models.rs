//! Registry of served models.

mod entry;
mod kind;
mod residency;
mod selection;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tercet::{CompileOptions, Graph};
use tercet_models::{ContextFit, ModelFiles};

use crate::error::ServeError;
use crate::graph::{GraphModel, GraphParts};
use crate::language::ModelConfig;
use crate::metrics::ModelMetrics;
use crate::model_facts::ModelFacts;
use crate::options::ServeOptions;

use self::entry::{ModelEntry, ModelLoadSource, ServedModel};
use self::residency::ModelResidency;

pub(crate) use self::entry::KeepAlive;
pub use self::entry::ModelOpener;
pub(crate) use self::kind::ServedKind;
pub use self::residency::ResidencyLimits;
pub(crate) use self::selection::SelectedLanguage;

/// Models and graphs by unique name, in the order of registration.
///
/// ```
/// use tercet::{CompileOptions, DType, Device, Dim, Graph, Type};
/// # use tercet_models::MatmulPrecision;
/// use tercet_serve::{ModelConfig, ModelRegistry, ServeOptions};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [Dim::sym("rows"), Dim::Known(3)]))?;
/// let y = g.softmax(x, 1)?;
/// g.output("y", y)?;
/// # let config = ModelConfig {
/// #     device: Device::cpu(),
/// #     dtype: DType::F32,
/// #     cache: None,
/// #     matmul_precision: MatmulPrecision::Full,
/// #     context: None,
/// #     adapters: Vec::new(),
/// #     draft: None,
/// # };
/// let mut models = ModelRegistry::new();
/// let compile = CompileOptions::new().bound("rows", 8);
/// models.add_graph("softmax", &g, &compile, &config, &ServeOptions::default())?;
/// assert_eq!(models.names().collect::<Vec<_>>(), ["softmax"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct ModelRegistry {
    residency: ModelResidency,
}

/// A name that requests can use.
#[derive(Clone, Debug)]
pub(crate) struct ListedModel {
    pub(crate) name: String,
    /// The base model, if the name selects an adapter.
    pub(crate) base: Option<String>,
    pub(crate) kind: ServedKind,
    pub(crate) is_loaded: bool,
    /// Time until the model is unloaded if it has no requests; `None` means never.
    pub(crate) time_left: Option<Duration>,
}

impl ModelRegistry {
    /// An empty registry.
    pub fn new() -> ModelRegistry {
        ModelRegistry::default()
    }

    /// Sets the limits of the models that are loaded on demand.
    #[must_use]
    pub fn with_limits(mut self, limits: ResidencyLimits) -> ModelRegistry {
        self.residency.limits = limits;
        self
    }

    /// Compiles and adds a language model, a sentence encoder, a reranker or (feature `audio`) a
    /// speech recognition model, which stays loaded.
    ///
    /// # Errors
    /// - [`ServeError::Model`] if the files, an adapter or the device cause an error.
    /// - [`ServeError::DuplicateName`] if the name is taken.
    /// - [`ServeError::AdapterName`] if a request could not select an adapter by name.
    pub fn add_model(
        &mut self,
        name: &str,
        files: ModelFiles,
        placement: ModelConfig,
        options: &ServeOptions,
    ) -> Result<(), ServeError> {
        self.check(name)?;
        check_adapters(name, &placement)?;
        let kind = ServedKind::of(name, &files, &placement, options)?;
        let facts = ModelFacts::from_files(&files);
        let bytes = match self.residency.limits.memory_bytes {
            Some(_) => kind.memory_bytes(name, &files, &placement, options)?,
            None => facts.bytes,
        };
        let model = ServedModel::load(name, kind, files, placement, options)?;
        self.push(ModelEntry::always_loaded(
            name,
            kind,
            Some(facts),
            (model, bytes),
        ));
        Ok(())
    }

    /// Adds a model like [`Self::add_model`], which the first request loads. It is unloaded by the
    /// [`ResidencyLimits`], but never while a request uses it, and loaded again by the next request.
    ///
    /// ```
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
    /// use std::sync::Arc;
    /// # use tercet::{DType, Device};
    /// # use tercet_models::MatmulPrecision;
    /// use tercet_models::ModelFiles;
    /// # use tercet_serve::ModelConfig;
    /// use tercet_serve::{ModelRegistry, ServeOptions};
    /// # let config = ModelConfig {
    /// #     device: Device::cpu(),
    /// #     dtype: DType::F32,
    /// #     cache: None,
    /// #     matmul_precision: MatmulPrecision::Full,
    /// #     context: Some(128),
    /// #     adapters: Vec::new(),
    /// #     draft: None,
    /// # };
    /// let mut models = ModelRegistry::new();
    /// let opener = Arc::new(move || Ok((ModelFiles::open(path)?, config.clone())));
    /// models.add_on_demand("tiny", opener, &ServeOptions::default())?;
    /// assert_eq!(models.names().collect::<Vec<_>>(), ["tiny"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::add_model`] that do not need the device, and
    /// [`ServeError::ModelMemory`] if the model alone exceeds the limit.
    pub fn add_on_demand(
        &mut self,
        name: &str,
        opener: ModelOpener,
        options: &ServeOptions,
    ) -> Result<(), ServeError> {
        self.check(name)?;
        let source = ModelLoadSource {
            opener,
            options: options.clone(),
        };
        let (files, placement) = source.open(name, &[])?;
        check_adapters(name, &placement)?;
        let kind = ServedKind::of(name, &files, &placement, options)?;
        if let Some(limit) = self.residency.limits.memory_bytes {
            let bytes = kind.memory_bytes(name, &files, &placement, options)?;
            if bytes > limit {
                return Err(ServeError::ModelMemory {
                    name: name.to_string(),
                    bytes,
                    limit,
                });
            }
        }
        let facts = ModelFacts::from_files(&files);
        let adapters = placement.adapters.into_iter().map(|(name, _)| name);
        let adapters = adapters.collect();
        self.push(ModelEntry::new(
            name,
            kind,
            Some(facts),
            Some(source),
            adapters,
        ));
        Ok(())
    }

    /// Compiles a graph for the bounds of `compile` and adds it. The graph must have only inputs
    /// and constants: no parameters and no states.
    ///
    /// # Errors
    /// - [`ServeError::Graph`] if the device cannot compile the graph.
    /// - [`ServeError::InvalidGraph`] if the graph has parameters, states or unnamed outputs.
    /// - [`ServeError::DuplicateName`] if the name is taken.
    pub fn add_graph(
        &mut self,
        name: &str,
        graph: &Graph,
        compile: &CompileOptions,
        placement: &ModelConfig,
        options: &ServeOptions,
    ) -> Result<(), ServeError> {
        self.add_graph_parts(name, &graph.clone().into(), compile, placement, options)
    }

    /// Like [`Self::add_graph`], for a graph with parameters.
    ///
    /// # Errors
    /// Same errors as [`Self::add_graph`]; [`ServeError::InvalidGraph`] also if a parameter has no
    /// value, or one of another type.
    pub fn add_graph_parts(
        &mut self,
        name: &str,
        parts: &GraphParts,
        compile: &CompileOptions,
        placement: &ModelConfig,
        options: &ServeOptions,
    ) -> Result<(), ServeError> {
        self.check(name)?;
        let served = GraphModel::load(name, parts, compile, &placement.device, options)?;
        let bytes = parts.params.iter().map(|(_, value)| value.bytes().len());
        let bytes = bytes.sum::<usize>() as u64;
        let model = ServedModel::Graph(Arc::new(served));
        self.push(ModelEntry::always_loaded(
            name,
            ServedKind::Graph,
            None,
            (model, bytes),
        ));
        Ok(())
    }

    fn push(&mut self, entry: ModelEntry) {
        self.residency.entries.push(Arc::new(entry));
    }

    fn check(&self, name: &str) -> Result<(), ServeError> {
        match self.names().any(|n| n == name) {
            true => Err(ServeError::DuplicateName {
                name: name.to_string(),
            }),
            false => Ok(()),
        }
    }

    /// Names of the models and graphs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.residency.entries.iter().map(|of| of.name.as_str())
    }

    /// Names of the loaded language models, and the contexts that were determined for them.
    pub fn contexts(&self) -> impl Iterator<Item = (&str, ContextFit)> {
        self.residency.entries.iter().filter_map(|entry| {
            let ServedModel::Language(language) = entry.lease()? else {
                return None;
            };
            Some((entry.name.as_str(), language.fit.clone()))
        })
    }

    /// Names of the loaded language models, with the number of stored prefixes that each found when it was
    /// loaded, and of those that belong to other models or options.
    pub fn stored_prefixes(&self) -> impl Iterator<Item = (&str, [usize; 2])> {
        self.residency.entries.iter().filter_map(|entry| {
            let ServedModel::Language(language) = entry.lease()? else {
                return None;
            };
            Some((entry.name.as_str(), language.stored_prefixes))
        })
    }

    /// All names that requests can use.
    pub(crate) fn listed_models(&self) -> Vec<ListedModel> {
        let all = self.residency.entries.iter().flat_map(|entry| {
            let usage = entry.usage();
            let is_loaded = usage.is_some();
            let limit = self.residency.idle_limit(entry);
            let time_left = usage.zip(limit).map(|(usage, limit)| {
                let until = usage.last_used.checked_add(limit);
                until.map_or(limit, |until| {
                    until.saturating_duration_since(Instant::now())
                })
            });
            let listed = move |name: String, base: Option<String>| ListedModel {
                name,
                base,
                kind: entry.kind,
                is_loaded,
                time_left,
            };
            let own = &entry.name;
            let adapted = entry.adapters().into_iter();
            let adapted =
                adapted.map(move |name| listed(format!("{own}:{name}"), Some(own.clone())));
            std::iter::once(listed(own.clone(), None)).chain(adapted)
        });
        all.collect()
    }

    /// Facts about the files of a model; `None` for graphs.
    pub(crate) fn facts(&self, name: &str) -> Option<&ModelFacts> {
        self.entry(name)?.facts.as_ref()
    }

    /// Slots and memory of the loaded models, and counts of loads.
    pub(crate) fn metrics(&self) -> ModelMetrics<'_> {
        let entries = self.residency.entries.iter();
        let loaded = entries.filter_map(|entry| {
            let bytes = entry.usage()?.bytes;
            Some((entry.name.as_str(), entry.status()?, bytes))
        });
        let counts = self.residency.counts();
        ModelMetrics {
            loaded: loaded.collect(),
            loads: counts.loads.load(Ordering::Relaxed),
            unloads: counts.unloads.load(Ordering::Relaxed),
        }
    }

    /// Unloads models by age, forever.
    pub(crate) fn sweep(&self) -> impl Future<Output = ()> + Send + 'static {
        let residency = self.residency.clone();
        async move { residency.sweep().await }
    }

    fn entry(&self, name: &str) -> Option<&Arc<ModelEntry>> {
        let mut entries = self.residency.entries.iter();
        entries.find(|entry| entry.name == name)
    }
}

/// Returns an error if a request could not select an adapter by its name.
fn check_adapters(model: &str, placement: &ModelConfig) -> Result<(), ServeError> {
    let names = || placement.adapters.iter().map(|(name, _)| name);
    for (at, name) in names().enumerate() {
        let reason = match name {
            _ if !is_adapter_name(name) => "a name must not be empty or contain a colon",
            _ if names().take(at).any(|other| other == name) => "another adapter has this name",
            _ => continue,
        };
        return Err(ServeError::AdapterName {
            model: model.to_string(),
            name: name.clone(),
            reason,
        });
    }
    Ok(())
}

/// Whether a request can select an adapter by this name.
fn is_adapter_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(':')
}
