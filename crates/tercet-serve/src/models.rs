//! Registry of served models.

use std::collections::BTreeMap;

use tercet::{CompileOptions, Graph};
use tercet_models::{ContextFit, ModelFamily, ModelFiles};

use crate::encoder::EncoderModel;
use crate::error::{ApiError, ServeError};
use crate::graph::{GraphModel, GraphParts};
use crate::language::{ModelConfig, ServedLanguageModel};
use crate::model_facts::ModelFacts;
use crate::options::ServeOptions;
use crate::pool::PoolStatus;
use crate::reranker::RerankerModel;
#[cfg(feature = "audio")]
use crate::transcriber::TranscriberModel;

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
    all: Vec<(String, ServedModel)>,
    /// Facts about the files of the models, without graphs.
    facts: BTreeMap<String, ModelFacts>,
}

/// The language model of a request.
pub(crate) struct SelectedLanguage<'a> {
    /// `MODEL` or `MODEL:ADAPTER`.
    pub(crate) name: String,
    pub(crate) model: &'a ServedLanguageModel,
    /// Index of the adapter.
    pub(crate) adapter: Option<usize>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "the registry has only a few entries"
)]
enum ServedModel {
    Language(ServedLanguageModel),
    Encoder(EncoderModel),
    Reranker(RerankerModel),
    #[cfg(feature = "audio")]
    Speech(TranscriberModel),
    Graph(GraphModel),
}

impl ModelRegistry {
    /// An empty registry.
    pub fn new() -> ModelRegistry {
        ModelRegistry::default()
    }

    /// Compiles and adds a language model, a sentence encoder, a reranker or (feature `audio`) a
    /// speech recognition model.
    ///
    /// # Errors
    /// - [`ServeError::Model`] if the files, an adapter or the device cause an error.
    /// - [`ServeError::DuplicateName`] if the name is taken.
    /// - [`ServeError::AdapterName`] if a request could not select an adapter by name.
    /// - [`ServeError::DraftSlots`] if there is a draft and more than one slot.
    pub fn add_model(
        &mut self,
        name: &str,
        files: ModelFiles,
        placement: ModelConfig,
        options: &ServeOptions,
    ) -> Result<(), ServeError> {
        self.check(name)?;
        check_adapters(name, &placement)?;
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let family = files.family().map_err(failed)?;
        let facts = ModelFacts::from_files(&files);
        let pools = options.pooling.is_some();
        let embeds = pools || files.embeds_texts().map_err(failed)?;
        let is_language = matches!(family, ModelFamily::Decoder) && !embeds;
        let refused = match is_language {
            true => None,
            false if !placement.adapters.is_empty() => Some(
                "adapters can only be served with language models; merge them into other models with `tercet merge`",
            ),
            false if placement.draft.is_some() => Some("only language models support drafts"),
            false if pools && !matches!(family, ModelFamily::Decoder | ModelFamily::Encoder) => {
                Some("a pooling requires a text encoder or a language model; leave it out")
            }
            false => None,
        };
        if let Some(reason) = refused {
            return Err(failed(
                tercet_models::ModelError::Unsupported(reason.to_string()).into(),
            ));
        }
        let model = match family {
            ModelFamily::Decoder if embeds => {
                ServedModel::Encoder(EncoderModel::load(name, &files, &placement, options)?)
            }
            ModelFamily::Decoder => {
                ServedModel::Language(ServedLanguageModel::load(name, files, placement, options)?)
            }
            ModelFamily::Vision => {
                let reason = "image models cannot be served; run them with `tercet embed` or `tercet classify`";
                return Err(ServeError::Model {
                    name: name.to_string(),
                    source: tercet_models::ModelError::Unsupported(reason.to_string()).into(),
                });
            }
            ModelFamily::Encoder if !pools && RerankerModel::is(&files) => {
                ServedModel::Reranker(RerankerModel::load(name, &files, &placement, options)?)
            }
            ModelFamily::Encoder => {
                ServedModel::Encoder(EncoderModel::load(name, &files, &placement, options)?)
            }
            ModelFamily::VisionLanguage => {
                let reason = "image-text models cannot be served; run them with `tercet chat` or `tercet generate`";
                let source = tercet_models::ModelError::Unsupported(reason.to_string()).into();
                let name = name.to_string();
                return Err(ServeError::Model { name, source });
            }
            ModelFamily::TextToText => {
                let reason = "encoder-decoders cannot be served; run them with `tercet generate`";
                let source = tercet_models::ModelError::Unsupported(reason.to_string()).into();
                let name = name.to_string();
                return Err(ServeError::Model { name, source });
            }
            #[cfg(feature = "audio")]
            ModelFamily::Speech => {
                ServedModel::Speech(TranscriberModel::load(name, &files, &placement, options)?)
            }
            #[cfg(not(feature = "audio"))]
            ModelFamily::Speech => {
                let reason = "speech recognition requires a build with the feature `audio`";
                let source = tercet_models::ModelError::Unsupported(reason.to_string()).into();
                let name = name.to_string();
                return Err(ServeError::Model { name, source });
            }
        };
        self.all.push((name.to_string(), model));
        self.facts.insert(name.to_string(), facts);
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
        self.all
            .push((name.to_string(), ServedModel::Graph(served)));
        Ok(())
    }

