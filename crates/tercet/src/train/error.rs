//! Errors of building training steps and of training.

use tercet_ir::{CompileError, GradError, NodeId, OpError, RunError, TensorError, Type};

use super::checkpoint::CheckpointError;
use super::diagnose::NonFiniteStep;

/// Errors of building a training step: [`TrainStep::build`](super::TrainStep::build).
///
/// ```
/// use tercet::train::{Sgd, StepError, StepOptions, TrainStep};
/// use tercet::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let w = g.state("w", Type::new(DType::F32, [2]))?;
/// let options = StepOptions::default();
/// let error = TrainStep::build(&g, w, &["w".into()], &Sgd::default(), &options).unwrap_err();
/// assert!(matches!(error, StepError::Loss { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// The loss is not a float scalar.
    #[error("the loss is {ty}; expected a float of rank 0, such as a mean over all axes")]
    Loss {
        /// Type of the loss.
        ty: Type,
    },
    /// A value belongs to another graph.
    #[error("the {what} is not a value of this graph")]
    NotOfGraph {
        /// `loss` or `loss weight`.
        what: &'static str,
    },
    /// The loss weight is not a scalar.
    #[error("the loss weight is {ty}; expected a scalar, such as a count of targets")]
    LossWeight {
        /// Type of the loss weight.
        ty: Type,
    },
    /// The list of trainables is empty.
    #[error("the list of trainables is empty; name at least one state of the graph")]
    NoTrainables,
    /// A trainable occurs twice.
    #[error("the trainable `{name}` occurs twice")]
    Duplicate {
        /// Name of the trainable.
        name: String,
    },
    /// The graph has no state with the name of a trainable.
    #[error("no state is named `{name}`; the graph has: {known}")]
    Unknown {
        /// The unknown name.
        name: String,
        /// Names of the graph's states.
        known: String,
    },
    /// A trainable is an input or a parameter instead of a state.
    #[error("the trainable `{name}` is {what}; declare it with `Graph::state`")]
    NotState {
        /// Name of the leaf.
        name: String,
        /// `an input` or `a parameter`.
        what: &'static str,
    },
    /// A trainable is not F32.
    #[error("the trainable `{name}` is {ty}; expected f32; cast weights at their uses instead")]
    MasterType {
        /// Name of the trainable.
        name: String,
        /// Type of the trainable.
        ty: Type,
    },
    /// The graph already assigns a trainable.
    #[error("the graph assigns the trainable `{name}`; only the optimizer may assign it")]
    Assigned {
        /// Name of the trainable.
        name: String,
    },
    /// A hyperparameter of the optimizer or of the options is out of range.
    #[error("{what} is {value}; expected {expected}")]
    Hyperparameter {
        /// Name of the hyperparameter.
        what: String,
        /// The invalid value.
        value: f64,
        /// Accepted values.
        expected: &'static str,
    },
    /// The number of microbatches is 0 or too large.
    #[error(
        "{count} microbatches per step; expected 1 to {}",
        super::MAX_MICROBATCHES
    )]
    Microbatches {
        /// Requested number of microbatches.
        count: usize,
    },
    /// Microbatches would carry more states and outputs than a node can have results.
    #[error(
        "microbatches would carry {found} states and outputs; at most 253 are supported; \
         request fewer outputs, or use 1 microbatch"
    )]
    Carried {
        /// Number of carried states and outputs.
        found: usize,
    },
    /// A node draws random numbers internally, so they would not differ between microbatches.
    #[error(
        "{node} ({op}) draws random numbers, which would repeat in every microbatch; \
         use `rng_uniform` or `rng_normal` outside of subgraphs, or use 1 microbatch"
    )]
    Random {
        /// Number of the node.
        node: NodeId,
        /// Operator name of the node.
        op: &'static str,
    },
    /// The graph already uses a name that the step needs.
    #[error("the graph has {what} named `{name}`, which the step needs; rename it")]
    NameTaken {
        /// `an input, parameter or state` or `an output`.
        what: &'static str,
        /// The name in use.
        name: String,
    },
    /// The graph has no output with a requested name.
    #[error("no output is named `{name}`; the graph has: {known}")]
    UnknownOutput {
        /// The unknown name.
        name: String,
        /// Names of the graph's outputs.
        known: String,
    },
    /// The optimizer did not assign a trainable.
    #[error(
        "the optimizer `{optimizer}` does not update `{name}`; it must call `Update::assign` for each trainable"
    )]
    NotUpdated {
        /// Name of the optimizer.
        optimizer: &'static str,
        /// Name of the trainable.
        name: String,
    },
    /// The loss cannot be differentiated.
    #[error("the loss cannot be differentiated")]
    Gradient(#[from] GradError),
    /// A node of the step is invalid.
    #[error("a node of the step is invalid")]
    Node(#[from] OpError),
}

/// Errors of a training run. States are unchanged by a failed step, unless documented otherwise.
///
/// ```
/// use tercet::train::{TrainError, checkpoint_info};
/// let error = checkpoint_info("missing.safetensors").unwrap_err();
/// assert_eq!(error.to_string(), "checkpoint missing.safetensors");
/// assert!(matches!(error, TrainError::Checkpoint { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The training step cannot be built.
    #[error(transparent)]
    Build(#[from] StepError),
    /// The device cannot compile the step.
    #[error("the graph cannot be compiled")]
    Compile(#[from] CompileError),
    /// A run failed, or a state or parameter has the wrong name or type.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A tensor could not be created.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Trainables without an initial value. Training from zeros would work badly or not at all, so
    /// this is an error.
    #[error("trainables without an initial value: {}; set them with `Trainer::set_state`", .names.join(", "))]
    NotSet {
        /// Names of these trainables.
        names: Vec<String>,
    },
    /// The loss or the gradients are not finite.
    #[error("{0}")]
    NotFinite(Box<NonFiniteStep>),
    /// A checkpoint could not be read or written.
    #[error("checkpoint {}", .path.display())]
    Checkpoint {
        /// Path of the checkpoint.
        path: std::path::PathBuf,
        /// The checkpoint error.
        #[source]
        source: CheckpointError,
    },
    /// Restoring a checkpoint failed midway, so states come from two runs.
    #[error(
        "restoring a checkpoint failed midway, so states come from two runs; restore a complete checkpoint first"
    )]
    InconsistentStates,
    /// A graph for evaluation shares no trainable with the training step.
    #[error(
        "the graph for evaluation shares no state with the training step, which has: {known}; \
         declare its weights with `Graph::state`, with the same names"
    )]
    NothingShared {
        /// Names of the trainables.
        known: String,
    },
    /// A graph for evaluation uses a trainable as a parameter.
    #[error(
        "`{name}` is trained, but it is a parameter of the graph for evaluation; declare it with `Graph::state`"
    )]
    SharedParam {
        /// Name of the trainable.
        name: String,
    },
    /// A state of the graph for evaluation has another type than in the training step.
    #[error(
        "state `{name}` of the graph for evaluation is {found}; expected {expected} as in the training step"
    )]
    SharedType {
        /// Name of the state.
        name: String,
        /// Type in the training step.
        expected: Type,
        /// Type in the graph for evaluation.
        found: Type,
    },
    /// An evaluator needs averaged weights, but the step has no moving average.
    #[error("the step has no moving average of the weights; set `StepOptions::ema_decay`")]
    NoAverage,
    /// The source of batches failed.
    #[error("cannot load the batch of step {step}")]
    Batch {
        /// Step number, from 1.
        step: u64,
        /// The error of the source.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl From<NonFiniteStep> for TrainError {
    fn from(e: NonFiniteStep) -> TrainError {
        TrainError::NotFinite(Box::new(e))
    }
}
