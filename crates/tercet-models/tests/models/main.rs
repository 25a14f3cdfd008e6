//! Tests of opening, running and writing models, in one binary because each binary takes seconds to
//! link.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

#[path = "../common/mod.rs"]
mod common;

mod batch;
mod batches;
mod caches;
mod chat;
mod decoder_fields;
mod encoders;
mod factor;
mod folder_to_gguf;
mod hf;
mod images;
mod memory;
mod quantised_folders;
mod safetensors;
mod speculation;
mod speculative;
#[cfg(feature = "splat")]
mod splat;
#[cfg(feature = "splat")]
mod splat_fit;
mod tokenizer;
mod tokenizer_references;
mod vision_language;
mod weight;
