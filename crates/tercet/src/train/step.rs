//! A training step as one graph.

use std::collections::HashSet;

use tercet_ir::{DType, Graph, NodeId, Op, OpKind, Signature, Type, Value};

use super::error::StepError;
use super::optim::{Optimizer, expect, expect_decay};
use super::params::{ParamGroup, Trainable};
use super::scale::LossScale;
use super::single::MicrobatchGraph;
use super::state::{InitialState, StateInfo, StateRole};

/// Name of the learning rate input, `F32 []`.
pub const LEARNING_RATE: &str = "learning_rate";
/// Name of the loss output, `F32 []`. With several microbatches, the loss is their weighted mean.
pub const LOSS: &str = "loss";
/// Name of the gradient norm output, `F32 []`: the norm of all gradients together, before clipping.
pub const GRADIENT_NORM: &str = "gradient_norm";
/// Name of the output `Bool []` that is true if the step was skipped because its loss or gradients
/// are not finite.
pub const SKIPPED: &str = "skipped";
/// Name of the output with the loss scale of the step, `F32 []`; only with
/// [`StepOptions::loss_scale`].
pub const LOSS_SCALE: &str = "loss_scale";
/// Maximum microbatches per step.
pub const MAX_MICROBATCHES: usize = 1 << 16;

/// Options of a training step.
///
/// ```
/// use tercet::train::StepOptions;
/// let options = StepOptions { clip_norm: Some(1.0), microbatches: 4, ..StepOptions::default() };
/// assert_eq!((options.microbatches, options.ema_decay), (4, None));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct StepOptions {
    /// Scales gradients down so that their common norm is at most this (Pascanu and others, "On the
    /// difficulty of training recurrent neural networks", 2013).
    pub clip_norm: Option<f64>,
    /// Number of microbatches per step. If it is above 1, every input gets a leading axis of this
    /// size. Gradients are accumulated in F32; loss and gradients are means over the microbatches.
    pub microbatches: usize,
    /// Scalar weight of a microbatch, such as a target count if the loss is a mean over targets.
    /// `None` means equal weights. The weight is a value of the graph; no gradient flows through
    /// it.
    pub loss_weight: Option<Value>,
    /// Dynamic loss scale, for gradients in F16.
    pub loss_scale: Option<LossScale>,
    /// Decay of an exponential moving average `a = decay a + (1 - decay) w` of every trainable. The
    /// averages are states `ema.<name>`, which start as the trainables.
    pub ema_decay: Option<f64>,
    /// The backward pass recomputes elementwise values of the forward pass, such as activations,
    /// from values that are stored anyway ([`Graph::gradients_recomputing`]). This saves memory and
    /// costs some time. The results are identical.
    pub recompute_activations: bool,
    /// Outputs of the graph that the step also returns. With several microbatches, these outputs
    /// get a leading axis of microbatches.
    pub outputs: Vec<String>,
}

impl Default for StepOptions {
    /// One microbatch, all other options off.
    fn default() -> StepOptions {
        StepOptions {
            clip_norm: None,
            microbatches: 1,
            loss_weight: None,
            loss_scale: None,
            ema_decay: None,
            recompute_activations: false,
            outputs: Vec::new(),
        }
    }
}

impl StepOptions {
    fn check(&self) -> Result<(), StepError> {
        if !(1..=MAX_MICROBATCHES).contains(&self.microbatches) {
            let count = self.microbatches;
            return Err(StepError::Microbatches { count });
        }
        if let Some(norm) = self.clip_norm {
            expect("the clip norm", norm, "more than 0", |x| x > 0.0)?;
        }
        if let Some(decay) = self.ema_decay {
            expect_decay("the decay of the moving average", decay)?;
        }
        self.loss_scale.as_ref().map_or(Ok(()), LossScale::check)
    }
}

