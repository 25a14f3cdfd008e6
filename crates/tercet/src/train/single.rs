//! The graph of one microbatch with its gradients, and the graph of all microbatches.

use tercet_ir::{DType, GradError, Graph, OpError, Value};

use super::accumulate::{MicrobatchParts, accumulate};
use super::error::StepError;
use super::step::{LEARNING_RATE, LOSS, StepOptions, TrainableInfo};
use super::whole::StepGraph;

/// The graph of one microbatch with its gradients.
pub(super) struct MicrobatchGraph {
    pub(super) graph: Graph,
    /// The loss, `F32 []`.
    loss: Value,
    /// The loss weight of a microbatch, `F32 []`. `None` if there is only one microbatch.
    weight: Option<Value>,
    scale: Option<Value>,
    /// Gradients in the order of the trainables, multiplied by the loss scale and the loss weight.
    gradients: Vec<Value>,
}

impl MicrobatchGraph {
    pub(super) fn new(
        source: &Graph,
        loss: Value,
        trainables: &[(Value, TrainableInfo)],
        options: &StepOptions,
    ) -> Result<MicrobatchGraph, StepError> {
        let mut graph = Graph::new();
        for (_, node) in source.nodes() {
            graph.add(node.op.clone(), &node.inputs)?;
        }
        let weight = match options.loss_weight {
            Some(weight) => Some(loss_weight(&mut graph, weight)?),
            None => None,
        };
        // With a single microbatch the weight cancels out.
        let weight = weight.filter(|_| options.microbatches > 1);
        let in_f32 = as_f32(&mut graph, loss)?;
        let mut scaled = in_f32;
        if let Some(weight) = weight {
            scaled = graph.mul(scaled, weight)?;
        }
        expect_free(&graph, LEARNING_RATE)?;
        let scale = match &options.loss_scale {
            Some(scale) => {
                expect_free(&graph, &scale.info().name)?;
                Some(scale.add(&mut graph)?)
            }
            None => None,
        };
        if let Some(scale) = scale {
            scaled = graph.mul(scaled, scale)?;
        }
        let wanted: Vec<Value> = trainables.iter().map(|(value, _)| *value).collect();
        let gradients = match options.recompute_activations {
            true => graph.gradients_recomputing(scaled, &wanted),
            false => graph.gradients(scaled, &wanted),
        };
        let gradients = gradients.map_err(|e| match e {
            GradError::Unused { values, .. } => GradError::Unused { loss, values },
            e => e,
        })?;
        graph.output(LOSS, in_f32)?;
        Ok(MicrobatchGraph {
            graph,
            loss: in_f32,
            weight,
            scale,
            gradients,
        })
    }

    /// Builds the graph of all microbatches.
    pub(super) fn all(
        &self,
        source: &Graph,
        trainables: &[(Value, TrainableInfo)],
        kept: &[(String, Value)],
        options: &StepOptions,
    ) -> Result<StepGraph, StepError> {
        let names = kept.iter().map(|(name, _)| name.clone());
        let kept: Vec<Value> = kept.iter().map(|(_, value)| *value).collect();
        let assigns = source.assigns().iter().map(|a| (a.state, a.value));
        let assigns: Vec<(Value, Value)> = assigns.collect();
        if options.microbatches == 1 {
            let mut graph = Graph::new();
            for (_, node) in self.graph.nodes() {
                graph.add(node.op.clone(), &node.inputs)?;
            }
            return Ok(StepGraph {
                graph,
                loss: self.loss,
                scale: self.scale,
                divisor: self.scale,
                gradients: self.gradients.clone(),
                weights: trainables.iter().map(|(value, _)| *value).collect(),
                assigns,
                retained: names.zip(kept).collect(),
            });
        }
        let mut graph = self.graph.clone();
        let mut sums = vec![self.loss];
        if let Some(weight) = self.weight {
            sums = vec![graph.mul(self.loss, weight)?, weight];
        }
        let one = MicrobatchParts {
            graph: &graph,
            gradients: &self.gradients,
            sums: &sums,
            assigns: &assigns,
            retained: &kept,
        };
        let mut all = accumulate(&one, options.microbatches)?;
        let scale = self.scale.map(|scale| all.leaf(scale));
        let weights = trainables.iter().map(|(value, _)| all.leaf(*value));
        let weights = weights.collect();
        let g = &mut all.graph;
        let count = match all.sums.get(1) {
            Some(weight) => *weight,
            None => g.scalar(DType::F32, options.microbatches as f64)?,
        };
        let loss = g.div(all.sums[0], count)?;
        let divisor = match scale {
            Some(scale) => g.mul(scale, count)?,
            None => count,
        };
        Ok(StepGraph {
            loss,
            scale,
            divisor: Some(divisor),
            gradients: all.gradients,
            weights,
            assigns: all.assigns,
            retained: names.zip(all.retained).collect(),
            graph: all.graph,
        })
    }
}

fn as_f32(graph: &mut Graph, x: Value) -> Result<Value, OpError> {
    match graph.ty(x).dtype {
        DType::F32 => Ok(x),
        _ => graph.cast(x, DType::F32),
    }
}

fn loss_weight(graph: &mut Graph, weight: Value) -> Result<Value, StepError> {
    let what = "loss weight";
    let ty = graph
        .get_type(weight)
        .ok_or(StepError::NotOfGraph { what })?;
    if ty.rank() != 0 || ty.dtype == DType::Bool {
        return Err(StepError::LossWeight { ty: ty.clone() });
    }
    let weight = as_f32(graph, weight)?;
    Ok(graph.stop_gradient(weight)?)
}

fn expect_free(graph: &Graph, name: &str) -> Result<(), StepError> {
    match graph.leaf(name) {
        None => Ok(()),
        Some(_) => Err(StepError::NameTaken {
            what: "an input, parameter or state",
            name: name.to_string(),
        }),
    }
}
