//! Dynamic loss scaling for F16 gradients, inside the graph.

use tercet_ir::{DType, Graph, OpError, Type, Value};

use super::error::StepError;
use super::optim::{OptimizerUpdate, expect};
use super::state::{InitialState, StateInfo, StateRole};

/// Name of the state with the scale, `F32 []`.
const SCALE: &str = "loss_scale.scale";
/// Name of the state that counts the finite steps since the last change, `I32 []`.
const GOOD_STEPS: &str = "loss_scale.good_steps";

/// A dynamic loss scale (Micikevicius and others, "Mixed precision training", 2018). The loss is
/// multiplied by the scale before differentiation, so that small gradients do not vanish in F16,
/// and gradients are divided by it. A step with non-finite gradients is skipped and lowers the
/// scale; `interval` consecutive finite steps raise it. All of this runs on the device. States:
/// `loss_scale.scale`, `F32 []`, and `loss_scale.good_steps`, `I32 []`.
///
/// ```
/// use tercet::train::{LossScale, StepOptions};
/// let scale = LossScale { initial: 1024.0, ..LossScale::default() };
/// let options = StepOptions { loss_scale: Some(scale.clone()), ..StepOptions::default() };
/// assert!(scale.min_scale <= scale.initial && scale.initial <= scale.max_scale);
/// assert_eq!(options.loss_scale, Some(scale));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LossScale {
    /// Scale of the first step. For a loss in F16, scale times loss must stay below 65504.
    pub initial: f64,
    /// Factor for raising the scale, 1 or more.
    pub growth: f64,
    /// Factor for lowering the scale, above 0 and below 1.
    pub backoff: f64,
    /// Number of consecutive finite steps that raise the scale, at least 1.
    pub interval: u32,
    /// Minimum scale. Non-finite gradients at this scale are an error of the trainer.
    pub min_scale: f64,
    /// Maximum scale.
    pub max_scale: f64,
}

impl Default for LossScale {
    /// Starts at 2^15, doubles after 2000 finite steps, halves after a non-finite one; minimum 1,
    /// maximum 2^24.
    fn default() -> LossScale {
        LossScale {
            initial: 32768.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            min_scale: 1.0,
            max_scale: 16_777_216.0,
        }
    }
}

impl LossScale {
    pub(super) fn check(&self) -> Result<(), StepError> {
        expect(
            "the minimum loss scale",
            self.min_scale,
            "more than 0",
            |x| x > 0.0,
        )?;
        if !(self.min_scale <= self.initial
            && self.initial <= self.max_scale
            && self.max_scale <= 1e38)
        {
            return Err(StepError::Hyperparameter {
                what: "the initial loss scale".to_string(),
                value: self.initial,
                expected: "a value from the minimum to the maximum loss scale, which is at most 1e38",
            });
        }
        expect(
            "the growth of the loss scale",
            self.growth,
            "1 or more",
            |x| x >= 1.0,
        )?;
        let expected = "above 0 and below 1";
        expect(
            "the backoff of the loss scale",
            self.backoff,
            expected,
            |x| x > 0.0 && x < 1.0,
        )?;
        let interval = f64::from(self.interval);
        expect(
            "the interval of the loss scale",
            interval,
            "1 to 2^30",
            |x| (1.0..=1073741824.0).contains(&x),
        )
    }

    /// Adds the scale to a graph.
    pub(super) fn add(&self, graph: &mut Graph) -> Result<Value, OpError> {
        graph.state(SCALE, Type::new(DType::F32, [0usize; 0]))
    }

    /// Description of the state that [`LossScale::add`] adds.
    pub(super) fn info(&self) -> StateInfo {
        StateInfo {
            name: SCALE.to_string(),
            ty: Type::new(DType::F32, [0usize; 0]),
            role: StateRole::LossScale,
            initial: InitialState::Number(self.initial),
        }
    }

    /// Updates the scale for the next step, depending on whether the gradients were finite. If the
    /// loss itself is not finite, the scale is not the cause and does not change.
    pub(super) fn adapt(
        &self,
        u: &mut OptimizerUpdate<'_>,
        scale: Value,
        loss_finite: Value,
        gradients_finite: Value,
    ) -> Result<(), OpError> {
        let ty = Type::new(DType::I32, [0usize; 0]);
        let before = u.add_state(GOOD_STEPS, ty, StateRole::LossScale, InitialState::Zeros)?;
        let g = u.graph();
        let one = g.scalar(DType::I32, 1.0)?;
        let zero = g.scalar(DType::I32, 0.0)?;
        let interval = g.scalar(DType::I32, f64::from(self.interval))?;
        let good = g.plus(before, one)?;
        let due = g.ge(good, interval)?;
        let raised = u.times(scale, self.growth)?;
        let most = u.number(self.max_scale)?;
        let raised = u.graph().min(raised, most)?;
        let lowered = u.times(scale, self.backoff)?;
        let least = u.number(self.min_scale)?;
        let g = u.graph();
        let lowered = g.max(lowered, least)?;
        let raised = g.where_(due, raised, scale)?;
        let good = g.where_(due, zero, good)?;
        let next = g.where_(gradients_finite, raised, lowered)?;
        let good = g.where_(gradients_finite, good, zero)?;
        let next = g.where_(loss_finite, next, scale)?;
        let good = g.where_(loss_finite, good, before)?;
        g.assign(scale, next)?;
        g.assign(before, good)
    }
}
