//! Tokenizers: text to token ids and back.
//!
//! One [`Tokenizer`] type, made from a `tokenizer.json` (any model that the `tokenizers` crate
//! knows) or from the vocabulary inside a GGUF file (byte-level BPE). Padding and truncation
//! that a `tokenizer.json` asks for are switched off: how long rows are is the caller's choice
//! ([`Tokenizer::encode_batch`]), not the file's.
//!
//! Byte-level tokenizers are decoded here, from a table of bytes per token, so that text may be
//! streamed exactly ([`StreamDecoder`]) and tokens that are no whole characters can be had as
//! bytes. Special tokens written out in a text are recognised as such, as by the tokenizer that
//! the model was trained with.

mod byte_level;
mod from_gguf;
mod json;
mod pre_tokenizers;
mod spans;
mod stream;

pub use stream::StreamDecoder;

use std::path::Path;

use tokenizers::{Encoding, PostProcessor, TruncationDirection};

use crate::gguf::{Gguf, GgufError};
use crate::mmap::{FileError, read_small};
use byte_level::ByteVocab;

/// A `tokenizer.json` longer than this is refused (the largest real ones have some 30 MB).
const MAX_JSON_BYTES: u64 = 256 << 20;

/// Why a tokenizer could not be built or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum TokenizerError {
    /// The file could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The metadata of the GGUF file lacks a value or has a bad one.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// `tokenizer.json` is not JSON; what is wrong at `line` and `column`, from 1, is the source.
    #[error("tokenizer.json is not JSON; fetch it again if its download was cut off")]
    NotJson {
        line: usize,
        column: usize,
        source: serde_json::Error,
    },
    /// The table of a precompiled normalizer is damaged.
    #[error("the `precompiled_charsmap` of tokenizer.json is damaged: {reason}")]
    BadCharsMap { reason: &'static str },
    /// `tokenizer.json` is not a description that the `tokenizers` crate reads.
    #[error("not a valid tokenizer.json")]
    BadJson {
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A text could not be encoded, or tokens not decoded.
    #[error("{action} failed")]
    Failed {
        action: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The GGUF file has a vocabulary of another kind.
    #[error(
        "tokenizer.ggml.model = `{found}` is not supported, `gpt2` (byte-level BPE) is; \
         use the model's tokenizer.json instead"
    )]
    UnsupportedModel { found: String },
    /// The GGUF file asks for a pre-tokenizer that is not in the table.
    #[error(
        "tokenizer.ggml.pre = `{found}` is not supported, these are: {supported}; \
         use the model's tokenizer.json instead"
    )]
    UnsupportedPreTokenizer { found: String, supported: String },
    /// A setting of the GGUF file that is not implemented.
    #[error("{key} = {found} is not supported; use the model's tokenizer.json instead")]
    UnsupportedSetting { key: &'static str, found: String },
    /// The vocabulary of the GGUF file is not sound.
    #[error("the vocabulary is not sound: {reason}")]
    BadVocabulary { reason: String },
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is not in the vocabulary of {vocab_len} tokens")]
    UnknownToken { id: u32, vocab_len: usize },
    /// Rows so short that not one token of text fits beside the special tokens.
    #[error(
        "rows of at most {max_len} tokens have no room for text beside {special} special tokens"
    )]
    NoRoom { max_len: usize, special: usize },
}

impl TokenizerError {
    fn failed(action: &'static str) -> impl FnOnce(tokenizers::Error) -> Self {
        move |source| Self::Failed { action, source }
    }
}

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

/// A tokenizer: text to token ids and back.
///
/// ```
/// use tercet_models::Tokenizer;
///
/// let json = r###"{
///     "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
///     "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
///     "post_processor": null, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
///     "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
///               "max_input_chars_per_word": 100,
///               "vocab": {"[UNK]": 0, "tensor": 1, "##s": 2, "add": 3}}
/// }"###;
/// let tokenizer = Tokenizer::from_json(json.as_bytes())?;
/// assert_eq!(tokenizer.encode("Add tensors", true)?, [3, 1, 2]);
/// assert_eq!(tokenizer.decode(&[3, 1, 2])?, "add tensors");
///
/// let batch = tokenizer.encode_batch(&["add tensors", "add"], 512)?;
/// assert_eq!((batch.rows, batch.row_len), (2, 3));
/// assert_eq!(batch.mask[3..], [true, false, false]);
/// # Ok::<(), tercet_models::TokenizerError>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Bytes of each token where decoding is byte-level.
    byte_vocab: Option<ByteVocab>,
    vocab_len: usize,
    pad: Option<u32>,
    /// Put before a text beyond what the post-processor adds.
    bos: Option<u32>,
    /// Put after a text beyond what the post-processor adds.
    eos: Option<u32>,
}

