//! Encoders of files: what their folder says, and what the caller chooses.

use tercet::{DType, Device};

use super::{Family, ModelFiles, gguf};
use crate::builder::{Classifier, Embedder, Encoder, EncoderOutput, ModelError, Products};
use crate::config::EncoderSpec;
use crate::error::Error;
use crate::hf::{ClassHead, HfFolder, SentenceFolder};
use crate::tokenizer::Tokenizer;

/// What is put before texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// The prompt that the folder has for texts without another, if it has one.
    #[default]
    Default,
    /// The folder's prompt of this name.
    Named(String),
    /// This text; may be empty.
    Text(String),
}

/// Choices for embedding and classifying.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderOptions {
    /// The float dtype to compute in.
    pub dtype: DType,
    /// What rows of texts are rounded to on their way into products with packed weights or weights of 16 bits, where `dtype`
    /// is F32. Where that leaves the range of the type, the model goes on without it.
    pub products: Products,
    /// Texts of a run at most; 32, fewer of long ones, where there is none.
    pub batch: Option<usize>,
    /// Tokens of the longest text; as the model says where there is none.
    pub most: Option<usize>,
    /// Whether longer texts are cut; else they are an error.
    pub cut: bool,
    /// What is put before texts that are embedded.
    pub prompt: Prompt,
    /// Only so many leading elements of embeddings, normalized again.
    pub dims: Option<usize>,
}

impl Default for EncoderOptions {
    /// F32, batches by length, the model's own limit, longer texts are errors, the folder's own prompt, all elements.
    fn default() -> EncoderOptions {
        EncoderOptions {
            dtype: DType::F32,
            products: Products::Exact,
            batch: None,
            most: None,
            cut: false,
            prompt: Prompt::Default,
            dims: None,
        }
    }
}

impl EncoderOptions {
    fn products(&self) -> Products {
        match self.dtype {
            DType::F32 => self.products,
            _ => Products::Exact,
        }
    }

    /// Tokens of the longest text of a model that says these limits.
    pub(super) fn most(&self, said: Option<usize>, context: usize) -> Result<usize, ModelError> {
        match self.most {
            Some(tokens) if tokens > context => Err(ModelError::Context { tokens, context }),
            Some(tokens) => Ok(tokens),
            None => Ok(said.unwrap_or(context).min(context)),
        }
    }
}

impl ModelFiles {
    /// The folder that models of classes, of pictures and speech recognizers are read from.
    pub(super) fn folder(&self) -> Result<&HfFolder, Error> {
        match self {
            ModelFiles::Gguf(gguf) => {
                let name = gguf.metadata().get_str("general.architecture")?;
                Err(Error::Architecture {
                    name: format!(
                        "{} in GGUF as a model of classes, pictures or speech",
                        crate::gguf::clip(name)
                    ),
                })
            }
            ModelFiles::Hf(folder) => Ok(folder),
        }
    }

    /// The specification of a text encoder.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field is not supported.
    pub fn encoder_spec(&self) -> Result<EncoderSpec, Error> {
        match self {
            ModelFiles::Gguf(gguf) => Ok(EncoderSpec::from_gguf(gguf)?),
            ModelFiles::Hf(folder) => Ok(folder.encoder_spec()?),
        }
    }

    /// Pooling, modules, prompts and limits of a sentence encoder, as its folder or GGUF file says; the mean, normalized,
    /// where it says nothing.
    ///
    /// # Errors
    /// [`Error`] of the folder's files, or of the metadata.
    pub fn sentence(&self) -> Result<SentenceFolder, Error> {
        match self {
            ModelFiles::Gguf(gguf) => gguf::sentence(gguf),
            ModelFiles::Hf(folder) => Ok(folder.sentence()?),
        }
    }

    /// Whether this is a model that embeds texts rather than writing some: an encoder, or a decoder whose files say how its
    /// states are pooled or whose tokens see both ways.
    ///
    /// # Errors
    /// [`Error`] of the files or the configuration.
    pub fn embeds_texts(&self) -> Result<bool, Error> {
        match self.family()? {
            Family::Encoder => Ok(true),
            Family::Decoder => Ok(self.pools()? || self.decoder_spec()?.bidirectional),
            Family::Vision | Family::VisionLanguage | Family::TextToText | Family::Speech => {
                Ok(false)
            }
        }
    }

    /// Positions of a model that embeds texts.
    ///
    /// # Errors
    /// [`Error`] of the configuration.
    pub fn text_positions(&self) -> Result<usize, Error> {
        match self.family()? {
            Family::Decoder => Ok(self.decoder_spec()?.context),
            _ => Ok(self.encoder_spec()?.context),
        }
    }

