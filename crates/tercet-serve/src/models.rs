//! What is served, by name.

use tercet::{CompileOptions, Graph};
use tercet_models::{Family, ModelFiles};

use crate::encoder::Encoder;
use crate::error::{Refusal, ServeError};
use crate::graph::Served;
use crate::language::{Language, Placement};
use crate::options::ServeOptions;
use crate::pool::Load;
use crate::reranker::Reranker;
#[cfg(feature = "audio")]
use crate::transcriber::Transcriber;

/// Models and graphs, each under its own name, in the order in which they were added.
#[derive(Default)]
pub struct Models {
    all: Vec<(String, Model)>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "there are as many as there are models"
)]
enum Model {
    Language(Language),
    Encoder(Encoder),
    Reranker(Reranker),
    #[cfg(feature = "audio")]
    Speech(Transcriber),
    Graph(Served),
}

impl Models {
    /// None yet.
    pub fn new() -> Models {
        Models::default()
    }

    /// Adds a language model, a sentence encoder, a reranker or (feature `audio`) a speech recognizer, compiled.
    ///
    /// # Errors
    /// [`ServeError::Model`] of its files, an adapter or the device, [`ServeError::Twice`], [`ServeError::AdapterName`],
    /// [`ServeError::DraftSlots`].
    pub fn add_model(
        &mut self,
        name: &str,
        files: ModelFiles,
        placement: Placement,
        options: &ServeOptions,
    ) -> Result<(), ServeError> {
        self.check(name)?;
        check_adapters(name, &placement)?;
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let family = files.family().map_err(failed)?;
        let embeds = files.embeds_texts().map_err(failed)?;
        let is_language = matches!(family, Family::Decoder) && !embeds;
        let refused = match is_language {
            true => None,
            false if !placement.adapters.is_empty() => Some(
                "only language models have adapters here; `tercet merge` puts one into a model of another kind",
            ),
            false if placement.draft.is_some() => Some("only language models have drafts"),
            false => None,
        };
        if let Some(reason) = refused {
            return Err(failed(
                tercet_models::ModelError::Unsupported(reason.to_string()).into(),
            ));
        }
        let model = match family {
            Family::Decoder if embeds => {
                Model::Encoder(Encoder::load(name, &files, &placement, options)?)
            }
            Family::Decoder => Model::Language(Language::load(name, files, placement, options)?),
            Family::Vision => {
                let reason = "models of pictures are not served; `tercet embed` and `tercet classify` run them";
                return Err(ServeError::Model {
                    name: name.to_string(),
                    source: tercet_models::ModelError::Unsupported(reason.to_string()).into(),
                });
            }
            Family::Encoder if Reranker::is(&files) => {
                Model::Reranker(Reranker::load(name, &files, &placement, options)?)
            }
            Family::Encoder => Model::Encoder(Encoder::load(name, &files, &placement, options)?),
            Family::VisionLanguage => {
                let reason = "models of pictures and texts are not served; `tercet chat` and `tercet generate` run them";
                let source = tercet_models::ModelError::Unsupported(reason.to_string()).into();
                let name = name.to_string();
                return Err(ServeError::Model { name, source });
            }
            Family::TextToText => {
                let reason = "encoder-decoders are not served; `tercet generate` runs them";
                let source = tercet_models::ModelError::Unsupported(reason.to_string()).into();
                let name = name.to_string();
                return Err(ServeError::Model { name, source });
            }
            #[cfg(feature = "audio")]
            Family::Speech => Model::Speech(Transcriber::load(name, &files, &placement, options)?),
            #[cfg(not(feature = "audio"))]
            Family::Speech => {
                let reason =
                    "speech recognizers are served by what was built with the feature `audio`";
                let source = tercet_models::ModelError::Unsupported(reason.to_string()).into();
                let name = name.to_string();
                return Err(ServeError::Model { name, source });
            }
        };
        self.all.push((name.to_string(), model));
        Ok(())
    }

    /// Adds a graph, compiled for the bounds of `compile`. All that it computes with has to be its inputs or constants.
    ///
    /// # Errors
    /// [`ServeError::Graph`] of the device, [`ServeError::Unfit`], [`ServeError::Twice`].
    pub fn add_graph(
        &mut self,
        name: &str,
        graph: &Graph,
        compile: &CompileOptions,
        placement: &Placement,
        options: &ServeOptions,
    ) -> Result<(), ServeError> {
        self.check(name)?;
        let served = Served::load(name, graph, compile, &placement.device, options)?;
        self.all.push((name.to_string(), Model::Graph(served)));
        Ok(())
    }

