//! Code shared by the examples: a model under construction, and a loss curve that is printed.

use std::error::Error;

use tercet::train::{AdamW, LearningRateSchedule, StepOptions, TrainStep, Trainable, Trainer};
use tercet::{CompileOptions, DType, Device, Graph, OpError, Tensor, TensorType, Type, Value};

/// Error type of the examples.
pub type Failed = Box<dyn Error>;

/// A graph with the initial values of its states.
#[derive(Default)]
pub struct Model {
    /// The graph.
    pub graph: Graph,
    /// Trained states with their initial values.
    pub trained: Vec<(String, Tensor)>,
    /// Other states with nonzero initial values.
    pub states: Vec<(String, Tensor)>,
}

impl Model {
    /// Adds a trained weight, initialized from a normal distribution with mean 0.
    pub fn weight(&mut self, name: &str, shape: &[usize], std: f64) -> Result<Value, Failed> {
        let stream = tercet::random::PhiloxStream {
            seed: 0,
            stream: self.trained.len() as u32,
            step: 0,
        };
        let count: usize = shape.iter().product();
        let normal = |i| std * stream.normal(DType::F32, i as u64);
        self.state_of(name, shape, (0..count).map(normal).collect())
    }

    /// Adds a trained weight, initialized with one number.
    pub fn filled(&mut self, name: &str, shape: &[usize], value: f64) -> Result<Value, Failed> {
        let count: usize = shape.iter().product();
        self.state_of(name, shape, vec![value; count])
    }

    fn state_of(&mut self, name: &str, shape: &[usize], first: Vec<f64>) -> Result<Value, Failed> {
        let tensor = Tensor::from_f64s(TensorType::new(DType::F32, shape), &first)?;
        self.trained.push((name.to_string(), tensor));
        Ok(self.graph.state(name, Type::new(DType::F32, shape))?)
    }
}

/// Mean cross-entropy of `logits [n, classes]` and `labels [n]`, and the number of correct
/// predictions; both `[]`.
pub fn cross_entropy(g: &mut Graph, logits: Value, labels: Value) -> Result<[Value; 2], OpError> {
    let log = g.log_softmax(logits, 1)?;
    let own = g.unsqueeze(labels, 1)?;
    let own = g.gather_elements(log, own, 1)?;
    let mean = g.reduce_mean(own, &[0, 1], false)?;
    let loss = g.neg(mean)?;
    let greatest = g.arg_max(logits, 1, false)?;
    let right = g.equal(greatest, labels)?;
    let right = g.cast(right, DType::F32)?;
    Ok([loss, g.reduce_sum(right, &[0], false)?])
}

/// An AdamW trainer for a model, with gradient clipping and a learning rate that decays to 0 at
/// step `steps`.
pub fn trainer(
    device: &Device,
    model: &Model,
    loss: Value,
    rate: f64,
    steps: u64,
) -> Result<Trainer, Failed> {
    let names = model.trained.iter().map(|(name, _)| name.as_str());
    let names: Vec<Trainable> = names.map(Trainable::from).collect();
    let options = StepOptions {
        clip_norm: Some(1.0),
        ..StepOptions::default()
    };
    let step = TrainStep::build(&model.graph, loss, &names, &AdamW::default(), &options)?;
    let schedule = LearningRateSchedule::cosine(rate, steps / 10, steps);
    let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
    for (name, tensor) in model.trained.iter().chain(&model.states) {
        trainer.set_state(name, tensor)?;
    }
    Ok(trainer)
}

/// Losses of a training run; ten mean values are printed.
#[derive(Debug, Default)]
pub struct Curve {
    losses: Vec<f32>,
}

impl Curve {
    /// Adds the loss of a step. After every tenth of all steps, prints the mean of that tenth.
    pub fn push(&mut self, loss: f32, steps: u64) {
        self.losses.push(loss);
        let part = (steps as usize / 10).max(1);
        if self.losses.len().is_multiple_of(part) {
            println!("step {:4}  loss {:.3}", self.losses.len(), self.last(part));
        }
    }

    /// Mean of the last `count` losses.
    pub fn last(&self, count: usize) -> f32 {
        let from = self.losses.len().saturating_sub(count);
        let last = &self.losses[from..];
        last.iter().sum::<f32>() / last.len().max(1) as f32
    }

    /// The first loss.
    pub fn first(&self) -> f32 {
        self.losses.first().copied().unwrap_or(f32::NAN)
    }
}

/// The device named by the first argument, or the best one.
pub fn device() -> Result<Device, Failed> {
    let name = std::env::args().nth(1).unwrap_or("auto".to_string());
    Ok(Device::by_name(&name)?)
}
