//! Training graphs and adapters, with a small llama and made-up encoders.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod bert;
mod chosen;
mod damaged;
mod dropout;
mod families;
mod files;
mod gradients;
mod llama;
mod memory;
mod merging;
mod rows;
mod trainer;
