//! States of a training step.

use tercet_ir::Type;

/// Purpose of a state.
///
/// ```
/// # use tercet::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// use tercet::train::{Sgd, StateRole, StepOptions, TrainStep};
/// let options = StepOptions { ema_decay: Some(0.99), ..StepOptions::default() };
/// let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options)?;
/// let role = |name: &str| step.states().iter().find(|s| s.name == name).map(|s| s.role.clone());
/// assert_eq!(role("w"), Some(StateRole::Trainable));
/// assert_eq!(role("ema.w"), Some(StateRole::Average { trainable: "w".to_string() }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// # use tercet::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// use tercet::train::{AdamW, InitialState, StepOptions, TrainStep};
/// let step = TrainStep::build(&g, loss, &["w".into()], &AdamW::default(), &StepOptions::default())?;
/// for state in step.states() {
///     let is_weight = state.name == "w";
///     let initial = if is_weight { InitialState::Provided } else { InitialState::Zeros };
///     assert_eq!(state.initial, initial, "{}", state.name);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// # use tercet::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// use tercet::train::{AdamW, StateInfo, StateRole, StepOptions, TrainStep};
/// let step = TrainStep::build(&g, loss, &["w".into()], &AdamW::default(), &StepOptions::default())?;
/// let is_moment = |s: &&StateInfo| s.role == StateRole::Optimizer && s.ty.rank() == 1;
/// let moments = step.states().iter().filter(is_moment).map(|s| s.name.as_str());
/// assert_eq!(moments.collect::<Vec<_>>(), ["adamw.m.w", "adamw.v.w"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
