//! Optimizers, which build the nodes that update trainables.
//!
//! An [`Optimizer`] gets trainables and their gradients and builds their updates through
//! [`OptimizerUpdate`], which adds states (moments, a step counter) and assignments. Scalars of the step
//! (learning rate, bias corrections, gradient factor) are computed once. The rest is elementwise in
//! the weight, its moments and its gradient, so an executor can fuse it into one in-place kernel.
//! Everything is `F32`. Two rules make this fusion possible: computations use the value that
//! [`OptimizerUpdate::assign`] returns for a moment, and the weight is assigned last. A fused map has at
//! most 8 operands, which is the number that AdamW needs.
//!
//! State names consist of the optimizer, the content and the trainable: `adamw.m.<name>`,
//! `adamw.v.<name>`, `adamw.step`; `sgd.momentum.<name>`; `lion.m.<name>`; `muon.momentum.<name>`
//! in addition to those of AdamW.

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
use super::state::{InitialState, StateInfo, StateRole};

/// A trainable in the step graph.
///
/// ```
/// use tercet::train::{Optimizer, OptimizerUpdate, StepError, TrainedParam};
/// # #[derive(Debug)]
/// # struct GradientDescent;
/// # impl Optimizer for GradientDescent {
/// #     fn name(&self) -> &'static str {
/// #         "gradient_descent"
/// #     }
/// #     fn check(&self) -> Result<(), StepError> {
/// #         Ok(())
/// #     }
/// fn update(&self, u: &mut OptimizerUpdate<'_>, params: &[TrainedParam]) -> Result<(), StepError> {
///     for p in params {
///         assert_eq!((p.name.as_str(), p.group.name.as_str()), ("w", "no_decay"));
///         let (gradient, rate) = (u.gradient(p)?, u.learning_rate(&p.group)?);
///         let w = u.stepped(p.weight, None, rate, gradient)?;
///         u.assign(p.weight, w)?;
///     }
///     Ok(())
/// }
/// # }
/// # use tercet::train::{StepOptions, TrainStep};
/// # use tercet::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// # TrainStep::build(&g, loss, &["w".into()], &GradientDescent, &StepOptions::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrainedParam {
    /// Name of the trainable.
    pub name: String,
    /// The weight before the step, an `F32` state.
    pub weight: Value,
    /// Type of the weight.
    pub ty: Type,
    /// The gradient, with the type of the weight, before scaling and clipping. Optimizers use
    /// [`OptimizerUpdate::gradient`] instead.
    pub gradient: Value,
    /// Settings of the trainable.
    pub group: ParamGroup,
}

/// An algorithm that updates trainables. Implementations in other crates use the same [`OptimizerUpdate`]
/// interface.
///
/// ```
/// use tercet::train::{Optimizer, OptimizerUpdate, StepError, TrainedParam};
///
/// #[derive(Debug)]
/// struct GradientDescent;
///
/// impl Optimizer for GradientDescent {
///     fn name(&self) -> &'static str {
///         "gradient_descent"
///     }
///
///     fn check(&self) -> Result<(), StepError> {
///         Ok(())
///     }
///
///     fn update(&self, u: &mut OptimizerUpdate<'_>, params: &[TrainedParam]) -> Result<(), StepError> {
///         for p in params {
///             let (gradient, rate) = (u.gradient(p)?, u.learning_rate(&p.group)?);
///             let w = u.stepped(p.weight, None, rate, gradient)?;
///             u.assign(p.weight, w)?;
///         }
///         Ok(())
///     }
/// }
/// assert!(GradientDescent.check().is_ok());
/// ```
pub trait Optimizer: fmt::Debug + Send + Sync {
    /// Name of the optimizer, and prefix of its state names.
    fn name(&self) -> &'static str;

    /// Checks the hyperparameters.
    ///
    /// # Errors
    /// [`StepError::Hyperparameter`] if one is out of range.
    fn check(&self) -> Result<(), StepError>;

