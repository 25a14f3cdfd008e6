//! Tests of tokenizers, answers, grammars and training data. `units` tests single parts.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

#[path = "../../../tercet-files/tests/common/mod.rs"]
mod common;

mod answers;
mod dataset;
mod dataset_files;
#[cfg(feature = "grammar")]
mod gbnf;
#[cfg(feature = "grammar")]
mod schemas;
mod tokenizer;
mod tokenizer_references;
mod units;
