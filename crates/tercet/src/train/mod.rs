//! Training.

mod accumulate;
mod checkpoint;
mod diagnose;
mod error;
mod evaluate;
pub mod optim;
mod params;
mod scale;
mod schedule;
mod single;
mod state;
mod step;
mod trainer;
mod whole;

pub use checkpoint::{CheckpointError, CheckpointInfo, checkpoint_info};
pub use diagnose::NotFinite;
pub use error::{StepError, TrainError};
pub use evaluate::{Evaluator, Weights};
pub use optim::{AdamW, Lion, Muon, MuonScale, Optimizer, Param, Sgd, Update};
pub use params::{ParamGroup, Trainable};
pub use scale::LossScale;
pub use schedule::Schedule;
pub use state::{Initial, StateInfo, StateRole};
pub use step::{
    GRADIENT_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, MOST_MICROBATCHES, SKIPPED, StepOptions,
    TrainStep, TrainableInfo,
};
pub use trainer::{Batch, Callback, StepReport, Trainer};
