//! Tokenizers: text to token ids and back.
//!
//! The only type is [`Tokenizer`]. A tokenizer is read from a `tokenizer.json` (any model that the
//! `tokenizers` crate supports), a SentencePiece `tokenizer.model`, or the vocabulary of a GGUF
//! file (SentencePiece BPE, byte-level BPE, WordPiece, Unigram). Padding and truncation in a
//! `tokenizer.json` are disabled: the caller determines the length of rows
//! ([`Tokenizer::encode_batch`]).
//!
//! Byte-level and SentencePiece tokens are decoded by this module from the bytes of each token, so
//! that text can be streamed exactly ([`StreamDecoder`]). Special tokens spelled in a text are
//! recognized by [`Tokenizer::encode`], as by the model's original tokenizer. Special tokens are
//! ordinary text in [`Tokenizer::encode_literally`], in rows for encoders, and in the message
//! content of a conversation ([`Tokenizer::encode_mixed`]).

mod added;
mod batch;
mod byte_level;
mod charsmap;
mod ends;
mod error;
mod from_gguf;
mod json;
mod literal;
pub(crate) mod pre_tokenizers;
mod sentencepiece;
mod spans;
pub(crate) mod stream;
mod to_gguf;
pub(crate) mod trie;

pub use batch::{TokenizedBatch, TokenizedRow};
pub use error::TokenizerError;
pub use from_gguf::TokenType;
pub use pre_tokenizers::QWEN2 as QWEN2_SPLIT;
pub use stream::StreamDecoder;
pub use to_gguf::{SentencePieceBpe, pieces_of, pre_tokenizer_of};

use std::path::Path;
use std::sync::OnceLock;

use batch::enclose;
use byte_level::ByteVocab;
use literal::MarkedTokenizer;
use sentencepiece::{PieceDecoder, SentencePieceModel};
use tercet_files::contained;
use tercet_files::gguf::Gguf;
use tercet_files::mmap::read_small;

/// Maximum size of a tokenizer file, in bytes (the largest known ones have about 30 MB).
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// A tokenizer: text to token ids and back.
///
/// ```
/// use tercet_text::Tokenizer;
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
/// # Ok::<(), tercet_text::TokenizerError>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    engine: TokenizerEngine,
    vocab_len: usize,
    pad: Option<u32>,
    /// BOS token to prepend, in addition to the tokens of the post-processor.
    bos: Option<u32>,
    /// EOS token to append, in addition to the tokens of the post-processor.
    eos: Option<u32>,
    /// Length of the longest token in bytes; computed for the first long text.
    longest_token: OnceLock<usize>,
}

/// Factor by which normalization is assumed to shrink a text at most.
const SHRINKAGE: usize = 16;

/// Length of texts that are always tokenized, in bytes.
const MIN_TEXT_BYTES: usize = 1 << 16;

/// The tokenization engine.
#[derive(Debug)]
enum TokenizerEngine {
    /// The `tokenizers` crate.
    Crate {
        inner: Box<tokenizers::Tokenizer>,
        /// A copy that treats special tokens in a text as ordinary text; created on first use.
        literal: OnceLock<Box<tokenizers::Tokenizer>>,
        /// A copy that recognizes special tokens only after a marker; created on first use.
        marked: OnceLock<Box<MarkedTokenizer>>,
        /// The bytes of each token, for byte-level decoders.
        byte_vocab: Option<ByteVocab>,
    },
    /// The SentencePiece implementation of this crate.
    Pieces(Box<SentencePieceModel>),
}

