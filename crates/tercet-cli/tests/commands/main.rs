//! Tests of the commands by their output. The tests are one program, because each program takes
//! seconds to link.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers panic on errors, but clippy does not see them as test functions"
)]

#[path = "../common/mod.rs"]
mod common;

mod cases;
mod cli;
mod context;
mod drafting;
mod dump;
mod encoders;
mod finetune;
mod finetune_encoder;
#[cfg(feature = "hub")]
mod hub;
mod language;
#[cfg(all(feature = "vulkan", target_os = "linux"))]
mod layer;
mod ollama;
mod onnx;
mod outside;
mod pictures;
mod quantize;
mod reference;
mod refusals;
mod search;
mod seeing;
#[cfg(feature = "serve")]
mod serve_on_demand;
#[cfg(feature = "serve")]
mod serve_prefix_cache;
#[cfg(feature = "splat")]
mod splat;
mod switches;
#[cfg(feature = "audio")]
mod transcribe;
mod units;
