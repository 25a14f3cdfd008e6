//! Tests of opening, running and writing models, in one binary because each binary takes seconds to
//! link.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

#[path = "../../../tercet-files/tests/common/mod.rs"]
mod common;
#[path = "../../../tercet-files/tests/files/parts.rs"]
mod parts;

mod batch;
mod batches;
mod caches;
mod chat;
mod config_keys;
mod decoder_fields;
mod encoders;
mod faces;
mod folder_to_gguf;
mod hostile;
mod images;
mod quantised_folders;
mod saved_folders;
mod speculation;
mod speculative;
mod split;
mod stored_prefixes;
mod units;
mod vision_language;
mod windows;
