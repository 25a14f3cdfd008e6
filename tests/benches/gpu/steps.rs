//! Wall-clock times of training steps, from the inputs of a batch to its loss, and their memory
//! use.

use std::time::Instant;

use tercet::train::Trainer;
use tercet::{CompileOptions, Device, one_line};
use tercet_tests::steps::{BuiltStep, MeasuredStep, STEPS, StepScale};

use crate::kernels::WARM_UP;
use crate::profile::show_all;
use crate::report::median;
use crate::{Bench, Result};

/// The number of timed steps.
const COUNT: usize = 12;

/// Measures the steps whose group name (`training_` and the step name) contains one of `filters`;
/// all if there is none.
pub(crate) fn steps(b: &mut Bench, filters: &[String]) {
    for step in STEPS {
        let group = format!("training_{}", step.name);
        if !filters.is_empty() && !filters.iter().any(|f| group.contains(f.as_str())) {
            continue;
        }
        if let Err(e) = measure(b, step) {
            b.report.failed(&group, &one_line(&*e));
        }
    }
}

fn measure(b: &mut Bench, step: &MeasuredStep) -> Result<()> {
    let name = format!("training {}", step.name);
    let size = match b.quick {
        true => StepScale::Small,
        false => StepScale::Whole,
    };
    let start = Instant::now();
    let made = step.make(size)?;
    let built = start.elapsed().as_secs_f64();
    memory(b, &name, &made)?;
    let start = Instant::now();
    let mut trainer = made.trainer(&b.device, 1e-5)?;
    trainer.step(&made.inputs())?;
    let first = start.elapsed().as_secs_f64();
    let seconds = timed(&mut trainer, &made)?;
    drop(trainer);
    let rate = made.count as f64 / seconds;
    b.report.row(&name, seconds, Some((rate, made.unit)));
    b.report.row(&format!("  {name}, its graph"), built, None);
    b.report
        .row(&format!("  {name}, compile and first"), first, None);
    if b.steps {
        kernels(b, &name, &made)?;
    }
    Ok(())
}

/// The median time of a step, including the readback of the loss as in real training.
fn timed(trainer: &mut Trainer, made: &BuiltStep) -> Result<f64> {
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < COUNT {
        let start = Instant::now();
        trainer.step(&made.inputs())?;
        if began.elapsed() > WARM_UP {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(median(times))
}

/// Reports the bytes of the executable's buffers, in total and by kind of buffer.
fn memory(b: &mut Bench, name: &str, made: &BuiltStep) -> Result<()> {
    let explained = explain(&b.device, made)?;
    let all: u64 = explained.iter().map(|(_, bytes)| bytes).sum();
    b.report.bytes(&format!("  {name}, memory"), all);
    for (kind, bytes) in explained.into_iter().filter(|(_, bytes)| *bytes > 0) {
        b.report.bytes(&format!("    {kind}"), bytes);
    }
    Ok(())
}

fn explain(device: &Device, made: &BuiltStep) -> Result<Vec<(&'static str, u64)>> {
    let explained = device.explain(made.step.graph(), &CompileOptions::new())?;
    Ok(explained.bytes)
}

/// Prints the device time of each kernel.
fn kernels(b: &mut Bench, name: &str, made: &BuiltStep) -> Result<()> {
    let mut trainer = made.trainer(&b.timed, 1e-5)?;
    timed(&mut trainer, made)?;
    let steps = trainer.executable_mut().timings();
    show_all(b, name, &steps);
    Ok(())
}
