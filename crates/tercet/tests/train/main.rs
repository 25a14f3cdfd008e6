//! Training compared with F64 references and with torch.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod accumulate;
mod checkpoint;
mod common;
mod errors;
mod executors;
mod fused;
mod optimizers;
mod recompute;
mod sample;
mod scale;
mod schedule;
mod trainer;
