//! The commands, by what they print: one program, as each takes seconds to link.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

#[path = "../common/mod.rs"]
mod common;

mod cli;
mod drafting;
mod dump;
mod encoders;
mod finetune;
mod finetune_encoder;
mod language;
mod onnx;
mod pictures;
mod quantize;
mod refusals;
mod search;
mod seeing;
#[cfg(feature = "splat")]
mod splat;
#[cfg(feature = "audio")]
mod transcribe;
