//! Lion.

use super::{Optimizer, Param, Update, expect_decay, expect_not_negative};
use crate::train::error::StepError;

/// Lion (Chen and others, "Symbolic discovery of optimization algorithms", 2023):
///
/// ```text
/// w = w (1 - rate weight_decay) - rate sign(beta1 m + (1 - beta1) g)
/// m = beta2 m + (1 - beta2) g
/// ```
///
/// Its rates are 3 to 10 times lower than AdamW's, its decay as much higher. States: `lion.m.<name>`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    /// How much the mean of gradients counts in a step, `[0, 1)`.
    pub beta1: f64,
    /// How much of that mean is kept, `[0, 1)`.
    pub beta2: f64,
    /// The part of a weight that a learning rate of 1 would take away, 0 or more.
    pub weight_decay: f64,
}

impl Default for Lion {
    /// 0.9, 0.99, and a weight decay of 0.1.
    fn default() -> Lion {
        Lion {
            beta1: 0.9,
            beta2: 0.99,
            weight_decay: 0.1,
        }
    }
}

impl Optimizer for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn check(&self) -> Result<(), StepError> {
        expect_decay("beta1 of Lion", self.beta1)?;
        expect_decay("beta2 of Lion", self.beta2)?;
        expect_not_negative("the weight decay of Lion", self.weight_decay)
    }

    fn update(&self, u: &mut Update<'_>, params: &[Param]) -> Result<(), StepError> {
        for p in params {
            let rate = u.learning_rate(&p.group)?;
            let kept = u.decay(&p.group, self.weight_decay)?;
            let g = u.gradient(p)?;
            let m = u.state(&format!("lion.m.{}", p.name), p.ty.clone())?;
            let mean = u.blend(m, self.beta1, g, 1.0 - self.beta1)?;
            let direction = u.graph().sign(mean)?;
            let w = u.stepped(p.weight, kept, rate, direction)?;
            u.assign(p.weight, w)?;
            // The weight needs the mean as it was: it comes first, in a kernel of its own.
            let new_m = u.blend(m, self.beta2, g, 1.0 - self.beta2)?;
            u.assign(m, new_m)?;
        }
        Ok(())
    }
}
