//! Why a tokenizer could not be built or used.

use crate::gguf::GgufError;
use crate::mmap::FileError;

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
    #[error("the `precompiled_charsmap` of the tokenizer is damaged: {reason}")]
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
        "tokenizer.ggml.model = `{found}` is not supported, these are: {supported}; \
         use the model's tokenizer.json instead"
    )]
    UnsupportedModel { found: String, supported: String },
    /// A `tokenizer.model` is damaged, at a byte of the file.
    #[error(
        "tokenizer.model is damaged at byte {offset}: {reason}; fetch it again if its download \
         was cut off"
    )]
    BadModel { offset: u64, reason: String },
    /// A `tokenizer.model` with something that is not implemented.
    #[error(
        "a tokenizer.model with {what} is not supported; use the model's tokenizer.json instead"
    )]
    UnsupportedPieces { what: &'static str },
    /// The GGUF file asks for a pre-tokenizer that is not in the table.
    #[error(
        "tokenizer.ggml.pre = `{found}` is not supported, these are: {supported}; \
         use the model's tokenizer.json instead"
    )]
    UnsupportedPreTokenizer { found: String, supported: String },
    /// A setting of the GGUF file that is not implemented.
    #[error("{key} = {found} is not supported; use the model's tokenizer.json instead")]
    UnsupportedSetting { key: &'static str, found: String },
    /// The vocabulary is not sound.
    #[error("the vocabulary is not sound: {reason}")]
    BadVocabulary { reason: String },
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is not in the vocabulary of {vocab_len} tokens")]
    UnknownToken { id: u32, vocab_len: usize },
    /// A tokenizer that does not say how two texts are read together.
    #[error(
        "a tokenizer.model has no rule for pairs of texts; use the model's tokenizer.json instead"
    )]
    NoPairs,
    /// Rows so short that not one token of text fits beside the special tokens.
    #[error(
        "rows of at most {max_len} tokens have no room for text beside {special} special tokens"
    )]
    NoRoom { max_len: usize, special: usize },
}

impl TokenizerError {
    pub(super) fn failed(action: &'static str) -> impl FnOnce(tokenizers::Error) -> Self {
        move |source| Self::Failed { action, source }
    }
}
