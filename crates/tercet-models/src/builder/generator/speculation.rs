//! Speculative decoding (Leviathan et al. 2023): several tokens are proposed, and one run of the model says how many of
//! them it chooses itself.
//!
//! What is written does not depend on the proposals. Each token is chosen from the model's own logits, with the penalties,
//! the constraint and the random number that it would have been chosen with, and a proposal only saves a run where it is
//! that token. The logits of a run of several rows differ from those of one row by their rounding: where the greatest
//! logit leads by less than [`near_tie`], a run of one row decides, as it does without proposals (ADR 0045).

use tercet::DType;
use tercet::random::Random;

use super::super::ModelError;
use super::super::sampling::SamplingOptions;
use super::drafts::{Draft, DraftError, MOST_DRAFTED, Source};
use super::{Generator, Rows, not_the_output};
use crate::waits::{Waits, now};

/// What becomes of proposals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens that were proposed.
    pub proposed: u64,
    /// Those of them that were written.
    pub accepted: u64,
    /// Runs that checked some.
    pub runs: u64,
    /// Tokens that a further run of one row decided on, as two logits were nearly equal.
    pub near_ties: u64,
}

/// A draft at work.
pub(super) struct Speculation {
    draft: Draft,
    most: usize,
    /// How many tokens are proposed next: more after a run that took all, fewer after one that did not.
    ahead: usize,
    pub(super) counts: DraftCounts,
}

/// How far the greatest logit has to lead, of the distance between the greatest and the least, for a run of several rows to
/// decide: a hundred times what runs differ by.
fn near_tie(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 2e-2,
        DType::BF16 => 1e-1,
        _ => 1e-3,
    }
}

impl Generator {
    /// From now on [`Generator::advance`] has at most so many tokens proposed at a time by `draft`, or none any more.
    ///
    /// # Errors
    /// [`ModelError::Draft`] where a number is not possible or the graph has too few rows of logits
    /// ([`DecoderOptions::logit_rows`](crate::DecoderOptions::logit_rows), one more than `most`), and for models that remember
    /// in states, that see, or that write about a text.
    pub fn set_draft(&mut self, draft: Option<Draft>, most: usize) -> Result<(), ModelError> {
        let Some(mut draft) = draft else {
            self.speculation = None;
            return Ok(());
        };
        let rows = self.logit_rows.min(self.chunk);
        let refused = match most {
            _ if self.has_states => Some(DraftError::States { which: "the model" }),
            _ if self.seen.is_some() || self.sampling.is_none() => Some(DraftError::Kind),
            most if !(1..=MOST_DRAFTED).contains(&most) => {
                Some(DraftError::Tokens { tokens: most })
            }
            tokens if rows <= most => Some(DraftError::Rows { tokens, rows }),
            _ => None,
        };
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        let set = self.sampling.as_ref().and_then(|c| c.set.clone());
        if let (Some(options), Source::Model(model)) = (set, &mut draft.source) {
            model.set_sampling(&for_vocab(&options, model.vocab))?;
        }
        self.speculation = Some(Speculation {
            draft,
            most,
            ahead: most,
            counts: DraftCounts::default(),
        });
        Ok(())
    }

    /// What became of the proposals so far; `None` without a draft.
    pub fn draft_counts(&self) -> Option<DraftCounts> {
        Some(self.speculation.as_ref()?.counts)
    }

    /// A draft model chooses as its model does.
    pub(super) fn set_draft_sampling(
        &mut self,
        options: &SamplingOptions,
    ) -> Result<(), ModelError> {
        match self.draft_model() {
            Some(draft) => draft.set_sampling(&for_vocab(options, draft.vocab)),
            None => Ok(()),
        }
    }

    /// The model that proposes tokens, where one does.
    pub(super) fn draft_model(&mut self) -> Option<&mut Generator> {
        match &mut self.speculation.as_mut()?.draft.source {
            Source::Model(draft) => Some(draft),
            Source::Ngrams => None,
        }
    }

