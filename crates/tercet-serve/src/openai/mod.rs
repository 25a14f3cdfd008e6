//! The OpenAI routes.
//!
//! Fields that are not honoured are refused by name, but for those that only have a value that changes nothing.
//! <https://platform.openai.com/docs/api-reference>

mod answer;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod models;
pub(crate) mod rerank;
mod sampling;
#[cfg(feature = "audio")]
pub(crate) mod transcriptions;