/// A trainable of a step.
///
/// ```
/// # use tercet::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// use tercet::train::{ParamGroup, Sgd, StepOptions, TrainStep};
/// let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &StepOptions::default())?;
/// let info = &step.trainables()[0];
/// assert_eq!((info.name.as_str(), &info.group), ("w", &ParamGroup::no_decay()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TrainableInfo {
    /// Name of the trainable and of its state.
    pub name: String,
    /// Type of the trainable, `F32`.
    pub ty: Type,
    /// Settings of the trainable.
    pub group: ParamGroup,
}

/// A training step as one graph: loss, gradients, their norm and clipping, and the optimizer, which
/// assigns the states. One run is one step. A step with a non-finite loss or gradient changes no
/// state except the loss scale.
///
/// ```
/// use tercet::train::{LOSS, Sgd, StepOptions, TrainStep};
/// use tercet::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let w = g.state("w", Type::new(DType::F32, [2]))?;
/// let square = g.mul(w, w)?;
/// let loss = g.reduce_sum(square, &[0], false)?;
/// let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &StepOptions::default())?;
/// assert!(step.graph().outputs().iter().any(|output| output.name == LOSS));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrainStep {
    graph: Graph,
    trainables: Vec<TrainableInfo>,
    states: Vec<StateInfo>,
    /// Loss and gradients of one microbatch, with the node numbers of the original graph.
    single: Graph,
    options: StepOptions,
}

impl TrainStep {
    /// Builds a step that minimizes `loss`, a float scalar of the graph. `trainables` are `F32`
    /// states of the graph. To compute in F16 or BF16, the graph casts the weights at their uses.
    ///
    /// The step graph has the inputs of the graph (see [`StepOptions::microbatches`]) and
    /// [`LEARNING_RATE`]. The step graph has the parameters and states of the graph and the states
    /// of the optimizer. The outputs of the step graph are [`LOSS`], [`GRADIENT_NORM`],
    /// [`SKIPPED`], [`LOSS_SCALE`] if there is a loss scale, and those of [`StepOptions::outputs`].
    /// Assignments of the graph remain, and a skipped step skips them too.
    ///
    /// # Errors
    /// [`StepError`] in these cases:
    ///
    /// - The loss is not a float scalar or cannot be differentiated.
    /// - A trainable is not an `F32` state of the graph, does not affect the loss or occurs twice.
    /// - A hyperparameter is out of range.
    pub fn build(
        graph: &Graph,
        loss: Value,
        trainables: &[Trainable],
        optimizer: &dyn Optimizer,
        options: &StepOptions,
    ) -> Result<TrainStep, StepError> {
        options.check()?;
        optimizer.check()?;
        let ty = graph.get_type(loss);
        let ty = ty.ok_or(StepError::NotOfGraph { what: "loss" })?;
        if ty.rank() != 0 || !ty.dtype.is_float() {
            return Err(StepError::Loss { ty: ty.clone() });
        }
        let found = trained(graph, trainables)?;
        let kept = retained_outputs(graph, options)?;
        let single = MicrobatchGraph::new(graph, loss, &found, options)?;
        let mut all = single.all(graph, &found, &kept, options)?;
        let mut states = own_states(graph, &found);
        states.extend(options.loss_scale.as_ref().map(LossScale::info));
        states.extend(all.finish(&found, optimizer, options)?);
        Ok(TrainStep {
            graph: all.graph,
            trainables: found.into_iter().map(|(_, info)| info).collect(),
            states,
            single: single.graph,
            options: options.clone(),
        })
    }

    /// The step graph. The step graph can be compiled and run directly, without a
    /// [`Trainer`](super::Trainer).
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The trainables, in the order of [`TrainStep::build`].
    pub fn trainables(&self) -> &[TrainableInfo] {
        &self.trainables
    }

    /// All states of the step graph.
    pub fn states(&self) -> &[StateInfo] {
        &self.states
    }

    /// Number of microbatches. A number above 1 is the leading size of every input.
    pub fn microbatches(&self) -> usize {
        self.options.microbatches
    }

