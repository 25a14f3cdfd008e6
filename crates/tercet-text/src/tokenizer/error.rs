//! The errors of tokenizers.

use tercet_files::FileError;
use tercet_files::gguf::GgufError;

/// The reason why a tokenizer cannot be created or used.
///
/// ```
/// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
/// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
/// #     "decoder": null,
/// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
/// # let tokenizer = tercet_text::Tokenizer::from_json(json.as_bytes())?;
/// use tercet_text::TokenizerError;
/// let error = tokenizer.encode_batch(&["a b"], 0).unwrap_err();
/// assert!(matches!(error, TokenizerError::NoRoom { max_len: 0, special: 0 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum TokenizerError {
    /// The file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A GGUF metadata value is missing or invalid.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// `tokenizer.json` is not valid JSON at `line` and `column`, from 1; the source has the
    /// details.
    #[error("tokenizer.json is not JSON; download it again if it is incomplete")]
    NotJson {
        line: usize,
        column: usize,
        source: serde_json::Error,
    },
    /// The replacement table of a precompiled normalizer is damaged.
    #[error("the `precompiled_charsmap` of the tokenizer is damaged: {reason}")]
    BadCharsMap { reason: &'static str },
    /// A setting of the `tokenizer.json` makes it unusable.
    #[error("`{part}` of tokenizer.json: {reason}; download the file again or mend it")]
    BadPart { part: &'static str, reason: String },
    /// The `tokenizers` crate cannot read the `tokenizer.json`.
    #[error("not a valid tokenizer.json")]
    BadJson {
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A text cannot be encoded, or tokens cannot be decoded.
    #[error("{action} failed")]
    Failed {
        action: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The vocabulary type of the GGUF file is not supported.
    #[error(
        "tokenizer.ggml.model = `{found}` is not supported, expected one of: {supported}; \
         use the model's tokenizer.json instead"
    )]
    UnsupportedModel { found: String, supported: String },
    /// A `tokenizer.model` is damaged at a byte offset.
    #[error(
        "tokenizer.model is damaged at byte {offset}: {reason}; download it again if it is \
         incomplete"
    )]
    BadModel { offset: u64, reason: String },
    /// A `tokenizer.model` uses a feature that is not implemented.
    #[error(
        "a tokenizer.model with {what} is not supported; use the model's tokenizer.json instead"
    )]
    UnsupportedPieces { what: &'static str },
    /// The GGUF file uses an unknown pre-tokenizer.
    #[error(
        "tokenizer.ggml.pre = `{found}` is not supported, expected one of: {supported}; \
         use the model's tokenizer.json instead"
    )]
    UnsupportedPreTokenizer { found: String, supported: String },
    /// The GGUF file has a setting that is not implemented.
    #[error("{key} = {found} is not supported; use the model's tokenizer.json instead")]
    UnsupportedSetting { key: &'static str, found: String },
    /// The vocabulary is invalid.
    #[error("invalid vocabulary: {reason}")]
    BadVocabulary { reason: String },
    /// The vocabulary does not have a token id.
    #[error("token id {id} is not in the vocabulary of {vocab_len} tokens")]
    UnknownToken { id: u32, vocab_len: usize },
    /// The tokenizer has no format for pairs of texts.
    #[error(
        "a tokenizer.model does not define pairs of texts; use the model's tokenizer.json instead"
    )]
    NoPairs,
    /// The maximum length leaves no room for text besides the special tokens.
    #[error("a limit of {max_len} tokens leaves no room for text beside {special} special tokens")]
    NoRoom { max_len: usize, special: usize },
}

impl TokenizerError {
    pub(super) fn failed(action: &'static str) -> impl FnOnce(tokenizers::Error) -> Self {
        move |source| Self::Failed { action, source }
    }
}