impl Tokenizer {
    /// Reads the `tokenizer.json` at `path`.
    ///
    /// # Errors
    /// [`TokenizerError::File`], and those of [`Self::from_json`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        Self::from_json(&read_small(path.as_ref(), MAX_JSON_BYTES)?)
    }

    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::NotJson`], [`TokenizerError::BadCharsMap`], [`TokenizerError::BadJson`].
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        json::check(json)?;
        let inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|source| TokenizerError::BadJson { source })?;
        Self::new(inner)
    }

    /// Builds the tokenizer of a GGUF file from its own vocabulary (`tokenizer.ggml.*`).
    ///
    /// # Errors
    /// [`TokenizerError`]: the vocabulary is missing, not sound, or of a kind that is not
    /// supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        from_gguf::build(gguf.metadata())
    }

    fn new(mut inner: tokenizers::Tokenizer) -> Result<Self, TokenizerError> {
        let pad = inner
            .get_padding()
            .map(|padding| padding.pad_id)
            .or_else(|| {
                ["[PAD]", "<pad>", "<|pad|>"]
                    .iter()
                    .find_map(|token| inner.token_to_id(token))
            });
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(TokenizerError::failed("switching truncation off"))?;
        Ok(Self {
            byte_vocab: ByteVocab::of(&inner),
            vocab_len: inner.get_vocab_size(true),
            pad,
            bos: None,
            eos: None,
            inner,
        })
    }

    /// The same tokenizer, putting `bos` first wherever special tokens are added.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`].
    pub fn with_bos(mut self, bos: u32) -> Result<Self, TokenizerError> {
        self.bos = Some(self.known(bos)?);
        Ok(self)
    }

    /// The same tokenizer, putting `eos` last wherever special tokens are added.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`].
    pub fn with_eos(mut self, eos: u32) -> Result<Self, TokenizerError> {
        self.eos = Some(self.known(eos)?);
        Ok(self)
    }

    /// The number of tokens, added ones included.
    #[must_use]
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    /// The token that fills short rows of a batch, if the tokenizer has one.
    #[must_use]
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// The id of a token, spelled as in the vocabulary.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The spelling of a token in the vocabulary.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The token ids of `text`; with `add_special` also the special tokens that the model wants
    /// around it (BOS, `[CLS]` and so on).
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .inner
            .encode_fast(text, add_special)
            .map_err(TokenizerError::failed("encoding"))?;
        if !add_special {
            return Ok(encoding.get_ids().to_vec());
        }
        Ok(self.enclose(encoding.get_ids(), self.bos, self.eos))
    }

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
        let added = self
            .inner
            .get_post_processor()
            .map_or(0, |processor| processor.added_tokens(false));
        let special = added + usize::from(self.bos.is_some()) + usize::from(self.eos.is_some());
        if max_len <= special {
            return Err(TokenizerError::NoRoom { max_len, special });
        }
        let mut encoding: Encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(TokenizerError::failed("encoding"))?;
        encoding.truncate(max_len - special, 0, TruncationDirection::Right);
        let encoding = self
            .inner
            .post_process(encoding, None, true)
            .map_err(TokenizerError::failed("adding special tokens"))?;
        let ids = self.enclose(encoding.get_ids(), self.bos, self.eos);
        let type_ids = self.enclose(
            encoding.get_type_ids(),
            self.bos.map(|_| 0),
            self.eos.map(|_| 0),
        );
        Ok((ids, type_ids))
    }

    fn enclose(&self, inner: &[u32], first: Option<u32>, last: Option<u32>) -> Vec<u32> {
        let mut all = Vec::with_capacity(inner.len() + 2);
        all.extend(first);
        all.extend(inner);
        all.extend(last);
        all
    }

    /// The text of `ids` without special tokens. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`], [`TokenizerError::Failed`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_ids(ids, Specials::Skip)
    }

    /// The text of `ids` with special tokens spelled out.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_ids(ids, Specials::Spell)
    }

    /// A decoder that takes tokens one by one and gives complete characters.
    #[must_use]
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    fn decode_ids(&self, ids: &[u32], specials: Specials) -> Result<String, TokenizerError> {
        let Some(vocab) = &self.byte_vocab else {
            for id in ids {
                self.known(*id)?;
            }
            return self
                .inner
                .decode(ids, specials == Specials::Skip)
                .map_err(TokenizerError::failed("decoding"));
        };
        let mut bytes = Vec::new();
        for id in ids {
            let token = vocab.get(*id).ok_or_else(|| self.unknown(*id))?;
            if specials == Specials::Spell || !token.special {
                bytes.extend_from_slice(&token.bytes);
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn known(&self, id: u32) -> Result<u32, TokenizerError> {
        match self.inner.id_to_token(id) {
            Some(_) => Ok(id),
            None => Err(self.unknown(id)),
        }
    }

    fn unknown(&self, id: u32) -> TokenizerError {
        TokenizerError::UnknownToken {
            id,
            vocab_len: self.vocab_len,
        }
    }
}

/// What becomes of special tokens in a decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Specials {
    Skip,
    Spell,
}
