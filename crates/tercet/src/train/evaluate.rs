//! Evaluation of another graph with the weights of a trainer.

use std::sync::Arc;

use tercet_ir::{CompileOptions, Executable, Graph, Signature, Tensor};

use super::error::TrainError;
use super::state::StateRole;
use super::trainer::Trainer;

/// Weights for evaluating a graph.
///
/// ```
/// # use tercet::train::{LearningRateSchedule, Sgd, StepOptions, TrainStep, Trainer};
/// # use tercet::{CompileOptions, DType, Device, Graph, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// # g.output("squares", loss)?;
/// # let options = StepOptions::default();
/// # let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options)?;
/// # let schedule = LearningRateSchedule::constant(0.5);
/// # let trainer = Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new())?;
/// use tercet::train::{EvalWeights, TrainError};
/// // The step was built without `StepOptions::ema_decay`.
/// let options = CompileOptions::new();
/// assert!(trainer.evaluator(&g, EvalWeights::Current, &options).is_ok());
/// let error = trainer.evaluator(&g, EvalWeights::Average, &options).unwrap_err();
/// assert!(matches!(error, TrainError::NoAverage));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalWeights {
    /// The current weights.
    Current,
    /// The moving average of the weights:
    /// [`StepOptions::ema_decay`](super::StepOptions::ema_decay).
    Average,
}

/// A graph that runs with a trainer's weights, such as the loss without dropout:
/// [`Trainer::evaluator`].
///
/// ```
/// # use tercet::train::{LearningRateSchedule, Sgd, StepOptions, TrainStep, Trainer};
/// # use tercet::{CompileOptions, DType, Device, Graph, Tensor, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// # let options = StepOptions::default();
/// # let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options)?;
/// # let schedule = LearningRateSchedule::constant(0.5);
/// # let mut trainer = Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new())?;
/// use tercet::train::EvalWeights;
/// trainer.set_state("w", &Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
/// let mut g = Graph::new();
/// let w = g.state("w", Type::new(DType::F32, [2]))?;
/// let twice = g.plus(w, w)?;
/// g.output("twice", twice)?;
/// let mut evaluator = trainer.evaluator(&g, EvalWeights::Current, &CompileOptions::new())?;
/// let outputs = trainer.evaluate(&mut evaluator, &[])?;
/// assert_eq!(outputs[0].as_slice::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Evaluator {
    exe: Box<dyn Executable>,
    /// States of this graph, with the trainer's states that they are copied from.
    shared: Vec<(String, String)>,
    /// Identity and version of the trainer state that was copied last.
    copied: Option<(Arc<()>, u64)>,
}

impl Evaluator {
    /// The executable, for reading outputs and setting parameters that the trainer does not have.
    pub fn executable_mut(&mut self) -> &mut dyn Executable {
        &mut *self.exe
    }
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("Evaluator");
        s.field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Trainer {
    /// Compiles another graph for the trainer's device. States with the same names are copied from
    /// the trainer when they have changed. Parameters that the trainer has are set. Other states of
    /// the graph are separate.
    ///
    /// # Errors
    /// - [`TrainError::NothingShared`] if the graph has no trained state.
    /// - [`TrainError::SharedParam`] if a trained weight is a parameter of the graph.
    /// - [`TrainError::SharedType`] if the type of a shared state differs.
    /// - [`TrainError::NoAverage`] if the step has no moving averages.
    /// - [`TrainError::Compile`] if the device cannot compile the graph.
    pub fn evaluator(
        &self,
        graph: &Graph,
        weights: EvalWeights,
        options: &CompileOptions,
    ) -> Result<Evaluator, TrainError> {
        let step = self.step_graph();
        let trained = |name: &str| step.trainables().iter().any(|t| t.name == name);
        let own = Signature::of(graph);
        if let Some(param) = own.params.iter().find(|p| trained(&p.name)) {
            let name = param.name.clone();
            return Err(TrainError::SharedParam { name });
        }
        let mut shared = Vec::new();
        for port in &own.states {
            let Some(state) = step.states().iter().find(|s| s.name == port.name) else {
                continue;
            };
            if state.ty != port.ty {
                return Err(TrainError::SharedType {
                    name: port.name.clone(),
                    expected: state.ty.clone(),
                    found: port.ty.clone(),
                });
            }
            let from = match weights {
                EvalWeights::Average if trained(&port.name) => self.average_of(&port.name)?,
                EvalWeights::Average | EvalWeights::Current => port.name.clone(),
            };
            shared.push((port.name.clone(), from));
        }
        if !shared.iter().any(|(name, _)| trained(name)) {
            let names = step.trainables().iter().map(|t| t.name.as_str());
            let known = names.collect::<Vec<_>>().join(", ");
            return Err(TrainError::NothingShared { known });
        }
        let mut exe = self.device().compile(graph, options)?;
        for (name, tensor) in self.params() {
            if own.params.iter().any(|p| p.name == *name) {
                exe.set_param(name, tensor.clone())?;
            }
        }
        Ok(Evaluator {
            exe,
            shared,
            copied: None,
        })
    }

    fn average_of(&self, name: &str) -> Result<String, TrainError> {
        let is = |role: &StateRole| matches!(role, StateRole::Average { trainable } if trainable == name);
        let found = self.step_graph().states().iter().find(|s| is(&s.role));
        let found = found.ok_or(TrainError::NoAverage)?;
        Ok(found.name.clone())
    }

    /// Runs an evaluator with the current weights. Returns the results in the order of the graph's
    /// outputs.
    ///
    /// # Errors
    /// - [`TrainError::Run`], which names the input, symbol or node.
    /// - [`TrainError::InconsistentStates`] after a partial [`Trainer::restore`].
    pub fn evaluate(
        &self,
        evaluator: &mut Evaluator,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Vec<Tensor>, TrainError> {
        if self.has_mixed_states {
            return Err(TrainError::InconsistentStates);
        }
        let current = evaluator
            .copied
            .as_ref()
            .is_some_and(|(identity, version)| {
                Arc::ptr_eq(identity, &self.identity) && *version == self.version
            });
        if !current {
            evaluator.copied = None;
            for (own, from) in &evaluator.shared {
                let state = self.executable().read_state(from)?;
                evaluator.exe.write_state(own, &state)?;
            }
            evaluator.copied = Some((Arc::clone(&self.identity), self.version));
        }
        Ok(evaluator.exe.run(inputs)?)
    }
}
