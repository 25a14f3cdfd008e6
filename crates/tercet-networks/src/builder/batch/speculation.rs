//! Draft runs: one run verifies the draft of one sequence (ADR 0045).
//!
//! A draft run is worthwhile if it can give more tokens than a decode run of all sequences. In a
//! round each sequence has either a draft run or a row of the decode run.

use super::inputs::{BatchRunRows, SlotChunk};
use super::sequence::{ActiveSequence, BatchEvent, STREAM};
use super::{BANKS, BatchGenerator, ModelError, elements};
use crate::builder::generator::{Draft, DraftCounts, DraftTarget, DraftedText, Speculation};
use crate::builder::token_sampler::{DraftRows, VerifiedTokens};
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
        let Some(draft) = draft else {
            self.speculation = None;
            return Ok(());
        };
        let target = DraftTarget {
            has_states: self.has_states,
            is_text_only: !self.compiled.takes_images(),
            logit_rows: self.draft_rows,
        };
        let mut speculation = Speculation::new(draft, most, &target)?;
        // Draft runs write over the buffers of kept windows.
        self.slots
            .iter_mut()
            .for_each(|slot| slot.checkpoint = None);
        if let Some(model) = speculation.model() {
            model.set_stream(STREAM);
        }
        self.speculation = Some(speculation);
        Ok(())
    }

    /// Counts of proposed and accepted draft tokens so far; `None` without a draft.
    pub fn draft_counts(&self) -> Option<DraftCounts> {
        Some(self.speculation.as_ref()?.counts)
    }

    /// Begins a round, in which each sequence may have a draft run.
    pub(super) fn clear_draft_turns(&mut self) {
        let slots = self.slots.iter_mut();
        slots.for_each(|slot| slot.had_draft = false);
    }

    /// Verifies the draft of the next sequence that has a worthwhile one. `None` if no sequence has, and
    /// if the first token is a near tie.
    pub(super) fn draft_run(&mut self) -> Result<Option<Vec<BatchEvent>>, ModelError> {
        if self.speculation.is_none() {
            return Ok(None);
        }
        let writing = self.writing_in_turn();
        if writing.iter().all(|at| self.slots[*at].had_draft) {
            self.clear_draft_turns();
        }
        let least = match writing.len() {
            1 => 1,
            // About half of the tokens of a draft are accepted.
            count => 2 * count,
        };
        for at in &writing {
            let proposed = self.proposed(*at, least)?;
            if !proposed.is_empty() {
                let events = self.verify_draft(*at, &proposed)?;
                return Ok((!events.is_empty()).then_some(events));
            }
        }
        Ok(None)
    }

    /// Draft tokens for the sequence of a slot, limited by the remaining context; none if they are fewer
    /// than `least`.
    fn proposed(&mut self, at: usize, least: usize) -> Result<Vec<u32>, ModelError> {
        let owner = self.draft_owner;
        let is_owned = self
            .slots
            .iter()
            .any(|slot| slot.id().is_some() && slot.id() == owner);
        let slot = &self.slots[at];
        let (Some(speculation), Some(text)) = (&mut self.speculation, &slot.active) else {
            return Ok(Vec::new());
        };
        let Some(next) = text.next else {
            return Ok(Vec::new());
        };
        if slot.had_draft || text.is_near_tie || text.needs_logits {
            return Ok(Vec::new());
        }
        let room = (text.max_tokens - text.generated).saturating_sub(1);
        let room = room.min(self.context - slot.cached_tokens.len() - 1);
        if speculation.max_tokens(room, text.draft_len) < least {
            return Ok(Vec::new());
        }
        if speculation.model().is_some() && self.draft_owner != Some(text.id) {
            if is_owned {
                return Ok(Vec::new());
            }
            speculation.set_sampling(&text.sampler.options())?;
            self.draft_owner = Some(text.id);
        }
        let of = DraftedText {
            text: text.text(&slot.cached_tokens),
            next,
            vocab: self.vocab,
            ends: &text.eos,
            random: text.random(self.chunk),
        };
        let proposed = speculation.propose(&of, room, text.draft_len, WaitMode::Blocking);
        let proposed = block_on_ready(proposed)?;
        Ok(match proposed.len() < least {
            true => Vec::new(),
            false => proposed,
        })
    }

    /// Runs the last token of a sequence and its draft, and accepts the tokens that the rows decide.
    fn verify_draft(&mut self, at: usize, proposed: &[u32]) -> Result<Vec<BatchEvent>, ModelError> {
        let slot = &self.slots[at];
        let (start, bank) = (slot.cached_tokens.len(), slot.buffer_index);
        let Some(token) = slot.next() else {
            return Ok(Vec::new());
        };
        let chunk = SlotChunk {
            slot: at,
            adapter: slot.adapter,
            start,
            // The other buffer of the window caches keeps the tokens before the draft.
            banks: [bank, BANKS - 1 - bank],
            tokens: [&[token], proposed].concat(),
        };
        self.run(&BatchRunRows::Draft(&chunk), true)?;
        self.next_turn = (at + 1) % self.slots.len();
        let verified = self.verified(at, chunk.tokens.len())?;
        self.roll_back(&chunk, verified.tokens.len())?;
        let mut events = Vec::new();
        let slot = &mut self.slots[at];
        let (Some(text), Some(speculation)) = (&mut slot.active, &mut self.speculation) else {
            return Ok(events);
        };
        let accepted = verified.tokens.len().saturating_sub(1);
        let counts = match verified.is_decided {
            true => [proposed.len(), accepted],
            false => [proposed.len(), verified.tokens.len()],
        };
        text.draft_len = speculation.count(text.draft_len, counts, verified.is_decided);
        text.is_near_tie = !verified.is_decided;
        slot.had_draft = verified.is_decided;
        let cached = slot.cached_tokens.len();
        if !accept(text, verified, cached, self.context, &mut events) {
            slot.active = None;
        }
        Ok(events)
    }

    /// Samples from the rows of the last run, whose `run_len` tokens are the last of the slot.
    fn verified(&mut self, at: usize, run_len: usize) -> Result<VerifiedTokens, ModelError> {
        let logits: &[f32] = match self.compiled.outputs.as_slice() {
            [_, logits] => elements(logits, "logits")?,
            _ => return Err(super::no_logits()),
        };
        let rows = DraftRows {
            logits,
            vocab: self.vocab,
            run_len,
            near_tie: self.near_tie,
        };
        let slot = &mut self.slots[at];
        let text = slot.active.as_mut().ok_or_else(super::no_logits)?;
        let (so_far, random) = (text.text(&slot.cached_tokens), text.random(self.chunk));
        Ok(text.sampler.verify(&rows, so_far, random))
    }

    /// Removes the tokens of a draft run after the first `kept` from the caches.
    fn roll_back(&mut self, run: &SlotChunk, kept: usize) -> Result<(), ModelError> {
        if kept == run.tokens.len() {
            return Ok(());
        }
        let slot = &mut self.slots[run.slot];
        slot.cut(run.start + kept);
        if !self.has_windows {
            return Ok(());
        }
        // Rejected tokens have overwritten positions that the window still shows, so the accepted ones
        // are computed again from the other buffer.
        slot.cut(run.start);
        slot.buffer_index = run.banks[0];
        if kept == 0 {
            return Ok(());
        }
        let again = SlotChunk {
            banks: [run.banks[0]; 2],
            tokens: run.tokens[..kept].to_vec(),
            ..*run
        };
        self.run(&BatchRunRows::Prompt(&again), false)
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
