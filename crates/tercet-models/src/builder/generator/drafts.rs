//! What proposes tokens: a smaller model, or the text itself.

use tercet::random::Random;

use super::super::ModelError;
use super::Generator;
use crate::tokenizer::Tokenizer;
use crate::waits::Waits;

/// The longest and the shortest run of tokens that is looked for earlier in a text.
const NGRAMS: [usize; 2] = [4, 2];

/// The most tokens that are proposed at a time: with the token before them no executor computes so few rows in another precision.
pub const MOST_DRAFTED: usize = 7;

/// What proposes the next tokens of a text; a [`Generator`] checks several of them in one run ([`Generator::set_draft`]).
pub struct Draft {
    pub(super) source: Source,
}

pub(super) enum Source {
    Ngrams,
    Model(Box<Generator>),
}

/// Why a draft cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The vocabularies differ in size.
    #[error(
        "the draft model's vocabulary has {draft} tokens, the model's {target}; a draft needs the same vocabulary"
    )]
    VocabularySize {
        /// Tokens of the draft model.
        draft: usize,
        /// Tokens of the model.
        target: usize,
    },
    /// The vocabularies differ in a token.
    #[error(
        "token {token} is {draft:?} to the draft model and {target:?} to the model; a draft needs the same vocabulary"
    )]
    Vocabulary {
        /// The first that differs.
        token: u32,
        /// What it is to the draft model.
        draft: String,
        /// What it is to the model.
        target: String,
    },
    /// Layers remember in states.
    #[error(
        "{which} remembers what it read in states, from which a token that was proposed in vain cannot be taken back; leave out the draft"
    )]
    States {
        /// `the model` or `the draft model`.
        which: &'static str,
    },
    /// Too many or no tokens at a time.
    #[error("{tokens} tokens proposed at a time; 1 to {MOST_DRAFTED} are possible")]
    Tokens {
        /// Tokens that were asked for.
        tokens: usize,
    },
    /// The graph gives too few rows of logits.
    #[error(
        "{tokens} tokens proposed at a time need a model that was built for {} rows of logits in one run; it has {rows}",
        tokens + 1
    )]
    Rows {
        /// Tokens that were asked for.
        tokens: usize,
        /// Rows of one run.
        rows: usize,
    },
    /// The model does not write texts of tokens alone.
    #[error("drafts are for language models of texts; leave out the draft")]
    Kind,
}

impl Draft {
    /// What followed the last tokens where they occurred before, in the prompt or in what was written: for texts that repeat
    /// themselves, as code and summaries do.
    #[must_use]
    pub fn ngrams() -> Draft {
        Draft {
            source: Source::Ngrams,
        }
    }

    /// A smaller model with a tokenizer of the same tokens as that of the model it writes for. Its context need not be as
    /// large: beyond it nothing is proposed.
    ///
    /// # Errors
    /// [`DraftError::VocabularySize`], [`DraftError::Vocabulary`]; [`DraftError::States`] for a model that remembers in states.
    pub fn model(
        mut draft: Generator,
        own: &Tokenizer,
        target: &Tokenizer,
    ) -> Result<Draft, DraftError> {
        if draft.has_states {
            let which = "the draft model";
            return Err(DraftError::States { which });
        }
        let [n, of_target] = [own.vocab_len(), target.vocab_len()];
        if n != of_target {
            return Err(DraftError::VocabularySize {
                draft: n,
                target: of_target,
            });
        }
        let differs = |token: &u32| own.id_to_token(*token) != target.id_to_token(*token);
        if let Some(token) = (0..n as u32).find(differs) {
            let shown = |of: &Tokenizer| of.id_to_token(token).unwrap_or_default();
            return Err(DraftError::Vocabulary {
                token,
                draft: shown(own),
                target: shown(target),
            });
        }
        draft.skip_logits();
        Ok(Draft {
            source: Source::Model(Box::new(draft)),
        })
    }

    /// At most so many tokens after `text` and `next`. `random` is what the model draws its next token with, and one more
    /// for each that follows; a draft model draws with the same numbers, so that it chooses as the model does where they agree.
    pub(super) async fn propose(
        &mut self,
        text: &[u32],
        next: u32,
        most: usize,
        random: Random,
        waits: Waits,
    ) -> Result<Vec<u32>, ModelError> {
        let draft = match &mut self.source {
            Source::Ngrams => return Ok(repeated(text, next, most)),
            Source::Model(draft) => draft,
        };
        let most = most.min(draft.context.saturating_sub(text.len() + 1));
        let cached = draft.cached().iter().zip(text);
        let same = cached.take_while(|(a, b)| a == b).count();
        let same = draft.truncate(same);
        let mut new = [&text[same..], &[next]].concat();
        let mut proposed = Vec::with_capacity(most);
        while proposed.len() < most && new.iter().all(|t| (*t as usize) < draft.vocab) {
            draft.exe()?.set_random(Random {
                counter: random.counter.wrapping_add(proposed.len() as u64),
                ..random
            });
            let step = draft.feed_in(&new, &mut |_| true, waits).await?;
            let Some(token) = step.next else {
                break;
            };
            proposed.push(token);
            new = vec![token];
        }
        Ok(proposed)
    }
}

/// What followed the last tokens of `text` and `next` where the longest such run of them occurred last. Where that reaches
/// the end of the text it goes on as a text that repeats itself.
fn repeated(text: &[u32], next: u32, most: usize) -> Vec<u32> {
    let mut all = Vec::with_capacity(text.len() + 1 + most);
    all.extend_from_slice(text);
    all.push(next);
    let end = all.len();
    let [longest, shortest] = NGRAMS;
    let found = (shortest..=longest).rev().find_map(|n| {
        let last = &all[end.checked_sub(n)?..];
        let earlier = all[..end - 1].windows(n).rposition(|run| run == last);
        Some(earlier? + n)
    });
    let Some(from) = found else {
        return Vec::new();
    };
    for at in from..from + most {
        all.push(all[at]);
    }
    all.split_off(end)
}

#[cfg(test)]
mod tests {
    use super::repeated;

    #[test]
    fn what_followed_the_last_tokens_is_proposed() {
        let check = |text: &[u32], most: usize, want: &[u32]| {
            let (next, before) = text.split_last().unwrap_or((&0, &[]));
            assert_eq!(repeated(before, *next, most), want, "{text:?}");
        };
        check(&[7], 3, &[]);
        check(&[1, 2, 3, 4], 3, &[]);
        // A single token that occurred says too little.
        check(&[1, 2, 3, 1], 3, &[]);
        check(&[1, 2, 9, 8, 7, 1, 2], 3, &[9, 8, 7]);
        // The last occurrence, and before it the longest run.
        check(&[1, 2, 9, 1, 2, 5, 6, 1, 2], 2, &[5, 6]);
        check(&[3, 1, 2, 9, 1, 2, 5, 3, 1, 2], 1, &[9]);
        // It goes on where the text ends.
        check(&[4, 4, 4], 4, &[4, 4, 4, 4]);
        check(&[1, 2, 3, 1, 2, 3, 1, 2], 5, &[3, 1, 2, 3, 1]);
        check(&[1, 2, 9, 1, 2], 0, &[]);
    }
}
