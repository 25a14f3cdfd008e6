//! Tests of training graphs and adapters, with a small llama and random encoders.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../tercet-files/tests/common/mod.rs"]
mod common;

mod adapters;
mod bert;
mod damaged;
mod dropout;
mod families;
mod files;
mod gradients;
mod llama;
mod memory;
mod merging;
mod multi_lora;
mod rows;
mod trainer;
