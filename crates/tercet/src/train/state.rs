//! The states of a training step.

use tercet_ir::Type;

/// What a state is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateRole {
    /// Trained: the optimizer changes it.
    Trainable,
    /// The model's own, not trained: frozen weights, running statistics.
    Model,
    /// The optimizer's: moments, a counter of steps.
    Optimizer,
    /// The moving average of this trainable.
    Average {
        /// The trainable's name.
        of: String,
    },
    /// Of the dynamic loss scale.
    LossScale,
}

/// What a state holds before the first step.
#[derive(Clone, Debug, PartialEq)]
pub enum Initial {
    /// What it is set to; a trainable must be.
    Given,
    /// Zeros.
    Zeros,
    /// One number everywhere.
    Number(f64),
    /// What this trainable is set to.
    CopyOf(String),
}

/// A state of a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct StateInfo {
    /// Its name.
    pub name: String,
    /// Its type; sizes are known.
    pub ty: Type,
    /// What it is for.
    pub role: StateRole,
    /// What it holds before the first step.
    pub initial: Initial,
}
