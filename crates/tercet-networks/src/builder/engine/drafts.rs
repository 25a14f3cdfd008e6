//! Sources of draft tokens: a smaller model, or n-grams of the sequence itself.

use tercet::random::RngState;

use super::super::ModelError;
use super::super::token_sampler::SampledText;
use super::Engine;
use crate::maybe_async::WaitMode;

/// Longest and shortest n-gram that is looked up earlier in the sequence.
const NGRAMS: [usize; 2] = [4, 2];

/// Maximum draft length. A draft and the token before it are at most 8 rows: few enough that no
/// executor rounds matmul inputs for them.
pub const MAX_DRAFT_TOKENS: usize = 7;

/// Source of draft tokens. A [`Generator`](crate::Generator) or a
/// [`BatchGenerator`](crate::BatchGenerator) verifies several of them in one run
/// ([`Generator::set_draft`](crate::Generator::set_draft),
/// [`BatchGenerator::set_draft`](crate::BatchGenerator::set_draft)).
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::Device;
/// use tercet_networks::{Decoder, DecoderOptions, Draft};
/// let options = DecoderOptions { logit_rows: 5, ..DecoderOptions::new(&spec) };
/// let mut generator = Decoder::build(&spec, &weights, options)?.generator(&Device::cpu())?;
/// generator.set_draft(Some(Draft::ngrams()), 4)?;
/// assert_eq!(generator.draft_counts().map(|counts| counts.proposed), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Draft {
    pub(crate) source: DraftProposer,
}

pub(crate) enum DraftProposer {
    Ngrams,
    Model(Box<Engine>),
}

/// Error of setting up a draft.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// # let options = tercet_networks::DecoderOptions::new(&spec);
/// # let decoder = tercet_networks::Decoder::build(&spec, &weights, options)?;
/// # let mut generator = decoder.generator(&tercet::Device::cpu())?;
/// use tercet_networks::{Draft, DraftError, ModelError};
/// // The graph computes one row of logits per run.
/// let refused = generator.set_draft(Some(Draft::ngrams()), 4);
/// let expected = DraftError::Rows { tokens: 4, rows: 1 }.to_string();
/// assert!(matches!(refused, Err(ModelError::Draft(error)) if error.to_string() == expected));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The vocabularies of the draft model and the model differ in size.
    #[error(
        "the draft model's vocabulary has {draft} tokens, the model's {target}; a draft needs the same vocabulary"
    )]
    VocabularySize {
        /// Vocabulary size of the draft model.
        draft: usize,
        /// Vocabulary size of the target model.
        target: usize,
    },
    /// The vocabularies of the draft model and the model differ in a token.
    #[error(
        "token {token} is {draft:?} in the draft model and {target:?} in the model; a draft needs the same vocabulary"
    )]
    Vocabulary {
        /// First token id that differs.
        token: u32,
        /// Text of the token in the draft model's vocabulary.
        draft: String,
        /// Text of the token in the target model's vocabulary.
        target: String,
    },
    /// The model has recurrent states, which cannot be rolled back after a rejected draft token.
    #[error(
        "{which} has recurrent states, which cannot be rolled back after a rejected draft token; leave out the draft"
    )]
    States {
        /// `the model` or `the draft model`.
        which: &'static str,
    },
    /// The requested draft length is out of range.
    #[error("draft length {tokens} is out of range; expected 1 to {MAX_DRAFT_TOKENS} tokens")]
    Tokens {
        /// Requested draft length.
        tokens: usize,
    },
    /// The graph computes too few rows of logits per run for the requested draft length.
    #[error(
        "draft length {tokens} needs a model built with {} rows of logits per run; it has {rows}",
        tokens + 1
    )]
    Rows {
        /// Requested draft length.
        tokens: usize,
        /// Rows of logits per run that the graph supports.
        rows: usize,
    },
    /// The model is not a plain text decoder.
    #[error("drafts are supported only for text-only language models; leave out the draft")]
    Kind,
}

impl Draft {
    /// N-gram draft: proposes the tokens that followed the last n-gram at its previous occurrence.
    /// This draft is suitable for repetitive outputs such as code and summaries.
    #[must_use]
    pub fn ngrams() -> Draft {
        Draft {
            source: DraftProposer::Ngrams,
        }
    }

    /// Proposes at most `most` tokens after `text` and `next`. `random` is the random state of the
    /// target model's next token. A draft model samples with the same random numbers and so chooses
    /// the same token if the distributions agree.
    pub(super) async fn propose(
        &mut self,
        (text, next): (SampledText<'_>, u32),
        most: usize,
        random: RngState,
        waits: WaitMode,
    ) -> Result<Vec<u32>, ModelError> {
        let draft = match &mut self.source {
            DraftProposer::Ngrams => return Ok(repeated(text.tokens, next, most)),
            DraftProposer::Model(draft) => draft,
        };
        draft.slots[0].text.penalties_from = text.penalties_from;
        let text = text.tokens;
        let most = most.min(draft.context.saturating_sub(text.len() + 1));
        let same = draft.slots[0].shared(text);
        let same = draft.truncate(0, same);
        let mut new = [&text[same..], &[next]].concat();
        let mut proposed = Vec::with_capacity(most);
        while proposed.len() < most && new.iter().all(|t| (*t as usize) < draft.vocab) {
            draft.compiled.exe()?.set_random(RngState {
                counter: random.counter.wrapping_add(proposed.len() as u64),
                ..random
            });
            let each = &mut |_: &[f32], _| true;
            let Some(token) = draft.forward(0, &new, each, waits).await? else {
                break;
            };
            proposed.push(token);
            new = vec![token];
        }
        Ok(proposed)
    }
}

/// Tokens after the last earlier occurrence of the longest matching n-gram at the end of `text` and
/// `next`. If the match reaches the end of the sequence, the draft continues periodically.
pub fn repeated(text: &[u32], next: u32, most: usize) -> Vec<u32> {
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
