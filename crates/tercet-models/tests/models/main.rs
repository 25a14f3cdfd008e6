//! Models opened, run and written: one program, as each takes seconds to link.
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
mod drafted;
mod encoders;
mod factor;
mod folder_to_gguf;
mod hf;
mod memory;
mod pictures;
mod quantised_folders;
mod safetensors;
mod speculation;
#[cfg(feature = "splat")]
mod splat;
#[cfg(feature = "splat")]
mod splat_fit;
mod tokenizer;
mod tokenizer_references;
mod vision_language;
mod weight;