    /// Whether the files say how a decoder's states are pooled.
    fn pools(&self) -> Result<bool, Error> {
        match self {
            ModelFiles::Gguf(gguf) => Ok(gguf::pools(gguf)?),
            ModelFiles::Hf(folder) => Ok(folder.has_modules()),
        }
    }

    /// The graph of a text encoder, computed in `dtype`. Vectors must be pooled as the folder says ([`Self::sentence`]), if
    /// it says.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`Encoder::build`]; [`ModelError::Unsupported`] for another pooling.
    pub fn encoder(&self, output: &EncoderOutput, dtype: DType) -> Result<Encoder, Error> {
        if let EncoderOutput::Embedding(modules) = output {
            let said = self.sentence()?;
            if said.stated && said.modules.modes != modules.modes {
                let (said, asked) = (&said.modules.modes, &modules.modes);
                let reason = format!("the model's folder pools by {said:?}, not by {asked:?}");
                return Err(ModelError::Unsupported(reason).into());
            }
        }
        let weights = self.weights();
        match (self.family()?, output) {
            (Family::Decoder, EncoderOutput::Embedding(_) | EncoderOutput::Hidden) => {
                let spec = self.decoder_spec()?;
                if !spec.bidirectional && !self.pools()? {
                    let reason = "a decoder whose folder has no modules.json, or whose file no pooling, is no sentence encoder";
                    return Err(ModelError::Unsupported(reason.into()).into());
                }
                Ok(Encoder::of_decoder(&spec, &weights, output, dtype)?)
            }
            _ => Ok(Encoder::build(
                &self.encoder_spec()?,
                &weights,
                output,
                dtype,
            )?),
        }
    }

    /// A compiled sentence encoder, with the folder's own modules and limits; or the texts' side of a model of pictures and
    /// texts.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device; [`ModelError::Context`] for a limit beyond the positions.
    pub fn embedder(&self, device: &Device, options: &EncoderOptions) -> Result<Embedder, Error> {
        if self.family()? == Family::Vision {
            return self.text_embedder(device, options);
        }
        let said = self.sentence()?;
        let mut modules = said.modules;
        modules.dims = options.dims;
        let mut encoder = self.encoder(&EncoderOutput::Embedding(modules), options.dtype)?;
        encoder.products = options.products();
        let most = options.most(said.longest_text, encoder.context)?;
        let tokenizer = self.tokenizer()?;
        let embedder = Embedder::new(&encoder, tokenizer, device, options.batch, most)?;
        let prompts = &said.prompts;
        let prompt = match (&options.prompt, &prompts.default) {
            (Prompt::Text(text), _) => text.as_str(),
            (Prompt::Named(name), _) | (Prompt::Default, Some(name)) => prompts.get(name)?,
            (Prompt::Default, None) => "",
        };
        let embedder = embedder.cutting(options.cut).lower_case(said.lower_case);
        embedder.with_prompt(prompt)
    }

    /// The head that tells classes.
    ///
    /// # Errors
    /// [`Error`] for a folder without such a head, or whose classes have no names.
    pub fn class_head(&self) -> Result<ClassHead, Error> {
        let spec = self.encoder_spec()?;
        Ok(self.folder()?.class_head(&spec)?)
    }

    /// A compiled encoder that tells the classes of texts or tokens.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device.
    pub fn classifier(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<Classifier, Error> {
        let head = self.class_head()?;
        let scoring = head.scoring;
        self.with_head(device, options, head, scoring)
    }

    /// A compiled encoder that scores pairs of texts (a cross-encoder).
    ///
    /// # Errors
    /// As [`Self::classifier`]; [`ModelError::Unsupported`] for classes of tokens.
    pub fn reranker(&self, device: &Device, options: &EncoderOptions) -> Result<Classifier, Error> {
        let head = self.class_head()?;
        if head.of_tokens {
            let reason =
                "the model tells classes of tokens; one that ranks has one score of a text";
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
        scoring: crate::builder::Scoring,
    ) -> Result<Classifier, Error> {
        let classes = head.labels.len();
        let output = match head.of_tokens {
            true => EncoderOutput::TokenClasses(classes),
            false => EncoderOutput::Classes(classes),
        };
        let mut encoder = self.encoder(&output, options.dtype)?;
        encoder.products = options.products();
        let said = self.folder()?.longest_text()?;
        let most = options.most(said, encoder.context)?;
        let tokenizer: Tokenizer = self.tokenizer()?;
        let sizes = (options.batch, most);
        let own = Classifier::new(&encoder, tokenizer, device, sizes, head.labels, scoring)?;
        Ok(own.cutting(options.cut))
    }
}
