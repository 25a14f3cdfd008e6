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
use super::super::compiled_decoder::elements;
use super::super::sampling::SamplingOptions;
use super::super::token_sampler::{DraftRows, SampledText, VerifiedTokens, near_tie};
use super::drafts::{Draft, DraftError, DraftProposer, MAX_DRAFT_TOKENS};
use super::{Generator, LogitRowSelection, does_not_sample};
use crate::maybe_async::{WaitMode, block_on_ready};

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

/// A draft in use. One draft serves all sequences of a generator.
pub(in crate::builder) struct Speculation {
    draft: Draft,
    /// Maximum draft tokens per run.
    most: usize,
    pub(in crate::builder) counts: DraftCounts,
}

/// Properties of a model that a draft depends on.
pub(in crate::builder) struct DraftTarget {
    pub(in crate::builder) has_states: bool,
    /// True if the graph samples and takes no images.
    pub(in crate::builder) is_text_only: bool,
    /// Rows of logits per run.
    pub(in crate::builder) logit_rows: usize,
}

/// A sequence that a draft continues.
pub(in crate::builder) struct DraftedText<'a> {
    /// Cached tokens of the sequence.
    pub(in crate::builder) text: SampledText<'a>,
    /// The token after them, whose logits are computed next.
    pub(in crate::builder) next: u32,
    pub(in crate::builder) vocab: usize,
    /// Tokens that end the sequence.
    pub(in crate::builder) ends: &'a [u32],
    /// Random state of the next run.
    pub(in crate::builder) random: RngState,
}

/// Length of the next draft of one sequence: grows after a fully accepted draft, shrinks after a
/// partially accepted one.
#[derive(Clone, Copy)]
pub(in crate::builder) struct DraftLength(usize);

impl Default for DraftLength {
    fn default() -> DraftLength {
        DraftLength(MAX_DRAFT_TOKENS)
    }
}

impl Speculation {
    /// Checks a draft of at most `most` tokens for a model.
    ///
    /// # Errors
    /// [`DraftError`] of [`Generator::set_draft`].
    pub(in crate::builder) fn new(
        draft: Draft,
        most: usize,
        target: &DraftTarget,
    ) -> Result<Speculation, DraftError> {
        let rows = target.logit_rows;
        if target.has_states {
            return Err(DraftError::States { which: "the model" });
        }
        if !target.is_text_only {
            return Err(DraftError::Kind);
        }
        if !(1..=MAX_DRAFT_TOKENS).contains(&most) {
            return Err(DraftError::Tokens { tokens: most });
        }
        if rows <= most {
            return Err(DraftError::Rows { tokens: most, rows });
        }
        Ok(Speculation {
            draft,
            most,
            counts: DraftCounts::default(),
        })
    }

    /// The draft model, if the draft is a model.
    pub(in crate::builder) fn model(&mut self) -> Option<&mut Generator> {
        match &mut self.draft.source {
            DraftProposer::Model(draft) => Some(draft),
            DraftProposer::Ngrams => None,
        }
    }

    /// Sets the sampling options of the draft model to those of the sequence.
    pub(in crate::builder) fn set_sampling(
        &mut self,
        options: &SamplingOptions,
    ) -> Result<(), ModelError> {
        match self.model() {
            Some(draft) => draft.set_sampling(&for_vocab(options, draft.vocab)),
            None => Ok(()),
        }
    }

    /// Maximum tokens of the next draft of a sequence with room for `room` tokens.
    pub(in crate::builder) fn max_tokens(&self, room: usize, length: DraftLength) -> usize {
        room.min(length.0).min(self.most)
    }

    /// At most `room` draft tokens after a sequence.
    pub(in crate::builder) async fn propose(
        &mut self,
        of: &DraftedText<'_>,
        room: usize,
        length: DraftLength,
        waits: WaitMode,
    ) -> Result<Vec<u32>, ModelError> {
        let most = self.max_tokens(room, length);
        if most == 0 {
            return Ok(Vec::new());
        }
        if let Some(draft) = self.model() {
            draft.penalties_from = of.text.penalties_from;
        }
        let proposed = (self.draft).propose(of.text.tokens, of.next, most, of.random, waits);
        let mut proposed = proposed.await?;
        let stays = |token: &u32| (*token as usize) < of.vocab && !of.ends.contains(token);
        let kept = proposed.iter().take_while(|t| stays(t)).count();
        proposed.truncate(kept);
        Ok(proposed)
    }

