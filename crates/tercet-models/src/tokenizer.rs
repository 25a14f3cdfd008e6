//! Tokenizers: text to token ids and back.
//!
//! One [`Tokenizer`] type, made from a `tokenizer.json` (any model that the `tokenizers` crate
//! knows), a SentencePiece `tokenizer.model`, or the vocabulary inside a GGUF file (SentencePiece
//! BPE, byte-level BPE, WordPiece, Unigram). Padding and truncation that a `tokenizer.json` asks
//! for are switched off: how long rows are is the caller's choice ([`Tokenizer::encode_batch`]),
//! not the file's.
//!
//! Byte-level tokenizers and pieces are decoded here, from the bytes of each token, so that text
//! may be streamed exactly ([`StreamDecoder`]). Special tokens written out in a text are
//! recognised as such, as by the tokenizer that the model was trained with, unless the caller
//! wants the text as it stands ([`Tokenizer::encode_literally`]).

mod batch;
mod byte_level;
mod charsmap;
mod error;
mod from_gguf;
mod json;
mod pre_tokenizers;
mod sentencepiece;
mod spans;
mod stream;
mod to_gguf;
mod trie;

pub use batch::{Batch, Row};
pub use error::TokenizerError;
pub(crate) use from_gguf::TokenType;
pub use stream::StreamDecoder;
pub(crate) use to_gguf::{pieces_of, pre_tokenizer_of};

use std::path::Path;
use std::sync::OnceLock;

use crate::gguf::Gguf;
use crate::mmap::read_small;
use batch::enclose;
use byte_level::ByteVocab;
use sentencepiece::{Model, PieceDecoder};

/// A tokenizer's file longer than this is refused (the largest real ones have some 30 MB).
pub(crate) const MAX_FILE_BYTES: u64 = 256 << 20;

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
    engine: Engine,
    vocab_len: usize,
    pad: Option<u32>,
    /// Put before a text beyond what the post-processor adds.
    bos: Option<u32>,
    /// Put after a text beyond what the post-processor adds.
    eos: Option<u32>,
}

/// What cuts texts.
#[derive(Debug)]
enum Engine {
    /// The `tokenizers` crate.
    Crate {
        inner: Box<tokenizers::Tokenizer>,
        /// The same, taking special tokens in a text for text; made when it is first needed.
        literal: OnceLock<Box<tokenizers::Tokenizer>>,
        /// Bytes of each token where decoding is byte-level.
        byte_vocab: Option<ByteVocab>,
    },
    /// SentencePiece, ours.
    Pieces(Box<Model>),
}

impl Tokenizer {
    /// Reads the `tokenizer.json` at `path`, or the `tokenizer.model` if that is its extension.
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

