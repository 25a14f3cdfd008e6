//! Tests of gradients against central differences, and of errors.

mod differences;
mod errors;
mod graphs;
mod oracle;
