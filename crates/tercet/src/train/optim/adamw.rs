//! AdamW.

use tercet_ir::Value;

use super::{Optimizer, OptimizerUpdate, TrainedParam, expect, expect_decay, expect_not_negative};
use crate::train::error::StepError;

/// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay
/// regularization", 2019):
///
/// ```text
/// m = beta1 m + (1 - beta1) g
/// v = beta2 v + (1 - beta2) g^2
/// w = w (1 - rate weight_decay) - rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
/// ```
///
/// States: `adamw.m.<name>`, `adamw.v.<name>`, and `adamw.step`, `I32 []`, which counts steps that
/// were not skipped.
///
/// ```
/// use tercet::train::{AdamW, StepOptions, TrainStep};
/// use tercet::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let w = g.state("w", Type::new(DType::F32, [2]))?;
/// let square = g.mul(w, w)?;
/// let loss = g.reduce_sum(square, &[0], false)?;
/// let adamw = AdamW { weight_decay: 0.1, ..AdamW::default() };
/// let step = TrainStep::build(&g, loss, &["w".into()], &adamw, &StepOptions::default())?;
/// assert!(step.states().iter().any(|s| s.name == "adamw.m.w"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the mean of gradients, `[0, 1)`.
    pub beta1: f64,
    /// Decay of the mean of squared gradients, `[0, 1)`.
    pub beta2: f64,
    /// Added to the divisor so that it is not 0, more than 0.
    pub epsilon: f64,
    /// Decoupled weight decay per unit of learning rate, 0 or more.
    pub weight_decay: f64,
}

impl Default for AdamW {
    /// 0.9, 0.999, 1e-8, and a weight decay of 0.01.
    fn default() -> AdamW {
        AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
        }
    }
}

impl AdamW {
    /// Adds the updates of some trainables.
    pub(super) fn update_all<'p>(
        &self,
        u: &mut OptimizerUpdate<'_>,
        params: impl Iterator<Item = &'p TrainedParam>,
    ) -> Result<(), StepError> {
        let mut params = params.peekable();
        if params.peek().is_none() {
            return Ok(());
        }
        let t = u.count_steps("adamw.step")?;
        let of_m = u.bias_correction(self.beta1, t)?;
        let of_v = u.bias_correction(self.beta2, t)?;
        let root = u.graph().rsqrt(of_v)?;
        for p in params {
            self.update_one(u, p, of_m, root)?;
        }
        Ok(())
    }

    fn update_one(
        &self,
        u: &mut OptimizerUpdate<'_>,
        p: &TrainedParam,
        of_m: Value,
        root: Value,
    ) -> Result<(), StepError> {
        let rate = u.ratio(&p.group, of_m)?;
        let kept = u.decay(&p.group, self.weight_decay)?;
        let g = u.gradient(p)?;
        let m = u.state(&format!("adamw.m.{}", p.name), p.ty.clone())?;
        let v = u.state(&format!("adamw.v.{}", p.name), p.ty.clone())?;
        let new_m = u.blend(m, self.beta1, g, 1.0 - self.beta1)?;
        // The factor comes before the square, so that this node differs from the squared gradient
        // in the gradient norm. A shared node would keep its value in memory until here.
        let part = u.times(g, 1.0 - self.beta2)?;
        let square = u.graph().mul(part, g)?;
        let new_v = u.blend(v, self.beta2, square, 1.0)?;
        let new_m = u.assign(m, new_m)?;
        let new_v = u.assign(v, new_v)?;
        let deviation = u.graph().sqrt(new_v)?;
        let deviation = u.graph().mul(deviation, root)?;
        let epsilon = u.number(self.epsilon)?;
        let divisor = u.graph().plus(deviation, epsilon)?;
        let direction = u.graph().div(new_m, divisor)?;
        let w = u.stepped(p.weight, kept, rate, direction)?;
        u.assign(p.weight, w)?;
        Ok(())
    }
}

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn check(&self) -> Result<(), StepError> {
        expect_decay("beta1 of AdamW", self.beta1)?;
        expect_decay("beta2 of AdamW", self.beta2)?;
        expect("epsilon of AdamW", self.epsilon, "more than 0", |x| x > 0.0)?;
        expect_not_negative("the weight decay of AdamW", self.weight_decay)
    }

    fn update(
        &self,
        u: &mut OptimizerUpdate<'_>,
        params: &[TrainedParam],
    ) -> Result<(), StepError> {
        self.update_all(u, params.iter())
    }
}