    /// Counts the result of a run over `proposed` draft tokens, of which `accepted` were the
    /// model's, and returns the length of the next draft.
    pub(in crate::builder) fn count(
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

impl Generator {
    /// Sets or removes the draft used by [`Generator::advance`], with at most `most` draft tokens
    /// per run.
    ///
    /// # Errors
    /// [`ModelError::Draft`] if `most` is out of range, or if the graph computes fewer than `most +
    /// 1` rows of logits ([`DecoderOptions::logit_rows`](crate::DecoderOptions::logit_rows)). The
    /// same error is returned for models with recurrent states, vision-language models and
    /// encoder-decoder models.
    pub fn set_draft(&mut self, draft: Option<Draft>, most: usize) -> Result<(), ModelError> {
        let Some(draft) = draft else {
            self.speculation = None;
            return Ok(());
        };
        let target = DraftTarget {
            has_states: self.has_states,
            is_text_only: !self.compiled.takes_images() && self.sampler.is_some(),
            logit_rows: self.logit_rows.min(self.chunk),
        };
        let mut speculation = Speculation::new(draft, most, &target)?;
        if let Some(options) = self.sampler.as_ref().and_then(|s| s.overriding()) {
            speculation.set_sampling(options)?;
        }
        self.speculation = Some(speculation);
        self.draft_len = DraftLength::default();
        Ok(())
    }

    /// Statistics of the draft so far; `None` without a draft.
    pub fn draft_counts(&self) -> Option<DraftCounts> {
        Some(self.speculation.as_ref()?.counts)
    }

    /// Appends a token and returns the next tokens, between one and `most`. Without a draft, the
    /// call returns one token, as [`Generator::forward`] does. All returned tokens except the last
    /// are already in the cache; pass the last one to the next call. Generation stops after a token
    /// in `ends`.
    ///
    /// # Errors
    /// Same errors as [`Generator::forward`], and [`ModelError::Unsupported`] if the graph does not sample; errors
    /// of a draft model.
    pub fn advance(
        &mut self,
        token: u32,
        most: usize,
        ends: &[u32],
    ) -> Result<Vec<u32>, ModelError> {
        block_on_ready(self.advance_in(token, most, ends, WaitMode::Blocking))
    }

    /// Like [`Generator::advance`], in a wait mode.
    ///
    /// # Errors
    /// Same errors as [`Generator::advance`].
    pub async fn advance_in(
        &mut self,
        token: u32,
        most: usize,
        ends: &[u32],
        waits: WaitMode,
    ) -> Result<Vec<u32>, ModelError> {
        let proposed = self.proposed(token, most, ends, waits).await?;
        if proposed.is_empty() {
            return Ok(vec![self.fed(token, waits).await?]);
        }
        let part = [&[token], &proposed[..]].concat();
        let (start, random) = (self.position, self.compiled.exe()?.random());
        self.append(&part, LogitRowSelection::All, waits).await?;
        let VerifiedTokens {
            mut tokens,
            is_decided,
            error,
        } = self.verified(part.len(), random)?;
        if let Some(error) = error {
            return Err(error);
        }
        // Remove the rejected draft tokens from the cache and restore their random numbers.
        self.truncate(start + tokens.len());
        self.compiled.exe()?.set_random(RngState {
            counter: random.counter.wrapping_add(tokens.len() as u64),
            ..random
        });
        if !is_decided {
            let token = part[tokens.len()];
            tokens.push(self.fed(token, waits).await?);
        }
        if let Some(speculation) = &mut self.speculation {
            let counts = [proposed.len(), tokens.len() - 1];
            self.draft_len = speculation.count(self.draft_len, counts, is_decided);
        }
        Ok(tokens)
    }

    /// Removes the last `tokens` results of [`Generator::advance`] and restores their random
    /// numbers, for a sequence that ended before them.
    pub fn rollback(&mut self, tokens: usize) {
        self.truncate(self.position.saturating_sub(tokens));
        if let Ok(exe) = self.compiled.exe() {
            let random = exe.random();
            exe.set_random(RngState {
                counter: random.counter.wrapping_sub(tokens as u64),
                ..random
            });
        }
    }

    /// Next token after `token`, computed by a one-row run.
    async fn fed(&mut self, token: u32, waits: WaitMode) -> Result<u32, ModelError> {
        let step = self.forward_in(&[token], &mut |_| true, waits).await?;
        step.next.ok_or_else(does_not_sample)
    }

    /// Draft tokens after `token`, limited by the remaining context.
    async fn proposed(
        &mut self,
        token: u32,
        most: usize,
        ends: &[u32],
        waits: WaitMode,
    ) -> Result<Vec<u32>, ModelError> {
        self.check(&[token])?;
        let random = self.compiled.exe()?.random();
        let (Some(speculation), Some(sampler)) = (&mut self.speculation, &self.sampler) else {
            return Ok(Vec::new());
        };
        let room = most.saturating_sub(1);
        let room = room.min(self.context - self.position - 1);
        let of = DraftedText {
            text: SampledText {
                tokens: &self.tokens,
                penalties_from: self.penalties_from,
            },
            next: token,
            vocab: self.vocab,
            ends,
            random: RngState {
                seed: Some(random.seed.unwrap_or(sampler.compiled.seed)),
                ..random
            },
        };
        speculation.propose(&of, room, self.draft_len, waits).await
    }

    /// Samples from each logits row of the last run, whose `run_len` tokens are the last of the
    /// cache.
    fn verified(&mut self, run_len: usize, random: RngState) -> Result<VerifiedTokens, ModelError> {
        let sampler = self.sampler.as_mut().ok_or_else(does_not_sample)?;
        let logits: &[f32] = match self.compiled.outputs.first() {
            Some(logits) => elements(logits, "logits")?,
            None => &[],
        };
        let rows = DraftRows {
            logits,
            vocab: self.vocab,
            run_len,
            near_tie: near_tie(self.dtype),
        };
        let text = SampledText {
            tokens: &self.tokens,
            penalties_from: self.penalties_from,
        };
        Ok(sampler.verify(&rows, text, random))
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
