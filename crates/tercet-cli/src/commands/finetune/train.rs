//! The training loop: batches, progress, held-out losses, checkpoints.

use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tercet::Tensor;
use tercet::train::StepReport;

use super::FinetuneArgs;
use super::prepare::{TrainingRun, check_settings};
use crate::error::CliError;
use crate::interrupt::interrupted;
use crate::{output, progress};

/// Result of the training loop.
pub(super) struct TrainingOutcome {
    pub(super) losses: LossHistory,
    /// Number of steps from the resumed checkpoint.
    pub(super) first_step: u64,
    pub(super) steps: u64,
    pub(super) tokens_per_second: f64,
    pub(super) seconds: f64,
    pub(super) interrupted: bool,
}

/// Losses with the step after which each was measured: means over tokens, as natural logarithms.
#[derive(Default, Serialize)]
pub(super) struct LossHistory {
    pub(super) train: Vec<(u64, f32)>,
    pub(super) held_out: Vec<(u64, f64)>,
    /// For encoders: the fraction of held-out texts with the correct class, or of pairs whose
    /// partner in the batch ranks first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) accuracy: Vec<(u64, f64)>,
}

impl LossHistory {
    pub(super) fn last(&self) -> Option<f32> {
        self.train.last().map(|(_, loss)| *loss)
    }

    /// Held-out perplexities before and after training, if there are no accuracies.
    pub(super) fn perplexities(&self) -> Option<[f64; 2]> {
        let of = |at: Option<&(u64, f64)>| at.map(|(_, loss)| loss.exp());
        let both = [self.held_out.first(), self.held_out.last()].map(of);
        let [Some(before), Some(after)] = both else {
            return None;
        };
        self.accuracy.is_empty().then_some([before, after])
    }

    /// Held-out accuracies before and after training.
    pub(super) fn accuracies(&self) -> Option<[f64; 2]> {
        let (before, after) = (self.accuracy.first()?, self.accuracy.last()?);
        Some([before.1, after.1])
    }
}

pub(super) fn train(
    args: &FinetuneArgs,
    prepared: &mut TrainingRun,
) -> Result<TrainingOutcome, CliError> {
    let path = args.checkpoint();
    if args.resume {
        let info = prepared.trainer.restore(&path)?;
        check_settings(&path, &info.user, &prepared.settings)?;
    }
    let first_step = prepared.trainer.steps();
    let bar = progress::bar("training", args.steps, "steps");
    bar.set_position(first_step);
    let mut run = FinetuneRun {
        args,
        prepared,
        bar,
        losses: LossHistory::default(),
        tokens: 0,
        began: Instant::now(),
    };
    run.evaluate_held_out()?;
    run.began = Instant::now();
    let done = run.steps();
    run.bar.finish_and_clear();
    if let Err(e) = done {
        // A failed step leaves the states of the previous step intact, so they are saved.
        if run.prepared.trainer.steps() > first_step {
            run.save()?;
            output::print_note(format_args!(
                "note: the previous steps are saved in {}",
                path.display()
            ));
        }
        return Err(e);
    }
    let seconds = run.began.elapsed().as_secs_f64();
    Ok(TrainingOutcome {
        first_step,
        steps: run.prepared.trainer.steps(),
        tokens_per_second: run.tokens as f64 / seconds.max(1e-9),
        seconds,
        interrupted: interrupted(),
        losses: run.losses,
    })
}

/// State of the training loop.
struct FinetuneRun<'a> {
    args: &'a FinetuneArgs,
    prepared: &'a mut TrainingRun,
    bar: ProgressBar,
    losses: LossHistory,
    tokens: usize,
    began: Instant,
}

impl FinetuneRun<'_> {
    fn steps(&mut self) -> Result<(), CliError> {
        let all = self.args.steps as u64;
        while self.prepared.trainer.steps() < all && !interrupted() {
            let report = self.step()?;
            self.losses.train.push((report.step, report.loss));
            self.bar.set_position(report.step);
            let rate = self.tokens as f64 / self.began.elapsed().as_secs_f64().max(1e-9);
            self.bar
                .set_message(format!("loss {:.4}, {rate:.0} tokens/s", report.loss));
            if report.step.is_multiple_of(self.args.eval_every()) || report.step == all {
                self.evaluate_held_out()?;
            }
            if report.step.is_multiple_of(self.args.save_every as u64) {
                self.save()?;
            }
        }
        self.save()
    }

    fn step(&mut self) -> Result<StepReport, CliError> {
        let TrainingRun { feed, trainer, .. } = &mut *self.prepared;
        let given = feed.step(trainer.steps())?;
        self.tokens += given.filled;
        let inputs = given.inputs.iter().map(|(name, t)| (*name, t));
        let inputs: Vec<(&str, &Tensor)> = inputs.collect();
        Ok(trainer.step(&inputs)?)
    }

    /// Measures the loss of the held-out sample with the current weights.
    fn evaluate_held_out(&mut self) -> Result<(), CliError> {
        let TrainingRun {
            held_out: held,
            trainer,
            ..
        } = &mut *self.prepared;
        let Some(held) = held else {
            return Ok(());
        };
        // The outputs of a training graph: loss, sum of losses, number of targets and, for
        // encoders, number of correct results.
        let mut sums = [0.0; 4];
        let mut is_told = false;
        for given in held.data.once(held.sample)? {
            let given = given?;
            let inputs = given.inputs.iter().map(|(name, t)| (*name, t));
            let inputs: Vec<(&str, &Tensor)> = inputs.collect();
            let results = trainer.evaluate(&mut held.evaluator, &inputs)?;
            is_told = results.len() == sums.len();
            for (sum, result) in sums.iter_mut().zip(&results) {
                *sum += result.to_f64s().first().copied().unwrap_or(f64::NAN);
            }
            if interrupted() {
                return Ok(());
            }
        }
        let [_, sum, count, correct] = sums;
        let (step, loss, share) = (trainer.steps(), sum / count, correct / count);
        self.losses.held_out.push((step, loss));
        let more = match is_told {
            true => format!("accuracy {share:.3}"),
            false => format!("perplexity {:.2}", loss.exp()),
        };
        if is_told {
            self.losses.accuracy.push((step, share));
        }
        self.bar.suspend(|| {
            output::print_note(format_args!("step {step}: held-out loss {loss:.4}, {more}"));
        });
        Ok(())
    }

    fn save(&self) -> Result<(), CliError> {
        let (trainer, settings) = (&self.prepared.trainer, &self.prepared.settings);
        Ok(trainer.save(self.args.checkpoint(), settings)?)
    }
}
