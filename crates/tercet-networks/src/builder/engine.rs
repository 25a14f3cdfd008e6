//! The engine of a compiled decoder: slots of cached tokens, and runs that append to them.
//!
//! A slot is one contiguous range of cache positions with the text in it ([`CacheSlot`]). A run
//! appends tokens to slots ([`RunRows`]); [`ProgramInputs`] addresses their positions for the
//! engine's kind of programs. Each rule about a slot is here once: room for tokens, going back with
//! windows and states, checkpoints, overflow, sampling, drafts, and run-ahead.
//!
//! [`Generator`](super::Generator) is an engine with one slot whose caller chooses the tokens.
//! [`BatchGenerator`](super::BatchGenerator) schedules sequences over the slots of an engine.

pub(super) mod checkpoints;
pub(crate) mod drafts;
pub(super) mod inputs;
pub(super) mod prefixes;
pub(super) mod run;
pub(super) mod run_ahead;
pub(crate) mod sequence;
pub(super) mod speculation;

use rayon::prelude::*;
use tercet::Executable;
use tercet::random::RngState;

use super::ModelError;
use super::compiled_decoder::CompiledDecoder;
use super::decoder::DecoderSizes;
use super::decoder::matmul_precision::OverflowFallback;
use super::decoder::run_rows::SlotChunk;
use super::decoder::windows::WindowInputs;
use super::sampling::SamplingOptions;
use super::token_sampler::near_tie;
use inputs::ProgramInputs;
use prefixes::PrefixTier;
use run_ahead::RunAhead;
use sequence::CacheSlot;
use speculation::Speculation;

/// A compiled decoder with slots of cached tokens.
pub(crate) struct Engine {
    pub(super) compiled: CompiledDecoder,
    inputs: ProgramInputs,
    windows: Vec<WindowInputs>,
    pub(super) slots: Vec<CacheSlot>,
    /// True if layers keep recurrent states. They cannot be rolled back to an earlier token.
    pub(super) has_states: bool,
    /// True until the first run after all states were zeroed.
    is_blank: bool,
    /// Capacity of a slot in tokens.
    pub(super) context: usize,
    /// Maximum tokens of a slot per run.
    pub(super) chunk: usize,
    pub(super) vocab: usize,
    /// Maximum rows of logits of a chunk.
    pub(super) logit_rows: usize,
    /// Minimum lead of a greedy token of a draft run.
    near_tie: f32,
    /// True if the graph samples.
    pub(super) samples: bool,
    /// True if only the next tokens are copied to the host, unless the host samples.
    pub(super) next_only: bool,
    /// Minimum rows of a decode run. A row has the same bits for any number of rows from this minimum
    /// to `together`.
    pub(super) min_rows: usize,
    /// Maximum sequences per decode run.
    pub(super) together: usize,
    /// The `together` that was asked for.
    max_together: usize,
    pub(super) speculation: Option<Speculation>,
    run_ahead: RunAhead,
    /// The store of prefixes that no slot holds any more, if there is one.
    pub(super) prefixes: Option<PrefixTier>,
}

impl Engine {
    /// Wraps an executable whose graph has the inputs and outputs of a decoder, with decode runs of
    /// at most `together` of its slots.
    ///
    /// # Errors
    /// [`ModelError::Run`] of the device.
    pub(super) fn new(
        exe: Box<dyn Executable>,
        rounded: Option<OverflowFallback>,
        inputs: ProgramInputs,
        [slots, together]: [usize; 2],
        sizes: DecoderSizes,
    ) -> Result<Engine, ModelError> {
        let outputs = &exe.signature().outputs;
        let samples = outputs.iter().any(|output| output.name == "next");
        let mut engine = Engine {
            compiled: CompiledDecoder::new(exe, rounded),
            inputs,
            windows: sizes.windows.into_iter().map(WindowInputs::new).collect(),
            slots: (0..slots).map(|_| CacheSlot::default()).collect(),
            has_states: sizes.has_states,
            is_blank: true,
            context: sizes.context,
            chunk: sizes.chunk,
            vocab: sizes.vocab,
            logit_rows: sizes.logit_rows,
            near_tie: near_tie(sizes.dtype),
            samples,
            next_only: false,
            min_rows: 1,
            together: 1,
            max_together: together,
            speculation: None,
            run_ahead: RunAhead::default(),
            prefixes: None,
        };
        engine.set_row_counts()?;
        Ok(engine)
    }

    /// Returns an error if the tokens are empty, out of vocabulary, or too many for a slot with this
    /// number of cached tokens.
    pub(super) fn check(&self, cached: usize, new: &[u32]) -> Result<(), ModelError> {
        let (tokens, context, vocab) = (cached + new.len(), self.context, self.vocab);
        if new.is_empty() {
            return Err(ModelError::NoTokens);
        }
        if tokens > context {
            return Err(ModelError::Context { tokens, context });
        }
        let known = vocab + self.compiled.image_rows();
        match new.iter().find(|&&token| token as usize >= known) {
            Some(&token) => Err(ModelError::Token { token, vocab }),
            None => Ok(()),
        }
    }

