//! What the examples share: a model under construction, and a loop that prints its curve.

use std::error::Error;

use tercet::train::{AdamW, Schedule, StepOptions, TrainStep, Trainable, Trainer};
use tercet::{CompileOptions, DType, Device, Graph, OpError, Tensor, TensorType, Type, Value};

/// What ends an example early.
pub type Failed = Box<dyn Error>;

/// A graph, and what its states start as.
#[derive(Default)]
pub struct Model {
    /// The graph.
    pub graph: Graph,
    /// What is trained, and its first values.
    pub trained: Vec<(String, Tensor)>,
    /// Other states that do not start as zeros.
    pub states: Vec<(String, Tensor)>,
}

impl Model {
    /// A trained weight, normal around 0 at first.
    pub fn weight(&mut self, name: &str, shape: &[usize], std: f64) -> Result<Value, Failed> {
        let stream = tercet::random::Stream {
            seed: 0,
            stream: self.trained.len() as u32,
            step: 0,
        };
        let count: usize = shape.iter().product();
        let normal = |i| std * stream.normal(DType::F32, i as u64);
        self.state_of(name, shape, (0..count).map(normal).collect())
    }

    /// A trained weight that starts as one number.
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

/// The mean cross-entropy of `logits [n, classes]` and `labels [n]`, and how many are right; both `[]`.
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

/// A trainer of a model by AdamW, with gradients clipped and a learning rate that falls to nothing by `steps`.
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
    let schedule = Schedule::cosine(rate, steps / 10, steps);
    let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
    for (name, tensor) in model.trained.iter().chain(&model.states) {
        trainer.set_state(name, tensor)?;
    }
    Ok(trainer)
}

/// The losses of a training as they come; ten lines of them are printed.
#[derive(Debug, Default)]
pub struct Curve {
    losses: Vec<f32>,
}

impl Curve {
    /// Takes the loss of a step, and prints the mean of a tenth of all.
    pub fn push(&mut self, loss: f32, steps: u64) {
        self.losses.push(loss);
        let part = (steps as usize / 10).max(1);
        if self.losses.len().is_multiple_of(part) {
            println!("step {:4}  loss {:.3}", self.losses.len(), self.last(part));
        }
    }

    /// The mean of the last so many.
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

/// The device that is named as the first argument, else the best one.
pub fn device() -> Result<Device, Failed> {
    let name = std::env::args().nth(1).unwrap_or("auto".to_string());
    Ok(Device::by_name(&name)?)
}
