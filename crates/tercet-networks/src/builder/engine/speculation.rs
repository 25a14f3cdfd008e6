//! Speculative decoding (Leviathan et al. 2023): a draft proposes several tokens and one run of the
//! model verifies them.
//!
//! The output does not depend on the draft. Each token is sampled from the model's own logits, with
//! the same penalties, constraint and random number as without a draft. An accepted draft token
//! only saves a run. Logits of a multi-row run differ from those of a one-row run by rounding. If
//! the top logit leads by less than [`near_tie`], a one-row run therefore decides, as it does
//! without a draft (ADR 0045).

use tercet::random::RngState;

use super::super::ModelError;
use super::super::decoder::run_rows::{LogitRows, RunRows};
use super::super::decoder::windows::BANKS;
use super::super::sampling::SamplingOptions;
use super::super::token_sampler::{DraftRows, VerifiedTokens};
use super::drafts::{Draft, DraftError, DraftProposer, MAX_DRAFT_TOKENS};
use super::{Engine, LOGITS, SlotChunk};
use crate::maybe_async::WaitMode;

/// Statistics of speculative decoding.
///
/// ```
/// use tercet_networks::DraftCounts;
/// let counts = DraftCounts { proposed: 8, accepted: 6, ..DraftCounts::default() };
/// assert_eq!(counts.accepted as f64 / counts.proposed as f64, 0.75);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Number of draft tokens proposed.
    pub proposed: u64,
    /// Number of draft tokens accepted.
    pub accepted: u64,
    /// Number of verification runs.
    pub runs: u64,
    /// Number of tokens that needed an extra one-row run because of a near tie.
    pub near_ties: u64,
}

/// A draft in use. One draft serves all slots of an engine.
pub(crate) struct Speculation {
    draft: Draft,
    /// Maximum draft tokens per run.
    most: usize,
    pub(crate) counts: DraftCounts,
}

/// Length of the next draft of one sequence: grows after a fully accepted draft, shrinks after a
/// partially accepted one.
#[derive(Clone, Copy)]
pub(crate) struct DraftLength(usize);

impl Default for DraftLength {
    fn default() -> DraftLength {
        DraftLength(MAX_DRAFT_TOKENS)
    }
}

impl Speculation {
    /// The draft model, if the draft is a model.
    pub(crate) fn model(&mut self) -> Option<&mut Engine> {
        match &mut self.draft.source {
            DraftProposer::Model(draft) => Some(draft),
            DraftProposer::Ngrams => None,
        }
    }

    /// Sets the sampling options of the draft model to those of the sequence.
    pub(crate) fn set_sampling(&mut self, options: &SamplingOptions) -> Result<(), ModelError> {
        match self.model() {
            Some(draft) => draft.set_sampling(0, &for_vocab(options, draft.vocab)),
            None => Ok(()),
        }
    }

    /// Counts the result of a run: the draft proposed `proposed` tokens, and the model accepted
    /// `accepted` of them. Returns the length of the next draft.
    fn count(
        &mut self,
        length: DraftLength,
        [proposed, accepted]: [usize; 2],
        is_decided: bool,
    ) -> DraftLength {
        self.counts.proposed += proposed as u64;
        self.counts.accepted += accepted as u64;
        self.counts.runs += 1;
        self.counts.near_ties += u64::from(!is_decided);
        let length = length.0.min(self.most);
        DraftLength(match accepted == proposed {
            true => (length + 2).min(self.most),
            false => (length - 1).max(1),
        })
    }
}

impl Engine {
    /// Sets or removes the draft of all slots, with at most `most` draft tokens per run.
    ///
    /// # Errors
    /// [`DraftError`] if `most` is out of range or the rows of logits are fewer than `most + 1`, and for
    /// models with recurrent states or images.
    pub(crate) fn set_draft(
        &mut self,
        draft: Option<Draft>,
        most: usize,
    ) -> Result<(), DraftError> {
        let Some(draft) = draft else {
            self.speculation = None;
            return Ok(());
        };
        let rows = self.logit_rows.min(self.chunk);
        if self.has_states {
            return Err(DraftError::States { which: "the model" });
        }
        if self.compiled.takes_images() || !self.samples {
            return Err(DraftError::Kind);
        }
        if !(1..=MAX_DRAFT_TOKENS).contains(&most) {
            return Err(DraftError::Tokens { tokens: most });
        }
        if rows <= most {
            return Err(DraftError::Rows { tokens: most, rows });
        }
        self.speculation = Some(Speculation {
            draft,
            most,
            counts: DraftCounts::default(),
        });
        // Draft runs write over the buffers of kept windows.
        for slot in &mut self.slots {
            slot.checkpoint = None;
            slot.text.draft_len = DraftLength::default();
        }
        Ok(())
    }

