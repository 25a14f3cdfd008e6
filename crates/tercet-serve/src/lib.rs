//! Tercet behind HTTP: language models, encoders and speech recognizers by the OpenAI routes, graphs by the Open Inference
//! Protocol.
//!
//! [`Models`] loads what is served, [`Server`] listens, and [`Server::run`] answers until it is told to stop. The
//! engine, its errors and its answers are those of `tercet` and `tercet-models`; here are routes, queues and limits.
//!
//! A walk: `http` has the routes, what holds for all of them (key, sizes, times) and the page of metrics; `openai` and
//! `oip` read and write the two protocols; `language`, `encoder`, `reranker`, `transcriber` and `graph` are what is served.
//! Texts are written side by side by the `engine` of a language model; the others have a `pool` of slots that work on one
//! request at a time.
//!
//! Invariants: a request gets what it would get alone; a field that is not honoured is refused by name; what waits, how
//! long it takes and how large it is are bounded; a client that leaves frees its slot at the next token.
#![forbid(unsafe_code)]

mod encoder;
mod engine;
mod error;
mod fields;
#[cfg(feature = "audio")]
mod form;
mod graph;
mod http;
mod language;
mod leftover;
mod likely;
mod metrics;
mod models;
mod oip;
mod openai;
mod options;
mod pool;
mod reranker;
mod server;
mod texts;
#[cfg(feature = "audio")]
mod transcriber;
mod writer;

pub use error::ServeError;
pub use language::Placement;
pub use models::Models;
pub use options::ServeOptions;
pub use server::{Server, stop_signal};
pub use writer::{DraftSource, Drafting};
