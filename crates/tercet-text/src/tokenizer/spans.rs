//! Byte spans of tokens in their text, and the special tokens.

use std::collections::HashSet;
use std::ops::Range;

use super::{Tokenizer, TokenizerEngine, TokenizerError, caught};

impl Tokenizer {
    /// The token ids of `text` without special tokens around it, each with its byte range in
    /// `text`. Tokens that share a character all have that character's range.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn encode_with_spans(
        &self,
        text: &str,
    ) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        let inner = match &self.engine {
            TokenizerEngine::Crate { inner, .. } => inner,
            TokenizerEngine::Pieces(model) => return Ok(model.encode(text, &[])),
        };
        caught("encoding", || {
            let encoding = inner
                .encode(text, false)
                .map_err(TokenizerError::failed("encoding"))?;
            let spans = encoding.get_offsets().iter();
            let spans = spans.map(|&(start, end)| start..end);
            Ok(encoding.get_ids().iter().copied().zip(spans).collect())
        })
    }

    /// The tokens of a text and their byte ranges. Special tokens that overlap the byte ranges
    /// `literal` are ordinary text, for the engine of this crate.
    pub(super) fn encode_with_spans_outside(
        &self,
        text: &str,
        literal: &[Range<usize>],
    ) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        match &self.engine {
            TokenizerEngine::Crate { .. } => self.encode_with_spans(text),
            TokenizerEngine::Pieces(model) => Ok(model.encode(text, literal)),
        }
    }

    /// The special tokens that [`Self::encode`] prepends to and appends to a text.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn surrounding(&self) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
        let inner = self.encode("a", false)?;
        let all = self.encode("a", true)?;
        let at = all.windows(inner.len().max(1)).position(|w| w == inner);
        Ok(match at {
            Some(at) => (all[..at].to_vec(), all[at + inner.len()..].to_vec()),
            None => (all, Vec::new()),
        })
    }

    /// The ids of special tokens, which decoding omits.
    #[must_use]
    pub fn special_ids(&self) -> HashSet<u32> {
        match &self.engine {
            TokenizerEngine::Crate { inner, .. } => {
                let added = inner.get_added_tokens_decoder();
                let special = added.iter().filter(|(_, token)| token.special);
                special.map(|(id, _)| *id).collect()
            }
            TokenizerEngine::Pieces(model) => model.control_ids().collect(),
        }
    }
}