    fn check(&self, name: &str) -> Result<(), ServeError> {
        match self.all.iter().any(|(n, _)| n == name) {
            true => Err(ServeError::DuplicateName {
                name: name.to_string(),
            }),
            false => Ok(()),
        }
    }

    /// Names of the models and graphs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(name, _)| name.as_str())
    }

    /// Names of the language models, and the contexts that were determined for them.
    pub fn contexts(&self) -> impl Iterator<Item = (&str, &ContextFit)> {
        self.all.iter().filter_map(|(name, model)| match model {
            ServedModel::Language(language) => Some((name.as_str(), &language.fit)),
            _ => None,
        })
    }

    /// Finds a language model by `MODEL` or `MODEL:ADAPTER`. If only one model is served, any other
    /// name selects it too, or its adapter of that name.
    ///
    /// # Errors
    /// 404 for an unknown model or adapter; 400 without a name, if several models are served.
    pub(crate) fn language(&self, name: Option<&str>) -> Result<SelectedLanguage<'_>, ApiError> {
        let languages = || {
            self.all.iter().filter_map(|(own, model)| {
                let ServedModel::Language(language) = model else {
                    return None;
                };
                Some((own.as_str(), language))
            })
        };
        let of = |own: &str, model, adapter: Option<usize>, known: &[String]| SelectedLanguage {
            name: match adapter {
                Some(at) => format!("{own}:{}", known[at]),
                None => own.to_string(),
            },
            model,
            adapter,
        };
        let position = |known: &[String], name: &str| known.iter().position(|own| own == name);
        let asked = self.asked(name)?;
        for (own, language) in languages() {
            let known = language.adapters();
            let adapter = match asked.strip_prefix(own) {
                Some("") => return Ok(of(own, language, None, known)),
                Some(rest) => rest.strip_prefix(':'),
                None => None,
            };
            match adapter.map(|adapter| position(known, adapter)) {
                Some(Some(at)) => return Ok(of(own, language, Some(at), known)),
                // The model without its adapter would be another one.
                Some(None) => return Err(self.no_language(asked)),
                None => {}
            }
        }
        let (Some((own, language)), 1) = (languages().next(), self.all.len()) else {
            return Err(self.no_language(asked));
        };
        let known = language.adapters();
        let named = asked.rsplit_once(':').map_or(asked, |(_, adapter)| adapter);
        Ok(of(own, language, position(known, named), known))
    }

    fn no_language(&self, name: &str) -> ApiError {
        let known = self.all.iter().filter_map(|(own, model)| {
            let ServedModel::Language(language) = model else {
                return None;
            };
            let adapted = language.adapters().iter();
            let adapted = adapted.map(move |adapter| format!("{own}:{adapter}"));
            Some(std::iter::once(own.clone()).chain(adapted))
        });
        ApiError::no_model(name, &known.flatten().collect::<Vec<_>>())
    }

    /// The name of a request. It is optional if only one model is served.
    fn asked<'a>(&self, name: Option<&'a str>) -> Result<&'a str, ApiError> {
        match name {
            Some(name) => Ok(name),
            None if self.all.len() == 1 => Ok(""),
            None => Err(ApiError::bad_request("field `model` is missing")),
        }
    }

    /// All names that requests can use. The second value is the base model, if the name selects an
    /// adapter.
    pub(crate) fn listed_models(&self) -> Vec<(String, Option<&str>)> {
        let all = self.all.iter().flat_map(|(own, model)| {
            let mut adapted = [].iter();
            if let ServedModel::Language(language) = model {
                adapted = language.adapters().iter();
            }
            std::iter::once((own.clone(), None))
                .chain(adapted.map(move |adapter| (format!("{own}:{adapter}"), Some(own.as_str()))))
        });
        all.collect()
    }

    /// Facts about the files of a model; `None` for graphs.
    pub(crate) fn facts(&self, name: &str) -> Option<&ModelFacts> {
        self.facts.get(name)
    }

    pub(crate) fn encoder(&self, name: Option<&str>) -> Result<(&str, &EncoderModel), ApiError> {
        self.find(name, |model| {
            let ServedModel::Encoder(encoder) = model else {
                return None;
            };
            Some(encoder)
        })
    }

    /// # Errors
    /// Returns an error if no reranker has this name. A sentence encoder with this name gives a
    /// more specific error.
    pub(crate) fn reranker(&self, name: Option<&str>) -> Result<(&str, &RerankerModel), ApiError> {
        if let Ok((own, _)) = self.encoder(name) {
            return Err(ApiError::bad_request(format!(
                "`{own}` is a sentence encoder for /v1/embeddings and cannot score pairs; serve a reranker"
            )));
        }
        self.find(name, |model| {
            let ServedModel::Reranker(reranker) = model else {
                return None;
            };
            Some(reranker)
        })
    }

    #[cfg(feature = "audio")]
    pub(crate) fn transcriber(
        &self,
        name: Option<&str>,
    ) -> Result<(&str, &TranscriberModel), ApiError> {
        self.find(name, |model| {
            let ServedModel::Speech(transcriber) = model else {
                return None;
            };
            Some(transcriber)
        })
    }

    /// Finds a graph by its name, which is part of the path.
    pub(crate) fn graph(&self, name: &str) -> Result<&GraphModel, ApiError> {
        let graphs = || {
            self.all.iter().filter_map(|(own, model)| match model {
                ServedModel::Graph(graph) => Some((own, graph)),
                _ => None,
            })
        };
        let found = graphs().find(|(own, _)| *own == name);
        found.map(|(_, graph)| graph).ok_or_else(|| {
            let known: Vec<String> = graphs().map(|(own, _)| own.clone()).collect();
            ApiError::no_model(name, &known)
        })
    }

    /// Finds a model by its name. If only one model is served, every name is its name.
    fn find<'a, T>(
        &'a self,
        name: Option<&str>,
        of: impl Fn(&'a ServedModel) -> Option<&'a T>,
    ) -> Result<(&'a str, &'a T), ApiError> {
        let asked = self.asked(name)?;
        let is_only = self.all.len() == 1;
        let found = || {
            let models = self.all.iter();
            models.filter_map(|(own, model)| Some((own.as_str(), of(model)?)))
        };
        match found().find(|(own, _)| is_only || *own == asked) {
            Some(found) => Ok(found),
            None => {
                let known: Vec<String> = found().map(|(own, _)| own.to_string()).collect();
                Err(ApiError::no_model(asked, &known))
            }
        }
    }

    pub(crate) fn loads(&self) -> Vec<(&str, PoolStatus)> {
        let load = |model: &ServedModel| match model {
            ServedModel::Language(language) => language.load_now(),
            ServedModel::Encoder(encoder) => encoder.load_now(),
            ServedModel::Reranker(reranker) => reranker.load_now(),
            #[cfg(feature = "audio")]
            ServedModel::Speech(transcriber) => transcriber.load_now(),
            ServedModel::Graph(graph) => graph.load_now(),
        };
        self.all
            .iter()
            .map(|(name, model)| (name.as_str(), load(model)))
            .collect()
    }
}

/// Returns an error if a request could not select an adapter by its name.
fn check_adapters(model: &str, placement: &ModelConfig) -> Result<(), ServeError> {
    let names = || placement.adapters.iter().map(|(name, _)| name);
    for (at, name) in names().enumerate() {
        let reason = match name {
            _ if name.is_empty() || name.contains(':') => {
                "a name must not be empty or contain a colon"
            }
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
