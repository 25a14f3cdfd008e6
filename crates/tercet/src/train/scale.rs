//! Dynamic loss scaling for gradients in F16, inside the graph.

use tercet_ir::{DType, Graph, OpError, Type, Value};

use super::error::StepError;
use super::optim::{Update, expect};
use super::state::{Initial, StateInfo, StateRole};

/// The state that holds the scale, `F32 []`.
const SCALE: &str = "loss_scale.scale";
/// The state that counts the steps since it changed, `I32 []`.
const GOOD_STEPS: &str = "loss_scale.good_steps";

/// A dynamic loss scale (Micikevicius and others, "Mixed precision training", 2018): the loss is multiplied by it before
/// it is differentiated, so that small gradients do not vanish in F16, and gradients are divided by it. A step whose
/// gradients are not finite is skipped and lowers the scale; `interval` good steps in a row raise it. All of it happens
/// on the device. States: `loss_scale.scale`, `F32 []`, and `loss_scale.good_steps`, `I32 []`.
#[derive(Clone, Debug, PartialEq)]
pub struct LossScale {
    /// The scale of the first step. A loss in F16 takes no more than 65504.
    pub initial: f64,
    /// What it is multiplied by when it is raised, 1 or more.
    pub growth: f64,
    /// What it is multiplied by when it is lowered, above 0 and below 1.
    pub backoff: f64,
    /// The good steps in a row that raise it, at least 1.
    pub interval: u32,
    /// The least scale. Gradients that are not finite even at this one are an error of the trainer.
    pub least: f64,
    /// The greatest scale.
    pub greatest: f64,
}

impl Default for LossScale {
    /// From 2^15, doubled after 2000 good steps, halved after a bad one, from 1 to 2^24.
    fn default() -> LossScale {
        LossScale {
            initial: 32768.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            least: 1.0,
            greatest: 16_777_216.0,
        }
    }
}

impl LossScale {
    pub(super) fn check(&self) -> Result<(), StepError> {
        expect("the least loss scale", self.least, "more than 0", |x| {
            x > 0.0
        })?;
        if !(self.least <= self.initial && self.initial <= self.greatest && self.greatest <= 1e38) {
            return Err(StepError::Hyperparameter {
                what: "the initial loss scale".to_string(),
                value: self.initial,
                expected: "from the least to the greatest loss scale, which is at most 1e38",
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

    /// What there is to say of the state of [`LossScale::add`].
    pub(super) fn info(&self) -> StateInfo {
        StateInfo {
            name: SCALE.to_string(),
            ty: Type::new(DType::F32, [0usize; 0]),
            role: StateRole::LossScale,
            initial: Initial::Number(self.initial),
        }
    }

    /// The scale of the next step, from whether the gradients were finite. Where the loss was not, the scale is not to
    /// blame and stays.
    pub(super) fn adapt(
        &self,
        u: &mut Update<'_>,
        scale: Value,
        loss_finite: Value,
        gradients_finite: Value,
    ) -> Result<(), OpError> {
        let ty = Type::new(DType::I32, [0usize; 0]);
        let before = u.add_state(GOOD_STEPS, ty, StateRole::LossScale, Initial::Zeros)?;
        let g = u.graph();
        let one = g.scalar(DType::I32, 1.0)?;
        let zero = g.scalar(DType::I32, 0.0)?;
        let interval = g.scalar(DType::I32, f64::from(self.interval))?;
        let good = g.plus(before, one)?;
        let due = g.ge(good, interval)?;
        let raised = u.times(scale, self.growth)?;
        let most = u.number(self.greatest)?;
        let raised = u.graph().min(raised, most)?;
        let lowered = u.times(scale, self.backoff)?;
        let least = u.number(self.least)?;
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
