//! Tokenization of prompts with their images.

use std::ops::Range;

use super::PromptReader;
use crate::error::Error;
use tercet_networks::image::Image;
use tercet_networks::{Generator, ModelError};
use tercet_text::tokenizer::Tokenizer;

/// A prompt as text, with its images.
///
/// ```
/// use tercet_models::PromptText;
/// let prompt = PromptText { has_special: false, ..PromptText::new("<s> is ordinary text") };
/// assert!(prompt.images.is_empty());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PromptText<'a> {
    /// The text, with one `<image>` placeholder for each image.
    pub text: &'a str,
    /// Byte ranges of user input: special tokens and placeholders that are spelled there are ordinary
    /// text.
    pub literal: &'a [Range<usize>],
    /// The images, in the order of their placeholders.
    pub images: &'a [Image],
    /// Whether the tokenizer adds its special tokens. A chat template spells them itself.
    pub has_special: bool,
}

impl<'a> PromptText<'a> {
    /// A text without images, to which the tokenizer adds its special tokens.
    pub fn new(text: &'a str) -> PromptText<'a> {
        PromptText {
            text,
            literal: &[],
            images: &[],
            has_special: true,
        }
    }
}

/// Tokenizes prompts of a [`LanguageModel`](crate::LanguageModel) and computes their images
/// ([`LanguageModel::prompt_tokenizer`](crate::LanguageModel::prompt_tokenizer)).
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet::Device;
/// use tercet_models::{LanguageModel, PromptText, PromptTokenizer};
/// let mut model = LanguageModel::options().device(Device::cpu()).open(path)?;
/// let mut prompts: PromptTokenizer<'_> = model.prompt_tokenizer();
/// let tokens = prompts.encode(PromptText::new("fn main"), &mut |_, _| true)?;
/// assert!(tokens.is_some_and(|tokens| tokens.len() > 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PromptTokenizer<'m> {
    pub(super) tokenizer: &'m Tokenizer,
    pub(super) reader: &'m mut PromptReader,
    pub(super) generator: &'m mut Generator,
}

impl PromptTokenizer<'_> {
    /// Maximum number of tokens of a text with its prompt.
    pub fn context(&self) -> usize {
        self.generator.context()
    }

    /// Whether a text is too long for the context, so that it need not be tokenized. An
    /// encoder-decoder has no limit.
    pub fn has_too_many_bytes(&self, bytes: usize) -> bool {
        let is_decoder = !matches!(self.reader, PromptReader::Source(_));
        is_decoder && bytes > self.tokenizer.max_text_bytes(self.context())
    }

    /// Tokenizes a prompt and computes its images. `progress` receives the number of finished tiles
    /// of images and their total. If it returns false, the call stops and returns `None`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; [`Error::Model`] if the model accepts no images, for invalid images, and
    /// of the device.
    pub fn encode(
        &mut self,
        prompt: PromptText<'_>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Vec<u32>>, Error> {
        let PromptText {
            text,
            literal,
            images,
            has_special,
        } = prompt;
        match self.reader {
            PromptReader::Images(reader) => Ok(reader.read_mixed(
                (text, literal, images),
                (self.tokenizer, has_special),
                self.generator,
                progress,
            )?),
            _ if !images.is_empty() => {
                let reason =
                    "the model accepts no images; pass only text, or open a vision-language model";
                Err(ModelError::Unsupported(reason.into()).into())
            }
            _ if has_special => Ok(Some(self.tokenizer.encode(text, true)?)),
            _ => Ok(Some(self.tokenizer.encode_mixed(text, literal)?)),
        }
    }

    /// Token ids as the tokenizer produces them, without the rows of images.
    pub fn to_tokenizer_ids(&self, tokens: Vec<u32>) -> Vec<u32> {
        match &self.reader {
            PromptReader::Images(reader) => reader.to_tokenizer_ids(&tokens),
            PromptReader::Decoder | PromptReader::Source(_) => tokens,
        }
    }

    /// The same tokenizer for a shorter time.
    pub fn reborrow(&mut self) -> PromptTokenizer<'_> {
        PromptTokenizer {
            tokenizer: self.tokenizer,
            reader: self.reader,
            generator: self.generator,
        }
    }

    /// Truncates the KV cache to its common prefix with a prompt, and returns the other tokens.
    pub(super) fn uncached(&mut self, prompt: &[u32]) -> Vec<u32> {
        let kept = self.generator.truncate_to_prefix(prompt);
        prompt[kept..].to_vec()
    }
}
