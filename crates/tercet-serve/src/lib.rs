//! HTTP server for Tercet. Language models, encoders and speech recognition use the OpenAI routes;
//! graphs use the Open Inference Protocol.
//!
//! [`ModelRegistry`] loads the models, [`HttpServer`] listens, and [`HttpServer::run`] serves requests until its
//! `stop` future completes. Engine, errors and results come from `tercet` and `tercet-models`; this
//! crate adds routes, queues and limits.
//!
//! Modules:
//!
//! - `http`: routes, request limits (key, size, time) and the metrics page.
//! - `conversation` and `answer_stream`: requests for answers, and their events, of all protocols.
//! - `openai`, `anthropic`, `ollama` and `oip`: parse requests and format responses of the protocols.
//! - `audio_parts`: writes audio parts of messages down.
//! - `language`, `encoder`, `reranker`, `transcriber`, `graph`: the served models.
//! - `mcp`: the tools of an MCP server.
//! - `models`: the models by name, loading and unloading; `model_routes`: the same on request.
//! - `engine`: batches the sequences of a language model.
//! - `page`: the page for browsers.
//! - `request_log`: a line for each request.
//! - `fair_queue` and `queue_ticket`: which waiting request goes next, and how long it may wait.
//! - `pool`: worker threads of the other models; each processes one request at a time.
//!
//! Invariants:
//!
//! - A response does not depend on other requests.
//! - A request with an unsupported field that changes the response is rejected, and the error names
//!   the field.
//! - Queue length, request duration and request size are limited.
//! - If a client disconnects, its slot is free after the next token.
#![forbid(unsafe_code)]

mod answer_stream;
mod anthropic;
mod audio_parts;
mod connections;
mod conversation;
mod drain_body;
mod encoder;
mod engine;
mod error;
mod fair_queue;
mod fields;
mod fill_in_middle;
mod forced_tokens;
mod generator;
mod graph;
mod http;
mod infill;
mod language;
mod logprobs;
mod mcp;
mod metrics;
mod model_facts;
mod model_routes;
mod models;
#[cfg(feature = "audio")]
mod multipart;
mod oip;
mod ollama;
mod openai;
mod options;
mod page;
mod pool;
mod queue_ticket;
mod read_history;
mod request_log;
mod request_terms;
mod reranker;
mod row_batcher;
mod running;
mod server;
mod text_routes;
mod thought_budget;
mod tls;
#[cfg(feature = "audio")]
mod transcriber;
mod write_timeout;

pub use error::ServeError;
pub use generator::{DraftSource, SpeculativeOptions};
pub use graph::{GraphParts, OutputTrim};
pub use language::ModelConfig;
pub use mcp::serve_mcp;
pub use models::{ModelOpener, ModelRegistry, ResidencyLimits};
pub use options::ServeOptions;
pub use request_log::{LogFormat, RequestLog};
pub use server::{HttpServer, stop_signal};
pub use tls::TlsIdentity;

/// Private items that the tests of this crate use. They are no interface: they change without
/// notice.
#[doc(hidden)]
pub mod internals {
    #[cfg(feature = "grammar")]
    pub use crate::conversation::tools::bound_integers;
    pub use crate::error::ApiError;
    pub use crate::fair_queue::{FairQueue, QueueFull};
    pub use crate::forced_tokens::ForcedTokens;
    pub use crate::logprobs::{LogProbRow, MIN_LOGPROB};
    pub use crate::metrics::{PoolStatus, ServerMetrics};
    pub use crate::model_routes::adapter_path;
    pub use crate::pool::WorkerThreads;
    pub use crate::queue_ticket::QueueTicket;
    pub use crate::read_history::{MAX_TOKENS, ReadHistory};
    pub use crate::request_log::{ClientAddress, RequestLogGuard, RequestRecord, timestamp};
    pub use crate::request_terms::{RequestOrder, RequestTerms};
    pub use crate::row_batcher::{BatchFunction, MAX_ROWS, RowBatcher};
    pub use crate::write_timeout::WriteTimeout;
}
