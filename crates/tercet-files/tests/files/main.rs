//! Tests of model files: valid, damaged and hostile ones.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

#[path = "../common/mod.rs"]
mod common;

mod folders;
mod foreign;
mod gguf;
mod parts;
mod rejected;
mod safetensors;
mod split;
mod weight;
