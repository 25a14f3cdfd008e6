//! Which value first left the finite range in a step that was not finite.

use std::fmt;

use tercet_ir::random::Random;
use tercet_ir::{
    CompileOptions, NonFinite, Op, RunError, Signature, Tensor, TensorError, TensorType,
};

use super::step::LOSS;
use super::trainer::Trainer;

/// A step whose loss or gradients are not finite. States are as they were before it.
#[derive(Clone, Debug, PartialEq)]
pub struct NotFinite {
    /// The step, from 1.
    pub step: u64,
    /// Its loss.
    pub loss: f32,
    /// The norm of its gradients.
    pub gradient_norm: f32,
    /// The loss scale, if there is one. Gradients are an error at its least only.
    pub loss_scale: Option<f32>,
    /// The microbatch, from 0, that was looked into.
    pub microbatch: usize,
    /// The first value that is not finite although its operands are, by the numbers of the graph that the step was built
    /// of; nodes behind its own are those of the gradients. Not there if the microbatches, run again by themselves, are
    /// finite (their sum is not), or could not be run.
    pub first: Option<Box<NonFinite>>,
}

impl std::error::Error for NotFinite {}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.step;
        match self.loss.is_finite() {
            false => write!(f, "the loss of step {step} is {}", self.loss)?,
            true => {
                let norm = self.gradient_norm;
                write!(
                    f,
                    "the gradient norm of step {step} is {norm}, its loss {}",
                    self.loss
                )?;
            }
        }
        if let Some(scale) = self.loss_scale {
            write!(f, ", at a loss scale of {scale}")?;
        }
        match &self.first {
            Some(first) => write!(f, "; in microbatch {}, {first}", self.microbatch),
            None => f.write_str("; lower the learning rate or clip gradients"),
        }
    }
}

/// A part of the first axis of a tensor.
fn part(tensor: &Tensor, at: usize) -> Result<Tensor, TensorError> {
    let ty = TensorType::new(tensor.dtype(), tensor.shape().get(1..).unwrap_or(&[]));
    let bytes = ty.size_bytes();
    let found = tensor.bytes().get(at * bytes..(at + 1) * bytes);
    Tensor::from_bytes(ty, found.unwrap_or(&[]))
}

impl Trainer {
    /// Runs the microbatches of a step again, one by one, with a look at every value: the microbatch and the first value
    /// that is not finite. Random numbers are those of the step in its first microbatch only.
    pub(super) fn diagnose(
        &self,
        inputs: &[(&str, &Tensor)],
        random: Random,
    ) -> (usize, Option<Box<NonFinite>>) {
        let graph = self.step_graph().single();
        let options = CompileOptions {
            bounds: self.compile_options().bounds.clone(),
            ..CompileOptions::new()
        };
        let count = self.step_graph().microbatches();
        let compiled = self.device().with_finite_check().compile(graph, &options);
        let Ok(mut exe) = compiled else {
            return (0, None);
        };
        for port in Signature::of(graph).states {
            let state = self.executable().read_state(&port.name);
            let written = state.and_then(|state| exe.write_state(&port.name, &state));
            if written.is_err() {
                return (0, None);
            }
        }
        for (name, tensor) in self.params() {
            let is_param = graph.leaf(name).map(|id| &graph.node(id).op);
            if let Some(Op::Param(_)) = is_param
                && exe.set_param(name, tensor.clone()).is_err()
            {
                return (0, None);
            }
        }
        for microbatch in 0..count {
            let parts = inputs.iter().map(|(name, tensor)| {
                let part = match count {
                    1 => Ok((*tensor).clone()),
                    _ => part(tensor, microbatch),
                };
                part.map(|part| (*name, part))
            });
            let Ok(parts) = parts.collect::<Result<Vec<_>, _>>() else {
                return (microbatch, None);
            };
            let given: Vec<(&str, &Tensor)> = parts.iter().map(|(n, t)| (*n, t)).collect();
            exe.set_random(random);
            match exe.run_outputs(&given, &[LOSS]) {
                Ok(_) => {}
                Err(RunError::NonFinite(first)) => return (microbatch, Some(first)),
                Err(_) => return (microbatch, None),
            }
        }
        (0, None)
    }
}
