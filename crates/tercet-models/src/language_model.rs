//! Language models: text that continues a prompt or answers a conversation.
//!
//! [`LanguageModel`] joins the parts that text generation needs: files, tokenizer, chat template,
//! compiled graph and sampling.

mod open;
mod stream;
mod text_options;

use std::ops::Range;
use std::path::Path;

use tercet::Device;

use crate::error::Error;
use crate::open::ModelFiles;
use tercet_networks::image::Image;
use tercet_networks::{Generator, ImageEncoder, ModelError, SourceEncoder};
#[cfg(feature = "grammar")]
use tercet_text::constraint::GrammarCompiler;
use tercet_text::dataset::template::TemplateValue;
use tercet_text::dataset::{ChatMessage, ChatTemplate, DataError};
use tercet_text::tokenizer::Tokenizer;

pub use open::LanguageModelOptions;
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
    tokenizer: Tokenizer,
    generator: Generator,
    reader: PromptReader,
    /// Tokens that end a text.
    eos: Vec<u32>,
    vocab: usize,
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
        let ids = self.encode((prompt, &[]), &[], true)?;
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
        let ids = self.encode((&text, &literal), images, false)?;
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

    /// Tokenizes a prompt and computes its images. Special tokens in the `literal` ranges of the
    /// text are ordinary text.
    fn encode(
        &mut self,
        (text, literal): (&str, &[Range<usize>]),
        images: &[Image],
        special: bool,
    ) -> Result<Vec<u32>, Error> {
        match &mut self.reader {
            PromptReader::Images(reader) => {
                let ids = reader.read_mixed(
                    (text, literal, images),
                    (&self.tokenizer, special),
                    &mut self.generator,
                    &mut |_, _| true,
                )?;
                Ok(ids.unwrap_or_default())
            }
            _ if !images.is_empty() => {
                let reason =
                    "the model accepts no images; pass only text, or open a vision-language model";
                Err(ModelError::Unsupported(reason.into()).into())
            }
            _ if special => Ok(self.tokenizer.encode(text, true)?),
            _ => Ok(self.tokenizer.encode_mixed(text, literal)?),
        }
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
        let new = match &mut self.reader {
            PromptReader::Source(reader) => {
                reader.read(ids, &mut self.generator)?;
                vec![reader.start()]
            }
            PromptReader::Decoder | PromptReader::Images(_) => {
                let kept = self.generator.truncate_to_prefix(ids);
                ids[kept..].to_vec()
            }
        };
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

    /// Constrains the next text by the grammar of the options, if any.
    #[cfg(feature = "grammar")]
    fn constrain(&mut self, options: &TextOptions) -> Result<(), Error> {
        let Some(grammar) = &options.grammar else {
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

    #[cfg(not(feature = "grammar"))]
    fn constrain(&mut self, _: &TextOptions) -> Result<(), Error> {
        Ok(self.generator.set_constraint(None)?)
    }
}

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