    /// Options of the step.
    pub fn options(&self) -> &StepOptions {
        &self.options
    }

    /// Loss and gradients of one microbatch, with the node numbers of the original graph.
    pub(super) fn single(&self) -> &Graph {
        &self.single
    }
}

/// The requested trainables with their states.
fn trained(graph: &Graph, given: &[Trainable]) -> Result<Vec<(Value, TrainableInfo)>, StepError> {
    if given.is_empty() {
        return Err(StepError::NoTrainables);
    }
    let assigned: HashSet<Value> = graph.assigns().iter().map(|a| a.state).collect();
    let mut seen = HashSet::new();
    let mut found = Vec::with_capacity(given.len());
    for Trainable { name, group } in given {
        let name = name.clone();
        if !seen.insert(name.clone()) {
            return Err(StepError::Duplicate { name });
        }
        let Some(node) = graph.leaf(&name) else {
            let known = Signature::of(graph).states;
            let known = known_names(known.iter().map(|port| port.name.as_str()));
            return Err(StepError::Unknown { name, known });
        };
        let value = Value { node, port: 0 };
        match graph.node(node).op.kind() {
            OpKind::State => {}
            OpKind::Param => {
                return Err(StepError::NotState {
                    name,
                    what: "a parameter",
                });
            }
            _ => {
                return Err(StepError::NotState {
                    name,
                    what: "an input",
                });
            }
        }
        let ty = graph.ty(value).clone();
        if ty.dtype != DType::F32 {
            return Err(StepError::MasterType { name, ty });
        }
        if assigned.contains(&value) {
            return Err(StepError::Assigned { name });
        }
        let group = match group {
            Some(group) => group.clone(),
            None => ParamGroup::default_of(&name, &ty),
        };
        let what = |what: &str| format!("the {what} of group `{}`", group.name);
        let numbers = [
            ("learning rate", group.learning_rate),
            ("weight decay", group.weight_decay.unwrap_or(0.0)),
        ];
        for (number, value) in numbers {
            expect(&what(number), value, "0 or more", |x| x >= 0.0)?;
        }
        found.push((value, TrainableInfo { name, ty, group }));
    }
    Ok(found)
}

fn known_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.is_empty() {
        true => "none".to_string(),
        false => names.join(", "),
    }
}

/// The requested outputs.
fn retained_outputs(
    graph: &Graph,
    options: &StepOptions,
) -> Result<Vec<(String, Value)>, StepError> {
    let own = [LOSS, GRADIENT_NORM, SKIPPED, LOSS_SCALE];
    let mut kept: Vec<(String, Value)> = Vec::new();
    for name in &options.outputs {
        let name = name.clone();
        if own.contains(&name.as_str()) {
            let what = "an output";
            return Err(StepError::NameTaken { what, name });
        }
        let Some(output) = graph.outputs().iter().find(|o| o.name == name) else {
            let known = known_names(graph.outputs().iter().map(|o| o.name.as_str()));
            return Err(StepError::UnknownOutput { name, known });
        };
        if !kept.iter().any(|(known, _)| *known == name) {
            kept.push((name, output.value));
        }
    }
    Ok(kept)
}

/// The states of the original graph.
fn own_states(source: &Graph, trainables: &[(Value, TrainableInfo)]) -> Vec<StateInfo> {
    let trained: HashSet<NodeId> = trainables.iter().map(|(v, _)| v.node).collect();
    let states = source.nodes().filter_map(|(id, node)| match &node.op {
        Op::State(state) => Some((id, state)),
        _ => None,
    });
    let info = states.map(|(id, state)| StateInfo {
        name: state.name.clone(),
        ty: state.ty.clone(),
        role: match trained.contains(&id) {
            true => StateRole::Trainable,
            false => StateRole::Model,
        },
        initial: match trained.contains(&id) {
            true => InitialState::Provided,
            false => InitialState::Zeros,
        },
    });
    info.collect()
}
