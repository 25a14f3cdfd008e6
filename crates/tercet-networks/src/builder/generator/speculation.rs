//! Speculative decoding (Leviathan et al. 2023): a draft proposes several tokens and one run of the
//! model verifies them.
//!
//! The output does not depend on the draft. Each token is sampled from the model's own logits, with
//! the same penalties, constraint and random number as without a draft. An accepted draft token
//! only saves a run. Logits of a multi-row run differ from those of a one-row run by rounding. If
//! the top logit leads by less than [`near_tie`], a one-row run therefore decides, as it does
//! without a draft (ADR 0045).

use tercet::DType;
use tercet::random::RngState;

use super::super::ModelError;
use super::super::sampling::SamplingOptions;
use super::drafts::{Draft, DraftError, DraftProposer, MAX_DRAFT_TOKENS};
use super::{Generator, LogitRowSelection, not_the_output};
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

/// The draft model in use and its state.
pub(super) struct Speculation {
    draft: Draft,
    max_draft_tokens: usize,
    /// Length of the next draft: grows after a fully accepted draft, shrinks after a partially
    /// accepted one.
    draft_len: usize,
    pub(super) counts: DraftCounts,
}

/// Minimum lead of the top logit for a multi-row run to decide, relative to the range of the
/// logits. The minimum is about a hundred times the rounding difference between multi-row and
/// one-row runs.
fn near_tie(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 2e-2,
        DType::BF16 => 1e-1,
        _ => 1e-3,
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
        let Some(mut draft) = draft else {
            self.speculation = None;
            return Ok(());
        };
        let rows = self.logit_rows.min(self.chunk);
        let refused = match most {
            _ if self.has_states => Some(DraftError::States { which: "the model" }),
            _ if self.image_embeddings.is_some() || self.sampling.is_none() => {
                Some(DraftError::Kind)
            }
            most if !(1..=MAX_DRAFT_TOKENS).contains(&most) => {
                Some(DraftError::Tokens { tokens: most })
            }
            tokens if rows <= most => Some(DraftError::Rows { tokens, rows }),
            _ => None,
        };
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        let set = self.sampling.as_ref().and_then(|c| c.set.clone());
        if let (Some(options), DraftProposer::Model(model)) = (set, &mut draft.source) {
            model.set_sampling(&for_vocab(&options, model.vocab))?;
        }
        self.speculation = Some(Speculation {
            draft,
            max_draft_tokens: most,
            draft_len: most,
            counts: DraftCounts::default(),
        });
        Ok(())
    }

    /// Statistics of the draft so far; `None` without a draft.
    pub fn draft_counts(&self) -> Option<DraftCounts> {
        Some(self.speculation.as_ref()?.counts)
    }

    /// Sets the sampling options of the draft model to those of the target model.
    pub(super) fn set_draft_sampling(
        &mut self,
        options: &SamplingOptions,
    ) -> Result<(), ModelError> {
        match self.draft_model() {
            Some(draft) => draft.set_sampling(&for_vocab(options, draft.vocab)),
            None => Ok(()),
        }
    }

    /// The draft model, if the draft is a model.
    pub(super) fn draft_model(&mut self) -> Option<&mut Generator> {
        match &mut self.speculation.as_mut()?.draft.source {
            DraftProposer::Model(draft) => Some(draft),
            DraftProposer::Ngrams => None,
        }
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
        let (start, random) = (self.position, self.exe()?.random());
        self.append(&part, LogitRowSelection::All, waits).await?;
        let (mut chosen, is_decided) = self.verified(&part, random)?;
        // Remove the rejected draft tokens from the cache and restore their random numbers.
        self.truncate(start + chosen.len());
        self.exe()?.set_random(RngState {
            counter: random.counter.wrapping_add(chosen.len() as u64),
            ..random
        });
        if !is_decided {
            let token = part[chosen.len()];
            chosen.push(self.fed(token, waits).await?);
        }
        if let Some(Speculation {
            max_draft_tokens: most,
            draft_len: ahead,
            counts,
            ..
        }) = &mut self.speculation
        {
            let (n, accepted) = (proposed.len(), chosen.len() - 1);
            counts.proposed += n as u64;
            counts.accepted += accepted as u64;
            counts.runs += 1;
            counts.near_ties += u64::from(!is_decided);
            *ahead = match accepted == n {
                true => (*ahead + 2).min(*most),
                false => (*ahead - 1).max(1),
            };
        }
        Ok(chosen)
    }

    /// Removes the last `tokens` results of [`Generator::advance`] and restores their random
    /// numbers, for a sequence that ended before them.
    pub fn rollback(&mut self, tokens: usize) {
        self.truncate(self.position.saturating_sub(tokens));
        if let Some(exe) = &mut self.exe {
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
        step.next.ok_or_else(super::sampler::does_not_sample)
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
        let random = self.exe()?.random();
        let (Some(own), Some(chooser)) = (&mut self.speculation, &self.sampling) else {
            return Ok(Vec::new());
        };
        let room = most.saturating_sub(1);
        let room = room
            .min(self.context - self.position - 1)
            .min(own.draft_len);
        if room == 0 {
            return Ok(Vec::new());
        }
        if let DraftProposer::Model(draft) = &mut own.draft.source {
            draft.penalties_from = self.penalties_from;
        }
        let random = RngState {
            seed: Some(random.seed.unwrap_or(chooser.compiled.seed)),
            ..random
        };
        let proposed = own.draft.propose(&self.tokens, token, room, random, waits);
        let mut proposed = proposed.await?;
        let vocab = self.vocab;
        let stays = |token: &u32| (*token as usize) < vocab && !ends.contains(token);
        let kept = proposed.iter().take_while(|t| stays(t)).count();
        proposed.truncate(kept);
        Ok(proposed)
    }

    /// Samples from each logits row of the last run, up to the first token that differs from the
    /// draft in `part`. The flag is false if the next token is a near tie, which this run does not
    /// decide.
    fn verified(&mut self, part: &[u32], random: RngState) -> Result<(Vec<u32>, bool), ModelError> {
        let Some(chooser) = &self.sampling else {
            return Ok((Vec::new(), false));
        };
        let options = chooser.set.clone();
        let options = options.unwrap_or_else(|| SamplingOptions::from(chooser.compiled));
        let changes = chooser.set.is_some();
        let mut state = chooser.state;
        let Some(logits) = self.outputs.first() else {
            return Ok((Vec::new(), false));
        };
        let logits = logits.as_slice::<f32>();
        let logits = logits.map_err(|e| not_the_output("logits", &e))?;
        let first = self.tokens.len() - part.len();
        let mut chosen = Vec::with_capacity(part.len());
        let mut allowed = Vec::new();
        for (i, raw) in logits.chunks_exact(self.vocab).enumerate() {
            let mut row = raw;
            if let Some(constraint) = &mut self.constraint {
                allowed.clear();
                allowed.extend_from_slice(raw);
                constraint.mask(&mut allowed)?;
                row = &allowed;
            }
            let seen = &self.tokens[..=first + i];
            let written = seen.get(self.penalties_from..).unwrap_or(&[]);
            let token = if options.is_greedy() {
                let changed = changes.then(|| options.changed(row, seen, written));
                let leader = match &changed {
                    Some(changed) => leader(changed.iter().map(|x| *x as f32)),
                    None => leader(row.iter().copied()),
                };
                let least = f64::from(near_tie(self.dtype)) * spread(raw);
                match leader {
                    Some((token, lead)) if lead > least => token,
                    Some(_) | None => return Ok((chosen, false)),
                }
            } else {
                let random = RngState {
                    counter: random.counter.wrapping_add(i as u64),
                    ..random
                };
                let stream = random.stream(chooser.compiled.seed, chooser.stream);
                let units = [0, 1].map(|element| stream.unit(DType::F32, element));
                match options.sample(row, (seen, written), units, &mut state) {
                    Some(token) => token,
                    None => return Ok((chosen, false)),
                }
            };
            if let Some(constraint) = &mut self.constraint {
                constraint.take(token)?;
            }
            chosen.push(token);
            if part.get(i + 1) != Some(&token) {
                break;
            }
        }
        if let Some(chooser) = &mut self.sampling {
            chooser.state = state;
        }
        Ok((chosen, true))
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

/// First token with the greatest logit, and its lead over the second greatest; `None` if the
/// greatest is not finite.
fn leader(logits: impl Iterator<Item = f32>) -> Option<(u32, f64)> {
    let (mut at, mut best, mut next) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (i, x) in logits.enumerate() {
        if x > best {
            (at, best, next) = (i, x, best);
        } else if x > next {
            next = x;
        }
    }
    let lead = f64::from(best) - f64::from(next);
    best.is_finite().then_some((at as u32, lead))
}

/// Difference between the greatest and the least finite logit.
fn spread(logits: &[f32]) -> f64 {
    let finite = logits.iter().filter(|x| x.is_finite());
    let (least, most) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), x| {
        (a.min(*x), b.max(*x))
    });
    f64::from(most) - f64::from(least)
}

#[cfg(test)]
mod tests {
    use super::{leader, spread};

    #[test]
    fn the_first_of_equals_leads_by_nothing() {
        let of = |row: &[f32]| leader(row.iter().copied());
        assert_eq!(of(&[1.0, 3.0, 2.5, 3.0]), Some((1, 0.0)));
        assert_eq!(of(&[1.0, f32::NAN, 2.5]), Some((2, 1.5)));
        assert_eq!(
            of(&[f32::NEG_INFINITY, -2.0]),
            Some((1, f64::INFINITY)),
            "nothing else is allowed"
        );
        assert_eq!(of(&[f32::NEG_INFINITY; 2]), None);
        assert_eq!(of(&[f32::INFINITY, 0.0]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(spread(&[1.0, f32::NEG_INFINITY, -3.0, f32::NAN]), 4.0);
    }
}
