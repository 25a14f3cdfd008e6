//! Gradients against central differences, and what cannot be differentiated.

mod differences;
mod errors;
mod graphs;
mod oracle;
