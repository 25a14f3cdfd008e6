//! Several texts as one array of token ids.

use tokenizers::{Encoding, PostProcessor, TruncationDirection};

use super::{Engine, Tokenizer, TokenizerError};

/// Token ids of several texts, padded to the longest: `[rows, row_len]`, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Number of texts.
    pub rows: usize,
    /// Tokens of the longest row.
    pub row_len: usize,
    /// Token ids; behind the end of a row the padding token.
    pub ids: Vec<u32>,
    /// Whether a position holds a token of the text (or a special one), not padding.
    pub mask: Vec<bool>,
    /// Segment of each token (0 for single texts and padding).
    pub type_ids: Vec<u32>,
}

impl Tokenizer {
    /// Encodes several texts with special tokens, each cut at `max_len` tokens (special ones
    /// included, which are kept) and padded to the longest of them.
    ///
    /// Padding is the tokenizer's own padding token, or 0 where it has none; what stands there
    /// does not matter to a model that honours the mask.
    ///
    /// # Errors
    /// [`TokenizerError::NoRoom`], [`TokenizerError::Failed`].
    pub fn encode_batch<T: AsRef<str>>(
        &self,
        texts: &[T],
        max_len: usize,
    ) -> Result<Batch, TokenizerError> {
        let rows = texts
            .iter()
            .map(|text| self.encode_row(text.as_ref(), max_len))
            .collect::<Result<Vec<_>, _>>()?;
        let row_len = rows.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
        let len = rows.len() * row_len;
        let mut batch = Batch {
            rows: rows.len(),
            row_len,
            ids: Vec::with_capacity(len),
            mask: Vec::with_capacity(len),
            type_ids: Vec::with_capacity(len),
        };
        for (index, (ids, type_ids)) in rows.iter().enumerate() {
            let end = (index + 1) * row_len;
            batch.mask.resize(batch.mask.len() + ids.len(), true);
            batch.mask.resize(end, false);
            batch.ids.extend(ids);
            batch.ids.resize(end, self.pad.unwrap_or(0));
            batch.type_ids.extend(type_ids);
            batch.type_ids.resize(end, 0);
        }
        Ok(batch)
    }

    /// Ids and segments of one text, cut at `max_len`.
    fn encode_row(
        &self,
        text: &str,
        max_len: usize,
    ) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
        let added = match &self.engine {
            Engine::Crate { inner, .. } => {
                let processor = inner.get_post_processor();
                processor.map_or(0, |processor| processor.added_tokens(false))
            }
            Engine::Pieces(_) => 0,
        };
        let special = added + usize::from(self.bos.is_some()) + usize::from(self.eos.is_some());
        if max_len <= special {
            return Err(TokenizerError::NoRoom { max_len, special });
        }
        let (ids, type_ids) = match &self.engine {
            Engine::Crate { inner, .. } => {
                let mut encoding: Encoding = inner
                    .encode_fast(text, false)
                    .map_err(TokenizerError::failed("encoding"))?;
                encoding.truncate(max_len - special, 0, TruncationDirection::Right);
                let encoding = inner
                    .post_process(encoding, None, true)
                    .map_err(TokenizerError::failed("adding special tokens"))?;
                (
                    encoding.get_ids().to_vec(),
                    encoding.get_type_ids().to_vec(),
                )
            }
            Engine::Pieces(model) => {
                let tokens = model.encode(text, true).into_iter();
                let ids: Vec<u32> = tokens.map(|(id, _)| id).take(max_len - special).collect();
                let type_ids = vec![0; ids.len()];
                (ids, type_ids)
            }
        };
        let ids = enclose(&ids, self.bos, self.eos);
        let type_ids = enclose(&type_ids, self.bos.map(|_| 0), self.eos.map(|_| 0));
        Ok((ids, type_ids))
    }
}

pub(super) fn enclose(inner: &[u32], first: Option<u32>, last: Option<u32>) -> Vec<u32> {
    let mut all = Vec::with_capacity(inner.len() + 2);
    all.extend(first);
    all.extend(inner);
    all.extend(last);
    all
}
