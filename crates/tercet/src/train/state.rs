//! States of a training step.

use tercet_ir::Type;

/// Purpose of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateRole {
    /// A trained weight, updated by the optimizer.
    Trainable,
    /// A state of the model that is not trained: frozen weights, running statistics.
    Model,
    /// A state of the optimizer: moments, a step counter.
    Optimizer,
    /// The moving average of a trainable.
    Average {
        /// Name of the trainable.
        trainable: String,
    },
    /// A state of the dynamic loss scale.
    LossScale,
}

/// Value of a state before the first step.
#[derive(Clone, Debug, PartialEq)]
pub enum InitialState {
    /// Set by the caller, which is required for trainables.
    Provided,
    /// Zeros.
    Zeros,
    /// One number in all elements.
    Number(f64),
    /// The initial value of this trainable.
    CopyOf(String),
}

/// A state of a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct StateInfo {
    /// Name of the state.
    pub name: String,
    /// Type of the state, with known sizes.
    pub ty: Type,
    /// Purpose of the state.
    pub role: StateRole,
    /// Value before the first step.
    pub initial: InitialState,
}