    /// Builds the updates: one [`OptimizerUpdate::assign`] for each trainable's weight.
    ///
    /// # Errors
    /// [`StepError::Node`] if a node is invalid.
    fn update(&self, u: &mut OptimizerUpdate<'_>, params: &[TrainedParam])
    -> Result<(), StepError>;
}

/// Checks that a number is within bounds.
///
/// # Errors
/// [`StepError::Hyperparameter`] if it is not.
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

/// Checks that a decay of moments is in `[0, 1)`.
pub(crate) fn expect_decay(what: &str, value: f64) -> Result<(), StepError> {
    expect(what, value, "0 or more and below 1", |x| {
        (0.0..1.0).contains(&x)
    })
}

/// Checks that a number is not negative.
pub(crate) fn expect_not_negative(what: &str, value: f64) -> Result<(), StepError> {
    expect(what, value, "0 or more", |x| x >= 0.0)
}

/// Builder of optimizer updates: the graph, the scalars of the step, and the added states.
///
/// ```
/// use tercet::train::{Optimizer, OptimizerUpdate, StepError, TrainedParam};
/// # #[derive(Debug)]
/// # struct SignMomentum;
/// # impl Optimizer for SignMomentum {
/// #     fn name(&self) -> &'static str {
/// #         "sign"
/// #     }
/// #     fn check(&self) -> Result<(), StepError> {
/// #         Ok(())
/// #     }
/// fn update(&self, u: &mut OptimizerUpdate<'_>, params: &[TrainedParam]) -> Result<(), StepError> {
///     for p in params {
///         let (gradient, rate) = (u.gradient(p)?, u.learning_rate(&p.group)?);
///         let mean = u.state(&format!("sign.mean.{}", p.name), p.ty.clone())?;
///         let blended = u.blend(mean, 0.9, gradient, 0.1)?;
///         let mean = u.assign(mean, blended)?;
///         let direction = u.graph().sign(mean)?;
///         let w = u.stepped(p.weight, None, rate, direction)?;
///         u.assign(p.weight, w)?;
///     }
///     Ok(())
/// }
/// # }
/// # use tercet::train::{StepOptions, TrainStep};
/// # use tercet::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// # let step = TrainStep::build(&g, loss, &["w".into()], &SignMomentum, &StepOptions::default())?;
/// # let names: Vec<&str> = step.states().iter().map(|s| s.name.as_str()).collect();
/// # assert_eq!(names, ["w", "sign.mean.w"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OptimizerUpdate<'a> {
    graph: &'a mut Graph,
    learning_rate: Value,
    /// Factor on the gradients, if any. The factor is NaN if the step is skipped.
    factor: Option<Value>,
    /// `Bool []`: false if the step is skipped.
    finite: Value,
    /// Whether the step is skipped, as an elementwise mask, keyed by the type of the trainable. The
    /// mask is the NaN test of the last gradient, which is NaN if the step is skipped. A fused
    /// kernel then needs one operand less than with `finite`.
    skips: HashMap<Type, Value>,
    states: Vec<StateInfo>,
    /// Values of states after the step.
    assigned: HashMap<Value, Value>,
    /// Scalars shared by groups.
    scalars: HashMap<(&'static str, u64), Value>,
}

impl<'a> OptimizerUpdate<'a> {
    pub(super) fn new(
        graph: &'a mut Graph,
        learning_rate: Value,
        factor: Option<Value>,
        finite: Value,
    ) -> Result<OptimizerUpdate<'a>, OpError> {
        let factor = match factor {
            Some(factor) => {
                let nan = graph.scalar(DType::F32, f64::NAN)?;
                Some(graph.where_(finite, factor, nan)?)
            }
            None => None,
        };
        Ok(OptimizerUpdate {
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

    /// The graph, for adding any other node.
    pub fn graph(&mut self) -> &mut Graph {
        self.graph
    }

    /// Learning rate of a group, `F32 []`.
    ///
    /// # Errors
    /// [`OpError`] if a node is invalid.
    pub fn learning_rate(&mut self, group: &ParamGroup) -> Result<Value, OpError> {
        let (rate, factor) = (self.learning_rate, group.learning_rate);
        match factor == 1.0 {
            true => Ok(rate),
            false => self.shared("learning rate", factor, |u| u.times(rate, factor)),
        }
    }

    /// `1 - learning rate * weight decay` of a group, `F32 []`: the factor on weights for decoupled
    /// weight decay. `None` without weight decay.
    ///
    /// # Errors
    /// [`OpError`] if a node is invalid.
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

    /// Final gradient of a trainable, with its type: unscaled, averaged over microbatches, and
    /// clipped.
    ///
    /// # Errors
    /// [`OpError`] if a node is invalid.
    pub fn gradient(&mut self, param: &TrainedParam) -> Result<Value, OpError> {
        let Some(factor) = self.factor else {
            return Ok(param.gradient);
        };
        let gradient = self.graph.mul(param.gradient, factor)?;
        let skips = self.graph.is_nan(gradient)?;
        self.skips.insert(param.ty.clone(), skips);
        Ok(gradient)
    }

    /// Adds an optimizer state that starts as zeros.
    ///
    /// # Errors
    /// [`OpError`] if the name is taken or a size is symbolic.
    pub fn state(&mut self, name: &str, ty: Type) -> Result<Value, OpError> {
        self.add_state(name, ty, StateRole::Optimizer, InitialState::Zeros)
    }

    pub(super) fn add_state(
        &mut self,
        name: &str,
        ty: Type,
        role: StateRole,
        initial: InitialState,
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

    /// Number of this step from 1, `F32 []`. An `I32 []` state with this name counts the steps that
    /// are not skipped.
    ///
    /// # Errors
    /// [`OpError`] if the name is taken.
    pub fn count_steps(&mut self, name: &str) -> Result<Value, OpError> {
        let before = self.state(name, Type::new(DType::I32, [0usize; 0]))?;
        let one = self.graph.scalar(DType::I32, 1.0)?;
        let now = self.graph.plus(before, one)?;
        self.assign_if_finite(before, now)?;
        self.graph.cast(now, DType::F32)
    }

    /// Assigns a state, unless the step is skipped. Returns the value of the state after the step,
    /// for later nodes.
    ///
    /// # Errors
    /// [`OpError`] if `state` is not a state, is already assigned, or has another type.
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

    /// Like [`OptimizerUpdate::assign`], for states that do not depend on a gradient.
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

    /// The assigned value of a state.
    pub(super) fn assigned(&self, state: Value) -> Option<Value> {
        self.assigned.get(&state).copied()
    }

    pub(super) fn into_states(self) -> Vec<StateInfo> {
        self.states
    }

    /// A constant `F32 []`.
    ///
    /// # Errors
    /// [`OpError`] never occurs in practice.
    pub fn number(&mut self, value: f64) -> Result<Value, OpError> {
        self.graph.scalar(DType::F32, value)
    }

    /// `x * factor`
    ///
    /// # Errors
    /// [`OpError`] if `x` is not `F32`.
    pub fn times(&mut self, x: Value, factor: f64) -> Result<Value, OpError> {
        let factor = self.number(factor)?;
        self.graph.mul(x, factor)
    }

    /// `kept * old + added * new`: a moving average if the factors add up to 1.
    ///
    /// # Errors
    /// [`OpError`] if an operand is not `F32`, or the shapes do not broadcast.
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

    /// `1 - decay^steps`, `F32 []`, computed without cancellation: the bias correction of a moving
    /// average that starts at 0.
    ///
    /// # Errors
    /// [`OpError`] if `steps` is not `F32`.
    pub fn bias_correction(&mut self, decay: f64, steps: Value) -> Result<Value, OpError> {
        if decay == 0.0 {
            return self.number(1.0);
        }
        let power = self.times(steps, decay.ln())?;
        let less = self.graph.expm1(power)?;
        self.graph.neg(less)
    }

    /// `weight * kept - rate * direction`: the final operation of an update, with `kept` from
    /// [`OptimizerUpdate::decay`].
    ///
    /// # Errors
    /// [`OpError`] if an operand is not `F32`, or the shapes do not broadcast.
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

    /// Returns the scalar for a name and number, and builds it once.
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

    /// `numerator * factor / denominator` of step scalars, built once per factor.
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