    /// Appends a token and gives those that follow it, at most `most` and at least one: without a draft it is one, as
    /// [`Generator::feed`] gives. All but the last are in the cache already, and only the last is to be given to the next
    /// call. Nothing follows one of `ends`.
    ///
    /// # Errors
    /// As [`Generator::feed`], and [`ModelError::Unsupported`] where the graph does not sample; those of a draft model.
    pub fn advance(
        &mut self,
        token: u32,
        most: usize,
        ends: &[u32],
    ) -> Result<Vec<u32>, ModelError> {
        now(self.advance_in(token, most, ends, Waits::Blocking))
    }

    pub(crate) async fn advance_in(
        &mut self,
        token: u32,
        most: usize,
        ends: &[u32],
        waits: Waits,
    ) -> Result<Vec<u32>, ModelError> {
        let proposed = self.proposed(token, most, ends, waits).await?;
        if proposed.is_empty() {
            return Ok(vec![self.fed(token, waits).await?]);
        }
        let part = [&[token], &proposed[..]].concat();
        let (start, random) = (self.position, self.exe()?.random());
        self.append(&part, Rows::All, waits).await?;
        let (mut chosen, is_decided) = self.verified(&part, random)?;
        // What was proposed in vain is taken back, and so are its random numbers.
        self.truncate(start + chosen.len());
        self.exe()?.set_random(Random {
            counter: random.counter.wrapping_add(chosen.len() as u64),
            ..random
        });
        if !is_decided {
            let token = part[chosen.len()];
            chosen.push(self.fed(token, waits).await?);
        }
        if let Some(Speculation {
            most,
            ahead,
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

    /// Forgets the last so many tokens that [`Generator::advance`] gave, and their random numbers, where a text ended before them.
    pub(crate) fn take_back(&mut self, tokens: usize) {
        self.truncate(self.position.saturating_sub(tokens));
        if let Some(exe) = &mut self.exe {
            let random = exe.random();
            exe.set_random(Random {
                counter: random.counter.wrapping_sub(tokens as u64),
                ..random
            });
        }
    }

    /// The token after `token`, by a run of one row.
    async fn fed(&mut self, token: u32, waits: Waits) -> Result<u32, ModelError> {
        let step = self.feed_in(&[token], &mut |_| true, waits).await?;
        step.next.ok_or_else(super::choice::does_not_sample)
    }

    /// What is proposed after `token`, where there is room for it.
    async fn proposed(
        &mut self,
        token: u32,
        most: usize,
        ends: &[u32],
        waits: Waits,
    ) -> Result<Vec<u32>, ModelError> {
        self.check(&[token])?;
        let random = self.exe()?.random();
        let (Some(own), Some(chooser)) = (&mut self.speculation, &self.sampling) else {
            return Ok(Vec::new());
        };
        let room = most.saturating_sub(1);
        let room = room.min(self.context - self.position - 1).min(own.ahead);
        if room == 0 {
            return Ok(Vec::new());
        }
        if let Source::Model(draft) = &mut own.draft.source {
            draft.penalties_from = self.penalties_from;
        }
        let random = Random {
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

    /// The tokens chosen after those of `part`, whose logits the last run gave, up to the first that was not proposed; and
    /// whether the run decided them all, or would not decide the next.
    fn verified(&mut self, part: &[u32], random: Random) -> Result<(Vec<u32>, bool), ModelError> {
        let Some(chooser) = &self.sampling else {
            return Ok((Vec::new(), false));
        };
        let options = chooser.set.clone();
        let options = options.unwrap_or_else(|| SamplingOptions::from(chooser.compiled));
        let changes = chooser.set.is_some();
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
            let token = if options.temperature == 0.0 {
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
                let random = Random {
                    counter: random.counter.wrapping_add(i as u64),
                    ..random
                };
                let stream = random.stream(chooser.compiled.seed, chooser.stream);
                let unit = stream.unit(DType::F32, 0);
                match options.choose(row, seen, written, unit) {
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
        Ok((chosen, true))
    }
}

/// Options without biases of tokens that a smaller vocabulary does not have.
fn for_vocab(options: &SamplingOptions, vocab: usize) -> SamplingOptions {
    let mut options = options.clone();
    options
        .logit_bias
        .retain(|(token, _)| (*token as usize) < vocab);
    options
}

/// The first of the greatest logits and how far it leads the next one; none among numbers that are not finite.
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

/// The distance between the greatest and the least finite logit.
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
