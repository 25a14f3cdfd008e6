//! Optimizers: builders of the nodes that update trainables.
//!
//! An [`Optimizer`] gets trainables and their gradients and builds their updates through [`Update`], which adds states
//! (moments, a counter of steps) and assigns. What one tensor's update reads of the step are scalars that are computed
//! once (the learning rate, corrections, the factor of gradients); the rest are elementwise nodes of the weight, its
//! moments and its gradient, so that an executor can make them one kernel in place. Everything is `F32`. So that it is one
//! kernel, what is made of a moment is made of what [`Update::assign`] gives back, and the weight is assigned last; a map has
//! at most 8 operands, which AdamW's needs.
//!
//! States are named by optimizer, what they hold and the trainable: `adamw.m.<name>`, `adamw.v.<name>`, `adamw.step`;
//! `sgd.momentum.<name>`; `lion.m.<name>`; `muon.momentum.<name>` beside those of AdamW.

mod adamw;
mod lion;
mod muon;
mod sgd;

pub use adamw::AdamW;
pub use lion::Lion;
pub use muon::{Muon, MuonScale};
pub use sgd::Sgd;

use std::collections::HashMap;
use std::fmt;

use tercet_ir::{DType, Graph, OpError, Type, Value};

use super::error::StepError;
use super::params::ParamGroup;
use super::state::{Initial, StateInfo, StateRole};

/// A trainable in the graph of a step.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// The state, `F32`, as it is before the step.
    pub weight: Value,
    /// Its type.
    pub ty: Type,
    /// The gradient, of the same type, before it is scaled and clipped: [`Update::gradient`] is what to use.
    pub gradient: Value,
    /// Its settings.
    pub group: ParamGroup,
}

/// A method of updating trainables. Implementations outside of this crate build with [`Update`] alike.
pub trait Optimizer: fmt::Debug + Send + Sync {
    /// Its name, with which the names of its states begin.
    fn name(&self) -> &'static str;

    /// Refuses numbers out of their range.
    ///
    /// # Errors
    /// [`StepError::Hyperparameter`].
    fn check(&self) -> Result<(), StepError>;

    /// Builds the updates: one [`Update::assign`] of each parameter's weight.
    ///
    /// # Errors
    /// [`StepError::Node`] when a node is refused.
    fn update(&self, u: &mut Update<'_>, params: &[Param]) -> Result<(), StepError>;
}

/// Refuses a number that is not within bounds.
///
/// # Errors
/// [`StepError::Hyperparameter`].
pub(crate) fn expect(
    what: &str,
    value: f64,
    expected: &'static str,
    holds: fn(f64) -> bool,
) -> Result<(), StepError> {
    match value.is_finite() && holds(value) {
        true => Ok(()),
        false => Err(StepError::Hyperparameter {
            what: what.to_string(),
            value,
            expected,
        }),
    }
}

/// Refuses a decay of moments outside `[0, 1)`.
pub(crate) fn expect_decay(what: &str, value: f64) -> Result<(), StepError> {
    expect(what, value, "0 or more and below 1", |x| {
        (0.0..1.0).contains(&x)
    })
}

/// Refuses a negative number.
pub(crate) fn expect_not_negative(what: &str, value: f64) -> Result<(), StepError> {
    expect(what, value, "0 or more", |x| x >= 0.0)
}

/// What updates are built with: the graph, the scalars of the step, and states.
#[derive(Debug)]
pub struct Update<'a> {
    graph: &'a mut Graph,
    learning_rate: Value,
    /// What gradients are multiplied by, if anything: NaN where the step does not count.
    factor: Option<Value>,
    /// `Bool []`: whether the step counts.
    finite: Value,
    /// By the type of a parameter whether the step does not count, told by the gradient that was asked for last: one
    /// operand less than `finite` where gradients are multiplied anyway.
    skips: HashMap<Type, Value>,
    states: Vec<StateInfo>,
    /// What states hold after the step.
    assigned: HashMap<Value, Value>,
    /// Scalars that groups share.
    scalars: HashMap<(&'static str, u64), Value>,
}

impl<'a> Update<'a> {
    pub(super) fn new(
        graph: &'a mut Graph,
        learning_rate: Value,
        factor: Option<Value>,
        finite: Value,
    ) -> Result<Update<'a>, OpError> {
        let factor = match factor {
            Some(factor) => {
                let nan = graph.scalar(DType::F32, f64::NAN)?;
                Some(graph.where_(finite, factor, nan)?)
            }
            None => None,
        };
        Ok(Update {
            graph,
            learning_rate,
            factor,
            finite,
            skips: HashMap::new(),
            states: Vec::new(),
            assigned: HashMap::new(),
            scalars: HashMap::new(),
        })
    }

