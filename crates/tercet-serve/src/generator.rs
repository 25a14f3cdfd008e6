//! Generators of language models: batched slots, or one sequence at a time with speculative
//! decoding.

use std::sync::Arc;

use tercet_models::config::{DecoderSpec, RopeOverrides};
use tercet_models::{
    BatchEvent, BatchGenerator, BatchOptions, DecoderOptions, Draft, DraftOptions, Error,
    Generator, Image, ImageEncoder, ImagePromptReader, MatmulPrecision, ModelError, ModelFamily,
    ModelFiles, Sampling, Sequence, SequenceId, SpeculativeGenerator, Tokenizer,
};

use crate::error::ServeError;
use crate::language::ModelConfig;
use crate::options::ServeOptions;

/// Speculative decoding: a draft proposes tokens of language models, and one run verifies several.
/// Such a model generates one sequence at a time.
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

/// Generator interface of the engine. [`BatchGenerator`] documents the methods.
pub(crate) trait SequenceGenerator: Send {
    fn slots(&self) -> usize;

    /// Computes the images of the next sequence. Returns false if `go_on` stopped it.
    fn set_images(
        &mut self,
        _images: &[Image],
        _go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, ModelError> {
        Ok(true)
    }

    fn start(&mut self, sequence: Sequence) -> Result<SequenceId, ModelError>;
    fn cancel(&mut self, id: SequenceId) -> bool;
    fn reset(&mut self);
    fn step(&mut self) -> Result<Vec<BatchEvent>, ModelError>;
    fn logits(&mut self, id: SequenceId) -> Result<Option<Vec<f32>>, ModelError>;
    fn fallback_precision(&self) -> Option<MatmulPrecision>;
    fn fallback_message(&self) -> Option<String>;
}

/// Implements the trait for a generator with methods of the same names.
macro_rules! writer {
    ($of:ty) => {
        impl SequenceGenerator for $of {
            fn slots(&self) -> usize {
                self.slots()
            }
            fn start(&mut self, sequence: Sequence) -> Result<SequenceId, ModelError> {
                self.start(sequence)
            }
            fn cancel(&mut self, id: SequenceId) -> bool {
                self.cancel(id)
            }
            fn reset(&mut self) {
                self.reset();
            }
            fn step(&mut self) -> Result<Vec<BatchEvent>, ModelError> {
                self.step()
            }
            fn logits(&mut self, id: SequenceId) -> Result<Option<Vec<f32>>, ModelError> {
                self.logits(id)
            }
            fn fallback_precision(&self) -> Option<MatmulPrecision> {
                self.fallback_precision()
            }
            fn fallback_message(&self) -> Option<String> {
                self.fallback_message()
            }
        }
    };
}

writer!(BatchGenerator);
writer!(SpeculativeGenerator);

/// A generator of one sequence, whose prompt may have images.
struct ImageTextGenerator {
    images: ImageEncoder,
    writer: SpeculativeGenerator,
}

impl SequenceGenerator for ImageTextGenerator {
    fn slots(&self) -> usize {
        self.writer.slots()
    }

