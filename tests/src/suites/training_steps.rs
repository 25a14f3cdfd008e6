//! Tests of small versions of the benchmarked training steps: losses are finite and decrease, and
//! all trained values change.

use libtest_mimic::Failed;
use tercet::{Device, one_line};

use crate::steps::{BoxError, MeasuredStep, STEPS, StepScale};
use crate::{SuiteTest, executors};

/// The steps that software drivers run.
const SOFTWARE: [&str; 3] = ["bert_f32", "gpt2_f16", "llama_q4k"];

/// The number of steps on one batch.
const COUNT: usize = 6;

fn check(step: &MeasuredStep, device: &Device) -> Result<(), BoxError> {
    let made = step.make(StepScale::Small)?;
    let mut trainer = made.trainer(device, 2e-3)?;
    let mut losses = Vec::new();
    for _ in 0..COUNT {
        let report = trainer.step(&made.inputs())?;
        if report.skipped {
            return Err("a step was skipped".into());
        }
        losses.push(report.loss);
    }
    if losses.iter().any(|loss| !loss.is_finite()) {
        return Err(format!("losses are not finite: {losses:?}").into());
    }
    if losses[COUNT - 1] > 0.98 * losses[0] {
        return Err(format!("losses do not decrease: {losses:?}").into());
    }
    let unmoved = trainer.unchanged_trainables()?;
    if !unmoved.is_empty() {
        return Err(format!("never moved: {}", unmoved.join(", ")).into());
    }
    Ok(())
}

/// The tests of this suite: one per step and executor.
pub(super) fn tests() -> Vec<SuiteTest> {
    let tests = STEPS.iter().flat_map(|step| {
        executors().iter().map(move |executor| {
            let name = format!("steps/{}", step.name);
            // A software driver takes several seconds to compile the kernels of each step.
            let variant = if SOFTWARE.contains(&step.name) {
                ""
            } else {
                "/more"
            };
            SuiteTest::variant_on(executor, name, variant, move |device| {
                check(step, device).map_err(|e| Failed::from(one_line(&*e)))
            })
        })
    });
    tests.collect()
}
