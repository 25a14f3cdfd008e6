//! Finds the first non-finite value of a step whose loss or gradients are not finite.

use std::fmt;

use tercet_ir::random::RngState;
use tercet_ir::{
    CompileOptions, NonFinite, Op, RunError, Signature, Tensor, TensorError, TensorType,
};

use super::step::LOSS;
use super::trainer::Trainer;

/// A step with a non-finite loss or gradient. States have their values from before the step.
///
/// ```
/// use tercet::train::{NonFiniteStep, TrainError};
/// let step = NonFiniteStep {
///     step: 3,
///     loss: f32::NAN,
///     gradient_norm: f32::NAN,
///     loss_scale: None,
///     microbatch: 0,
///     first: None,
/// };
/// assert!(TrainError::from(step).to_string().starts_with("the loss of step 3 is NaN"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NonFiniteStep {
    /// Step number, from 1.
    pub step: u64,
    /// Loss of the step.
    pub loss: f32,
    /// Gradient norm of the step.
    pub gradient_norm: f32,
    /// Loss scale, if there is one. Non-finite gradients are an error only at its minimum.
    pub loss_scale: Option<f32>,
    /// Number of the examined microbatch, from 0.
    pub microbatch: usize,
    /// The first non-finite value with finite operands. Node numbers are those of the original
    /// graph; higher numbers belong to the backward graph. `None` if each microbatch alone is
    /// finite (only their sum is not), or if a microbatch could not be run again.
    pub first: Option<Box<NonFinite>>,
}

impl std::error::Error for NonFiniteStep {}

impl fmt::Display for NonFiniteStep {
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

/// Part of a tensor along its first axis.
fn part(tensor: &Tensor, at: usize) -> Result<Tensor, TensorError> {
    let ty = TensorType::new(tensor.dtype(), tensor.shape().get(1..).unwrap_or(&[]));
    let bytes = ty.size_bytes();
    let found = tensor.bytes().get(at * bytes..(at + 1) * bytes);
    Tensor::from_bytes(ty, found.unwrap_or(&[]))
}

impl Trainer {
    /// Runs the microbatches of a step again, one by one, with checks on every value. Returns the
    /// microbatch and the first non-finite value. Only the first microbatch uses the same random
    /// numbers as the step.
    pub(super) fn diagnose(
        &self,
        inputs: &[(&str, &Tensor)],
        random: RngState,
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
