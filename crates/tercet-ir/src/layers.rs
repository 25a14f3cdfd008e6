//! Training layers that expand to several operators: batch normalization with batch statistics, and
//! dropout.

mod batch_norm;
mod dropout;

pub use batch_norm::{BatchNorm, BatchStatistics};
