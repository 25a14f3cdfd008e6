//! The routes, asked by a plain client over TCP.
#![allow(clippy::unwrap_used, reason = "tests")]

mod adapters;
mod clients;
mod crowd;
mod drafted;
mod embedders;
mod graphs;
mod limits;
mod many;
mod rerank;
mod server;
#[cfg(feature = "audio")]
mod speech;
mod texts;
#[cfg(feature = "grammar")]
mod tools;
