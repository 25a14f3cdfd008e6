//! What a training takes its batches from.

use tercet::Tensor;
use tercet_models::dataset::{Batches, Packed, TokenBatch};

use super::Args;
use crate::error::CliError;

/// The inputs of a run.
pub(super) struct Given {
    pub(super) inputs: Vec<(&'static str, Tensor)>,
    /// Tokens that are no padding.
    pub(super) filled: usize,
}

/// Data in batches.
pub(super) trait Feed {
    /// The inputs of a step, from 0 on; with several microbatches behind an axis of them.
    fn step(&mut self, step: u64) -> Result<Given, CliError>;

    /// Batches of all there is, once, for a graph of one microbatch.
    fn once(&self) -> Result<Once<'_>, CliError>;
}

pub(super) type Once<'a> = Box<dyn Iterator<Item = Result<Given, CliError>> + 'a>;

/// Rows of tokens, packed.
pub(super) struct Rows {
    packed: Packed,
    batches: Batches,
    batch: usize,
    microbatches: usize,
}

fn no_batch<E: Into<tercet_models::Error>>() -> impl FnOnce(E) -> CliError {
    CliError::model("cannot make a batch")
}

impl Rows {
    pub(super) fn new(args: &Args, packed: Packed) -> Result<Rows, CliError> {
        let batches = packed.batches(args.batch, args.seed);
        let no_data = CliError::model(format!("cannot train on {}", args.data.display()));
        Ok(Rows {
            batches: batches.map_err(no_data)?,
            packed,
            batch: args.batch,
            microbatches: args.microbatches,
        })
    }
}

impl Feed for Rows {
    fn step(&mut self, step: u64) -> Result<Given, CliError> {
        self.batches.seek(step * self.microbatches as u64);
        let mut parts = Vec::with_capacity(self.microbatches);
        for batch in self.batches.by_ref().take(self.microbatches) {
            parts.push(given(batch.map_err(no_batch())?));
        }
        match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => stacked(&parts),
        }
    }

    fn once(&self) -> Result<Once<'_>, CliError> {
        let batches = self.packed.once(self.batch).map_err(no_batch())?;
        Ok(Box::new(
            batches.map(|batch| batch.map(given).map_err(no_batch())),
        ))
    }
}

/// The inputs of a training graph.
fn given(batch: TokenBatch) -> Given {
    Given {
        inputs: vec![
            ("tokens", batch.tokens),
            ("positions", batch.positions),
            ("segments", batch.segments),
            ("labels", batch.labels),
        ],
        filled: batch.filled,
    }
}

/// Microbatches behind each other, along an axis of their own.
fn stacked(parts: &[Given]) -> Result<Given, CliError> {
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
    Ok(Given { inputs, filled })
}

pub(super) fn no_tensor(source: tercet::TensorError) -> CliError {
    CliError::Tensor {
        what: "cannot make a batch".to_string(),
        source,
    }
}
