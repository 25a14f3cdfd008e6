//! The training step of BERT: loss, gradients, AdamW. Wall-clock time until the loss is on the host
//! and the device is idle.
//!
//! Burn does no automatic mixed precision: with F16 or BF16, weights and moments have that type as
//! well. Tercet and torch keep weights and moments in F32.

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, FloatDType};

use crate::bert::{Batch, Bert, Size};

const WARM: Duration = Duration::from_secs(1);
/// Warm-up steps, during which Burn autotunes its kernels.
const FIRST: usize = 3;
const COUNT: usize = 12;
const RATE: f64 = 1e-5;
const MIB: f64 = 1048576.0;

pub(crate) const PREFIX: &str = "training";
const STEPS: [(&str, FloatDType); 3] = [
    ("bert_f32", FloatDType::F32),
    ("bert_f16", FloatDType::F16),
    ("bert_bf16", FloatDType::BF16),
];

/// Runs the steps whose names contain `filter`, each in a separate process with the same arguments.
/// Failed steps are reported; the others still run.
pub(crate) fn all(filter: &str) -> Result<(), Box<dyn Error>> {
    for (name, _) in STEPS {
        if format!("{PREFIX}_{name}").contains(filter) {
            let mut process = Command::new(std::env::current_exe()?);
            let status = process
                .args(std::env::args().skip(1))
                .args(["--step", name])
                .status()?;
            if !status.success() {
                eprintln!("{name}: {status}");
            }
        }
    }
    Ok(())
}

/// Prints the time and memory of a step.
pub(crate) fn run(name: &str, size: Size, mut device: Device) -> Result<(), Box<dyn Error>> {
    let known = STEPS.iter().find(|(step, _)| *step == name);
    let (_, dtype) = known.ok_or(format!("unknown step `{name}`"))?;
    device.configure(*dtype)?;
    step(name, size, &device.autodiff())
}

/// Prints the progress of a step with times, to locate failures and slow parts.
struct Stages {
    began: Instant,
}

impl Stages {
    fn done(&self, what: &str) {
        eprintln!("{:8.2} s  {what}", self.began.elapsed().as_secs_f64());
    }
}

struct Training<'a> {
    model: Bert,
    optimizer: ModuleOptimizer,
    batch: Batch,
    device: &'a Device,
}

impl Training<'_> {
    /// Runs one step and returns its loss. With `done`, waits after each part and reports it.
    fn step(mut self, done: Option<&Stages>) -> Result<(Self, f32), Box<dyn Error>> {
        let loss = self.model.loss(&self.batch);
        if let Some(stages) = done {
            self.device.sync()?;
            stages.done("forward");
        }
        let gradients = loss.backward();
        let gradients = GradientsParams::from_grads(gradients, &self.model);
        if let Some(stages) = done {
            self.device.sync()?;
            stages.done("backward");
        }
        self.model = self.optimizer.step(RATE, self.model, gradients);
        let loss = loss.try_into_scalar::<f32>()?;
        self.device.sync()?;
        if let Some(stages) = done {
            stages.done(&format!("step, loss {loss}"));
        }
        Ok((self, loss))
    }
}

fn step(name: &str, size: Size, device: &Device) -> Result<(), Box<dyn Error>> {
    let stages = Stages {
        began: Instant::now(),
    };
    let batch = Batch::new(size, device);
    device.sync()?;
    stages.done(&format!("device, batch of {name}"));
    let mut training = Training {
        model: Bert::new(size, device),
        optimizer: AdamWConfig::new().init(),
        batch,
        device,
    };
    device.sync()?;
    stages.done("model");
    for _ in 0..FIRST {
        (training, _) = training.step(Some(&stages))?;
    }
    let (warm, mut times, mut loss) = (Instant::now(), Vec::new(), 0.0);
    while times.len() < COUNT {
        let start = Instant::now();
        (training, loss) = training.step(None)?;
        let time = start.elapsed().as_secs_f64();
        if warm.elapsed() > WARM {
            times.push(time);
        }
    }
    stages.done(&format!("measured, loss {loss}"));
    times.sort_by(f64::total_cmp);
    let seconds = times[COUNT / 2];
    let tokens = (size.rows * size.length) as f64;
    let reserved = device.memory_pool_usage().map(|m| m.bytes_reserved);
    let mib = reserved.map_or(f64::NAN, |bytes| bytes as f64 / MIB);
    println!(
        "training {name}\t{:.2} ms\t{:.0}/s\t{mib:.0} MiB",
        seconds * 1e3,
        tokens / seconds
    );
    Ok(())
}
