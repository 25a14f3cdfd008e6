//! Draft runs: one run verifies the draft of one sequence (ADR 0045).
//!
//! A draft run is worthwhile if it can give more tokens than a decode run of all sequences. In a
//! round each sequence has either a draft run or a row of the decode run.

use super::{BatchGenerator, ModelError};
use crate::builder::engine::drafts::Draft;
use crate::builder::engine::sequence::{ActiveSequence, BatchEvent, CacheSlot, STREAM};
use crate::builder::engine::speculation::DraftCounts;
use crate::builder::token_sampler::VerifiedTokens;
use crate::maybe_async::{WaitMode, block_on_ready};

impl BatchGenerator {
    /// Sets or removes the draft of all sequences, with at most `most` draft tokens per run. The
    /// tokens of a sequence stay the same. A draft model holds one text, so it drafts for one
    /// sequence at a time; n-grams draft for all of them.
    ///
    /// # Errors
    /// [`ModelError::Draft`] if `most` is out of range or greater than
    /// [`BatchOptions::draft_tokens`](crate::BatchOptions::draft_tokens), and for models with
    /// recurrent states or images.
    ///
    /// ```
    /// # let dims = tercet_networks::DecoderDims {
    /// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
    /// #     context: 128,
    /// # };
    /// # let spec = tercet_networks::DecoderSpec::llama(dims);
    /// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
    /// use tercet::Device;
    /// use tercet_networks::{BatchDecoder, BatchOptions, Draft, Sequence};
    /// let options = BatchOptions { draft_tokens: 4, ..BatchOptions::new(&spec, 2) };
    /// let mut generator = BatchDecoder::build(&spec, &weights, options)?.generator(&Device::cpu())?;
    /// generator.set_draft(Some(Draft::ngrams()), 4)?;
    /// generator.start(Sequence::new(vec![1, 2, 3, 1, 2, 3], 8))?;
    /// while !generator.step()?.is_empty() || generator.free() < 2 {}
    /// assert!(generator.draft_counts().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_draft(&mut self, draft: Option<Draft>, most: usize) -> Result<(), ModelError> {
        self.draft_owner = None;
        self.clear_draft_turns();
        self.engine.set_draft(draft, most)?;
        let model = self.engine.speculation.as_mut().and_then(|own| own.model());
        if let Some(model) = model {
            model.slots[0].text.sampler.stream = STREAM;
        }
        Ok(())
    }

    /// Counts of proposed and accepted draft tokens so far; `None` without a draft.
    pub fn draft_counts(&self) -> Option<DraftCounts> {
        self.engine.draft_counts()
    }

    /// Begins a round, in which each sequence may have a draft run.
    pub(super) fn clear_draft_turns(&mut self) {
        let slots = self.engine.slots.iter_mut();
        slots.for_each(|slot| slot.had_draft = false);
    }

    /// Verifies the draft of the next sequence that has a worthwhile one. `None` if no sequence has, and
    /// if the first token is a near tie.
    pub(super) fn draft_run(&mut self) -> Result<Option<Vec<BatchEvent>>, ModelError> {
        if self.engine.speculation.is_none() {
            return Ok(None);
        }
        let writing = self.writing_in_turn();
        if writing.iter().all(|at| self.engine.slots[*at].had_draft) {
            self.clear_draft_turns();
        }
        let least = match writing.len() {
            1 => 1,
            // About half of the tokens of a draft are accepted.
            count => 2 * count,
        };
        for at in writing {
            let Some(verified) = self.drafted(at, least)? else {
                continue;
            };
            self.logit_owners.clear();
            self.next_turn = (at + 1) % self.slots();
            let (context, slot) = (self.engine.context, &mut self.engine.slots[at]);
            let cached = slot.cached_tokens.len();
            slot.had_draft = verified.is_decided;
            let mut events = Vec::new();
            if let Some(text) = &mut slot.active {
                text.is_near_tie = !verified.is_decided;
                if !accept(text, verified, cached, context, &mut events) {
                    slot.end();
                }
            }
            return Ok((!events.is_empty()).then_some(events));
        }
        Ok(None)
    }

    /// Tokens of a draft run for the sequence of a slot; `None` if the draft is shorter than `least`.
    fn drafted(&mut self, at: usize, least: usize) -> Result<Option<VerifiedTokens>, ModelError> {
        let owner = self.draft_owner;
        let engine = &mut self.engine;
        let mut ids = engine.slots.iter().filter_map(CacheSlot::id);
        let is_owned = ids.any(|id| Some(id) == owner);
        let slot = &engine.slots[at];
        let Some((text, next)) = slot
            .active
            .as_ref()
            .and_then(|text| Some((text, text.next?)))
        else {
            return Ok(None);
        };
        let wanted = text.max_tokens - text.generated;
        let is_single = slot.had_draft || text.is_near_tie || text.needs_logits;
        if is_single || engine.max_draft(at, wanted) < least {
            return Ok(None);
        }
        let (id, random, ends) = (text.id, slot.random(engine.chunk), text.eos.clone());
        if let Some(speculation) = &mut engine.speculation
            && speculation.model().is_some()
            && owner != Some(id)
        {
            if is_owned {
                return Ok(None);
            }
            speculation.set_sampling(&engine.slots[at].text.sampler.options())?;
            self.draft_owner = Some(id);
        }
        let waits = WaitMode::Blocking;
        let run = engine.draft_run((at, next), (wanted, &ends), least, random, waits);
        block_on_ready(run)
    }
}

/// Records the events of verified tokens; the last one is not cached yet. Returns false if the
/// sequence ends.
fn accept(
    text: &mut ActiveSequence,
    verified: VerifiedTokens,
    cached: usize,
    context: usize,
    events: &mut Vec<BatchEvent>,
) -> bool {
    let behind = (0..verified.tokens.len()).rev();
    let goes_on = verified
        .tokens
        .into_iter()
        .zip(behind)
        .all(|(token, behind)| text.accept(token, cached - behind >= context, events));
    match verified.error {
        Some(e) if goes_on => text.fail(e, events),
        _ => goes_on,
    }
}
