//! Tests of specifications, folders and the builders of graphs.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

#[path = "../../../tercet-files/tests/common/mod.rs"]
mod common;

mod activations;
mod factor;
mod hf;
mod memory;
mod published_configs;
mod quantised_damage;
mod quantised_weights;
mod training_dtypes;
mod units;
mod vocabularies;