    /// Reads the bytes of a SentencePiece `tokenizer.model`. As with the library itself, nothing
    /// is put around a text ([`Self::with_bos`]).
    ///
    /// # Errors
    /// [`TokenizerError::BadModel`], [`TokenizerError::BadCharsMap`],
    /// [`TokenizerError::BadVocabulary`], [`TokenizerError::UnsupportedPieces`].
    pub fn from_sentencepiece(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let model = Model::new(sentencepiece::read(bytes)?)?;
        Ok(Self::of_pieces(model))
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
            vocab_len: inner.get_vocab_size(true),
            pad,
            bos: None,
            eos: None,
            engine: Engine::Crate {
                byte_vocab: ByteVocab::of(&inner),
                literal: OnceLock::new(),
                inner: Box::new(inner),
            },
        })
    }

    fn of_pieces(model: Model) -> Self {
        Self {
            vocab_len: model.len(),
            pad: model.any_id("<pad>"),
            bos: None,
            eos: None,
            engine: Engine::Pieces(Box::new(model)),
        }
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
        match &self.engine {
            Engine::Crate { inner, .. } => inner.token_to_id(token),
            Engine::Pieces(model) => model.any_id(token),
        }
    }

    /// The spelling of a token in the vocabulary.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match &self.engine {
            Engine::Crate { inner, .. } => inner.id_to_token(id),
            Engine::Pieces(model) => model.piece(id).map(|piece| piece.text.clone()),
        }
    }

    /// The bytes that a token stands for in the middle of a text, and whether it is special: of no text. `None` where
    /// there is no such token, and where tokens do not stand for bytes, as those of WordPiece.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<(Vec<u8>, bool)> {
        match &self.engine {
            Engine::Crate {
                inner, byte_vocab, ..
            } => match byte_vocab {
                Some(vocab) => vocab.get(id).map(|t| (t.bytes.to_vec(), t.special)),
                None => byte_level::piece_bytes(inner, id),
            },
            Engine::Pieces(model) => model.piece(id).map(|piece| piece.bytes()),
        }
    }

    /// The token ids of `text`; with `add_special` also the special tokens that the model wants
    /// around it (BOS, `[CLS]` and so on). Special tokens spelled out in `text` are themselves.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, add_special, Spelled::Special)
    }

    /// Whether a text spells a special token: within a conversation it could end its own turn and begin another.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn spells_special(&self, text: &str) -> Result<bool, TokenizerError> {
        Ok(self.encode(text, false)? != self.encode_literally(text, false)?)
    }

    /// As [`Self::encode`], with special tokens spelled out in `text` taken for mere text: what a
    /// user wrote cannot end a turn or begin one.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn encode_literally(
        &self,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, add_special, Spelled::Text)
    }

    fn encode_with(
        &self,
        text: &str,
        add_special: bool,
        spelled: Spelled,
    ) -> Result<Vec<u32>, TokenizerError> {
        let ids = match &self.engine {
            Engine::Crate { inner, literal, .. } => {
                let inner = match spelled {
                    Spelled::Special => inner,
                    Spelled::Text => literal.get_or_init(|| {
                        let mut inner = inner.clone();
                        inner.set_encode_special_tokens(true);
                        inner
                    }),
                };
                let encoding = inner
                    .encode_fast(text, add_special)
                    .map_err(TokenizerError::failed("encoding"))?;
                encoding.get_ids().to_vec()
            }
            Engine::Pieces(model) => {
                let tokens = model.encode(text, spelled == Spelled::Special);
                tokens.into_iter().map(|(id, _)| id).collect()
            }
        };
        if !add_special {
            return Ok(ids);
        }
        Ok(enclose(&ids, self.bos, self.eos))
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
        let mut bytes = Vec::new();
        match &self.engine {
            Engine::Pieces(model) => {
                let mut decoder = PieceDecoder::new(model, specials);
                let mut text = String::new();
                for id in ids {
                    text += &decoder.push(*id).ok_or_else(|| self.unknown(*id))?;
                }
                return Ok(text + &decoder.finish());
            }
            Engine::Crate {
                byte_vocab: None,
                inner,
                ..
            } => {
                for id in ids {
                    self.known(*id)?;
                }
                return inner
                    .decode(ids, specials == Specials::Skip)
                    .map_err(TokenizerError::failed("decoding"));
            }
            Engine::Crate {
                byte_vocab: Some(vocab),
                ..
            } => {
                for id in ids {
                    let token = vocab.get(*id).ok_or_else(|| self.unknown(*id))?;
                    if specials == Specials::Spell || !token.special {
                        bytes.extend_from_slice(&token.bytes);
                    }
                }
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn known(&self, id: u32) -> Result<u32, TokenizerError> {
        let exists = match &self.engine {
            Engine::Crate { inner, .. } => inner.id_to_token(id).is_some(),
            Engine::Pieces(model) => model.piece(id).is_some(),
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

/// What becomes of special tokens in a decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Specials {
    Skip,
    Spell,
}

/// What becomes of special tokens that are spelled out in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelled {
    Special,
    Text,
}
