//! Stochastic gradient descent.

use super::{Optimizer, OptimizerUpdate, TrainedParam, expect_decay, expect_not_negative};
use crate::train::error::StepError;

/// Stochastic gradient descent with momentum (Sutskever and others, "On the importance of
/// initialization and momentum in deep learning", 2013), in the common form:
///
/// ```text
/// g = g + weight_decay w
/// b = momentum b + g
/// w = w - rate (nesterov ? g + momentum b : b)
/// ```
///
/// States: `sgd.momentum.<name>`, none without momentum.
///
/// ```
/// use tercet::train::{Sgd, StepOptions, TrainStep};
/// use tercet::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let w = g.state("w", Type::new(DType::F32, [2]))?;
/// let square = g.mul(w, w)?;
/// let loss = g.reduce_sum(square, &[0], false)?;
/// let sgd = Sgd { momentum: 0.9, ..Sgd::default() };
/// let step = TrainStep::build(&g, loss, &["w".into()], &sgd, &StepOptions::default())?;
/// assert!(step.states().iter().any(|s| s.name == "sgd.momentum.w"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    /// Decay of the momentum, `[0, 1)`.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// L2 weight decay, added to the gradients, 0 or more.
    pub weight_decay: f64,
}

impl Default for Sgd {
    /// No momentum, no weight decay.
    fn default() -> Sgd {
        Sgd {
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }
    }
}

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn check(&self) -> Result<(), StepError> {
        expect_decay("the momentum of SGD", self.momentum)?;
        expect_not_negative("the weight decay of SGD", self.weight_decay)
    }

    fn update(
        &self,
        u: &mut OptimizerUpdate<'_>,
        params: &[TrainedParam],
    ) -> Result<(), StepError> {
        for p in params {
            let rate = u.learning_rate(&p.group)?;
            let mut g = u.gradient(p)?;
            let decay = p.group.weight_decay.unwrap_or(self.weight_decay);
            if decay != 0.0 {
                g = u.blend(p.weight, decay, g, 1.0)?;
            }
            let mut direction = g;
            if self.momentum != 0.0 {
                let b = u.state(&format!("sgd.momentum.{}", p.name), p.ty.clone())?;
                let new = u.blend(b, self.momentum, g, 1.0)?;
                let new = u.assign(b, new)?;
                direction = match self.nesterov {
                    true => u.blend(new, self.momentum, g, 1.0)?,
                    false => new,
                };
            }
            let w = u.stepped(p.weight, None, rate, direction)?;
            u.assign(p.weight, w)?;
        }
        Ok(())
    }
}
