//! Language models: text that continues a prompt or answers a conversation.
//!
//! [`LanguageModel`] joins the parts that text generation needs: files, tokenizer, chat template,
//! compiled graph and sampling.

mod open;
mod prompt_tokenizer;
mod stream;
mod text_options;

use std::path::Path;
use std::sync::Arc;

use tercet::{DType, Device};

use crate::context_fit::ContextFit;
use crate::error::Error;
use crate::generate::{GenerateEvent, GenerateOptions, Generation, generate_past_context};
use crate::open::ModelFiles;
use tercet_networks::image::Image;
use tercet_networks::{Generator, ImageEncoder, ModelError, SourceEncoder};
#[cfg(feature = "grammar")]
use tercet_text::constraint::{Grammar, GrammarCompiler};
use tercet_text::dataset::template::TemplateValue;
use tercet_text::dataset::{ChatMessage, ChatTemplate, DataError};
use tercet_text::tokenizer::Tokenizer;

pub use open::LanguageModelOptions;
pub use prompt_tokenizer::{PromptText, PromptTokenizer};
pub use stream::TextStream;
pub use text_options::TextOptions;

/// Default maximum number of tokens that continue a prompt.
const MAX_PROMPT_TOKENS: usize = 128;

/// A language model that is ready to generate text.
///
/// Decoders, vision-language models and text-to-text encoder-decoders are opened. A prompt that
/// begins like the previous one reuses its KV cache, so each turn of a conversation computes only
/// its new tokens.
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet::Device;
/// use tercet_models::dataset::{ChatMessage, Role};
/// use tercet_models::{LanguageModel, TextOptions};
/// let mut model = LanguageModel::options().device(Device::cpu()).open(path)?;
/// let text = model.generate("Ownership is", &TextOptions::new().max_tokens(8))?;
/// assert!(!text.is_empty());
///
/// let messages = [ChatMessage::new(Role::User, "What is a trait?")];
/// let options = TextOptions::new().max_tokens(8).temperature(0.8).seed(1);
/// for piece in model.chat_stream(&messages, &options)? {
///     print!("{}", piece?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LanguageModel {
    files: ModelFiles,
    device: Device,
    tokenizer: Arc<Tokenizer>,
    generator: Generator,
    reader: PromptReader,
    /// Tokens that end a text.
    eos: Vec<u32>,
    vocab: usize,
    /// The context of a decoder and how it was determined.
    fit: Option<ContextFit>,
    matmul_dtype: Option<DType>,
    /// Loaded for the first conversation.
    template: Option<ChatTemplate>,
    /// Created for the first constrained text.
    #[cfg(feature = "grammar")]
    grammars: Option<GrammarCompiler>,
}

/// The part of a model that processes prompts before the decoder.
enum PromptReader {
    /// None: the decoder processes the tokens.
    Decoder,
    /// The image encoder of a vision-language model.
    Images(Box<ImageEncoder>),
    /// The encoder of a text-to-text model.
    Source(Box<SourceEncoder>),
}

