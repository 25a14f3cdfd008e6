//! Batches of training data.

use tercet::Tensor;
use tercet::train::EvaluationSample;
use tercet_models::dataset::{PackedBatches, PackedCorpus, TokenBatch};

use super::FinetuneArgs;
use crate::error::CliError;

/// Inputs of one training run.
pub(super) struct TrainingBatch {
    pub(super) inputs: Vec<(&'static str, Tensor)>,
    /// Number of tokens without padding.
    pub(super) filled: usize,
}

/// Source of training batches.
pub(super) trait DataLoader {
    /// Inputs of a step, counted from 0. Several microbatches are stacked along a leading axis.
    fn step(&mut self, step: u64) -> Result<TrainingBatch, CliError>;

    /// The number of batches of all data, for a graph with one microbatch.
    fn batches(&self) -> usize;

    /// The batches of the sample once, for a graph with one microbatch.
    fn once(&self, sample: EvaluationSample) -> Result<EpochIter<'_>, CliError>;
}

pub(super) type EpochIter<'a> = Box<dyn Iterator<Item = Result<TrainingBatch, CliError>> + 'a>;

/// Packed rows of tokens.
pub(super) struct PackedTokenLoader {
    packed: PackedCorpus,
    batches: PackedBatches,
    batch: usize,
    microbatches: usize,
}

fn no_batch<E: Into<tercet_models::Error>>() -> impl FnOnce(E) -> CliError {
    CliError::model("cannot make a batch")
}

impl PackedTokenLoader {
    pub(super) fn new(
        args: &FinetuneArgs,
        packed: PackedCorpus,
    ) -> Result<PackedTokenLoader, CliError> {
        let batches = packed.batches(args.batch, args.seed);
        let no_data = CliError::model(format!("cannot train on {}", args.data.display()));
        Ok(PackedTokenLoader {
            batches: batches.map_err(no_data)?,
            packed,
            batch: args.batch,
            microbatches: args.microbatches,
        })
    }
}

impl DataLoader for PackedTokenLoader {
    fn step(&mut self, step: u64) -> Result<TrainingBatch, CliError> {
        self.batches.seek(step * self.microbatches as u64);
        let mut parts = Vec::with_capacity(self.microbatches);
        for batch in self.batches.by_ref().take(self.microbatches) {
            parts.push(training_batch(batch.map_err(no_batch())?));
        }
        match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => stacked(&parts),
        }
    }

    fn batches(&self) -> usize {
        self.packed.rows().len().div_ceil(self.batch.max(1))
    }

    fn once(&self, sample: EvaluationSample) -> Result<EpochIter<'_>, CliError> {
        let batches = self.packed.once(self.batch).map_err(no_batch())?;
        let batches = batches
            .enumerate()
            .filter(move |(at, _)| sample.contains(*at));
        Ok(Box::new(batches.map(|(_, batch)| {
            batch.map(training_batch).map_err(no_batch())
        })))
    }
}

/// Converts a batch to the inputs of a training graph.
fn training_batch(batch: TokenBatch) -> TrainingBatch {
    TrainingBatch {
        inputs: vec![
            ("tokens", batch.tokens),
            ("positions", batch.positions),
            ("segments", batch.segments),
            ("labels", batch.labels),
        ],
        filled: batch.filled,
    }
}

/// Stacks microbatches along a new leading axis.
fn stacked(parts: &[TrainingBatch]) -> Result<TrainingBatch, CliError> {
    let filled = parts.iter().map(|part| part.filled).sum();
    let first = parts.first().map_or(&[][..], |part| &part.inputs);
    let mut inputs = Vec::with_capacity(first.len());
    for (at, (name, tensor)) in first.iter().enumerate() {
        let values = parts.iter().flat_map(|part| part.inputs[at].1.to_i64s());
        let values: Vec<i32> = values.map(|v| v as i32).collect();
        let shape = [&[parts.len()], tensor.shape()].concat();
        let stacked = Tensor::from_slice(&shape, &values);
        inputs.push((*name, stacked.map_err(no_tensor)?));
    }
    Ok(TrainingBatch { inputs, filled })
}

pub(super) fn no_tensor(source: tercet::TensorError) -> CliError {
    CliError::Tensor {
        what: "cannot make a batch".to_string(),
        source,
    }
}
