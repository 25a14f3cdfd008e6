//! Why a training step could not be built.

use tercet_ir::{CompileError, GradError, NodeId, OpError, RunError, TensorError, Type};

use super::checkpoint::CheckpointError;
use super::diagnose::NotFinite;

/// Why a training step could not be built: [`TrainStep::build`](super::TrainStep::build).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// What is to be minimized is not one float.
    #[error("the loss is {ty}; expected a float of rank 0, such as a mean over all axes")]
    Loss {
        /// Its type.
        ty: Type,
    },
    /// A value that was named is of another graph.
    #[error("the {what} is not a value of this graph")]
    NotOfGraph {
        /// `loss` or `loss weight`.
        what: &'static str,
    },
    /// The weight of a loss is not one number.
    #[error("the loss weight is {ty}; expected a number of rank 0, such as a count of targets")]
    LossWeight {
        /// Its type.
        ty: Type,
    },
    /// Nothing is to be trained.
    #[error("no trainable was named; name at least one state of the graph")]
    NoTrainables,
    /// A trainable was named twice.
    #[error("the trainable `{name}` is named twice")]
    Duplicate {
        /// Its name.
        name: String,
    },
    /// A trainable is no leaf of the graph.
    #[error("no state is named `{name}`; the graph has: {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The graph's states.
        known: String,
    },
    /// A trainable is another kind of leaf.
    #[error(
        "the trainable `{name}` is {what}; declare it with `Graph::state`, so that it can change"
    )]
    NotState {
        /// Its name.
        name: String,
        /// `an input` or `a parameter`.
        what: &'static str,
    },
    /// A trainable is not in F32.
    #[error(
        "the trainable `{name}` is {ty}; weights are kept in f32, cast them where they are used"
    )]
    MasterType {
        /// Its name.
        name: String,
        /// Its type.
        ty: Type,
    },
    /// The graph assigns a trainable itself.
    #[error("the graph assigns the trainable `{name}` itself; only the optimizer may")]
    Assigned {
        /// Its name.
        name: String,
    },
    /// A number of the optimizer or of the options is out of its range.
    #[error("{what} is {value}; expected {expected}")]
    Hyperparameter {
        /// What it is.
        what: String,
        /// The number given.
        value: f64,
        /// What is accepted.
        expected: &'static str,
    },
    /// A step of no microbatches, or of more than can be meant.
    #[error(
        "a step of {count} microbatches; expected 1 to {}",
        super::MOST_MICROBATCHES
    )]
    Microbatches {
        /// The number given.
        count: usize,
    },
    /// More is carried from microbatch to microbatch than a node has results.
    #[error(
        "{found} states and outputs would be carried from microbatch to microbatch, at most 253 can; \
         keep fewer outputs, or use 1 microbatch"
    )]
    Carried {
        /// How many.
        found: usize,
    },
    /// An operator that draws random numbers where those of microbatches cannot be told apart.
    #[error(
        "{node} ({op}) draws random numbers, which would be the same in every microbatch; \
         draw by `rng_uniform` or `rng_normal` outside of graphs inside nodes, or use 1 microbatch"
    )]
    Random {
        /// The node.
        node: NodeId,
        /// Its operator.
        op: &'static str,
    },
    /// A name of the step's own is one of the graph's.
    #[error("the graph has {what} named `{name}`, which the step needs for itself; rename it")]
    Taken {
        /// `an input, parameter or state` or `an output`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An output to keep is none of the graph's.
    #[error("no output is named `{name}`; the graph has: {known}")]
    UnknownOutput {
        /// The name given.
        name: String,
        /// The graph's outputs.
        known: String,
    },
    /// The optimizer did not assign a trainable.
    #[error(
        "the optimizer `{optimizer}` does not update `{name}`; a trainable needs an `Update::assign`"
    )]
    NotUpdated {
        /// The optimizer.
        optimizer: &'static str,
        /// The trainable.
        name: String,
    },
    /// The loss could not be differentiated.
    #[error("the loss cannot be differentiated")]
    Gradient(#[from] GradError),
    /// A node of the step was refused.
    #[error("a node of the step was refused")]
    Node(#[from] OpError),
}

/// A training run that failed. States are as before the step unless said.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The step could not be compiled.
    #[error("the graph cannot be compiled")]
    Compile(#[from] CompileError),
    /// A run failed, or a state or parameter was refused.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Trainables without a value: zeros would train badly or not at all.
    #[error("never set before the first step: {}; use `Trainer::set_state`", .names.join(", "))]
    NotSet {
        /// Their names.
        names: Vec<String>,
    },
    /// Loss or gradients are not finite.
    #[error("{0}")]
    NotFinite(Box<NotFinite>),
    /// A checkpoint could not be read or written.
    #[error("checkpoint {}", .path.display())]
    Checkpoint {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: CheckpointError,
    },
    /// A checkpoint was read in part only.
    #[error(
        "a checkpoint was read in part only, so states are of two runs; restore a whole one first"
    )]
    Torn,
    /// A graph to evaluate shares no trainable.
    #[error(
        "the graph to evaluate shares no state with the one that is trained, which has: {known}; \
         declare its weights with `Graph::state`, by the same names"
    )]
    NothingShared {
        /// The trainables.
        known: String,
    },
    /// A graph to evaluate has a trainable as a parameter.
    #[error(
        "`{name}` is trained, but a parameter of the graph to evaluate; declare it with `Graph::state`"
    )]
    SharedParam {
        /// Its name.
        name: String,
    },
    /// A state of the graph to evaluate has another type.
    #[error(
        "state `{name}` of the graph to evaluate is {found}; the one that is trained is {expected}"
    )]
    SharedType {
        /// Its name.
        name: String,
        /// The type in the graph that is trained.
        expected: Type,
        /// The type in the graph to evaluate.
        found: Type,
    },
    /// Averaged weights are asked for, but none are kept.
    #[error("no average of the weights is kept; set `StepOptions::ema_decay`")]
    NoAverage,
    /// The source of batches failed.
    #[error("the batch of step {step}")]
    Batch {
        /// The step, from 1.
        step: u64,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl From<NotFinite> for TrainError {
    fn from(e: NotFinite) -> TrainError {
        TrainError::NotFinite(Box::new(e))
    }
}
