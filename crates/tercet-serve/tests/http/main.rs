//! Tests of the routes with a plain TCP client, and of single parts of the server.
#![allow(clippy::unwrap_used, reason = "tests")]

mod adapters;
mod bad_input;
mod clients;
mod drafted;
mod embedders;
mod fairness;
mod graphs;
mod infill;
mod limits;
mod load;
mod mcp;
#[cfg(feature = "grammar")]
mod messages;
mod multi_prompt;
#[cfg(feature = "grammar")]
mod ollama;
mod on_demand;
mod openai_fields;
mod page;
mod pictures;
mod prefixes;
mod request_log;
mod rerank;
#[cfg(feature = "grammar")]
mod responses;
mod server;
#[cfg(feature = "audio")]
mod speech;
mod stored_prefixes;
#[cfg(feature = "grammar")]
mod template_input;
mod text_routes;
mod texts;
mod tls;
#[cfg(feature = "grammar")]
mod tools;
mod units;
