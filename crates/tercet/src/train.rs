//! Training, on every executor. A training step is one ordinary graph.
//!
//! [`TrainStep::build`] takes a graph with a loss and the names of the states to train, and builds
//! the graph of one step. The step graph contains the gradients
//! ([`Graph::gradients`](tercet_ir::Graph::gradients)), their norm and clipping, an [`Optimizer`],
//! and the assignment of states. A [`Trainer`] compiles the step for a [`Device`](crate::Device)
//! and runs it. One run is one step: it takes inputs and a learning rate, and returns a loss and a
//! gradient norm. Weights and moments stay on the device.
//!
//! ```
//! use tercet::train::{AdamW, LearningRateSchedule, StepOptions, TrainStep, Trainer};
//! use tercet::{CompileOptions, DType, Device, Graph, Tensor, Type};
//!
//! // y = w x + b, by the mean of the squared errors.
//! let mut g = Graph::new();
//! let x = g.input("x", Type::new(DType::F32, [4]))?;
//! let y = g.input("y", Type::new(DType::F32, [4]))?;
//! let (w, b) = (g.state("w", Type::new(DType::F32, [1]))?, g.state("b", Type::new(DType::F32, [1]))?);
//! let product = g.mul(w, x)?;
//! let guess = g.plus(product, b)?;
//! let error = g.sub(guess, y)?;
//! let square = g.mul(error, error)?;
//! let loss = g.reduce_mean(square, &[0], false)?;
//!
//! let options = StepOptions { clip_norm: Some(1.0), ..StepOptions::default() };
//! let step = TrainStep::build(&g, loss, &["w".into(), "b".into()], &AdamW::default(), &options)?;
//! let schedule = LearningRateSchedule::cosine(0.1, 10, 200);
//! let mut trainer = Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new())?;
//! trainer.set_state("w", &Tensor::from_slice(&[1], &[0f32])?)?;
//! trainer.set_state("b", &Tensor::from_slice(&[1], &[0f32])?)?;
//!
//! let x = Tensor::from_slice(&[4], &[-1f32, 0.0, 1.0, 2.0])?;
//! let y = Tensor::from_slice(&[4], &[-1f32, 1.0, 3.0, 5.0])?;
//! for _ in 0..200 {
//!     trainer.step(&[("x", &x), ("y", &y)])?;
//! }
//! assert!((trainer.state("w")?.as_slice::<f32>()?[0] - 2.0).abs() < 0.02);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - Weights are `F32` states. To compute in F16 or BF16, cast the weights at their uses; F16 needs
//!   [`StepOptions::loss_scale`].
//! - [`StepOptions::microbatches`] accumulates gradients within one run; [`StepOptions::ema_decay`]
//!   maintains moving averages; [`ParamGroup`] sets weight decay and learning rate per trainable.
//! - A step with a non-finite loss or gradient changes no state, and [`NonFiniteStep`] names the value
//!   that caused it.
//! - [`Trainer::save`] and [`Trainer::restore`]: a resumed run gives the same bits as an
//!   uninterrupted one.
//! - [`Trainer::unchanged_trainables`] lists trainables that training does not change; [`Trainer::evaluator`]
//!   runs another graph with the weights.
//!
//! `single.rs` differentiates one microbatch, `accumulate.rs` sums over all microbatches,
//! `whole.rs` adds the nodes after the gradients.

mod accumulate;
mod checkpoint;
mod diagnose;
mod error;
mod evaluate;
pub mod optim;
mod params;
pub(crate) mod sample;
mod scale;
mod schedule;
mod single;
mod state;
mod step;
mod trainer;
mod whole;

pub use checkpoint::{CheckpointError, CheckpointInfo, checkpoint_info};
pub use diagnose::NonFiniteStep;
pub use error::{StepError, TrainError};
pub use evaluate::{EvalWeights, Evaluator};
pub use optim::{AdamW, Lion, Muon, MuonScale, Optimizer, OptimizerUpdate, Sgd, TrainedParam};
pub use params::{ParamGroup, Trainable};
pub use sample::EvaluationSample;
pub use scale::LossScale;
pub use schedule::LearningRateSchedule;
pub use state::{InitialState, StateInfo, StateRole};
pub use step::{
    GRADIENT_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, MAX_MICROBATCHES, SKIPPED, StepOptions,
    TrainStep, TrainableInfo,
};
pub use trainer::{StepInputs, StepReport, TrainCallback, Trainer};