    /// Statistics of the draft so far; `None` without a draft.
    pub(crate) fn draft_counts(&self) -> Option<DraftCounts> {
        Some(self.speculation.as_ref()?.counts)
    }

    /// Maximum tokens of the next draft in a slot whose text may have `wanted` more tokens.
    pub(crate) fn max_draft(&self, at: usize, wanted: usize) -> usize {
        let slot = &self.slots[at];
        let room = self.context - slot.cached_tokens.len() - 1;
        let most = self.speculation.as_ref().map_or(0, |own| own.most);
        let room = room.min(wanted.saturating_sub(1));
        room.min(slot.text.draft_len.0).min(most)
    }

    /// Proposes at most [`Engine::max_draft`] tokens after the text of a slot and `next`, and appends
    /// `next` and those of them that the rows of one run decide. The last of the returned tokens is not
    /// cached yet. `None` if the draft before a token in `ends` is shorter than `least`, at least 1.
    ///
    /// `random` is the random state of the run of `next`.
    pub(crate) async fn draft_run(
        &mut self,
        (at, next): (usize, u32),
        (wanted, ends): (usize, &[u32]),
        least: usize,
        random: RngState,
        waits: WaitMode,
    ) -> Result<Option<VerifiedTokens>, ModelError> {
        let most = self.max_draft(at, wanted);
        let Some(speculation) = self.speculation.as_mut().filter(|_| most >= least) else {
            return Ok(None);
        };
        let (sampler, so_far) = self.slots[at].sampler();
        let seed = random.seed.or(Some(sampler.compiled.seed));
        let seeded = RngState { seed, ..random };
        let proposed = (speculation.draft).propose((so_far, next), most, seeded, waits);
        let mut proposed = proposed.await?;
        let stays = |token: &u32| (*token as usize) < self.vocab && !ends.contains(token);
        let kept = proposed.iter().take_while(|t| stays(t)).count();
        if kept < least {
            return Ok(None);
        }
        proposed.truncate(kept);
        let mut part = self.part(at, [&[next], &proposed[..]].concat());
        // The other buffer of ring caches keeps the tokens before the draft.
        part.banks[1] = BANKS - 1 - part.banks[0];
        let rows = RunRows::Chunk(&part, LogitRows::All);
        self.run(&rows, LOGITS, waits).await?;
        let rows = DraftRows {
            logits: self.compiled.output("logits")?.unwrap_or_default(),
            vocab: self.vocab,
            run_len: part.tokens.len(),
            near_tie: self.near_tie,
        };
        let (sampler, so_far) = self.slots[at].sampler();
        let verified = sampler.verify(&rows, so_far, random);
        let sampled = verified.tokens.len();
        self.roll_back(part, sampled, waits).await?;
        if let Some(speculation) = &mut self.speculation {
            // A token that differs from the draft decides, too.
            let accepted = sampled.saturating_sub(usize::from(verified.is_decided));
            let length = &mut self.slots[at].text.draft_len;
            *length = speculation.count(*length, [kept, accepted], verified.is_decided);
        }
        Ok(Some(verified))
    }

    /// Removes the tokens of a draft run after the first `kept` from the caches.
    async fn roll_back(
        &mut self,
        run: SlotChunk,
        kept: usize,
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        let end = run.start + kept;
        let slot = &mut self.slots[run.slot];
        if kept == run.tokens.len() || self.windows.iter().all(|own| own.reaches(end)) {
            slot.cut(end);
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
            ..run
        };
        let rows = RunRows::Chunk(&again, LogitRows::Last);
        self.run(&rows, self.outputs(&[]), waits).await
    }
}

/// Sampling options without logit biases for tokens outside a smaller vocabulary.
fn for_vocab(options: &SamplingOptions, vocab: usize) -> SamplingOptions {
    let mut options = options.clone();
    options
        .logit_bias
        .retain(|(token, _)| (*token as usize) < vocab);
    options
}