    fn check(&self, name: &str) -> Result<(), ServeError> {
        match self.all.iter().any(|(n, _)| n == name) {
            true => Err(ServeError::Twice {
                name: name.to_string(),
            }),
            false => Ok(()),
        }
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(name, _)| name.as_str())
    }

    /// A language model by its name, and the place of the adapter that follows behind a colon, if one does.
    pub(crate) fn language(&self, name: &str) -> Result<(&Language, Option<usize>), Refusal> {
        let languages = || {
            self.all.iter().filter_map(|(own, model)| {
                let Model::Language(language) = model else {
                    return None;
                };
                Some((own.as_str(), language))
            })
        };
        for (own, language) in languages() {
            let adapter = match name.strip_prefix(own) {
                Some("") => return Ok((language, None)),
                Some(rest) => rest.strip_prefix(':'),
                None => None,
            };
            let known = |adapter| {
                language
                    .adapters()
                    .iter()
                    .position(|known| known == adapter)
            };
            if let Some(at) = adapter.and_then(known) {
                return Ok((language, Some(at)));
            }
        }
        let known = languages().flat_map(|(own, language)| {
            let adapted = language.adapters().iter();
            std::iter::once(own.to_string())
                .chain(adapted.map(move |adapter| format!("{own}:{adapter}")))
        });
        Err(Refusal::no_model(name, &known.collect::<Vec<_>>()))
    }

    /// What requests may name, each with the model that it is an adapter of, if it is one.
    pub(crate) fn shown(&self) -> Vec<(String, Option<&str>)> {
        let all = self.all.iter().flat_map(|(own, model)| {
            let mut adapted = [].iter();
            if let Model::Language(language) = model {
                adapted = language.adapters().iter();
            }
            std::iter::once((own.clone(), None))
                .chain(adapted.map(move |adapter| (format!("{own}:{adapter}"), Some(own.as_str()))))
        });
        all.collect()
    }

    pub(crate) fn encoder(&self, name: &str) -> Result<&Encoder, Refusal> {
        self.find(name, |model| {
            let Model::Encoder(encoder) = model else {
                return None;
            };
            Some(encoder)
        })
    }

    /// # Errors
    /// As the others; a sentence encoder is told apart.
    pub(crate) fn reranker(&self, name: &str) -> Result<&Reranker, Refusal> {
        if self.encoder(name).is_ok() {
            return Err(Refusal::bad(format!(
                "`{name}` is a sentence encoder: it gives embeddings (/v1/embeddings), not scores of pairs; serve a reranker"
            )));
        }
        self.find(name, |model| {
            let Model::Reranker(reranker) = model else {
                return None;
            };
            Some(reranker)
        })
    }

    #[cfg(feature = "audio")]
    pub(crate) fn transcriber(&self, name: &str) -> Result<&Transcriber, Refusal> {
        self.find(name, |model| {
            let Model::Speech(transcriber) = model else {
                return None;
            };
            Some(transcriber)
        })
    }

    pub(crate) fn graph(&self, name: &str) -> Result<&Served, Refusal> {
        self.find(name, |model| {
            let Model::Graph(graph) = model else {
                return None;
            };
            Some(graph)
        })
    }

    fn find<'a, T>(
        &'a self,
        name: &str,
        of: impl Fn(&'a Model) -> Option<&'a T>,
    ) -> Result<&'a T, Refusal> {
        let named = |(n, model): &'a (String, Model)| Some((n, of(model)?));
        let mut all = self.all.iter().filter_map(named);
        match all.find(|(n, _)| *n == name) {
            Some((_, found)) => Ok(found),
            None => {
                let known: Vec<String> = self
                    .all
                    .iter()
                    .filter_map(named)
                    .map(|(n, _)| n.clone())
                    .collect();
                Err(Refusal::no_model(name, &known))
            }
        }
    }

    pub(crate) fn loads(&self) -> Vec<(&str, Load)> {
        let load = |model: &Model| match model {
            Model::Language(language) => language.load_now(),
            Model::Encoder(encoder) => encoder.load_now(),
            Model::Reranker(reranker) => reranker.load_now(),
            #[cfg(feature = "audio")]
            Model::Speech(transcriber) => transcriber.load_now(),
            Model::Graph(graph) => graph.load_now(),
        };
        self.all
            .iter()
            .map(|(name, model)| (name.as_str(), load(model)))
            .collect()
    }
}

/// Refuses adapters that no request could name.
fn check_adapters(model: &str, placement: &Placement) -> Result<(), ServeError> {
    let names = || placement.adapters.iter().map(|(name, _)| name);
    for (at, name) in names().enumerate() {
        let reason = match name {
            _ if name.is_empty() || name.contains(':') => "it has to have letters, and no colon",
            _ if names().take(at).any(|other| other == name) => "another one is called so",
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