    /// The graph, for any other node.
    pub fn graph(&mut self) -> &mut Graph {
        self.graph
    }

    /// The learning rate of a group, `F32 []`.
    ///
    /// # Errors
    /// [`OpError`] when a node is refused.
    pub fn learning_rate(&mut self, group: &ParamGroup) -> Result<Value, OpError> {
        let (rate, factor) = (self.learning_rate, group.learning_rate);
        match factor == 1.0 {
            true => Ok(rate),
            false => self.shared("learning rate", factor, |u| u.times(rate, factor)),
        }
    }

    /// `1 - learning rate * weight decay` of a group, `F32 []`: decoupled weight decay multiplies weights by it. Nothing
    /// without decay.
    ///
    /// # Errors
    /// [`OpError`] when a node is refused.
    pub fn decay(&mut self, group: &ParamGroup, decay: f64) -> Result<Option<Value>, OpError> {
        let decay = group.weight_decay.unwrap_or(decay) * group.learning_rate;
        if decay == 0.0 {
            return Ok(None);
        }
        let rate = self.learning_rate;
        let kept = self.shared("decay", decay, |u| {
            let lost = u.times(rate, decay)?;
            let one = u.number(1.0)?;
            u.graph.sub(one, lost)
        });
        kept.map(Some)
    }

    /// The gradient of a parameter, of its type: without the loss scale, a mean over microbatches, clipped.
    ///
    /// # Errors
    /// [`OpError`] when a node is refused.
    pub fn gradient(&mut self, param: &Param) -> Result<Value, OpError> {
        let Some(factor) = self.factor else {
            return Ok(param.gradient);
        };
        let gradient = self.graph.mul(param.gradient, factor)?;
        let skips = self.graph.is_nan(gradient)?;
        self.skips.insert(param.ty.clone(), skips);
        Ok(gradient)
    }

    /// Adds a state of the optimizer that starts as zeros.
    ///
    /// # Errors
    /// [`OpError`] when the name is taken or a size is symbolic.
    pub fn state(&mut self, name: &str, ty: Type) -> Result<Value, OpError> {
        self.add_state(name, ty, StateRole::Optimizer, Initial::Zeros)
    }

    pub(super) fn add_state(
        &mut self,
        name: &str,
        ty: Type,
        role: StateRole,
        initial: Initial,
    ) -> Result<Value, OpError> {
        let state = self.graph.state(name, ty.clone())?;
        self.states.push(StateInfo {
            name: name.to_string(),
            ty,
            role,
            initial,
        });
        Ok(state)
    }

    /// The number of this step from 1, `F32 []`, counted in a state `I32 []` of this name. Steps that are skipped do not
    /// count.
    ///
    /// # Errors
    /// [`OpError`] when the name is taken.
    pub fn count_steps(&mut self, name: &str) -> Result<Value, OpError> {
        let before = self.state(name, Type::new(DType::I32, [0usize; 0]))?;
        let one = self.graph.scalar(DType::I32, 1.0)?;
        let now = self.graph.plus(before, one)?;
        self.assign_if_finite(before, now)?;
        self.graph.cast(now, DType::F32)
    }

    /// Says what a state holds after the step, unless the step is skipped: what it holds then is given back, for what
    /// follows.
    ///
    /// # Errors
    /// [`OpError`] when it is no state, is assigned already, or has another type.
    pub fn assign(&mut self, state: Value, value: Value) -> Result<Value, OpError> {
        let ty = self.graph.get_type(state);
        match ty.and_then(|ty| self.skips.get(ty)).copied() {
            Some(skips) => {
                let new = self.graph.where_(skips, state, value)?;
                self.assigned_to(state, new)
            }
            None => self.assign_if_finite(state, value),
        }
    }

