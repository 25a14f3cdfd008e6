//! Training data: from files of texts, conversations, labelled texts and pairs to batches of
//! tensors.
//!
//! | file | content |
//! |---|---|
//! | `records.rs`, `lines.rs` | line-by-line reading of files, with line numbers in errors |
//! | [`template`] | the chat template language (Jinja subset), with resource limits |
//! | `template_files.rs` | chat templates in the files of models |
//! | `chat.rs` | a model's chat template, and the location of answers in a conversation |
//! | `corpus.rs` | tokenized documents with loss masks |
//! | `split.rs` | the held-out set |
//! | `pack.rs`, `batch_sampler.rs` | packing of documents into rows; shuffling of rows into batches |
//! | `encoder.rs` | labelled texts and pairs in padded batches |
//!
//! Data for a decoder passes through [`Corpus::read`], [`Corpus::split`], [`PackedCorpus::new`] and
//! [`PackedCorpus::batches`]. The result is a deterministic function of the file, the tokenizer, the
//! options and a seed. [`PackedBatches::seek`] jumps directly to any batch.

mod batch_sampler;
mod chat;
pub(crate) mod corpus;
mod encoder;
mod error;
mod lines;
mod pack;
mod records;
mod split;
pub mod template;
mod template_files;

pub use batch_sampler::{BatchSampler, LastBatchPolicy, shuffled};
pub use chat::{AnswerSpan, ChatTemplate, RenderedConversation};
pub use corpus::{Corpus, CorpusOptions, TokenizedDocument};
pub use encoder::{EncoderBatch, LabelledTexts, TextPairs};
pub use error::{DataError, LineError};
pub use pack::{IGNORED, PackedBatches, PackedCorpus, PackedSegment, TokenBatch};
pub use records::{
    ChatMessage, ChatRecord, DatasetRecord, DatasetTask, ReadLimits, RecordFormat, RecordReader,
    Role, TextLabel,
};
pub use split::DEFAULT_SHARE;
pub use template_files::{ChatTemplateError, TemplateFiles, chat_templates};
