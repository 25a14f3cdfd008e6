//! The OpenAI routes.
//!
//! Fields that are not honoured are refused by name, but for those that only have a value that changes nothing.
//! <https://platform.openai.com/docs/api-reference>

mod answer;
mod calls;
pub(crate) mod chat;
pub(crate) mod completions;
mod deliver;
pub(crate) mod embeddings;
pub(crate) mod models;
pub(crate) mod rerank;
mod sampling;
mod tools;
#[cfg(feature = "audio")]
pub(crate) mod transcriptions;
