//! Batches: several texts as one padded array of token ids.

use std::sync::OnceLock;

use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{
    Encoding, PostProcessor, TruncationDirection, TruncationParams, TruncationStrategy,
};

use super::literal::spells;
use super::{Tokenizer, TokenizerEngine, TokenizerError, caught, literal_of};

/// Token ids of several texts, padded to the longest: `[rows, row_len]`, row-major.
///
/// ```
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
/// #     "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # let tokenizer = tercet_text::Tokenizer::from_json(json.as_bytes())?;
/// use tercet_text::TokenizedBatch;
/// let batch: TokenizedBatch = tokenizer.encode_batch(&["a b", "b"], 8)?;
/// assert_eq!((batch.rows, batch.row_len), (2, 2));
/// assert_eq!(batch.mask, [true, true, true, false]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizedBatch {
    /// Number of texts.
    pub rows: usize,
    /// Number of tokens of the longest row.
    pub row_len: usize,
    /// Token ids; shorter rows end with the padding token.
    pub ids: Vec<u32>,
    /// True for tokens of the text and special tokens, false for padding.
    pub mask: Vec<bool>,
    /// Segment of each token (0 for single texts and padding).
    pub type_ids: Vec<u32>,
}

/// Token ids of a text, or of a pair of texts.
///
/// ```
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
/// #     "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # let tokenizer = tercet_text::Tokenizer::from_json(json.as_bytes())?;
/// use tercet_text::TokenizedRow;
/// let row: TokenizedRow = tokenizer.encode_row("a b", None, Some(8))?;
/// assert_eq!((row.ids, row.type_ids), (vec![0, 1], vec![0, 0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizedRow {
    /// Token ids, including special tokens.
    pub ids: Vec<u32>,
    /// Segment of each token; 0 for single texts.
    pub type_ids: Vec<u32>,
}

impl Tokenizer {
    /// Encodes several texts with special tokens around them; special tokens spelled in a text are
    /// ordinary text. Each text is truncated to `max_len` tokens, of which special tokens are never
    /// dropped, and padded to the longest row.
    ///
    /// Padding uses the tokenizer's padding token, or 0 if it has none. A model that applies the
    /// mask ignores the value.
    ///
    /// # Errors
    /// [`TokenizerError::NoRoom`], [`TokenizerError::Failed`].
    pub fn encode_batch<T: AsRef<str>>(
        &self,
        texts: &[T],
        max_len: usize,
    ) -> Result<TokenizedBatch, TokenizerError> {
        let rows = texts
            .iter()
            .map(|text| self.encode_row(text.as_ref(), None, Some(max_len)))
            .collect::<Result<Vec<_>, _>>()?;
        let row_len = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let len = rows.len() * row_len;
        let mut batch = TokenizedBatch {
            rows: rows.len(),
            row_len,
            ids: Vec::with_capacity(len),
            mask: Vec::with_capacity(len),
            type_ids: Vec::with_capacity(len),
        };
        for (index, TokenizedRow { ids, type_ids }) in rows.iter().enumerate() {
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

    /// Token ids and segments of one text, or of a pair of texts in the model's pair format, with
    /// special tokens around them. Special tokens spelled in a text are ordinary text. If `most` is
    /// set, a text is truncated to that number of tokens including special tokens, which are never
    /// dropped. Of a pair, the longer text is truncated.
    ///
    /// # Errors
    /// [`TokenizerError::NoRoom`], [`TokenizerError::Failed`], [`TokenizerError::NoPairs`].
    pub fn encode_row(
        &self,
        text: &str,
        pair: Option<&str>,
        most: Option<usize>,
    ) -> Result<TokenizedRow, TokenizerError> {
        let added = match &self.engine {
            TokenizerEngine::Crate { inner, .. } => {
                let processor = inner.get_post_processor();
                processor.map_or(0, |processor| processor.added_tokens(pair.is_some()))
            }
            TokenizerEngine::Pieces(_) => 0,
        };
        let special = added + usize::from(self.bos.is_some()) + usize::from(self.eos.is_some());
        if let Some(max_len) = most
            && max_len <= special
        {
            return Err(TokenizerError::NoRoom { max_len, special });
        }
        let room = most.map(|most| most - special);
        // Do not tokenize the part of a long text that is dropped.
        let within = |text| room.map_or(text, |room| self.beginning(text, room));
        let (text, pair) = (within(text), pair.map(within));
        let (ids, type_ids) = match (&self.engine, pair) {
            (TokenizerEngine::Crate { inner, literal, .. }, pair) => {
                let encoding = caught("encoding", || {
                    let plain = |text: &str| literal_encoding(inner, literal, text);
                    let parts = (plain(text)?, pair.map(plain).transpose()?);
                    encoded(inner, parts, room)
                })?;
                (
                    encoding.get_ids().to_vec(),
                    encoding.get_type_ids().to_vec(),
                )
            }
            (TokenizerEngine::Pieces(_), Some(_)) => return Err(TokenizerError::NoPairs),
            (TokenizerEngine::Pieces(model), None) => {
                let tokens = model.encode_literally(text).into_iter();
                let room = room.unwrap_or(usize::MAX);
                let ids: Vec<u32> = tokens.map(|(id, _)| id).take(room).collect();
                let type_ids = vec![0; ids.len()];
                (ids, type_ids)
            }
        };
        Ok(TokenizedRow {
            ids: enclose(&ids, self.bos, self.eos),
            type_ids: enclose(&type_ids, self.bos.map(|_| 0), self.eos.map(|_| 0)),
        })
    }
}

/// Encodes a text without special tokens around it; special tokens spelled in the text are ordinary
/// text.
fn literal_encoding(
    inner: &tokenizers::Tokenizer,
    literal: &OnceLock<Box<tokenizers::Tokenizer>>,
    text: &str,
) -> Result<Encoding, TokenizerError> {
    let encode = |inner: &tokenizers::Tokenizer| {
        let encoding = inner.encode_fast(text, false);
        encoding.map_err(TokenizerError::failed("encoding"))
    };
    let encoding = encode(inner)?;
    let mut ids = encoding.get_ids().iter();
    match ids.any(|id| spells(inner, *id, text)) {
        true => encode(literal_of(inner, literal)?),
        false => Ok(encoding),
    }
}

/// Truncates a text or a pair to `room` tokens without special tokens, then adds the special
/// tokens.
fn encoded(
    inner: &tokenizers::Tokenizer,
    (first, mut second): (Encoding, Option<Encoding>),
    room: Option<usize>,
) -> Result<Encoding, TokenizerError> {
    if let Some(second) = &mut second {
        second.set_type_ids(vec![1; second.len()]);
    }
    let (mut first, mut second) = match room {
        None => (first, second),
        Some(max_length) => truncate_encodings(
            first,
            second,
            &TruncationParams {
                max_length,
                strategy: TruncationStrategy::LongestFirst,
                stride: 0,
                direction: TruncationDirection::Right,
            },
        )
        .map_err(TokenizerError::failed("cutting"))?,
    };
    // The crate would combine every piece beyond the limit with every piece of the other text.
    first.take_overflowing();
    if let Some(second) = &mut second {
        second.take_overflowing();
    }
    inner
        .post_process(first, second, true)
        .map_err(TokenizerError::failed("adding special tokens"))
}

pub(super) fn enclose(inner: &[u32], first: Option<u32>, last: Option<u32>) -> Vec<u32> {
    let mut all = Vec::with_capacity(inner.len() + 2);
    all.extend(first);
    all.extend(inner);
    all.extend(last);
    all
}
