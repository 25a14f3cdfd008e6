//! A training step as one graph.

use std::collections::HashSet;

use tercet_ir::{DType, Graph, NodeId, Op, OpKind, Signature, Type, Value};

use super::error::StepError;
use super::optim::{Optimizer, expect, expect_decay};
use super::params::{ParamGroup, Trainable};
use super::scale::LossScale;
use super::single::Single;
use super::state::{Initial, StateInfo, StateRole};

/// The input that takes the learning rate, `F32 []`.
pub const LEARNING_RATE: &str = "learning_rate";
/// The output that holds the loss, `F32 []`: of several microbatches, their weighted mean.
pub const LOSS: &str = "loss";
/// The output that holds the norm of all gradients together, `F32 []`, before they are clipped.
pub const GRADIENT_NORM: &str = "gradient_norm";
/// The output that says whether no state changed, since loss or gradients were not finite, `Bool []`.
pub const SKIPPED: &str = "skipped";
/// The output that holds the loss scale of this step, `F32 []`; only with [`StepOptions::loss_scale`].
pub const LOSS_SCALE: &str = "loss_scale";
/// The most microbatches of a step.
pub const MOST_MICROBATCHES: usize = 1 << 16;

/// Choices of a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOptions {
    /// Gradients are scaled down so that the norm of all together is at most this (Pascanu and others, "On the difficulty
    /// of training recurrent neural networks", 2013).
    pub clip_norm: Option<f64>,
    /// How many microbatches make a step. With more than one, every input gets an axis of that many in front, gradients
    /// are added up in F32, and loss and gradients are means over the microbatches.
    pub microbatches: usize,
    /// A number of rank 0 by which microbatches are weighted, such as a count of targets where the loss is a mean over
    /// them; equal weights where there is none. A value of the graph, through which no gradient goes.
    pub loss_weight: Option<Value>,
    /// A dynamic loss scale, for gradients in F16.
    pub loss_scale: Option<LossScale>,
    /// Keeps an exponential moving average `a = decay a + (1 - decay) w` of every trainable after each step, in states
    /// `ema.<name>`, which start as the trainables.
    pub ema_decay: Option<f64>,
    /// Gradients compute elementwise values of the way forward again from what they keep anyway, activations above all, instead of
    /// reading them ([`Graph::gradients_recomputing`]): less memory, some milliseconds more. Results are the same.
    pub recompute_activations: bool,
    /// Outputs of the graph that the step has as well. With several microbatches they get an axis of them in front.
    pub outputs: Vec<String>,
}

impl Default for StepOptions {
    /// One microbatch, nothing else.
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
        if !(1..=MOST_MICROBATCHES).contains(&self.microbatches) {
            let count = self.microbatches;
            return Err(StepError::Microbatches { count });
        }
        if let Some(norm) = self.clip_norm {
            expect("the norm to clip to", norm, "more than 0", |x| x > 0.0)?;
        }
        if let Some(decay) = self.ema_decay {
            expect_decay("the decay of the moving average", decay)?;
        }
        self.loss_scale.as_ref().map_or(Ok(()), LossScale::check)
    }
}

/// A trainable of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainableInfo {
    /// Its name, that of the state.
    pub name: String,
    /// Its type, `F32`.
    pub ty: Type,
    /// Its settings.
    pub group: ParamGroup,
}

/// A training step as one graph: loss, gradients, their norm and clipping, the optimizer, which assigns the states. One run
/// is one step. A step whose loss or gradients are not finite leaves every state as it was (but for the loss scale).
#[derive(Clone, Debug)]
pub struct TrainStep {
    graph: Graph,
    trainables: Vec<TrainableInfo>,
    states: Vec<StateInfo>,
    /// Loss and gradients of one microbatch, in the numbering of the graph that was given.
    single: Graph,
    options: StepOptions,
}

impl TrainStep {
    /// Makes a step of a graph whose `loss`, a float of rank 0, is to be minimized by changing `trainables`, which are
    /// `F32` states of the graph. Weights of F16 or BF16 are casts of them where they are used.
    ///
    /// The graph of the step has the graph's inputs (see [`StepOptions::microbatches`]) and [`LEARNING_RATE`]; its
    /// parameters and states and those of the optimizer; the outputs [`LOSS`], [`GRADIENT_NORM`], [`SKIPPED`], and
    /// [`LOSS_SCALE`] with a loss scale, then those of [`StepOptions::outputs`]. The graph's own assignments stay, and are
    /// skipped with the step.
    ///
    /// # Errors
    /// [`StepError`] for a loss that is no float scalar or cannot be differentiated, trainables that are no `F32` states
    /// of the graph, do not change the loss, or are named twice, and numbers out of their range.
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
        let kept = kept(graph, options)?;
        let single = Single::of(graph, loss, &found, options)?;
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

    /// The graph, to be compiled and run by anyone: a [`Trainer`](super::Trainer) is one way.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The trainables, in the order in which they were given.
    pub fn trainables(&self) -> &[TrainableInfo] {
        &self.trainables
    }

    /// Every state of the graph.
    pub fn states(&self) -> &[StateInfo] {
        &self.states
    }

    /// The number of microbatches, which is the first size of every input if it is not 1.
    pub fn microbatches(&self) -> usize {
        self.options.microbatches
    }

    /// What the step was built with.
    pub fn options(&self) -> &StepOptions {
        &self.options
    }

    /// Loss and gradients of one microbatch; nodes of the graph that was given have their numbers.
    pub(super) fn single(&self) -> &Graph {
        &self.single
    }
}

/// The trainables that were named, and their states.
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

/// The outputs to keep.
fn kept(graph: &Graph, options: &StepOptions) -> Result<Vec<(String, Value)>, StepError> {
    let own = [LOSS, GRADIENT_NORM, SKIPPED, LOSS_SCALE];
    let mut kept: Vec<(String, Value)> = Vec::new();
    for name in &options.outputs {
        let name = name.clone();
        if own.contains(&name.as_str()) {
            let what = "an output";
            return Err(StepError::Taken { what, name });
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

/// The states of the graph that was given.
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
            true => Initial::Given,
            false => Initial::Zeros,
        },
    });
    info.collect()
}
