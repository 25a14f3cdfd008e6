//! Image inputs of a vision-language model.

use std::ops::Range;
use std::path::PathBuf;

use tercet_models::dataset::{ChatMessage, Role};
use tercet_models::{Image, PromptText, PromptTokenizer};

use super::TextGenerator;
use crate::error::CliError;
use crate::interrupt::interrupted;
use crate::progress;

impl TextGenerator {
    /// Adds images after those already provided.
    pub(crate) fn add_images(&mut self, paths: &[PathBuf]) -> Result<(), CliError> {
        if paths.is_empty() {
            return Ok(());
        }
        if !self.model.has_vision() {
            let text = "the model does not accept images; leave out --image, or use the folder of a vision-language model \
                        (idefics3, smolvlm)";
            return Err(CliError::Usage(text.into()));
        }
        for path in paths {
            let picture = Image::open(path).map_err(tercet_models::Error::from);
            let what = format!("cannot read the image {}", path.display());
            self.images.push(picture.map_err(CliError::model(what))?);
        }
        Ok(())
    }

    /// Tokens of a prompt as the tokenizer produced them, before image tokens were expanded.
    pub(crate) fn normalize_tokens(&mut self, tokens: Vec<u32>) -> Vec<u32> {
        self.model.prompt_tokenizer().to_tokenizer_ids(tokens)
    }

    /// Number of images provided so far.
    pub(crate) fn image_count(&self) -> usize {
        self.images.len()
    }

    /// Drops all images after the first `count`.
    pub(crate) fn truncate_images(&mut self, count: usize) {
        self.images.truncate(count);
    }

    /// A message with this number of images, in the form that the model's chat template expects.
    pub(crate) fn message(&self, role: Role, pictures: usize, text: &str) -> ChatMessage {
        match self.model.has_vision() {
            true => ChatMessage::from_parts(role, pictures, text),
            false => ChatMessage::new(role, text),
        }
    }

    /// Tokens of a prompt without a chat template. If the prompt has no image placeholders, the
    /// images precede it.
    pub(crate) fn prompt(&mut self, text: &str) -> Result<Vec<u32>, CliError> {
        const PLACE: &str = "<image>";
        let what = "cannot process the prompt";
        match self.image_count() {
            0 => self.encode((text, &[]), true, what),
            _ if text.contains(PLACE) => self.encode((text, &[]), true, what),
            count => {
                let text = PLACE.repeat(count) + text;
                self.encode((&text, &[]), true, what)
            }
        }
    }

    /// Tokenizes a text together with the images. Special tokens in its literal ranges are ordinary
    /// text.
    pub(super) fn encode(
        &mut self,
        text: (&str, &[Range<usize>]),
        special: bool,
        what: &str,
    ) -> Result<Vec<u32>, CliError> {
        self.prompt_encoder().encode(text, special, what)
    }

    /// The tokenizer together with the images.
    pub(crate) fn prompt_encoder(&mut self) -> PromptEncoder<'_> {
        PromptEncoder {
            prompts: self.model.prompt_tokenizer(),
            images: &mut self.images,
        }
    }
}

/// Tokenizes prompts with their images.
pub(crate) struct PromptEncoder<'a> {
    pub(super) prompts: PromptTokenizer<'a>,
    pub(super) images: &'a mut Vec<Image>,
}

impl PromptEncoder<'_> {
    /// The context length in tokens.
    pub(crate) fn context(&self) -> usize {
        self.prompts.context()
    }

    /// Removes the first `count` images and returns them.
    pub(crate) fn take_images(&mut self, count: usize) -> Vec<Image> {
        self.images.drain(..count.min(self.images.len())).collect()
    }

    /// Inserts images before the others.
    pub(crate) fn insert_images(&mut self, images: Vec<Image>) {
        self.images.splice(0..0, images);
    }

    /// Whether a text is too long for the context, so that it need not be tokenized.
    pub(crate) fn has_too_many_bytes(&self, bytes: usize) -> bool {
        self.prompts.has_too_many_bytes(bytes)
    }

    /// Rejects a text that is too long for the context, before it is tokenized.
    fn check_bytes(&self, bytes: usize) -> Result<(), CliError> {
        if !self.has_too_many_bytes(bytes) {
            return Ok(());
        }
        let context = self.context();
        let reason = format!(
            "the prompt has {bytes} bytes, which exceeds the context of {context} tokens; shorten it, or set a longer \
             --context"
        );
        Err(CliError::model("cannot process the prompt")(
            tercet_models::ModelError::Unsupported(reason),
        ))
    }

    /// Tokenizes a text together with the images. Special tokens in its literal ranges are ordinary
    /// text.
    pub(crate) fn encode(
        &mut self,
        (text, literal): (&str, &[Range<usize>]),
        has_special: bool,
        what: &str,
    ) -> Result<Vec<u32>, CliError> {
        self.check_bytes(text.len())?;
        let prompt = PromptText {
            text,
            literal,
            images: self.images,
            has_special,
        };
        let bar = progress::bar("images", 1, "tiles");
        let read = self.prompts.encode(prompt, &mut |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            !interrupted()
        });
        bar.finish_and_clear();
        let read = read.map_err(CliError::model(what))?;
        read.ok_or_else(|| CliError::Usage("interrupted while encoding images".into()))
    }
}
