//! Image inputs of a vision-language model.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use tercet_models::answer::AnswerFormat;
use tercet_models::dataset::{ChatMessage, Role};
use tercet_models::{
    DecoderOptions, Generator, Image, ImageEncoder, Sampling, SamplingOptions, Tokenizer, end_ids,
};

use super::{LoadRequest, ModelArgs, ModelSource, TextGenerator};
use crate::error::CliError;
use crate::interrupt::interrupted;
use crate::progress;

/// The image encoder and the images provided so far.
pub(super) struct ImageInputs {
    reader: ImageEncoder,
    images: Vec<Image>,
}

impl ModelArgs {
    /// Opens the device and compiles a vision-language model for it.
    pub(super) fn load_seeing(
        &self,
        sampling: Sampling,
        request: &LoadRequest<'_>,
    ) -> Result<TextGenerator, CliError> {
        let rope = self.rope.overrides()?;
        let spinner = progress::spinner("loading");
        let ModelSource {
            device,
            files,
            what,
            adapters,
        } = self.open()?;
        let spec = files.vision_language_spec();
        let spec = spec.map_err(CliError::model(&*what))?.decoder;
        let context = self.fit(&files, &spec, &device, spec.context);
        let context = context.map_err(CliError::model(&*what))?;
        let model = files.vision_language(|spec| {
            let options = DecoderOptions::new(&spec.decoder);
            DecoderOptions {
                context,
                chunk: options.chunk.min(context),
                logit_rows: request.logit_rows().min(context),
                dtype: self.dtype.dtype(),
                cache: self.cache(),
                matmul_precision: self.dtype.matmul_precision(),
                sampling: Some(sampling),
                adapters,
                rope,
                ..options
            }
        });
        let model = model.map_err(CliError::model(&*what))?;
        let vocab = model.spec.decoder.vocab;
        let (tokenizer, spells_ids) = request.tokenizer(&files, vocab, &what)?;
        let (reader, generator) = model.compile(&device).map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        Ok(TextGenerator {
            dtype: self.dtype.label(&model.decoder, &device),
            fallback_reported: false,
            spells_ids,
            device,
            files,
            eos: end_ids(&model.spec.decoder.eos, &tokenizer),
            tokenizer,
            generator,
            sampling: SamplingOptions::default(),
            vocab,
            reader: None,
            images: Some(ImageInputs {
                reader,
                images: Vec::new(),
            }),
            answers: AnswerFormat::default(),
            spelled: Arc::default(),
            ollama: None,
            #[cfg(feature = "grammar")]
            constrained: None,
        })
    }
}

impl TextGenerator {
    /// Adds images after those already provided.
    pub(crate) fn add_images(&mut self, paths: &[PathBuf]) -> Result<(), CliError> {
        if paths.is_empty() {
            return Ok(());
        }
        let Some(seeing) = &mut self.images else {
            let text = "the model does not accept images; leave out --image, or use the folder of a vision-language model \
                        (idefics3, smolvlm)";
            return Err(CliError::Usage(text.into()));
        };
        for path in paths {
            let picture = Image::open(path).map_err(tercet_models::Error::from);
            let what = format!("cannot read the image {}", path.display());
            seeing.images.push(picture.map_err(CliError::model(what))?);
        }
        Ok(())
    }

    /// Whether the model accepts images.
    pub(crate) fn has_vision(&self) -> bool {
        self.images.is_some()
    }

    /// Tokens of a prompt as the tokenizer produced them, before image tokens were expanded.
    pub(crate) fn normalize_tokens(&self, tokens: Vec<u32>) -> Vec<u32> {
        match &self.images {
            Some(seeing) => seeing.reader.to_tokenizer_ids(&tokens),
            None => tokens,
        }
    }

    /// Number of images provided so far.
    pub(crate) fn image_count(&self) -> usize {
        self.images.as_ref().map_or(0, |of| of.images.len())
    }

    /// Drops all images after the first `count`.
    pub(crate) fn truncate_images(&mut self, count: usize) {
        if let Some(seeing) = &mut self.images {
            seeing.images.truncate(count);
        }
    }

    /// A message with this number of images, in the form that the model's chat template expects.
    pub(crate) fn message(&self, role: Role, pictures: usize, text: &str) -> ChatMessage {
        match self.has_vision() {
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
            tokenizer: &self.tokenizer,
            images: self.images.as_mut(),
            generator: &mut self.generator,
            reads_sources: self.reader.is_some(),
        }
    }
}

/// Tokenizes prompts with their images.
pub(crate) struct PromptEncoder<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) images: Option<&'a mut ImageInputs>,
    pub(super) generator: &'a mut Generator,
    /// Whether the encoder of an encoder-decoder model reads the text.
    pub(super) reads_sources: bool,
}

impl PromptEncoder<'_> {
    /// The context length in tokens.
    pub(crate) fn context(&self) -> usize {
        self.generator.context()
    }

    /// Removes the first `count` images and returns them.
    pub(crate) fn take_images(&mut self, count: usize) -> Vec<Image> {
        match &mut self.images {
            Some(seeing) => seeing
                .images
                .drain(..count.min(seeing.images.len()))
                .collect(),
            None => Vec::new(),
        }
    }

    /// Inserts images before the others.
    pub(crate) fn insert_images(&mut self, images: Vec<Image>) {
        if let Some(seeing) = &mut self.images {
            seeing.images.splice(0..0, images);
        }
    }

    /// Whether a text is too long for the context, so that it need not be tokenized.
    pub(crate) fn has_too_many_bytes(&self, bytes: usize) -> bool {
        !self.reads_sources && bytes > self.tokenizer.max_text_bytes(self.context())
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
        special: bool,
        what: &str,
    ) -> Result<Vec<u32>, CliError> {
        self.check_bytes(text.len())?;
        let Some(ImageInputs {
            reader,
            images: pictures,
        }) = self.images.as_deref_mut()
        else {
            let tokens = match special {
                true => self.tokenizer.encode(text, true),
                false => self.tokenizer.encode_mixed(text, literal),
            };
            return tokens.map_err(CliError::model(what));
        };
        let bar = progress::bar("images", 1, "tiles");
        let read = reader.read_mixed(
            (text, literal, pictures),
            (self.tokenizer, special),
            self.generator,
            &mut |done, all| {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
                !interrupted()
            },
        );
        bar.finish_and_clear();
        let read = read.map_err(CliError::model(what))?;
        read.ok_or_else(|| CliError::Usage("interrupted while encoding images".into()))
    }
}