impl Tokenizer {
    /// Reads the `tokenizer.json` at `path`, or the SentencePiece model if the extension is
    /// `model`.
    ///
    /// # Errors
    /// [`TokenizerError::File`], and those of [`Self::from_json`] or [`Self::from_sentencepiece`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let bytes = read_small(path, MAX_FILE_BYTES)?;
        if path.extension().is_some_and(|e| e == "model") {
            return Self::from_sentencepiece(&bytes);
        }
        Self::from_json(&bytes)
    }

    /// Reads the bytes of a SentencePiece `tokenizer.model`. Like the `sentencepiece` library, it
    /// adds no special tokens to a text ([`Self::with_bos`] adds one).
    ///
    /// # Errors
    /// [`TokenizerError::BadModel`], [`TokenizerError::BadCharsMap`],
    /// [`TokenizerError::BadVocabulary`], [`TokenizerError::UnsupportedPieces`].
    pub fn from_sentencepiece(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let model = SentencePieceModel::new(sentencepiece::read(bytes)?)?;
        Ok(Self::from_pieces(model))
    }

    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::NotJson`], [`TokenizerError::BadCharsMap`], [`TokenizerError::BadJson`].
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        json::check(json)?;
        caught("reading tokenizer.json", || {
            let inner = tokenizers::Tokenizer::from_bytes(json)
                .map_err(|source| TokenizerError::BadJson { source })?;
            Self::new(inner)
        })
    }

    /// A tokenizer for a model without one: the text of a token is its id, and texts are ids between
    /// spaces.
    ///
    /// ```
    /// let tokenizer = tercet_text::Tokenizer::from_vocab_len(32)?;
    /// assert_eq!(tokenizer.encode("7 31", true)?, [7, 31]);
    /// assert_eq!(tokenizer.decode(&[7, 31])?, "7 31");
    /// # Ok::<(), tercet_text::TokenizerError>(())
    /// ```
    ///
    /// # Errors
    /// [`TokenizerError::BadJson`] if the vocabulary is too large.
    pub fn from_vocab_len(vocab_len: usize) -> Result<Self, TokenizerError> {
        let words = (0..vocab_len).map(|id| (id.to_string(), id.into()));
        let words: serde_json::Map<String, serde_json::Value> = words.collect();
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "no such id"}
        });
        Self::from_json(json.to_string().as_bytes())
    }

    /// Creates the tokenizer of a GGUF file from its vocabulary (`tokenizer.ggml.*`).
    ///
    /// # Errors
    /// [`TokenizerError`]: the vocabulary is missing, invalid, or of an unsupported type.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        caught("reading the vocabulary", || {
            from_gguf::build(gguf.metadata())
        })
    }

    fn new(mut inner: tokenizers::Tokenizer) -> Result<Self, TokenizerError> {
        ends::make_special(&mut inner);
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
            vocab_len: inner.get_vocab_size(true),
            pad,
            bos: None,
            eos: None,
            longest_token: OnceLock::new(),
            engine: TokenizerEngine::Crate {
                byte_vocab: ByteVocab::from_tokenizer(&inner),
                literal: OnceLock::new(),
                marked: OnceLock::new(),
                inner: Box::new(inner),
            },
        })
    }

    fn from_pieces(model: SentencePieceModel) -> Self {
        Self {
            vocab_len: model.len(),
            pad: model.any_id("<pad>"),
            bos: None,
            eos: None,
            longest_token: OnceLock::new(),
            engine: TokenizerEngine::Pieces(Box::new(model)),
        }
    }

    /// The same tokenizer with `bos` as first token whenever special tokens are added.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`].
    pub fn with_bos(mut self, bos: u32) -> Result<Self, TokenizerError> {
        self.bos = Some(self.known(bos)?);
        Ok(self)
    }

    /// The same tokenizer with `eos` as last token whenever special tokens are added.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`].
    pub fn with_eos(mut self, eos: u32) -> Result<Self, TokenizerError> {
        self.eos = Some(self.known(eos)?);
        Ok(self)
    }

    /// Number of tokens, including added tokens.
    #[must_use]
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    /// The padding token for the shorter rows of a batch, if the tokenizer has one.
    #[must_use]
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// The id of a token, by its spelling in the vocabulary.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        match &self.engine {
            TokenizerEngine::Crate { inner, .. } => inner.token_to_id(token),
            TokenizerEngine::Pieces(model) => model.any_id(token),
        }
    }

    /// The spelling of a token in the vocabulary.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match &self.engine {
            TokenizerEngine::Crate { inner, .. } => inner.id_to_token(id),
            TokenizerEngine::Pieces(model) => model.piece(id).map(|piece| piece.text.clone()),
        }
    }

    /// The bytes of a token in the middle of a text, and whether it is special (without text).
    /// `None` if the id is unknown, or if tokens do not correspond to bytes, as in WordPiece.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<(Vec<u8>, bool)> {
        match &self.engine {
            TokenizerEngine::Crate {
                inner, byte_vocab, ..
            } => match byte_vocab {
                Some(vocab) => vocab.get(id).map(|t| (t.bytes.to_vec(), t.special)),
                None => byte_level::piece_bytes(inner, id),
            },
            TokenizerEngine::Pieces(model) => model.piece(id).map(|piece| piece.bytes()),
        }
    }

    /// Maximum bytes of a text that can have as few as `tokens` tokens. A longer text need not be
    /// tokenized to know that it is too long.
    ///
    /// Most normalizers keep or grow a text, and some shrink it (composed accents, white space). The
    /// bound is therefore a multiple of the longest token's length.
    #[must_use]
    pub fn max_text_bytes(&self, tokens: usize) -> usize {
        let longest = *self.longest_token.get_or_init(|| match &self.engine {
            TokenizerEngine::Crate { inner, .. } => {
                let vocab = inner.get_vocab(true);
                vocab.keys().map(String::len).max().unwrap_or(0)
            }
            TokenizerEngine::Pieces(model) => model.longest_piece(),
        });
        tokens
            .saturating_mul(longest.max(1))
            .saturating_mul(SHRINKAGE)
            .max(MIN_TEXT_BYTES)
    }

    /// The part of `text` that its first `tokens` tokens can come from.
    pub(crate) fn beginning<'t>(&self, text: &'t str, tokens: usize) -> &'t str {
        // Tokens are at least a byte each, so the vocabulary of short texts need not be looked at.
        if text.len() <= tokens.max(MIN_TEXT_BYTES) {
            return text;
        }
        let mut end = self.max_text_bytes(tokens).min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        &text[..end]
    }

    /// The token ids of `text`. With `add_special`, the ids include the model's special tokens
    /// around a text (BOS, `[CLS]` and so on). Special tokens spelled in `text` are recognized.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, add_special, SpecialTokenEncoding::Special)
    }

    /// Like [`Self::encode`], but special tokens spelled in `text` are treated as ordinary text, so
    /// user input cannot end or start a turn.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn encode_literally(
        &self,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, add_special, SpecialTokenEncoding::Text)
    }

    fn encode_with(
        &self,
        text: &str,
        add_special: bool,
        spelled: SpecialTokenEncoding,
    ) -> Result<Vec<u32>, TokenizerError> {
        let ids = match &self.engine {
            TokenizerEngine::Crate { inner, literal, .. } => {
                let inner = match spelled {
                    SpecialTokenEncoding::Special => inner,
                    SpecialTokenEncoding::Text => literal_of(inner, literal)?,
                };
                caught("encoding", || {
                    let encoding = inner
                        .encode_fast(text, add_special)
                        .map_err(TokenizerError::failed("encoding"))?;
                    Ok(encoding.get_ids().to_vec())
                })?
            }
            TokenizerEngine::Pieces(model) => {
                let tokens = match spelled {
                    SpecialTokenEncoding::Special => model.encode(text, &[]),
                    SpecialTokenEncoding::Text => model.encode_literally(text),
                };
                tokens.into_iter().map(|(id, _)| id).collect()
            }
        };
        if !add_special {
            return Ok(ids);
        }
        Ok(enclose(&ids, self.bos, self.eos))
    }

    /// The text of `ids` without special tokens. Invalid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`], [`TokenizerError::Failed`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_ids(ids, SpecialTokenDecoding::Skip)
    }

    /// The text of `ids` including the spelling of special tokens.
    ///
    /// # Errors
    /// The errors of [`Self::decode`].
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_ids(ids, SpecialTokenDecoding::Spell)
    }

    /// A decoder that accepts tokens one by one and returns complete characters.
    #[must_use]
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    fn decode_ids(
        &self,
        ids: &[u32],
        specials: SpecialTokenDecoding,
    ) -> Result<String, TokenizerError> {
        let mut bytes = Vec::new();
        match &self.engine {
            TokenizerEngine::Pieces(model) => {
                let mut decoder = PieceDecoder::new(model, specials);
                let mut text = String::new();
                for id in ids {
                    text += &decoder.push(*id).ok_or_else(|| self.unknown(*id))?;
                }
                return Ok(text + &decoder.finish());
            }
            TokenizerEngine::Crate {
                byte_vocab: None,
                inner,
                ..
            } => {
                for id in ids {
                    self.known(*id)?;
                }
                return caught("decoding", || {
                    inner
                        .decode(ids, specials == SpecialTokenDecoding::Skip)
                        .map_err(TokenizerError::failed("decoding"))
                });
            }
            TokenizerEngine::Crate {
                byte_vocab: Some(vocab),
                ..
            } => {
                for id in ids {
                    let token = vocab.get(*id).ok_or_else(|| self.unknown(*id))?;
                    if specials == SpecialTokenDecoding::Spell || !token.special {
                        bytes.extend_from_slice(&token.bytes);
                    }
                }
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether a token is special: it has no text ([`Self::decode`]).
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        match &self.engine {
            TokenizerEngine::Crate { inner, .. } => {
                let added = inner.get_added_vocabulary().get_added_tokens_decoder();
                added.get(&id).is_some_and(|token| token.special)
            }
            TokenizerEngine::Pieces(model) => model.is_control(id),
        }
    }

    fn known(&self, id: u32) -> Result<u32, TokenizerError> {
        let exists = match &self.engine {
            TokenizerEngine::Crate { inner, .. } => inner.id_to_token(id).is_some(),
            TokenizerEngine::Pieces(model) => model.piece(id).is_some(),
        };
        if exists {
            Ok(id)
        } else {
            Err(self.unknown(id))
        }
    }

    fn unknown(&self, id: u32) -> TokenizerError {
        TokenizerError::UnknownToken {
            id,
            vocab_len: self.vocab_len,
        }
    }
}

/// Runs code of the `tokenizers` crate, which panics on some damaged vocabularies and patterns.
fn caught<T>(
    action: &'static str,
    run: impl FnOnce() -> Result<T, TokenizerError>,
) -> Result<T, TokenizerError> {
    contained(run).unwrap_or_else(|reason| {
        Err(TokenizerError::Failed {
            action,
            source: reason.into(),
        })
    })
}

/// The copy of a tokenizer that treats special tokens as ordinary text, created on first use.
fn literal_of<'a>(
    inner: &tokenizers::Tokenizer,
    literal: &'a OnceLock<Box<tokenizers::Tokenizer>>,
) -> Result<&'a tokenizers::Tokenizer, TokenizerError> {
    if let Some(copy) = literal.get() {
        return Ok(copy);
    }
    let copy = Box::new(literal::literal_copy(inner)?);
    Ok(literal.get_or_init(|| copy))
}

/// Treatment of special tokens in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecialTokenDecoding {
    Skip,
    Spell,
}

/// Treatment of special tokens that are spelled in a text to be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecialTokenEncoding {
    Special,
    Text,
}
