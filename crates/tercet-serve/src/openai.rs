//! The OpenAI routes.
//!
//! A request with a field that is not supported is rejected, and the error names the field, unless
//! its value has no effect; `ignored_fields` lists those. <https://platform.openai.com/docs/api-reference>

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod ignored_fields;
pub(crate) mod models;
pub(crate) mod rerank;
mod response;
pub(crate) mod responses;
pub(crate) mod sampling;
pub(crate) mod score;
#[cfg(feature = "audio")]
pub(crate) mod transcriptions;
