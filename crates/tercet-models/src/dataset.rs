//! Training data: files of texts, conversations, labelled texts and pairs, to batches of tensors.
//!
//! | file | does |
//! |---|---|
//! | `records.rs`, `lines.rs` | reads files line by line, with the line in every error |
//! | [`template`] | the language of chat templates, with bounds |
//! | `chat.rs` | a model's own template, and where in a conversation the answers are |
//! | `corpus.rs` | documents as tokens, and which of them are learnt |
//! | `split.rs` | the held-out part |
//! | `pack.rs`, `order.rs` | documents packed into rows; rows shuffled into batches |
//! | `encoder.rs` | labelled texts and pairs in padded batches |
//!
//! What a decoder trains on goes this way: [`Corpus::read`], [`Corpus::split`], [`Packed::new`],
//! [`Packed::batches`]. Everything is a function of the file, the tokenizer, the options and a
//! seed: the same again gives the same batches, and [`Batches::seek`] goes to any of them at once.

mod chat;
mod corpus;
mod encoder;
mod error;
mod lines;
mod order;
mod pack;
mod records;
mod split;
pub mod template;

pub(crate) use chat::chat_templates;
pub use chat::{Answer, ChatTemplate, Conversation};
pub use corpus::{Corpus, CorpusOptions, Document};
pub use encoder::{EncoderBatch, LabelledTexts, TextPairs};
pub use error::{DataError, LineError};
pub use order::{Last, Order, shuffled};
pub use pack::{Batches, IGNORED, Packed, Segment, TokenBatch};
pub use records::{Chat, Format, Label, Message, ReadLimits, Record, Records, Role, Task};
pub use split::DEFAULT_SHARE;
