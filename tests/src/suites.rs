//! The suites: lists of tests that every executor must pass.
//!
//! The suites are part of a library, so that `cargo test` and the self-contained program
//! (`bin/tercet-parity.rs`) run the same tests.

mod async_runs;
mod batches;
mod binding_limit;
mod control;
mod custom;
mod decoders;
mod device_tensors;
mod encoders;
mod gradients;
mod intermediates;
mod large_tensors;
mod long_sums;
mod loss_curves;
mod models;
mod numpy;
mod onnx;
mod parity;
mod random;
mod rng_state;
mod row_counts;
mod row_ops;
mod scatter;
mod special_values;
mod speech;
mod state_elements;
pub mod symbolic;
mod text_to_text;
mod torch;
mod training_steps;
mod unaligned;
pub mod variants;
mod vision;
mod vision_language;

use crate::SuiteTest;

/// A named list of tests on one subject.
#[derive(Clone, Copy, Debug)]
pub struct TestSuite {
    /// Its name, for selection.
    pub name: &'static str,
    /// The suite's tests on the executors of [`executors`](crate::executors).
    pub tests: fn() -> Vec<SuiteTest>,
}

/// All suites, the fastest first.
pub const SUITES: &[TestSuite] = &[
    suite("numpy", numpy::tests),
    suite("torch", torch::tests),
    suite("onnx", onnx::tests),
    suite("curves", loss_curves::tests),
    suite("decoders", decoders::tests),
    suite("encoders", encoders::tests),
    suite("vision", vision::tests),
    suite("vision-language", vision_language::tests),
    suite("speech", speech::tests),
    suite("text-to-text", text_to_text::tests),
    suite("steps", training_steps::tests),
    suite("random", random::tests),
    suite("control", control::tests),
    suite("awaited", async_runs::tests),
    suite("custom", custom::tests),
    suite("scatter", scatter::tests),
    suite("seeds", rng_state::tests),
    suite("states", state_elements::tests),
    suite("symbolic", symbolic::tests),
    suite("batches", batches::tests),
    suite("resident", device_tensors::tests),
    suite("unaligned", unaligned::tests),
    suite("inside", intermediates::tests),
    suite("split", binding_limit::tests),
    suite("ones", long_sums::tests),
    suite("special", special_values::tests),
    suite("rows", row_ops::tests),
    suite("counts", row_counts::tests),
    suite("huge", large_tensors::tests),
    suite("models", models::tests),
    suite("gradients", gradients::tests),
    suite("parity", parity::tests),
];

const fn suite(name: &'static str, tests: fn() -> Vec<SuiteTest>) -> TestSuite {
    TestSuite { name, tests }
}

/// The tests of the named suites, or of all suites if `names` is empty.
///
/// # Errors
/// An unknown suite name.
pub fn tests(names: &[String]) -> Result<Vec<(&'static str, SuiteTest)>, String> {
    check_names(names)?;
    let chosen = |s: &&TestSuite| names.is_empty() || names.iter().any(|n| n == s.name);
    let chosen = SUITES.iter().filter(chosen);
    Ok(chosen
        .flat_map(|s| (s.tests)().into_iter().map(|test| (s.name, test)))
        .collect())
}

/// Checks the names of suites without reading test data.
///
/// # Errors
/// An unknown suite name.
pub fn check_names(names: &[String]) -> Result<(), String> {
    if let Some(name) = names.iter().find(|n| SUITES.iter().all(|s| s.name != **n)) {
        let known: Vec<&str> = SUITES.iter().map(|s| s.name).collect();
        return Err(format!(
            "no suite `{name}`; available: {}",
            known.join(", ")
        ));
    }
    Ok(())
}
