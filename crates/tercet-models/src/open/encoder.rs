//! Opening encoders: the settings of the model's files and the caller's options.

use std::path::Path;

use tercet::{DType, Device};

use super::{ModelFiles, gguf};
use crate::error::Error;
use crate::family::ModelFamily;
use tercet_networks::config::EncoderSpec;
use tercet_networks::hf::{ClassHead, HfFolder, SentenceFolder};
use tercet_networks::{
    Embedder, Encoder, EncoderOutput, MatmulPrecision, ModelError, PoolingMode, SentenceModule,
    TextClassifier,
};
use tercet_text::tokenizer::Tokenizer;

/// The prompt that is prepended to texts.
///
/// ```
/// use tercet_models::{EmbeddingPrompt, EncoderOptions};
/// let prompt = EmbeddingPrompt::Named("query".to_string());
/// let options = EncoderOptions { prompt, ..EncoderOptions::default() };
/// assert_ne!(options.prompt, EmbeddingPrompt::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EmbeddingPrompt {
    /// The folder's default prompt, if there is one.
    #[default]
    Default,
    /// The folder's prompt of this name.
    Named(String),
    /// The given text; may be empty.
    Text(String),
}

/// Options for embedding and classification.
///
/// ```
/// use tercet_models::EncoderOptions;
/// let options = EncoderOptions { truncate: true, dims: Some(256), ..EncoderOptions::default() };
/// assert_eq!((options.batch, options.max_tokens), (None, None));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderOptions {
    /// The float dtype for computation.
    pub dtype: DType,
    /// The rounding of activations in matmuls with packed or 16-bit weights, if `dtype` is F32. If
    /// a value exceeds the range of the rounded type, the model falls back to unrounded
    /// activations.
    pub matmul_precision: MatmulPrecision,
    /// Maximum number of texts per run; `None` for 32, or fewer for long texts.
    pub batch: Option<usize>,
    /// Maximum text length in tokens; `None` for the model's limit.
    pub max_tokens: Option<usize>,
    /// Whether longer texts are truncated; otherwise they are an error.
    pub truncate: bool,
    /// The prompt for texts to be embedded.
    pub prompt: EmbeddingPrompt,
    /// The pooling of embeddings, instead of that of the model's files. A decoder whose files specify
    /// none requires it.
    pub pooling: Option<PoolingMode>,
    /// If set, embeddings are truncated to this number of leading elements and normalized again.
    pub dims: Option<usize>,
}

impl Default for EncoderOptions {
    /// F32, batch size by length, the model's maximum length, an error for longer texts, the
    /// folder's default prompt, the pooling of the model's files, and untruncated embeddings.
    fn default() -> EncoderOptions {
        EncoderOptions {
            dtype: DType::F32,
            matmul_precision: MatmulPrecision::Full,
            batch: None,
            max_tokens: None,
            truncate: false,
            prompt: EmbeddingPrompt::Default,
            pooling: None,
            dims: None,
        }
    }
}

impl EncoderOptions {
    fn products(&self) -> MatmulPrecision {
        match self.dtype {
            DType::F32 => self.matmul_precision,
            _ => MatmulPrecision::Full,
        }
    }

    /// The maximum text length, from the option, the model's stated limit `said`, and its context
    /// length.
    pub(super) fn max_tokens(
        &self,
        said: Option<usize>,
        context: usize,
    ) -> Result<usize, ModelError> {
        match self.max_tokens {
            Some(tokens) if tokens > context => Err(ModelError::Context { tokens, context }),
            Some(tokens) => Ok(tokens),
            None => Ok(said.unwrap_or(context).min(context)),
        }
    }
}

/// Opening of an embedding model with one call.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/encoders/sentence-a");
/// use tercet_models::{Embedder, OpenModel};
/// let mut embedder = Embedder::open(path)?;
/// let vectors = embedder.embed(&["a cat", "a dog"])?;
/// assert_eq!((vectors.len(), vectors[0].len()), (2, embedder.width()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait OpenModel: Sized {
    /// Opens a model on the best device of this machine with default options. The path is that of
    /// [`ModelFiles::open`].
    ///
    /// # Errors
    /// The errors of [`Self::open_with`].
    fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, &Device::auto()?, &EncoderOptions::default())
    }

    /// Opens a model on a device.
    ///
    /// # Errors
    /// The errors of the files and the device; [`Error::OtherFamily`] for a model of another kind.
    fn open_with(
        path: impl AsRef<Path>,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<Self, Error>;
}

