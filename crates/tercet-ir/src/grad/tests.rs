//! Tests of gradient graphs and of errors.

mod errors;
mod graphs;
