//! The step graph after the gradients: their norm, the optimizer, averages, outputs.

use tercet_ir::{DType, Graph, OpError, Type, Value};

use super::error::StepError;
use super::optim::{Optimizer, OptimizerUpdate, TrainedParam};
use super::state::{InitialState, StateInfo, StateRole};
use super::step::{
    GRADIENT_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, SKIPPED, StepOptions, TrainableInfo,
};

/// The graph of a step before the optimizer is added.
pub(super) struct StepGraph {
    pub(super) graph: Graph,
    /// The mean loss, `F32 []`.
    pub(super) loss: Value,
    pub(super) scale: Option<Value>,
    /// Divisor of the gradients.
    pub(super) divisor: Option<Value>,
    /// Gradients, in the order of the trainables.
    pub(super) gradients: Vec<Value>,
    pub(super) weights: Vec<Value>,
    pub(super) assigns: Vec<(Value, Value)>,
    pub(super) retained: Vec<(String, Value)>,
}

/// Norm and finiteness of the gradients of a step.
struct GradientStats {
    norm: Value,
    loss_finite: Value,
    gradients_finite: Value,
    finite: Value,
    /// Factor on the gradients.
    factor: Option<Value>,
}

impl StepGraph {
    /// Adds the gradient norm, the checks for finite values, and the factor on the gradients.
    fn measure(&mut self, options: &StepOptions) -> Result<GradientStats, OpError> {
        let g = &mut self.graph;
        let mut squares = Vec::with_capacity(self.gradients.len());
        for gradient in &self.gradients {
            let square = g.mul(*gradient, *gradient)?;
            let axes: Vec<usize> = (0..g.ty(square).rank()).collect();
            let sum = g.reduce_sum(square, &axes, false)?;
            squares.push(g.reshape(sum, [1usize])?);
        }
        let squares = match squares[..] {
            [one] => one,
            _ => g.concat(&squares, 0)?,
        };
        let square = g.reduce_sum(squares, &[0], false)?;
        let infinity = g.scalar(DType::F32, f64::INFINITY)?;
        // An infinity or NaN in any gradient makes the sum of squares non-finite.
        let gradients_finite = g.lt(square, infinity)?;
        let size = g.abs(self.loss)?;
        let loss_finite = g.lt(size, infinity)?;
        let finite = g.and(loss_finite, gradients_finite)?;
        let mut norm = g.sqrt(square)?;
        let mut factor = None;
        if let Some(divisor) = self.divisor {
            let inverse = g.recip(divisor)?;
            norm = g.mul(norm, inverse)?;
            factor = Some(inverse);
        }
        if let Some(most) = options.clip_norm {
            // The small addend avoids a division by zero.
            let little = g.scalar(DType::F32, 1e-6)?;
            let most = g.scalar(DType::F32, most)?;
            let one = g.scalar(DType::F32, 1.0)?;
            let above = g.plus(norm, little)?;
            let clip = g.div(most, above)?;
            let clip = g.min(clip, one)?;
            factor = Some(match factor {
                Some(factor) => g.mul(factor, clip)?,
                None => clip,
            });
        }
        Ok(GradientStats {
            norm,
            loss_finite,
            gradients_finite,
            finite,
            factor,
        })
    }

    /// Adds the optimizer, averages and outputs. Returns the added states.
    pub(super) fn finish(
        &mut self,
        trainables: &[(Value, TrainableInfo)],
        optimizer: &dyn Optimizer,
        options: &StepOptions,
    ) -> Result<Vec<StateInfo>, StepError> {
        let measured = self.measure(options)?;
        let scalar = Type::new(DType::F32, [0usize; 0]);
        let rate = self.graph.input(LEARNING_RATE, scalar)?;
        let gradients = self.weights.iter().zip(&self.gradients);
        let params = trainables.iter().zip(gradients);
        let params = params.map(|((_, info), (weight, gradient))| TrainedParam {
            name: info.name.clone(),
            weight: *weight,
            ty: info.ty.clone(),
            gradient: *gradient,
            group: info.group.clone(),
        });
        let params: Vec<TrainedParam> = params.collect();
        let GradientStats { factor, finite, .. } = measured;
        let mut u = OptimizerUpdate::new(&mut self.graph, rate, factor, finite)?;
        optimizer.update(&mut u, &params)?;
        for p in &params {
            let Some(new) = u.assigned(p.weight) else {
                let (optimizer, name) = (optimizer.name(), p.name.clone());
                return Err(StepError::NotUpdated { optimizer, name });
            };
            if let Some(decay) = options.ema_decay {
                average(&mut u, p, new, decay)?;
            }
        }
        for (state, value) in &self.assigns {
            u.assign_if_finite(*state, *value)?;
        }
        if let (Some(options), Some(scale)) = (&options.loss_scale, self.scale) {
            let GradientStats {
                loss_finite,
                gradients_finite,
                ..
            } = measured;
            options.adapt(&mut u, scale, loss_finite, gradients_finite)?;
        }
        let added = u.into_states();
        self.name_outputs(&measured)?;
        Ok(added)
    }

    fn name_outputs(&mut self, measured: &GradientStats) -> Result<(), OpError> {
        let g = &mut self.graph;
        g.output(LOSS, self.loss)?;
        g.output(GRADIENT_NORM, measured.norm)?;
        let skipped = g.not(measured.finite)?;
        g.output(SKIPPED, skipped)?;
        if let Some(scale) = self.scale {
            g.output(LOSS_SCALE, scale)?;
        }
        for (name, value) in &self.retained {
            g.output(name, *value)?;
        }
        Ok(())
    }
}

/// Adds the moving average of a trainable.
fn average(
    u: &mut OptimizerUpdate<'_>,
    p: &TrainedParam,
    new: Value,
    decay: f64,
) -> Result<(), OpError> {
    let role = StateRole::Average {
        trainable: p.name.clone(),
    };
    let name = format!("ema.{}", p.name);
    let initial = InitialState::CopyOf(p.name.clone());
    let state = u.add_state(&name, p.ty.clone(), role, initial)?;
    let value = u.blend(state, decay, new, 1.0 - decay)?;
    u.assign_if_finite(state, value)?;
    Ok(())
}
