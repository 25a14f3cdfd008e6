//! The loop of training: batches, progress, losses of the held-out part, checkpoints.

use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tercet::Tensor;
use tercet::train::StepReport;
use tercet_models::dataset::{Batches, TokenBatch};

use super::Args;
use super::prepare::{Prepared, check_settings};
use crate::error::CliError;
use crate::interrupt::interrupted;
use crate::{output, progress};

/// What a training did.
pub(super) struct Trained {
    pub(super) losses: Losses,
    /// The steps done before this run.
    pub(super) first_step: u64,
    pub(super) steps: u64,
    pub(super) tokens_per_second: f64,
    pub(super) seconds: f64,
    pub(super) interrupted: bool,
}

/// Losses by the step after which they were found: means over tokens in natural logarithms.
#[derive(Default, Serialize)]
pub(super) struct Losses {
    pub(super) train: Vec<(u64, f32)>,
    pub(super) held_out: Vec<(u64, f64)>,
}

impl Losses {
    pub(super) fn last(&self) -> Option<f32> {
        self.train.last().map(|(_, loss)| *loss)
    }

    pub(super) fn first_perplexity(&self) -> Option<f64> {
        self.held_out.first().map(|(_, loss)| loss.exp())
    }

    pub(super) fn last_perplexity(&self) -> Option<f64> {
        self.held_out.last().map(|(_, loss)| loss.exp())
    }
}

pub(super) fn train(args: &Args, prepared: &mut Prepared) -> Result<Trained, CliError> {
    let path = args.checkpoint();
    if args.resume {
        let info = prepared.trainer.restore(&path)?;
        check_settings(&path, &info.user, &prepared.settings)?;
    }
    let failed = || CliError::model(format!("cannot train on {}", args.data.display()));
    let mut batches = prepared
        .data
        .batches(args.batch, args.seed)
        .map_err(failed())?;
    let first_step = prepared.trainer.steps();
    batches.seek(first_step * args.microbatches as u64);
    let bar = progress::bar("training", args.steps, "steps");
    bar.set_position(first_step);
    let mut run = Run {
        args,
        prepared,
        bar,
        losses: Losses::default(),
        tokens: 0,
        began: Instant::now(),
    };
    run.look()?;
    run.began = Instant::now();
    let done = run.steps(&mut batches);
    run.bar.finish_and_clear();
    if let Err(e) = done {
        // The states are as they were before the step that failed: worth keeping.
        if run.prepared.trainer.steps() > first_step {
            run.save()?;
            output::note(format_args!(
                "note: the steps before it are kept in {}",
                path.display()
            ));
        }
        return Err(e);
    }
    let seconds = run.began.elapsed().as_secs_f64();
    Ok(Trained {
        first_step,
        steps: run.prepared.trainer.steps(),
        tokens_per_second: run.tokens as f64 / seconds.max(1e-9),
        seconds,
        interrupted: interrupted(),
        losses: run.losses,
    })
}

/// A training under way.
struct Run<'a> {
    args: &'a Args,
    prepared: &'a mut Prepared,
    bar: ProgressBar,
    losses: Losses,
    tokens: usize,
    began: Instant,
}

impl Run<'_> {
    fn steps(&mut self, batches: &mut Batches) -> Result<(), CliError> {
        let all = self.args.steps as u64;
        while self.prepared.trainer.steps() < all && !interrupted() {
            let report = self.step(batches)?;
            self.losses.train.push((report.step, report.loss));
            self.bar.set_position(report.step);
            let rate = self.tokens as f64 / self.began.elapsed().as_secs_f64().max(1e-9);
            self.bar
                .set_message(format!("loss {:.4}, {rate:.0} tokens/s", report.loss));
            if report.step.is_multiple_of(self.args.eval_every()) || report.step == all {
                self.look()?;
            }
            if report.step.is_multiple_of(self.args.save_every as u64) {
                self.save()?;
            }
        }
        self.save()
    }

    fn step(&mut self, batches: &mut Batches) -> Result<StepReport, CliError> {
        let failed = || CliError::model("cannot make a batch");
        let mut parts = Vec::with_capacity(self.args.microbatches);
        for _ in 0..self.args.microbatches {
            if let Some(batch) = batches.next() {
                let batch = batch.map_err(failed())?;
                self.tokens += batch.filled;
                parts.push(inputs(batch));
            }
        }
        let inputs = match parts.len() {
            1 => parts.remove(0),
            _ => stacked(&parts)?,
        };
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, t)| (*name, t)).collect();
        Ok(self.prepared.trainer.step(&inputs)?)
    }

    /// The loss of the held-out part with the weights as they are.
    fn look(&mut self) -> Result<(), CliError> {
        let Some((held, evaluator)) = &mut self.prepared.held else {
            return Ok(());
        };
        let failed = || CliError::model("cannot make a batch");
        let (mut sum, mut count) = (0.0, 0.0);
        for batch in held.once(self.args.batch).map_err(failed())? {
            let batch = inputs(batch.map_err(failed())?);
            let given: Vec<(&str, &Tensor)> = batch.iter().map(|(name, t)| (*name, t)).collect();
            let results = self.prepared.trainer.evaluate(evaluator, &given)?;
            // The outputs of a training graph are the loss, its sum and its count.
            let number = |at: usize| {
                let values = results.get(at).map(Tensor::to_f64s);
                values.and_then(|v| v.first().copied()).unwrap_or(f64::NAN)
            };
            sum += number(1);
            count += number(2);
            if interrupted() {
                return Ok(());
            }
        }
        let (step, loss) = (self.prepared.trainer.steps(), sum / count);
        self.losses.held_out.push((step, loss));
        self.bar.suspend(|| {
            output::note(format_args!(
                "step {step}: held-out loss {loss:.4}, perplexity {:.2}",
                loss.exp()
            ));
        });
        Ok(())
    }

    fn save(&self) -> Result<(), CliError> {
        let (trainer, settings) = (&self.prepared.trainer, &self.prepared.settings);
        Ok(trainer.save(self.args.checkpoint(), settings)?)
    }
}

/// The inputs of a training graph.
fn inputs(batch: TokenBatch) -> Vec<(&'static str, Tensor)> {
    vec![
        ("tokens", batch.tokens),
        ("positions", batch.positions),
        ("segments", batch.segments),
        ("labels", batch.labels),
    ]
}

/// Microbatches behind each other, along an axis of their own.
fn stacked(parts: &[Vec<(&'static str, Tensor)>]) -> Result<Vec<(&'static str, Tensor)>, CliError> {
    let Some(first) = parts.first() else {
        return Ok(Vec::new());
    };
    let mut all = Vec::with_capacity(first.len());
    for (at, (name, tensor)) in first.iter().enumerate() {
        let values = parts.iter().flat_map(|part| part[at].1.to_i64s());
        let values: Vec<i32> = values.map(|v| v as i32).collect();
        let shape = [&[parts.len()], tensor.shape()].concat();
        let stacked = Tensor::from_slice(&shape, &values).map_err(|source| CliError::Tensor {
            what: "cannot make a batch".to_string(),
            source,
        })?;
        all.push((*name, stacked));
    }
    Ok(all)
}
