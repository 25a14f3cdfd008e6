//! Training against plain computations in F64 and against torch.

mod accumulate;
mod checkpoint;
mod common;
mod errors;
mod executors;
mod fused;
mod optimizers;
mod scale;
mod schedule;
mod trainer;