impl LanguageModel {
    /// Opens a model on the best device of this machine, with default options. The path is that of
    /// [`ModelFiles::open`].
    ///
    /// # Errors
    /// The errors of [`LanguageModelOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<LanguageModel, Error> {
        LanguageModelOptions::new().open(path)
    }

    /// Options for opening a model: device, context length, dtype, adapters.
    pub fn options() -> LanguageModelOptions {
        LanguageModelOptions::new()
    }

    /// Continues a prompt, by at most 128 tokens unless the options state a limit. Special tokens
    /// that the prompt spells are recognized.
    ///
    /// # Errors
    /// [`Error::Model`] if the prompt has no tokens, does not fit the context, or an option is out
    /// of range; [`Error::Tokenizer`].
    pub fn generate(&mut self, prompt: &str, options: &TextOptions) -> Result<String, Error> {
        self.generate_stream(prompt, options)?.text()
    }

    /// Like [`Self::generate`], as an iterator over pieces of text. This call processes the prompt;
    /// each step of the iterator computes tokens.
    ///
    /// # Errors
    /// The errors of [`Self::generate`].
    pub fn generate_stream(
        &mut self,
        prompt: &str,
        options: &TextOptions,
    ) -> Result<TextStream<'_>, Error> {
        let ids = self.encode(PromptText::new(prompt))?;
        self.start(&ids, options, MAX_PROMPT_TOKENS)
    }

    /// Answers a conversation. The model's chat template formats the messages (ChatML if the model
    /// has none). Special tokens that messages spell are ordinary text. The answer ends with the
    /// turn, or with the context.
    ///
    /// # Errors
    /// The errors of [`Self::generate`]; [`Error::Data`] if the template rejects the messages;
    /// [`Error::Model`] for an encoder-decoder, which has no conversations.
    pub fn chat(
        &mut self,
        messages: &[ChatMessage],
        options: &TextOptions,
    ) -> Result<String, Error> {
        self.chat_stream(messages, options)?.text()
    }

    /// Like [`Self::chat`], as an iterator over pieces of text.
    ///
    /// # Errors
    /// The errors of [`Self::chat`].
    pub fn chat_stream(
        &mut self,
        messages: &[ChatMessage],
        options: &TextOptions,
    ) -> Result<TextStream<'_>, Error> {
        self.chat_stream_with_images(messages, &[], options)
    }

    /// Like [`Self::chat_stream`], with the images that the messages refer to, in order
    /// ([`ChatMessage::from_parts`]).
    ///
    /// # Errors
    /// The errors of [`Self::chat`]; [`ModelError::Places`] if the number of images differs from
    /// that of the messages; [`Error::Model`] if the model accepts no images.
    pub fn chat_stream_with_images(
        &mut self,
        messages: &[ChatMessage],
        images: &[Image],
        options: &TextOptions,
    ) -> Result<TextStream<'_>, Error> {
        if matches!(self.reader, PromptReader::Source(_)) {
            let reason = "an encoder-decoder has no chat template; use `generate`";
            return Err(ModelError::Unsupported(reason.into()).into());
        }
        if self.template.is_none() {
            self.template = Some(ChatTemplate::from_model(&self.files, &self.tokenizer)?);
        }
        let places = messages.iter().map(image_parts).sum();
        if places != images.len() && matches!(self.reader, PromptReader::Images(_)) {
            let pictures = images.len();
            return Err(ModelError::Places { places, pictures }.into());
        }
        let in_parts: Vec<ChatMessage>;
        let messages = match &self.reader {
            PromptReader::Images(_) => {
                in_parts = messages.iter().map(in_text_parts).collect();
                &in_parts
            }
            PromptReader::Decoder | PromptReader::Source(_) => messages,
        };
        let template = self.template.as_ref();
        let rendered = template.map(|t| t.render(messages, &TemplateValue::None, true));
        let rendered = rendered.transpose().map_err(DataError::from)?;
        let (text, literal) = rendered.map_or_else(Default::default, |r| (r.text, r.literal));
        let prompt = PromptText {
            text: &text,
            literal: &literal,
            images,
            has_special: false,
        };
        let ids = self.encode(prompt)?;
        self.start(&ids, options, usize::MAX)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model's files.
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// The device that the model runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Maximum number of tokens of a text with its prompt.
    pub fn context(&self) -> usize {
        self.generator.context()
    }

    /// Tokens that end a text.
    pub fn end_tokens(&self) -> &[u32] {
        &self.eos
    }

    /// The compiled graph with its KV cache, for everything that this type does not offer.
    pub fn generator_mut(&mut self) -> &mut Generator {
        &mut self.generator
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The context of a decoder and how it was determined; `None` for an encoder-decoder.
    pub fn context_fit(&self) -> Option<&ContextFit> {
        self.fit.as_ref()
    }

    /// Dtype to which the device rounds F32 matmul inputs; `None` if it does not round.
    pub fn matmul_dtype(&self) -> Option<DType> {
        self.matmul_dtype
    }

    /// Adds tokens that end a text.
    pub fn add_end_tokens(&mut self, tokens: &[u32]) {
        self.eos.extend(tokens);
    }

    /// True if prompts can have images.
    pub fn has_vision(&self) -> bool {
        matches!(self.reader, PromptReader::Images(_))
    }

    /// True if the model is an encoder-decoder: an encoder reads the prompt, and the text does not
    /// continue it.
    pub fn has_source_encoder(&self) -> bool {
        matches!(self.reader, PromptReader::Source(_))
    }

    /// Tokenizes prompts and computes their images, for [`Self::generate_tokens`].
    pub fn prompt_tokenizer(&mut self) -> PromptTokenizer<'_> {
        PromptTokenizer {
            tokenizer: &self.tokenizer,
            reader: &mut self.reader,
            generator: &mut self.generator,
        }
    }

    /// Prepares the model for a prompt, and returns the tokens that it has to process: those that
    /// are not in the KV cache. For an encoder-decoder, runs the encoder and returns the start token
    /// of the decoder.
    ///
    /// # Errors
    /// [`Error::Model`] of the encoder.
    pub fn begin(&mut self, prompt: &[u32]) -> Result<Vec<u32>, Error> {
        match &mut self.reader {
            PromptReader::Source(reader) => {
                reader.read(prompt, &mut self.generator)?;
                Ok(vec![reader.start()])
            }
            PromptReader::Decoder | PromptReader::Images(_) => {
                Ok(self.prompt_tokenizer().uncached(prompt))
            }
        }
    }

    /// Generates text after the tokens of [`Self::begin`], with the sampling options, seed and
    /// constraint of [`Self::generator_mut`]. If the context is full, `refill` gets the tokens of the
    /// text and returns a shorter prompt that ends with them, or `None` to end the text.
    ///
    /// # Errors
    /// The errors of [`generate()`](crate::generate()).
    ///
    /// ```
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
    /// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
    /// use tercet::Device;
    /// use tercet_models::{GenerateOptions, LanguageModel, PromptText};
    /// let mut model = LanguageModel::options().device(Device::cpu()).open(path)?;
    /// let prompt = model.prompt_tokenizer().encode(PromptText::new("fn main"), &mut |_, _| true)?;
    /// let tokens = model.begin(&prompt.unwrap_or_default())?;
    /// let options = GenerateOptions { max_tokens: 4, stop: &[], eos: &[], spelled: &[] };
    /// let generation = model.generate_tokens(&tokens, &options, &mut |_| true, &mut |_, _| None)?;
    /// assert_eq!(generation.tokens.len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn generate_tokens(
        &mut self,
        tokens: &[u32],
        options: &GenerateOptions<'_>,
        event: &mut dyn FnMut(GenerateEvent<'_>) -> bool,
        refill: &mut RefillPrompt<'_>,
    ) -> Result<Generation, Error> {
        let LanguageModel {
            tokenizer,
            generator,
            reader,
            ..
        } = self;
        let tokenizer: &Tokenizer = tokenizer;
        generate_past_context(
            generator,
            tokenizer,
            tokens,
            options,
            event,
            &mut |generator, text| {
                let mut prompts = PromptTokenizer {
                    tokenizer,
                    reader,
                    generator,
                };
                let prompt = refill(&mut prompts, text)?;
                Some(prompts.uncached(&prompt))
            },
        )
    }

    /// Tokenizes a prompt and computes its images.
    fn encode(&mut self, prompt: PromptText<'_>) -> Result<Vec<u32>, Error> {
        let ids = self.prompt_tokenizer().encode(prompt, &mut |_, _| true)?;
        Ok(ids.unwrap_or_default())
    }

    /// Processes the tokens of a prompt that are not in the KV cache.
    fn start(
        &mut self,
        ids: &[u32],
        options: &TextOptions,
        max_tokens: usize,
    ) -> Result<TextStream<'_>, Error> {
        let mut sampling = options.sampling.clone();
        if sampling.min_tokens > 0 && sampling.ends.is_empty() {
            sampling.ends.clone_from(&self.eos);
        }
        let vocab = self.vocab;
        let beyond = options.stop_tokens.iter();
        if let Some(&token) = beyond.into_iter().find(|id| **id as usize >= vocab) {
            return Err(ModelError::Token { token, vocab }.into());
        }
        self.generator.set_sampling(&sampling)?;
        let new = self.begin(ids)?;
        self.generator.restart_random(options.seed, new.len());
        self.constrain(options)?;
        let limit = options.max_tokens.unwrap_or(max_tokens);
        TextStream::start(
            &mut self.generator,
            &self.tokenizer,
            &new,
            options.limits(limit, &self.eos),
        )
    }

    /// Constrains the next text by a grammar; `None` removes the constraint.
    ///
    /// # Errors
    /// [`ModelError::Constraint`] for a grammar that the tokens cannot satisfy.
    #[cfg(feature = "grammar")]
    pub fn set_grammar(&mut self, grammar: Option<&Grammar>) -> Result<(), Error> {
        let Some(grammar) = grammar else {
            return Ok(self.generator.set_constraint(None)?);
        };
        let grammars = match &mut self.grammars {
            Some(grammars) => grammars,
            None => {
                let made = GrammarCompiler::new(&self.tokenizer, &self.eos, self.vocab);
                self.grammars.insert(made.map_err(ModelError::from)?)
            }
        };
        let constraint = grammars.constraint(grammar).map_err(ModelError::from)?;
        Ok(self.generator.set_constraint(Some(Box::new(constraint)))?)
    }

    #[cfg(feature = "grammar")]
    fn constrain(&mut self, options: &TextOptions) -> Result<(), Error> {
        self.set_grammar(options.grammar.as_ref())
    }

    #[cfg(not(feature = "grammar"))]
    fn constrain(&mut self, _: &TextOptions) -> Result<(), Error> {
        Ok(self.generator.set_constraint(None)?)
    }
}

/// Makes room in a full context, given the tokens of the text; see [`LanguageModel::generate_tokens`].
type RefillPrompt<'a> = dyn FnMut(&mut PromptTokenizer<'_>, &[u32]) -> Option<Vec<u32>> + 'a;

/// A message in parts, as the templates of vision-language models expect.
fn in_text_parts(message: &ChatMessage) -> ChatMessage {
    let content = message.fields().get("content");
    match content.and_then(|content| content.as_text()) {
        Some(text) => ChatMessage::from_parts(message.role(), 0, text),
        None => message.clone(),
    }
}

/// The number of images that a message refers to.
fn image_parts(message: &ChatMessage) -> usize {
    let content = message.fields().get("content");
    let parts = content
        .and_then(|content| content.as_list())
        .unwrap_or_default();
    let kinds = parts.iter().filter_map(|part| part.get("type")?.as_text());
    kinds.filter(|kind| *kind == "image").count()
}
