//! What can be wrong with training data.

use std::path::PathBuf;

use super::template::TemplateError;
use crate::mmap::FileError;
use crate::tokenizer::TokenizerError;

/// Why training data was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum DataError {
    /// The file could not be opened or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A line was refused; lines count from 1.
    #[error("{path}: line {line}", path = path.display())]
    Line {
        path: PathBuf,
        line: u64,
        source: LineError,
    },
    /// There is nothing in the file but white space.
    #[error("{path}: holds no text; give a file with something to learn from", path = path.display())]
    Empty { path: PathBuf },
    /// Every document is too short to learn from.
    #[error(
        "{path}: nothing is left to learn from after tokenizing; {skipped} documents have fewer \
         than two tokens", path = path.display()
    )]
    NothingLeft { path: PathBuf, skipped: usize },
    /// Labels of which some are integers and some are strings.
    #[error(
        "{path}: the label on line {line} is {found}, those before are not; use one kind of label",
        path = path.display()
    )]
    MixedLabels {
        path: PathBuf,
        line: u64,
        found: &'static str,
    },
    /// A label that the set which was asked for does not have.
    #[error("{path}: the label on line {line} is `{label}`, which is none of: {known}", path = path.display())]
    UnknownLabel {
        path: PathBuf,
        line: u64,
        label: String,
        known: String,
    },
    /// Fewer than two labels.
    #[error("{path}: every text has the label `{label}`; a classifier needs two or more", path = path.display())]
    OneLabel { path: PathBuf, label: String },
    /// The template of the model cannot be used.
    #[error("the chat template of the model cannot be used")]
    Template(#[from] TemplateError),
    /// The entry `chat_template` of the model is neither text nor a list of named texts.
    #[error("`chat_template` of the model is {found}, not a string or a list of named templates")]
    BadTemplateField { found: &'static str },
    /// A share that is not in `[0, 1)`.
    #[error("a held-out share of {share} is refused; take one from 0 (none) to below 1")]
    BadShare { share: f64 },
    /// There is too little to hold anything out.
    #[error(
        "{found} {what} are too few to hold some out; add data, or set the held-out share to 0"
    )]
    TooFewToSplit { found: usize, what: &'static str },
    /// Rows without room for a token and the next one.
    #[error("rows of {seq} tokens are too short or too long; take 2 to {max}")]
    BadRows { seq: usize, max: usize },
    /// A batch size of 0, or one that memory does not hold.
    #[error(
        "batches of {batch} rows of {seq} are refused; take at least 1 row, and at most 2^30 tokens in all"
    )]
    BadBatch { batch: usize, seq: usize },
    /// Texts of a batch could not be tokenized.
    #[error("tokenizing a batch")]
    Tokenizer(#[from] TokenizerError),
    /// A tensor of a batch could not be made.
    #[error("making the tensors of a batch")]
    Tensor(#[from] tercet::TensorError),
}

/// What is wrong with one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum LineError {
    /// The line is no JSON; columns count from 1.
    #[error("not JSON at column {column}; each line must be one object")]
    NotJson {
        column: usize,
        source: serde_json::Error,
    },
    /// The line is JSON of another kind.
    #[error("holds {found}, not an object; each line must be one object{hint}")]
    NotAnObject {
        found: &'static str,
        hint: &'static str,
    },
    /// No field says what to learn.
    #[error("has none of the fields {wanted}; it has: {found}")]
    NoKnownField { wanted: &'static str, found: String },
    /// A field is missing beside another one.
    #[error("has no field `{field}`")]
    MissingField { field: &'static str },
    /// A field is of another type.
    #[error("`{field}` is {found}, not {wanted}")]
    WrongType {
        field: String,
        found: &'static str,
        wanted: &'static str,
    },
    /// A message of a role that there is not.
    #[error(
        "messages[{index}] has the role `{role}`; known: system, developer, user, assistant, tool"
    )]
    UnknownRole { index: usize, role: String },
    /// A conversation without messages.
    #[error("`messages` is empty")]
    NoMessages,
    /// A conversation without an answer.
    #[error("no message has the role `assistant`, so there is no answer to learn")]
    NoAnswer,
    /// A conversation with so many messages that finding the answers would take too long.
    #[error("{found} messages, more than the {max} that one conversation may have; cut it")]
    TooManyMessages { found: usize, max: usize },
    /// Some lines are texts, some are conversations.
    #[error("is {found}, while line {first_line} is {first}; a file must be of one kind")]
    MixedKinds {
        found: &'static str,
        first: &'static str,
        first_line: u64,
    },
    /// The text is empty or white space.
    #[error("`{field}` has no text")]
    NoText { field: &'static str },
    /// The line is too long.
    #[error("has more than the {max} bytes that a line may have; cut the text into documents")]
    TooLong { max: usize },
    /// The line is not UTF-8.
    #[error("not UTF-8 at byte {offset} of the file; convert it to UTF-8")]
    NotUtf8 { offset: u64 },
    /// A conversation, and no template to write it with.
    #[error("is a conversation, and no chat template was given")]
    NoTemplate,
    /// The template refused the conversation or failed.
    #[error("the conversation cannot be written with the model's chat template")]
    Template(#[from] TemplateError),
    /// Where an answer lies in the rendered conversation cannot be told.
    #[error(
        "where the answer messages[{index}] lies in the rendered conversation cannot be told: the \
         template changes it; use a template with `generation` blocks"
    )]
    AnswerNotFound { index: usize },
    /// The text cannot be tokenized.
    #[error("the text cannot be tokenized")]
    Tokenizer(#[from] TokenizerError),
}
