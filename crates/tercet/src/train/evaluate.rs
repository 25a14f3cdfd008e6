//! Another graph with the weights that are trained.

use std::sync::Arc;

use tercet_ir::{CompileOptions, Executable, Graph, Signature, Tensor};

use super::error::TrainError;
use super::state::StateRole;
use super::trainer::Trainer;

/// Which weights a graph is evaluated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Those that are trained.
    Current,
    /// Their moving average: [`StepOptions::ema_decay`](super::StepOptions::ema_decay).
    Average,
}

/// A graph, such as the loss without dropout, that is run with a trainer's weights: [`Trainer::evaluator`].
pub struct Evaluator {
    exe: Box<dyn Executable>,
    /// Its states and those of the trainer that they are copies of.
    shared: Vec<(String, String)>,
    /// The trainer's version that was copied.
    copied: Option<(Arc<()>, u64)>,
}

impl Evaluator {
    /// The executable, to read outputs and to set parameters that the trainer does not have.
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
    /// Compiles another graph for the trainer's device. Its states are those of the trainer by the same names, copied when
    /// they have changed; parameters that the trainer has are set. States that the trainer has not stay its own.
    ///
    /// # Errors
    /// [`TrainError::NothingShared`] for a graph without a state that is trained, [`TrainError::SharedParam`] for a
    /// parameter that is, [`TrainError::SharedType`], [`TrainError::NoAverage`], [`TrainError::Compile`].
    pub fn evaluator(
        &self,
        graph: &Graph,
        weights: Weights,
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
                Weights::Average if trained(&port.name) => self.average_of(&port.name)?,
                Weights::Average | Weights::Current => port.name.clone(),
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
        let is = |role: &StateRole| matches!(role, StateRole::Average { of } if of == name);
        let found = self.step_graph().states().iter().find(|s| is(&s.role));
        let found = found.ok_or(TrainError::NoAverage)?;
        Ok(found.name.clone())
    }

    /// Runs an evaluator on these inputs with the weights as they are now; the results in the order of its outputs.
    ///
    /// # Errors
    /// [`TrainError::Run`] that names the input, symbol or node; [`TrainError::Torn`].
    pub fn evaluate(
        &self,
        evaluator: &mut Evaluator,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Vec<Tensor>, TrainError> {
        if self.torn {
            return Err(TrainError::Torn);
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
