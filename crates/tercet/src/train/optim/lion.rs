//! Lion.

use super::{Optimizer, OptimizerUpdate, TrainedParam, expect_decay, expect_not_negative};
use crate::train::error::StepError;

/// Lion (Chen and others, "Symbolic discovery of optimization algorithms", 2023):
///
/// ```text
/// w = w (1 - rate weight_decay) - rate sign(beta1 m + (1 - beta1) g)
/// m = beta2 m + (1 - beta2) g
/// ```
///
/// Typical learning rates are 3 to 10 times lower than those of AdamW, and weight decay is higher
/// by the same factor. States: `lion.m.<name>`.
///
/// ```
/// use tercet::train::{Lion, StepOptions, TrainStep};
/// use tercet::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let w = g.state("w", Type::new(DType::F32, [2]))?;
/// let square = g.mul(w, w)?;
/// let loss = g.reduce_sum(square, &[0], false)?;
/// let lion = Lion { beta2: 0.98, ..Lion::default() };
/// let step = TrainStep::build(&g, loss, &["w".into()], &lion, &StepOptions::default())?;
/// assert!(step.states().iter().any(|s| s.name == "lion.m.w"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    /// Weight of the mean in the update direction, `[0, 1)`.
    pub beta1: f64,
    /// Decay of the mean of gradients, `[0, 1)`.
    pub beta2: f64,
    /// Decoupled weight decay per unit of learning rate, 0 or more.
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

    fn update(
        &self,
        u: &mut OptimizerUpdate<'_>,
        params: &[TrainedParam],
    ) -> Result<(), StepError> {
        for p in params {
            let rate = u.learning_rate(&p.group)?;
            let kept = u.decay(&p.group, self.weight_decay)?;
            let g = u.gradient(p)?;
            let m = u.state(&format!("lion.m.{}", p.name), p.ty.clone())?;
            let mean = u.blend(m, self.beta1, g, 1.0 - self.beta1)?;
            let direction = u.graph().sign(mean)?;
            let w = u.stepped(p.weight, kept, rate, direction)?;
            u.assign(p.weight, w)?;
            // The weight update reads the previous mean, so it comes first, in a separate kernel.
            let new_m = u.blend(m, self.beta2, g, 1.0 - self.beta2)?;
            u.assign(m, new_m)?;
        }
        Ok(())
    }
}
