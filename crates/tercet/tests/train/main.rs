//! Training on the CPU executor, against plain computations in F64 and against torch.

mod accumulate;
mod checkpoint;
mod common;
mod errors;
mod fused;
mod optimizers;
mod scale;
mod schedule;
mod trainer;
