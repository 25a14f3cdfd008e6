//! Generators of language models: slots of a compiled model, with a draft or an image encoder.

use std::sync::Arc;

use tercet_models::config::{DecoderSpec, RopeOverrides};
use tercet_models::{
    BatchGenerator, BatchOptions, Draft, DraftOptions, Error, Image, ImageEncoder,
    ImagePromptReader, ModelError, ModelFamily, ModelFiles, PrefixStore, Sampling, Tokenizer,
};

use crate::error::ServeError;
use crate::language::ModelConfig;
use crate::options::ServeOptions;

/// Speculative decoding: a draft proposes tokens of language models, and one run verifies several.
///
/// ```
/// use tercet_serve::{DraftSource, SpeculativeOptions};
/// let draft = SpeculativeOptions { by: DraftSource::Ngrams, tokens: 4 };
/// assert!((1..=tercet_models::MAX_DRAFT_TOKENS).contains(&draft.tokens));
/// ```
#[derive(Clone)]
pub struct SpeculativeOptions {
    /// Source of the draft tokens.
    pub by: DraftSource,
    /// Maximum draft tokens per run, 1 to [`MAX_DRAFT_TOKENS`](tercet_models::MAX_DRAFT_TOKENS).
    pub tokens: usize,
}

/// Source of draft tokens.
///
/// ```
/// use tercet_serve::{DraftSource, SpeculativeOptions};
/// let draft = SpeculativeOptions { by: DraftSource::Ngrams, tokens: 4 };
/// assert!(matches!(draft.by, DraftSource::Ngrams));
/// ```
#[derive(Clone)]
pub enum DraftSource {
    /// N-gram lookup: proposes the tokens that followed the last n-gram earlier in the text.
    Ngrams,
    /// A smaller model with the same vocabulary.
    Model(Arc<ModelFiles>),
}

/// The slots of a compiled model, and the image encoder of a model that takes images.
pub(crate) struct LanguageGenerator {
    pub(crate) slots: BatchGenerator,
    images: Option<ImageEncoder>,
}

impl LanguageGenerator {
    /// Computes the images of the next sequence. Returns false if `go_on` stopped it.
    pub(crate) fn set_images(
        &mut self,
        images: &[Image],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, ModelError> {
        match &mut self.images {
            Some(encoder) => encoder.set_images(images, &mut self.slots, &mut |_, _| go_on()),
            None => Ok(true),
        }
    }

    /// A reader of prompts with images, if the model takes them.
    pub(crate) fn prompt_reader(&self) -> Option<ImagePromptReader> {
        self.images.as_ref().map(ImageEncoder::prompt_reader)
    }
}

/// Whether a model takes images.
fn takes_images(files: &ModelFiles) -> bool {
    matches!(files.family(), Ok(ModelFamily::VisionLanguage))
}

/// The configuration of a language model's decoder.
pub(crate) fn text_spec(files: &ModelFiles) -> Result<DecoderSpec, Error> {
    match takes_images(files) {
        true => Ok(files.vision_language_spec()?.decoder),
        false => files.decoder_spec(),
    }
}

/// The slots of a model: image-text models generate one sequence at a time.
pub(crate) fn slots(files: &ModelFiles, options: &ServeOptions) -> usize {
    match takes_images(files) {
        true => 1,
        false => options.slots.max(1),
    }
}

/// Maximum prompt tokens per run. Running sequences wait while a prompt chunk is processed.
pub(crate) const CHUNK: usize = 256;

/// Compiles a language model for `slots` sequences of at most `context` tokens.
pub(crate) fn compiled(
    name: &str,
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    placement: &ModelConfig,
    sizes: ([usize; 2], &RopeOverrides, Option<&PrefixStore>),
) -> Result<LanguageGenerator, ServeError> {
    let opened = open_generator(files, tokenizer, placement, sizes);
    opened.map_err(|source| ServeError::Model {
        name: name.to_string(),
        source,
    })
}

fn open_generator(
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    placement: &ModelConfig,
    ([context, slots], rope, store): ([usize; 2], &RopeOverrides, Option<&PrefixStore>),
) -> Result<LanguageGenerator, Error> {
    let draft = placement.draft.as_ref();
    let options = |spec: &DecoderSpec| BatchOptions {
        context,
        chunk: CHUNK.min(context),
        dtype: placement.dtype,
        cache: Some(placement.cache_format(files)),
        matmul_precision: placement.matmul_precision,
        rope: rope.clone(),
        prefix_store: store.cloned(),
        selectable_adapters: placement.adapters.iter().map(|(_, a)| a.clone()).collect(),
        draft_tokens: draft.map_or(0, |draft| draft.tokens),
        ..BatchOptions::new(spec, slots)
    };
    let device = &placement.device;
    let (images, mut slots) = match takes_images(files) {
        true => {
            let model = files.vision_language_batch(|spec| options(&spec.decoder))?;
            let (images, slots) = model.compile_batch(device)?;
            (Some(images), slots)
        }
        false => (None, files.batch_decoder(options)?.generator(device)?),
    };
    if let Some(SpeculativeOptions { by, tokens }) = draft {
        let draft = match by {
            DraftSource::Ngrams => Draft::ngrams(),
            DraftSource::Model(files) => {
                let options = DraftOptions {
                    device,
                    context,
                    dtype: placement.dtype,
                    matmul_precision: placement.matmul_precision,
                    sampling: Sampling::GREEDY,
                };
                files.draft(&options, tokenizer)?
            }
        };
        slots.set_draft(Some(draft), *tokens)?;
    }
    Ok(LanguageGenerator { slots, images })
}