    /// As [`Update::assign`], for what has nothing to do with a gradient.
    pub(super) fn assign_if_finite(
        &mut self,
        state: Value,
        value: Value,
    ) -> Result<Value, OpError> {
        let new = self.graph.where_(self.finite, value, state)?;
        self.assigned_to(state, new)
    }

    fn assigned_to(&mut self, state: Value, new: Value) -> Result<Value, OpError> {
        self.graph.assign(state, new)?;
        self.assigned.insert(state, new);
        Ok(new)
    }

    /// What a state was assigned.
    pub(super) fn assigned(&self, state: Value) -> Option<Value> {
        self.assigned.get(&state).copied()
    }

    pub(super) fn into_states(self) -> Vec<StateInfo> {
        self.states
    }

    /// A constant `F32 []`.
    ///
    /// # Errors
    /// [`OpError`] never in practice.
    pub fn number(&mut self, value: f64) -> Result<Value, OpError> {
        self.graph.scalar(DType::F32, value)
    }

    /// `x * factor`
    ///
    /// # Errors
    /// [`OpError`] when `x` is not `F32`.
    pub fn times(&mut self, x: Value, factor: f64) -> Result<Value, OpError> {
        let factor = self.number(factor)?;
        self.graph.mul(x, factor)
    }

    /// `kept * old + added * new`, a moving average where the two add up to 1.
    ///
    /// # Errors
    /// [`OpError`] when an operand is not `F32`, or the shapes do not broadcast.
    pub fn blend(
        &mut self,
        old: Value,
        kept: f64,
        new: Value,
        added: f64,
    ) -> Result<Value, OpError> {
        let old = self.times(old, kept)?;
        let new = match added == 1.0 {
            true => new,
            false => self.times(new, added)?,
        };
        self.graph.plus(old, new)
    }

    /// `1 - decay^steps`, `F32 []`, without the loss of digits that subtracting would have: the correction of a moving
    /// average that started at 0.
    ///
    /// # Errors
    /// [`OpError`] when `steps` is not `F32`.
    pub fn bias_correction(&mut self, decay: f64, steps: Value) -> Result<Value, OpError> {
        if decay == 0.0 {
            return self.number(1.0);
        }
        let power = self.times(steps, decay.ln())?;
        let less = self.graph.expm1(power)?;
        self.graph.neg(less)
    }

    /// `weight * kept - rate * direction`: what updates end in; `kept` from [`Update::decay`].
    ///
    /// # Errors
    /// [`OpError`] when an operand is not `F32`, or the shapes do not broadcast.
    pub fn stepped(
        &mut self,
        weight: Value,
        kept: Option<Value>,
        rate: Value,
        direction: Value,
    ) -> Result<Value, OpError> {
        let kept = match kept {
            Some(kept) => self.graph.mul(weight, kept)?,
            None => weight,
        };
        let step = self.graph.mul(direction, rate)?;
        self.graph.sub(kept, step)
    }

    /// A scalar by what it is and a number, built once.
    fn shared(
        &mut self,
        what: &'static str,
        number: f64,
        build: impl FnOnce(&mut Self) -> Result<Value, OpError>,
    ) -> Result<Value, OpError> {
        let key = (what, number.to_bits());
        if let Some(&value) = self.scalars.get(&key) {
            return Ok(value);
        }
        let value = build(self)?;
        self.scalars.insert(key, value);
        Ok(value)
    }

    /// `numerator * factor / denominator` of scalars of the step, built once for each factor.
    pub(super) fn ratio(
        &mut self,
        group: &ParamGroup,
        denominator: Value,
    ) -> Result<Value, OpError> {
        let rate = self.learning_rate(group)?;
        let key = group.learning_rate;
        self.shared("corrected rate", key, |u| u.graph.div(rate, denominator))
    }
}
