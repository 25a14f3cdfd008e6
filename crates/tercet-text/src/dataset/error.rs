//! Errors in training data.

use std::path::PathBuf;

use super::template::TemplateError;
use crate::tokenizer::TokenizerError;
use tercet_files::FileError;

/// The reason why training data is rejected.
///
/// ```
/// use tercet_text::dataset::{Corpus, DataError, PackedCorpus};
/// let error = PackedCorpus::new(Corpus::default(), 1, None).unwrap_err();
/// assert!(matches!(error, DataError::BadRows { seq: 1, .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum DataError {
    /// The file cannot be opened or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A line is invalid; lines count from 1.
    #[error("{path}: line {line}", path = path.display())]
    Line {
        path: PathBuf,
        line: u64,
        source: LineError,
    },
    /// The file is empty or has only white space.
    #[error("{path}: the file has no text; provide a file with training data", path = path.display())]
    Empty { path: PathBuf },
    /// Every document is too short to train on.
    #[error(
        "{path}: no training data after tokenizing; {skipped} documents have fewer \
         than two tokens", path = path.display()
    )]
    NothingLeft { path: PathBuf, skipped: usize },
    /// Some labels are integers and others are strings.
    #[error(
        "{path}: the label on line {line} is {found}, unlike the labels before it; use one type \
         of label",
        path = path.display()
    )]
    MixedLabels {
        path: PathBuf,
        line: u64,
        found: &'static str,
    },
    /// A label is not among the requested labels.
    #[error("{path}: the label on line {line} is `{label}`, which is none of: {known}", path = path.display())]
    UnknownLabel {
        path: PathBuf,
        line: u64,
        label: String,
        known: String,
    },
    /// The file has fewer than two different labels.
    #[error("{path}: every text has the label `{label}`; a classifier needs two or more", path = path.display())]
    OneLabel { path: PathBuf, label: String },
    /// The model's chat template cannot be used.
    #[error("the chat template of the model cannot be used")]
    Template(#[from] TemplateError),
    /// The model's `chat_template` is neither text nor a list of named texts.
    #[error("`chat_template` of the model is {found}, not a string or a list of named templates")]
    BadTemplateField { found: &'static str },
    /// A chat template was requested by an unknown name.
    #[error(
        "`{name}` is not a chat template; expected the source of a template (Jinja), or `chatml`"
    )]
    UnknownTemplate { name: String },
    /// The held-out share is not in `[0, 1)`.
    #[error("held-out share {share} is out of range; expected 0 <= x < 1")]
    BadShare { share: f64 },
    /// The data is too small to hold out a part.
    #[error(
        "{found} {what} are too few to split off a held-out set; add data, or set the held-out \
         share to 0"
    )]
    TooFewToSplit { found: usize, what: &'static str },
    /// The row length has no room for a token and its successor.
    #[error("row length {seq} is out of range; expected 2 to {max} tokens")]
    BadRows { seq: usize, max: usize },
    /// The batch size is 0, or the batch exceeds the memory limit.
    #[error(
        "a batch of {batch} rows of {seq} tokens is out of range; expected at least 1 row and at \
         most 2^30 tokens in all"
    )]
    BadBatch { batch: usize, seq: usize },
    /// The texts of a batch cannot be tokenized.
    #[error("tokenizing a batch")]
    Tokenizer(#[from] TokenizerError),
    /// A tensor of a batch cannot be created.
    #[error("cannot create the tensors of a batch")]
    Tensor(#[from] tercet_ir::TensorError),
}

/// An error in one line.
///
/// ```
/// # let name = format!("tercet-doc-line-error-{}.jsonl", std::process::id());
/// # let path = std::env::temp_dir().join(name);
/// use tercet_text::dataset::{DataError, LabelledTexts, LineError, ReadLimits};
/// std::fs::write(&path, r#"{"text": "good"}"#)?;
/// let error = LabelledTexts::read(&path, None, ReadLimits::default()).unwrap_err();
/// let DataError::Line { line: 1, source, .. } = error else { panic!("another error") };
/// assert!(matches!(source, LineError::MissingField { field: "label" }));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum LineError {
    /// The line is not JSON; columns count from 1.
    #[error("not JSON at column {column}; each line must be one object")]
    NotJson {
        column: usize,
        source: serde_json::Error,
    },
    /// The line is JSON, but not an object.
    #[error("expected an object, found {found}; each line must be one object{hint}")]
    NotAnObject {
        found: &'static str,
        hint: &'static str,
    },
    /// The line has no field with training data.
    #[error("none of the fields {wanted} is present; found: {found}")]
    NoKnownField { wanted: &'static str, found: String },
    /// A field is missing that another field requires.
    #[error("field `{field}` is missing")]
    MissingField { field: &'static str },
    /// A field has the wrong type.
    #[error("`{field}` is {found}; expected {wanted}")]
    WrongType {
        field: String,
        found: &'static str,
        wanted: &'static str,
    },
    /// A message has an unknown role.
    #[error(
        "messages[{index}] has the role `{role}`; known: system, developer, user, assistant, tool"
    )]
    UnknownRole { index: usize, role: String },
    /// A conversation has no messages.
    #[error("`messages` is empty")]
    NoMessages,
    /// A conversation has no answer.
    #[error("no message has the role `assistant`, so there is no answer to train on")]
    NoAnswer,
    /// A conversation has too many messages; locating the answers would take too long.
    #[error("{found} messages exceed the limit of {max} per conversation; shorten it")]
    TooManyMessages { found: usize, max: usize },
    /// The file mixes texts and conversations.
    #[error(
        "the line is {found}, but line {first_line} is {first}; use one type of record per \
         file"
    )]
    MixedKinds {
        found: &'static str,
        first: &'static str,
        first_line: u64,
    },
    /// The text is empty or white space.
    #[error("`{field}` has no text")]
    NoText { field: &'static str },
    /// The line is too long.
    #[error("the line exceeds the limit of {max} bytes; split the text into documents")]
    TooLong { max: usize },
    /// The line is not UTF-8.
    #[error("not UTF-8 at byte {offset} of the file; convert it to UTF-8")]
    NotUtf8 { offset: u64 },
    /// The line is a conversation, but there is no chat template to render it.
    #[error("the line is a conversation, but there is no chat template")]
    NoTemplate,
    /// The template rejected the conversation or failed.
    #[error("the model's chat template cannot render the conversation")]
    Template(#[from] TemplateError),
    /// The answer cannot be located in the rendered conversation.
    #[error(
        "the answer messages[{index}] cannot be located in the rendered conversation, because \
         the template changes it; use a template with `generation` blocks"
    )]
    AnswerNotFound { index: usize },
    /// The text cannot be tokenized.
    #[error("the text cannot be tokenized")]
    Tokenizer(#[from] TokenizerError),
}