/// Text encoders, and the text towers of vision models.
impl OpenModel for Embedder {
    fn open_with(
        path: impl AsRef<Path>,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<Embedder, Error> {
        let files = ModelFiles::open(path)?;
        let wanted = "Embedder";
        match files.family()? {
            ModelFamily::Encoder | ModelFamily::Decoder | ModelFamily::Vision => {
                files.embedder(device, options)
            }
            found @ (ModelFamily::VisionLanguage
            | ModelFamily::TextToText
            | ModelFamily::Speech) => Err(Error::OtherFamily { wanted, found }),
        }
    }
}

impl ModelFiles {
    /// The model's folder; an error for GGUF files, which have no classifiers, vision models or
    /// speech recognizers.
    pub(super) fn folder(&self) -> Result<&HfFolder, Error> {
        match self {
            ModelFiles::Gguf(gguf) => {
                let name = gguf.metadata().get_str("general.architecture")?;
                Err(Error::Architecture {
                    name: format!(
                        "{} in GGUF for classification, vision or speech",
                        tercet_files::clip(name)
                    ),
                })
            }
            ModelFiles::Hf(folder) => Ok(folder),
        }
    }

    /// The specification of a text encoder.
    ///
    /// # Errors
    /// [`Error`] if the model is not an encoder, or a field is not supported.
    pub fn encoder_spec(&self) -> Result<EncoderSpec, Error> {
        match self {
            ModelFiles::Gguf(gguf) => Ok(EncoderSpec::from_gguf(gguf)?),
            ModelFiles::Hf(folder) => Ok(folder.encoder_spec()?),
        }
    }

    /// The pooling, modules, prompts and limits of a sentence encoder, from its folder or GGUF
    /// file. The default is mean pooling with normalization.
    ///
    /// # Errors
    /// [`Error`] of the folder's files, or of the metadata.
    pub fn sentence(&self) -> Result<SentenceFolder, Error> {
        match self {
            ModelFiles::Gguf(gguf) => gguf::sentence(gguf),
            ModelFiles::Hf(folder) => Ok(folder.sentence()?),
        }
    }

    /// Whether the model computes text embeddings instead of generating: an encoder, a decoder
    /// whose files specify a pooling, or a bidirectional decoder.
    ///
    /// # Errors
    /// [`Error`] of the files or the configuration.
    pub fn embeds_texts(&self) -> Result<bool, Error> {
        match self.family()? {
            ModelFamily::Encoder => Ok(true),
            ModelFamily::Decoder => Ok(self.pools()? || self.decoder_spec()?.is_bidirectional()),
            ModelFamily::Vision
            | ModelFamily::VisionLanguage
            | ModelFamily::TextToText
            | ModelFamily::Speech => Ok(false),
        }
    }

    /// The maximum number of positions of a model that embeds texts.
    ///
    /// # Errors
    /// [`Error`] of the configuration.
    pub fn text_positions(&self) -> Result<usize, Error> {
        match self.family()? {
            ModelFamily::Decoder => Ok(self.decoder_spec()?.context),
            _ => Ok(self.encoder_spec()?.context),
        }
    }

    /// Whether the files specify a pooling of a decoder's states.
    fn pools(&self) -> Result<bool, Error> {
        match self {
            ModelFiles::Gguf(gguf) => Ok(gguf::pools(gguf)?),
            ModelFiles::Hf(folder) => Ok(folder.has_modules()),
        }
    }

    /// Builds the graph of a text encoder, computed in `dtype`. If the folder specifies a pooling
    /// ([`Self::sentence`]), the vectors of `output` must use it.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`Encoder::build`]; [`ModelError::Unsupported`] for
    /// another pooling.
    pub fn encoder(&self, output: &EncoderOutput, dtype: DType) -> Result<Encoder, Error> {
        if let EncoderOutput::Embedding(modules) = output {
            let said = self.sentence()?;
            if said.stated && said.modules.modes != modules.modes {
                let [said, asked] = [&said.modules.modes, &modules.modes].map(|modes| {
                    let names: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
                    names.join(" and ")
                });
                let reason = format!("the model's folder pools by {said}, not by {asked}");
                return Err(ModelError::Unsupported(reason).into());
            }
        }
        let pools = matches!(output, EncoderOutput::Embedding(_) | EncoderOutput::Hidden);
        if pools
            && self.family()? == ModelFamily::Decoder
            && !self.decoder_spec()?.is_bidirectional()
            && !self.pools()?
        {
            let reason = "not a sentence encoder: a decoder without modules.json in its folder, or \
                without pooling in its GGUF file; choose a pooling, as with `tercet embed --pooling last`";
            return Err(ModelError::Unsupported(reason.into()).into());
        }
        self.encoder_as(output, dtype)
    }

