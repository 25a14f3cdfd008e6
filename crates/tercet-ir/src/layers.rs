//! What training builds of several operators: normalisation by the statistics of a batch, and dropout.

mod batch_norm;
mod dropout;
#[cfg(test)]
mod tests;

pub use batch_norm::{BatchNorm, BatchStatistics};
