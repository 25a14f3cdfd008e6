//! What writes the texts of a language model: slots side by side, or one text at a time with a draft.

use std::sync::Arc;

use tercet_models::{
    BatchEvent, BatchGenerator, BatchOptions, DecoderOptions, Draft, DraftOptions,
    DraftedGenerator, Error, ModelError, ModelFiles, Products, Sampling, Sequence, SequenceId,
    Tokenizer,
};

use crate::error::ServeError;
use crate::language::Placement;

/// Has tokens of language models proposed, several of which one run checks; they write one text at a time then.
#[derive(Clone)]
pub struct Drafting {
    /// What proposes them.
    pub by: DraftSource,
    /// The most tokens proposed at a time, 1 to [`MOST_DRAFTED`](tercet_models::MOST_DRAFTED).
    pub tokens: usize,
}

/// What proposes tokens.
#[derive(Clone)]
pub enum DraftSource {
    /// The text itself, by what followed its last tokens earlier.
    Ngrams,
    /// A smaller model with the same vocabulary.
    Model(Arc<ModelFiles>),
}

/// What the engine needs of a generator of sequences; what each does is said by [`BatchGenerator`].
pub(crate) trait Writer: Send {
    fn slots(&self) -> usize;
    fn start(&mut self, sequence: Sequence) -> Result<SequenceId, ModelError>;
    fn cancel(&mut self, id: SequenceId) -> bool;
    fn reset(&mut self);
    fn step(&mut self) -> Result<Vec<BatchEvent>, ModelError>;
    fn logits(&mut self, id: SequenceId) -> Result<Option<Vec<f32>>, ModelError>;
    fn moved_to(&self) -> Option<Products>;
    fn note(&self) -> Option<String>;
}

/// Both generators have methods of these names.
macro_rules! writer {
    ($of:ty) => {
        impl Writer for $of {
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
            fn moved_to(&self) -> Option<Products> {
                self.moved_to()
            }
            fn note(&self) -> Option<String> {
                self.note()
            }
        }
    };
}

writer!(BatchGenerator);
writer!(DraftedGenerator);

/// The most tokens of a prompt in one run: texts that are written wait for it.
const CHUNK: usize = 256;

/// A language model, compiled for texts of so many tokens in so many slots.
pub(crate) fn compiled(
    name: &str,
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    placement: &Placement,
    [context, slots]: [usize; 2],
) -> Result<Box<dyn Writer>, ServeError> {
    let failed = |source| ServeError::Model {
        name: name.to_string(),
        source,
    };
    match &placement.draft {
        None => Ok(Box::new(
            batch(files, placement, context, slots).map_err(failed)?,
        )),
        Some(_) if slots > 1 => Err(ServeError::DraftSlots {
            name: name.to_string(),
            slots,
        }),
        Some(_) if !placement.adapters.is_empty() => {
            let reason = "with a draft there are no adapters to choose from; `tercet merge` puts one into the model";
            Err(failed(ModelError::Unsupported(reason.to_string()).into()))
        }
        Some(draft) => {
            let drafted = drafted(files, tokenizer, placement, context, draft);
            Ok(Box::new(drafted.map_err(failed)?))
        }
    }
}

fn batch(
    files: &ModelFiles,
    placement: &Placement,
    context: usize,
    slots: usize,
) -> Result<BatchGenerator, Error> {
    let decoder = files.batch_decoder(|spec| BatchOptions {
        context,
        chunk: CHUNK.min(context),
        dtype: placement.dtype,
        cache: placement.cache,
        products: placement.products,
        choices: placement.adapters.iter().map(|(_, a)| a.clone()).collect(),
        ..BatchOptions::new(spec, slots)
    })?;
    Ok(decoder.generator(&placement.device)?)
}

fn drafted(
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    placement: &Placement,
    context: usize,
    draft: &Drafting,
) -> Result<DraftedGenerator, Error> {
    // Requests choose otherwise on the host.
    let sampling = Sampling::GREEDY;
    let decoder = files.decoder(|spec| DecoderOptions {
        context,
        chunk: CHUNK.min(context),
        logit_rows: draft.tokens.saturating_add(1),
        dtype: placement.dtype,
        cache: placement.cache,
        products: placement.products,
        sampling: Some(sampling),
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
                products: placement.products,
                sampling,
            };
            files.draft(&options, tokenizer)?
        }
    };
    generator.set_draft(Some(proposes), draft.tokens)?;
    Ok(DraftedGenerator::new(generator))
}