    /// Builds the graph of a text encoder with any pooling.
    fn encoder_as(&self, output: &EncoderOutput, dtype: DType) -> Result<Encoder, Error> {
        let weights = self.weights();
        match (self.family()?, output) {
            (ModelFamily::Decoder, EncoderOutput::Embedding(_) | EncoderOutput::Hidden) => {
                let spec = self.decoder_spec()?;
                Ok(Encoder::from_decoder(&spec, &weights, output, dtype)?)
            }
            _ => Ok(Encoder::build(
                &self.encoder_spec()?,
                &weights,
                output,
                dtype,
            )?),
        }
    }

    /// Compiles a sentence encoder with the folder's modules and limits, or the text tower of a
    /// vision model.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device; [`ModelError::Context`] for a limit
    /// beyond the positions.
    pub fn embedder(&self, device: &Device, options: &EncoderOptions) -> Result<Embedder, Error> {
        if self.family()? == ModelFamily::Vision {
            return self.text_embedder(device, options);
        }
        let said = self.sentence()?;
        let mut modules = said.modules;
        modules.dims = options.dims;
        if modules.dims.is_some() {
            // The caller's length takes precedence over that of the folder.
            let is_truncation = |module: &_| matches!(module, SentenceModule::Truncate(_));
            modules.then.retain(|module| !is_truncation(module));
        }
        let mut encoder = match options.pooling {
            Some(mode) => {
                modules.modes = vec![mode];
                self.encoder_as(&EncoderOutput::Embedding(modules), options.dtype)?
            }
            None => self.encoder(&EncoderOutput::Embedding(modules), options.dtype)?,
        };
        encoder.matmul_precision = options.products();
        let most = options.max_tokens(said.longest_text, encoder.context)?;
        let tokenizer = self.tokenizer()?;
        let embedder = Embedder::new(&encoder, tokenizer, device, options.batch, most)?;
        let prompts = &said.prompts;
        let prompt = match (&options.prompt, &prompts.default) {
            (EmbeddingPrompt::Text(text), _) => text.as_str(),
            (EmbeddingPrompt::Named(name), _) | (EmbeddingPrompt::Default, Some(name)) => {
                prompts.get(name)?
            }
            (EmbeddingPrompt::Default, None) => "",
        };
        let embedder = embedder
            .truncating(options.truncate)
            .lower_case(said.lower_case);
        Ok(embedder.with_prompt(prompt)?)
    }

    /// Whether the folder's `architectures` name a classifier of texts or tokens.
    pub fn has_class_head(&self) -> bool {
        match self {
            ModelFiles::Gguf(_) => false,
            ModelFiles::Hf(folder) => folder.has_class_head(),
        }
    }

    /// The classification head.
    ///
    /// # Errors
    /// [`Error`] if the folder has no classification head, or its classes have no names.
    pub fn class_head(&self) -> Result<ClassHead, Error> {
        let spec = self.encoder_spec()?;
        Ok(self.folder()?.class_head(&spec)?)
    }

    /// Compiles a classifier of texts or tokens.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device.
    pub fn classifier(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<TextClassifier, Error> {
        let head = self.class_head()?;
        let scoring = head.scoring;
        self.with_head(device, options, head, scoring)
    }

    /// Compiles a cross-encoder, which scores pairs of texts.
    ///
    /// # Errors
    /// The errors of [`Self::classifier`]; [`ModelError::Unsupported`] for a token classifier.
    pub fn reranker(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<TextClassifier, Error> {
        let head = self.class_head()?;
        if head.per_token {
            let reason = "the model predicts classes of tokens; a reranker scores texts";
            return Err(ModelError::Unsupported(reason.into()).into());
        }
        let scoring = head.ranking;
        self.with_head(device, options, head, scoring)
    }

    fn with_head(
        &self,
        device: &Device,
        options: &EncoderOptions,
        head: ClassHead,
        scoring: tercet_networks::Scoring,
    ) -> Result<TextClassifier, Error> {
        let classes = head.labels.len();
        let output = match head.per_token {
            true => EncoderOutput::TokenClasses(classes),
            false => EncoderOutput::Classes(classes),
        };
        let mut encoder = self.encoder(&output, options.dtype)?;
        encoder.matmul_precision = options.products();
        let said = self.folder()?.longest_text()?;
        let most = options.max_tokens(said, encoder.context)?;
        let tokenizer: Tokenizer = self.tokenizer()?;
        let sizes = (options.batch, most);
        let own = TextClassifier::new(&encoder, tokenizer, device, sizes, head.labels, scoring)?;
        Ok(own.truncating(options.truncate))
    }
}
