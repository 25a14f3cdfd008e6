//! The kinds of served models, and the memory that a model takes.

use tercet_models::{ContextFit, ModelError, ModelFamily, ModelFiles};

use crate::error::ServeError;
use crate::generator::{slots, text_spec};
use crate::language::{ModelConfig, context_request};
use crate::options::ServeOptions;
use crate::reranker::RerankerModel;

/// Bytes of the intermediate values of models that generate no text.
const RESERVE_BYTES: u64 = 64 << 20;

/// What a served model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedKind {
    Language,
    /// A language model that takes images.
    ImageText,
    Encoder,
    Reranker,
    #[cfg(feature = "audio")]
    Speech,
    Graph,
}

impl ServedKind {
    /// The kind of a model, by its files.
    ///
    /// # Errors
    /// [`ServeError::Model`] if the model or a combination of options cannot be served.
    pub(crate) fn of(
        name: &str,
        files: &ModelFiles,
        placement: &ModelConfig,
        options: &ServeOptions,
    ) -> Result<ServedKind, ServeError> {
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let refused = |reason: &str| failed(ModelError::Unsupported(reason.to_string()).into());
        let family = files.family().map_err(failed)?;
        let pools = options.pooling.is_some();
        let embeds = pools || files.embeds_texts().map_err(failed)?;
        let kind = match family {
            ModelFamily::Decoder if embeds => ServedKind::Encoder,
            ModelFamily::Decoder => ServedKind::Language,
            ModelFamily::Encoder if !pools && RerankerModel::is(files) => ServedKind::Reranker,
            ModelFamily::Encoder => ServedKind::Encoder,
            #[cfg(feature = "audio")]
            ModelFamily::Speech if !pools => ServedKind::Speech,
            #[cfg(not(feature = "audio"))]
            ModelFamily::Speech => {
                return Err(refused(
                    "speech recognition requires a build with the feature `audio`",
                ));
            }
            _ if pools => {
                return Err(refused(
                    "a pooling requires a text encoder or a language model; leave it out",
                ));
            }
            ModelFamily::Vision => {
                return Err(refused(
                    "image models cannot be served; run them with `tercet embed` or `tercet classify`",
                ));
            }
            ModelFamily::VisionLanguage => ServedKind::ImageText,
            ModelFamily::TextToText => {
                return Err(refused(
                    "encoder-decoders cannot be served; run them with `tercet generate`",
                ));
            }
            #[cfg(feature = "audio")]
            ModelFamily::Speech => ServedKind::Speech,
        };
        match kind {
            ServedKind::Language => {}
            ServedKind::ImageText if !placement.adapters.is_empty() => {
                return Err(refused(
                    "adapters can only be served with text-only language models; leave them out",
                ));
            }
            _ if !placement.adapters.is_empty() => {
                return Err(refused(
                    "adapters can only be served with language models; merge them into other models with `tercet merge`",
                ));
            }
            _ if placement.draft.is_some() => {
                return Err(refused("only text-only language models support drafts"));
            }
            _ => {}
        }
        Ok(kind)
    }

    /// Whether models of this kind generate text.
    pub(crate) fn is_language(self) -> bool {
        matches!(self, ServedKind::Language | ServedKind::ImageText)
    }

    /// The task's name on the Hugging Face hub.
    pub(crate) fn task(self) -> &'static str {
        match self {
            ServedKind::Language | ServedKind::ImageText => "text-generation",
            ServedKind::Encoder => "feature-extraction",
            ServedKind::Reranker => "text-ranking",
            #[cfg(feature = "audio")]
            ServedKind::Speech => "automatic-speech-recognition",
            ServedKind::Graph => "other",
        }
    }

    /// The kinds of inputs of a request.
    pub(crate) fn inputs(self) -> &'static [&'static str] {
        match self {
            ServedKind::Language | ServedKind::Encoder | ServedKind::Reranker => &["text"],
            ServedKind::ImageText => &["text", "image"],
            #[cfg(feature = "audio")]
            ServedKind::Speech => &["audio"],
            ServedKind::Graph => &["tensor"],
        }
    }

    /// Bytes that a model of this kind takes, estimated: weights, caches and intermediate values.
    ///
    /// # Errors
    /// [`ServeError::Model`] if a context does not fit the memory of the device.
    pub(crate) fn memory_bytes(
        self,
        name: &str,
        files: &ModelFiles,
        placement: &ModelConfig,
        options: &ServeOptions,
    ) -> Result<u64, ServeError> {
        // The weights of files in F16 take twice their size as F32.
        if !self.is_language() {
            let weights = files.weight_bytes().saturating_mul(2);
            return Ok(weights.saturating_add(RESERVE_BYTES));
        }
        let failed = |source| ServeError::Model {
            name: name.to_string(),
            source,
        };
        let spec = text_spec(files).map_err(failed)?;
        let request = context_request(files, placement, slots(files, options));
        let fit = ContextFit::new(files, &spec, &placement.device, &request);
        let fit = fit.map_err(|e| failed(e.into()))?;
        let sizes = [fit.weight_bytes, fit.cache_bytes, fit.workspace_bytes];
        Ok(sizes.into_iter().fold(0, u64::saturating_add))
    }
}
