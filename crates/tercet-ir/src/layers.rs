//! Training layers that expand to several operators: batch normalization with batch statistics, and
//! dropout.

mod batch_norm;
mod dropout;
#[cfg(test)]
mod tests;

pub use batch_norm::{BatchNorm, BatchStatistics};