    /// True if every slot can go back to any of its tokens: no layer has states or a window cache.
    pub(super) fn goes_back(&self) -> bool {
        !self.has_states && self.windows.is_empty()
    }

    /// Removes the tokens of a slot from `position` on and returns the number of tokens that remain:
    /// none if the states or window caches of the slot cannot go back to `position`.
    pub(super) fn truncate(&mut self, at: usize, position: usize) -> usize {
        if position < self.slots[at].cached_tokens.len() {
            self.drop_ahead();
            let stays = !self.has_states && self.windows.iter().all(|own| own.reaches(position));
            self.slots[at].cut(if stays { position } else { 0 });
        }
        self.slots[at].cached_tokens.len()
    }

    /// Truncates all slots at the first token whose id is `token` or greater.
    pub(super) fn truncate_from(&mut self, token: u32) {
        for at in 0..self.slots.len() {
            let mut cached = self.slots[at].cached_tokens.iter();
            if let Some(position) = cached.position(|own| *own >= token) {
                self.truncate(at, position);
            }
        }
    }

    /// Zeroes all states. The slots must be empty.
    pub(super) fn reset(&mut self) {
        self.drop_ahead();
        self.compiled.reset();
        self.is_blank = true;
    }

    /// These tokens after the cached tokens of a slot, as a part of a run.
    pub(super) fn part(&self, at: usize, tokens: Vec<u32>) -> SlotChunk {
        let slot = &self.slots[at];
        SlotChunk {
            slot: at,
            adapter: slot.adapter,
            start: slot.cached_tokens.len(),
            banks: slot.banks(),
            tokens,
        }
    }

    /// Sets the sampling options of the text in a slot and of its draft model.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a value outside its range, or if the graph does not sample;
    /// [`ModelError::Token`] for a bias of a token outside the vocabulary.
    pub(super) fn set_sampling(
        &mut self,
        at: usize,
        options: &SamplingOptions,
    ) -> Result<(), ModelError> {
        options.check(self.vocab)?;
        if !self.samples {
            return Err(does_not_sample());
        }
        self.slots[at].text.sampler.set_options(options);
        match &mut self.speculation {
            Some(speculation) => speculation.set_sampling(options),
            None => Ok(()),
        }
    }

    /// Outputs of a run that the next tokens of these slots are sampled from.
    pub(super) fn outputs(&self, sampled: &[usize]) -> &'static [&'static str] {
        let on_host = sampled.iter();
        let on_host = on_host.filter(|at| self.slots[**at].text.sampler.is_on_host());
        match (on_host.count(), self.next_only) {
            _ if !self.samples => LOGITS,
            (0, true) => NEXT,
            (count, _) if count == sampled.len() => LOGITS,
            _ => &["logits", "next"],
        }
    }

    /// Samples the next tokens of slots from their rows of the last run, each `(slot, row)`. Slots are
    /// in ascending order. A token is `None` if there are no logits for it.
    pub(super) fn choose(
        &mut self,
        of: &[(usize, usize)],
        random: impl Fn(&CacheSlot) -> RngState + Sync,
    ) -> Result<Vec<Result<Option<u32>, ModelError>>, ModelError> {
        let next = self.compiled.output::<i32>("next")?;
        let logits = self.compiled.output::<f32>("logits")?;
        let vocab = self.vocab;
        let choose = |(slot, row): (&mut CacheSlot, usize)| {
            if !slot.text.sampler.is_on_host() {
                let next = next.and_then(|next| next.get(row));
                return Ok(next.map(|token| *token as u32));
            }
            let own = row * vocab..(row + 1) * vocab;
            let Some(logits) = logits.and_then(|logits| logits.get(own)) else {
                return Ok(None);
            };
            let random = random(slot);
            let (sampler, so_far) = slot.sampler();
            sampler.choose(logits, so_far, random)
        };
        let mut of = of.iter().peekable();
        let all = self.slots.iter_mut().enumerate();
        let mut sampled: Vec<(&mut CacheSlot, usize)> = all
            .filter_map(|(at, slot)| Some((slot, of.next_if(|(own, _)| *own == at)?.1)))
            .collect();
        // Sampling of one row of a large vocabulary takes a fraction of a millisecond.
        Ok(match sampled.len() {
            1 => sampled.into_iter().map(choose).collect(),
            _ => sampled
                .par_iter_mut()
                .map(|(slot, row)| choose((slot, *row)))
                .collect(),
        })
    }
}

/// The output of a run that the host samples from.
pub(super) const LOGITS: &[&str] = &["logits"];
/// The output of a run whose graph alone samples.
const NEXT: &[&str] = &["next"];

pub(super) fn does_not_sample() -> ModelError {
    let reason = "the graph of the model does not sample; build it with sampling options";
    ModelError::Unsupported(reason.into())
}