    fn set_images(
        &mut self,
        images: &[Image],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, ModelError> {
        let progress = &mut |_, _| go_on();
        let encoder = &mut self.images;
        let set = |generator: &mut Generator| encoder.set_images(images, generator, progress);
        self.writer.change_generator(set)
    }

    fn start(&mut self, sequence: Sequence) -> Result<SequenceId, ModelError> {
        self.writer.start(sequence)
    }

    fn cancel(&mut self, id: SequenceId) -> bool {
        self.writer.cancel(id)
    }

    fn reset(&mut self) {
        self.writer.reset();
    }

    fn step(&mut self) -> Result<Vec<BatchEvent>, ModelError> {
        self.writer.step()
    }

    fn logits(&mut self, id: SequenceId) -> Result<Option<Vec<f32>>, ModelError> {
        self.writer.logits(id)
    }

    fn fallback_precision(&self) -> Option<MatmulPrecision> {
        self.writer.fallback_precision()
    }

    fn fallback_message(&self) -> Option<String> {
        self.writer.fallback_message()
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

/// A compiled language model, and the reader of its prompts if it takes images.
pub(crate) type CompiledLanguage = (Box<dyn SequenceGenerator>, Option<ImagePromptReader>);

/// Maximum prompt tokens per run. Running sequences wait while a prompt chunk is processed.
pub(crate) const CHUNK: usize = 256;

/// Compiles a language model for `slots` sequences of at most `context` tokens.
pub(crate) fn compiled(
    name: &str,
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    placement: &ModelConfig,
    ([context, slots], rope): ([usize; 2], &RopeOverrides),
) -> Result<CompiledLanguage, ServeError> {
    let failed = |source| ServeError::Model {
        name: name.to_string(),
        source,
    };
    match &placement.draft {
        None if takes_images(files) => {
            let (writer, reader) = image_text(files, placement, context, rope).map_err(failed)?;
            Ok((Box::new(writer), Some(reader)))
        }
        None => {
            let writer = batch(files, placement, [context, slots], rope).map_err(failed)?;
            Ok((Box::new(writer), None))
        }
        Some(_) if slots > 1 => Err(ServeError::DraftSlots {
            name: name.to_string(),
            slots,
        }),
        Some(_) if !placement.adapters.is_empty() => {
            let reason = "a draft cannot be combined with selectable adapters; merge one into the model with `tercet merge`";
            Err(failed(ModelError::Unsupported(reason.to_string()).into()))
        }
        Some(draft) => {
            let drafted = open_speculative((files, tokenizer), placement, (context, rope), draft);
            Ok((Box::new(drafted.map_err(failed)?), None))
        }
    }
}

fn batch(
    files: &ModelFiles,
    placement: &ModelConfig,
    [context, slots]: [usize; 2],
    rope: &RopeOverrides,
) -> Result<BatchGenerator, Error> {
    let decoder = files.batch_decoder(|spec| BatchOptions {
        context,
        chunk: CHUNK.min(context),
        dtype: placement.dtype,
        cache: placement.cache,
        matmul_precision: placement.matmul_precision,
        rope: rope.clone(),
        selectable_adapters: placement.adapters.iter().map(|(_, a)| a.clone()).collect(),
        ..BatchOptions::new(spec, slots)
    })?;
    Ok(decoder.generator(&placement.device)?)
}

fn image_text(
    files: &ModelFiles,
    placement: &ModelConfig,
    context: usize,
    rope: &RopeOverrides,
) -> Result<(ImageTextGenerator, ImagePromptReader), Error> {
    let model = files.vision_language(|spec| DecoderOptions {
        context,
        chunk: CHUNK.min(context),
        logit_rows: 1,
        dtype: placement.dtype,
        cache: placement.cache,
        matmul_precision: placement.matmul_precision,
        // Each request sets its sampling options on the host.
        sampling: Some(Sampling::GREEDY),
        rope: rope.clone(),
        ..DecoderOptions::new(&spec.decoder)
    })?;
    let (images, generator) = model.compile(&placement.device)?;
    let reader = images.prompt_reader();
    let writer = SpeculativeGenerator::new(generator);
    Ok((ImageTextGenerator { images, writer }, reader))
}

fn open_speculative(
    (files, tokenizer): (&ModelFiles, &Tokenizer),
    placement: &ModelConfig,
    (context, rope): (usize, &RopeOverrides),
    draft: &SpeculativeOptions,
) -> Result<SpeculativeGenerator, Error> {
    // Each request sets its sampling options on the host.
    let sampling = Sampling::GREEDY;
    let decoder = files.decoder(|spec| DecoderOptions {
        context,
        chunk: CHUNK.min(context),
        logit_rows: draft.tokens.saturating_add(1),
        dtype: placement.dtype,
        cache: placement.cache,
        matmul_precision: placement.matmul_precision,
        sampling: Some(sampling),
        rope: rope.clone(),
        ..DecoderOptions::new(spec)
    })?;
    let mut generator = decoder.generator(&placement.device)?;
    let proposes = match &draft.by {
        DraftSource::Ngrams => Draft::ngrams(),
        DraftSource::Model(files) => {
            let options = DraftOptions {
                device: &placement.device,
                context,
                dtype: placement.dtype,
                matmul_precision: placement.matmul_precision,
                sampling,
            };
            files.draft(&options, tokenizer)?
        }
    };
    generator.set_draft(Some(proposes), draft.tokens)?;
    Ok(SpeculativeGenerator::new(generator))
}
