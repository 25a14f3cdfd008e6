//! The public interface: graphs, gradients, the text form, tensors and quantized blocks. `units`
//! tests single parts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agreement;
mod builder_refusals;
mod compiler_self_test;
mod fixtures;
mod grad_errors;
mod gradients;
mod layers;
mod parse;
mod quants;
mod quotients;
mod random_statistics;
mod retain_values;
mod signature;
mod sizes;
mod text;
mod units;
mod windows;
